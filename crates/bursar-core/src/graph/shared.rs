//! The state of a memory for graphs: its segments, its blocks, and what is remembered of captures.
#![allow(unsafe_code)]

use super::arena::{Arena, FreePoint};
use super::launch::Launches;
use crate::context::{AwakeUse, CaptureOrder, CaptureOrigin, DeclaredUse, FirstUse, LaunchedMemory, Point};
use crate::observe::GraphCount;
use crate::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Note, OwnerId, RawStream,
    Refused, Remains, Result, Stream, Survey,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A memory for graphs, which its handles and its graphs share.
pub(super) struct Shared {
    pub(super) below: Arc<dyn DeviceMemoryResource>,
    pub(super) owner: OwnerId,
    /// The stream that segments are taken on and given back on. It is never captured.
    pub(super) own: Stream,
    state: Mutex<State>,
    pub(super) launches: Launches,
    /// The counts of its blocks by tag.
    pub(super) count: GraphCount,
    /// The number of graphs that live.
    pub(super) graphs: AtomicUsize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) arena: Arena<Point>,
    /// The segments, which are blocks of the memory below.
    pub(super) segments: Vec<DeviceBlock>,
    /// The live blocks, by address.
    pub(super) live: BTreeMap<u64, LiveBlock>,
    pub(super) capture: Option<Arc<CaptureOrder>>,
    /// Memory that streams outside freed while a capture is under way: it is free when that has ended.
    pub(super) freed_outside: Vec<(u64, u64)>,
    pub(super) released: u64,
    /// Set where no graph is captured into it or launched any more.
    pub(super) is_released: bool,
    /// The uses of blocks, with the numbers of their captures. A launch may write to any block that its graph or a later one left
    /// behind, whether it was used in the capture or not: other blocks were there before.
    used: Vec<(u64, Arc<dyn DeclaredUse>)>,
}

#[derive(Clone, Copy)]
pub(super) struct LiveBlock {
    pub(super) bytes: u64,
    pub(super) origin: CaptureOrigin,
    pub(super) tag: AllocTag,
}

impl FreePoint for Point {
    fn is_same_stream(self, other: Self) -> bool {
        self.0 == other.0
    }
}

impl State {
    /// Forgets a block that was freed.
    pub(super) fn forget(&mut self, at: u64, count: &GraphCount) {
        if let Some(LiveBlock { bytes, tag, .. }) = self.live.remove(&at) {
            self.released = self.released.wrapping_add(bytes);
            count.freed(tag, Bytes(bytes));
        }
    }

    /// Takes the segments out that no block is in.
    fn take_unused(&mut self) -> Vec<DeviceBlock> {
        let Self { segments, live, arena, .. } = self;
        let is_unused = |segment: &mut DeviceBlock| {
            let range = segment.ptr().0..segment.ptr().0 + segment.requested().get();
            let is_unused = live.range(range.clone()).next().is_none();
            if is_unused {
                arena.remove(range);
            }
            is_unused
        };
        segments.extract_if(.., is_unused).collect()
    }
}

impl Shared {
    pub(super) fn new(below: Arc<dyn DeviceMemoryResource>) -> Result<Self> {
        let own = below.context().take_idle_stream()?;
        let (owner, graphs) = (OwnerId::unique(), AtomicUsize::new(0));
        let (context, survey) = (below.context(), Survey::of_path(|survey| below.survey(survey)));
        let count = context.sink().count_graph(context.device(), &survey);
        Ok(Self { below, owner, own, state: Mutex::default(), launches: Launches::default(), count, graphs })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        self.below.context()
    }

