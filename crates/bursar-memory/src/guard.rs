//! Finds writes outside blocks and after their end.
//!
//! [`Guard`] is the layer and [`GuardResource`] what it makes. The state of one device is a [`watcher`]: the blocks
//! that users have ([`live_blocks`]), those that were freed and are kept ([`quarantine`]), and what was found
//! ([`findings`]).
//!
//! **A guard looks in stream order.** Margins and freed blocks are copied to pinned memory and compared by a host
//! function on the freeing stream; only a driver that takes no more work for that stream makes anybody wait. One piece
//! of host memory serves a stream, because what follows there comes after the comparison.

mod findings;
mod given_up;
mod live_blocks;
mod quarantine;
mod resource;
mod watcher;

pub use resource::GuardResource;

use bursar_core::{Bytes, DeviceMemoryResource, Error, Layer, Result};
use findings::Findings;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The width of the margin on each side of a block, in bytes.
const MARGIN: u64 = 256;
/// The byte that margins are filled with.
const CANARY: u8 = 0xa5;
/// The byte that a fresh block is filled with: not-a-number in every floating-point format.
const FRESH: u8 = 0xff;
/// The byte that a freed block is filled with.
const FREED: u8 = 0xdb;

/// A layer that finds writes outside blocks and writes to blocks that were freed, and the handle that returns the
/// findings: clones share it.
///
/// Each block gets a margin of 256 bytes on both sides, filled with a pattern, and is itself filled with `0xff`, which
/// makes floating-point numbers that nobody wrote stand out as not-a-number. When it is freed the margins are looked
/// at, and the whole is filled with `0xdb` and kept for a while: the *quarantine*. When it leaves that, all of it is
/// looked at. Filling and looking happen in the order of the stream that frees, and only a driver that takes no more
/// work for that stream makes anybody wait.
///
/// A finding is an [`Error::OutOfBounds`] that says at which offset of which block something was written, or an
/// [`Error::UseAfterFree`]. A free never fails because of one. It goes to the event sink of the device, and the next
/// fallible call of the stack (to allocate or to reap) fails with it, each finding once. [`check`](Self::check) looks
/// at everything there is and returns whatever was found and not reported yet.
///
/// The quarantine is given up before a request is refused for want of memory, by every reap, and by a trim. A block
/// larger than all of it is not kept. Nothing is promised about what happens to be overwritten with the pattern's own
/// value, about writes that miss the margins, or about reads.
///
/// Memory that [sleeps](bursar_core::Sleeper) is neither filled nor looked at. A block that is freed asleep is looked at, filled
/// and kept once it is awake, by the next call after that; [`check`](Self::check) passes over what sleeps, and what is
/// asleep when the memory goes away is not looked at any more. Where contents were given up asleep, nothing is reported, and the
/// margins of live blocks are written anew by the next [`check`](Self::check).
///
/// This is for finding bugs: a block costs about eight calls of the driver, and what leaves the quarantine is copied to
/// the host. It costs nothing where it is not in the stack. Put it on top, so that limits below count the margins and
/// what is in quarantine:
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::{Launch, Sim};
/// use bursar::{Bytes, DeviceId, Error, GlobalDeviceBudget, Guard, Stack, leaf, tag};
///
/// let sim = Sim::immediate();
/// let context = DeviceContext::open(sim.clone(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let guard = Guard::default();
/// let stack = Stack::new().layer(guard.clone()).layer(GlobalDeviceBudget::of(Bytes::gib(1))).over(leaf::Async);
/// let memory = stack.build(&context)?;
///
/// let block = memory.allocate(1000, 256, stream, tag!("weights"))?;
/// assert!(guard.check()?.is_empty());
/// let beyond = block.ptr().offset(1000);
/// let kernel = Launch::new("too far").writes(beyond, 1).body(move |memory| memory.write(beyond, &[1]));
/// sim.launch(context.device(), context.resolve(stream)?, kernel)?;
/// assert!(matches!(guard.check()?[..], [Error::OutOfBounds { offset: 1000, .. }]));
/// memory.deallocate(block, stream)?;
/// # Ok::<(), Error>(())
/// ```
///
/// Below a budget it works too, but a budget refuses what only the quarantine's memory could meet, unless that is
/// checked and free again within a few milliseconds:
///
/// ```text
/// Stack::new().layer(GlobalDeviceBudget::of(limit)).layer(Guard::default()).over(leaf::Async)
/// ```
#[derive(Clone, Debug)]
pub struct Guard {
    quarantine: Bytes,
    patience: Duration,
    built: Arc<Mutex<Vec<BuiltGuard>>>,
}

/// The guard of one device, as far as the handle knows it.
#[derive(Debug)]
struct BuiltGuard {
    memory: Weak<dyn Inspect>,
    findings: Arc<Findings>,
}

/// A guard over any kind of memory, for the handle.
trait Inspect: fmt::Debug + Send + Sync {
    /// Looks at everything, and returns when that has been done.
    fn inspect_all(&self) -> Result<()>;
}

impl Default for Guard {
    /// A quarantine of 64 MiB a device, given up within a second where memory is short.
    fn default() -> Self {
        Self { quarantine: Bytes::mib(64), patience: Duration::from_secs(1), built: Arc::default() }
    }
}

impl Guard {
    /// Sets how much freed memory is kept on each device, margins included. With none, margins are still watched.
    #[must_use]
    pub fn quarantine(mut self, bytes: Bytes) -> Self {
        self.quarantine = bytes;
        self
    }

    /// Sets how long a request that does not fit waits for what was in quarantine to be free.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Looks at the margins of every live block and at everything in quarantine, and returns what was found there or
    /// before and not reported yet. Each block is reported once while it lives, and once after.
    ///
    /// It waits for the streams that the blocks were allocated and freed on. A write on another stream is seen if it
    /// has run by then.
    pub fn check(&self) -> Result<Vec<Error>> {
        let built = || self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let living: Vec<_> = built().iter().filter_map(|built| built.memory.upgrade()).collect();
        living.iter().try_for_each(|memory| memory.inspect_all())?;
        let found: Vec<_> = built().iter().map(|built| built.findings.clone()).collect();
        built().retain(|built| built.memory.strong_count() > 0);
        Ok(found.iter().flat_map(|findings| findings.take_all()).collect())
    }
}

impl<I: DeviceMemoryResource> Layer<I> for Guard {
    type Output = GuardResource<I>;

    fn layer(&self, inner: I) -> Result<GuardResource<I>> {
        let guard = GuardResource::new(inner, self.quarantine, self.patience);
        let built = BuiltGuard { memory: guard.inspect(), findings: guard.findings().clone() };
        self.built.lock().unwrap_or_else(PoisonError::into_inner).push(built);
        Ok(guard)
    }
}
