//! Memories whose blocks are written to by the launches of graphs, without a declared use.

use super::{CaptureOrigin, DeclaredUse, DeviceContext};
use crate::{DevicePtr, OwnerId, Stream};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A memory that graphs are launched with.
pub(crate) trait LaunchedMemory: Send + Sync {
    /// Returns the context of its streams.
    fn context(&self) -> &Arc<DeviceContext>;

    /// Has launches count as uses of the block at an address, from now on.
    fn first_use(&self, ptr: DevicePtr, uses: Arc<dyn DeclaredUse>) -> FirstUse;
}

/// The origin of a block of such a memory, told when it is first used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstUse {
    /// The capture that it was allocated in, and where there.
    pub(crate) origin: Option<CaptureOrigin>,
    /// The streams of whatever wrote there before: that of the last launch, and one that comes after what was freed since.
    pub(crate) after: [Option<Stream>; 2],
}

/// The memories of a device that graphs are launched with, by the owner of their blocks.
#[derive(Default)]
pub(crate) struct LaunchedMemories {
    count: AtomicUsize,
    all: Mutex<Vec<(OwnerId, Weak<dyn LaunchedMemory>)>>,
}

impl LaunchedMemories {
    fn all(&self) -> MutexGuard<'_, Vec<(OwnerId, Weak<dyn LaunchedMemory>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceContext {
    /// Enters a memory that graphs are launched with.
    pub(crate) fn enter_launched_memory(&self, owner: OwnerId, memory: Weak<dyn LaunchedMemory>) {
        self.launched_memories.all().push((owner, memory));
        self.launched_memories.count.fetch_add(1, Ordering::Release);
    }

    /// Forgets a memory that [was entered](Self::enter_launched_memory).
    pub(crate) fn forget_launched_memory(&self, owner: OwnerId) {
        let mut all = self.launched_memories.all();
        let before = all.len();
        all.retain(|(other, _)| *other != owner);
        self.launched_memories.count.fetch_sub(before - all.len(), Ordering::Release);
    }

    /// Returns the memory that made a block with this owner, if graphs are launched with it.
    pub(crate) fn launched_memory(&self, owner: OwnerId) -> Option<Arc<dyn LaunchedMemory>> {
        if self.launched_memories.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let all = self.launched_memories.all();
        all.iter().find(|(other, _)| *other == owner).and_then(|(_, memory)| memory.upgrade())
    }
}

impl fmt::Debug for LaunchedMemories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchedMemories").field("count", &self.count).finish_non_exhaustive()
    }
}