    /// Begins a use of all of it, which is refused where some of it sleeps; whoever falls asleep waits until it is over.
    pub(super) fn use_awake(&self) -> Result<AwakeUse<'_>> {
        let of = |segment: &DeviceBlock| (segment.ptr(), segment.requested().get());
        let ranges = std::iter::once_with(|| self.state().segments.iter().map(of).collect::<Vec<_>>());
        self.context().use_awake_ranges(ranges.flatten()).map_err(|error| match error {
            Error::Asleep { device, is_moving, .. } => {
                Error::Asleep { device, what: "the memory of a graph", is_moving }
            }
            error => error,
        })
    }

    /// Sends a note in the order of the memory's own stream.
    pub(super) fn note_on_own(&self, note: impl FnOnce(RawStream) -> Note) {
        if let Ok(held) = self.context().hold(self.own) {
            // SAFETY: the range is a segment of this memory, and the stream is held.
            unsafe { self.context().note(note(held.raw())) };
        }
    }

    /// Returns the uses of the blocks that a graph which was captured with this number may write to: those of its own capture and
    /// of later ones, which lie where it has its scratch.
    pub(super) fn written_by(&self, capture: u64) -> Vec<Arc<dyn DeclaredUse>> {
        let state = self.state();
        let written = state.used.iter().filter(|(of, uses)| *of >= capture && !uses.is_over());
        written.map(|(_, uses)| uses.clone()).collect()
    }

    /// Returns whether uses are of a block that was allocated in a capture into this memory, by its number. The address does not
    /// tell: a segment may lie where another block was before.
    pub(super) fn is_of(&self, capture: u64, uses: &dyn DeclaredUse) -> bool {
        uses.owner() == self.owner && uses.origin().is_some_and(|origin| origin.capture == capture)
    }

    /// Gives the segments back that no block is in, after everything that was launched; returns how much that was. Where
    /// something that was launched cannot be waited for, all of it stays and is given back when this is next called.
    pub(super) fn give_back_unused(&self) -> Bytes {
        if let Err(error) = self.launches.end(self.context(), self.own) {
            remember(self.context(), &error);
            return Bytes::ZERO;
        }
        let unused = self.state().take_unused();
        let (given, kept) = give_back(&*self.below, self.own, unused);
        self.state().segments.extend(kept);
        given
    }

    /// Says that no graph is captured into it or launched any more, unless one lives or is being captured.
    pub(super) fn release(&self) -> Result<()> {
        let mut state = self.state();
        if state.capture.is_some() {
            return Err(Error::InvalidValue { what: "a graph is being captured into this memory" });
        }
        if self.graphs.load(Ordering::Acquire) > 0 {
            return Err(Error::InvalidValue { what: "a graph that uses this memory can still be launched" });
        }
        state.is_released = true;
        Ok(())
    }
}

impl LaunchedMemory for Shared {
    fn context(&self) -> &Arc<DeviceContext> {
        self.below.context()
    }

    /// A launch looks for uses in its turn, so it either finds these or is the last one before.
    fn first_use(&self, ptr: DevicePtr, uses: Arc<dyn DeclaredUse>) -> FirstUse {
        self.launches.in_turn(|last, has_news| {
            let mut state = self.state();
            state.used.retain(|(_, uses)| !uses.is_over());
            let origin = state.live.get(&ptr.0).map(|live| live.origin);
            state.used.extend(origin.map(|origin| (origin.capture, uses)));
            FirstUse { origin, after: [last, has_news.then_some(self.own)] }
        })
    }
}

/// Remembers a failure that is tried again later. That a stream is captured meanwhile is none.
fn remember(context: &DeviceContext, error: &Error) {
    if let Error::Driver(error) = error {
        context.fault().record(*error);
    }
}

/// Gives segments back to the memory below, in the order of a stream; returns how much that was, and what was refused.
fn give_back(below: &dyn DeviceMemoryResource, own: Stream, segments: Vec<DeviceBlock>) -> (Bytes, Vec<DeviceBlock>) {
    let (context, mut given, mut kept) = (below.context(), Bytes::ZERO, Vec::new());
    for segment in segments {
        let (ptr, bytes) = (segment.ptr(), segment.requested());
        if let Ok(held) = context.hold(own) {
            // SAFETY: the range is a segment that no block is in, and the stream is held.
            unsafe { context.note(Note::Rejoined { ptr, stream: held.raw() }) };
        }
        match below.deallocate(segment, own) {
            Ok(()) => given = given.saturating_add(bytes),
            Err(Refused { block, error }) => {
                remember(context, &error);
                kept.push(block);
            }
        }
    }
    (given, kept)
}

/// The segments of a memory that is gone, which could not be given back yet. They are blocks of the memory below, which counts
/// them; where that is gone too, it keeps them held as any block that is still out.
struct LeftSegments {
    below: Weak<dyn DeviceMemoryResource>,
    own: Stream,
    launches: Launches,
    segments: Vec<DeviceBlock>,
    is_over: bool,
}

impl Remains for LeftSegments {
    fn give_back(&mut self, context: &DeviceContext, _: Duration) -> Bytes {
        if let Err(error) = self.launches.end(context, self.own) {
            remember(context, &error);
            return Bytes::ZERO;
        }
        let segments = std::mem::take(&mut self.segments);
        let (given, kept) = match self.below.upgrade() {
            Some(below) => give_back(&*below, self.own, segments),
            None => (Bytes::ZERO, Vec::new()),
        };
        self.segments = kept;
        self.is_over = self.segments.is_empty();
        if self.is_over {
            context.take_back_stream(self.own, 0);
        }
        given
    }

    fn bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    fn is_empty(&self) -> bool {
        self.is_over
    }
}

impl fmt::Debug for LeftSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeftSegments").field("segments", &self.segments.len()).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    /// Gives the segments back that no block is in. The tokens of the others are dropped, which keeps them held.
    fn drop(&mut self) {
        self.context().forget_launched_memory(self.owner);
        self.give_back_unused();
        let segments = self.state().take_unused();
        let (below, launches) = (Arc::downgrade(&self.below), std::mem::take(&mut self.launches));
        if segments.is_empty() && launches.is_over() {
            self.context().take_back_stream(self.own, 0);
        } else {
            self.context().leave(LeftSegments { below, own: self.own, launches, segments, is_over: false });
        }
    }
}
