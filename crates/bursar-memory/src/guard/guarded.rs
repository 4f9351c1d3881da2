//! Memory under guard.

use super::Watch;
use super::findings::Findings;
use super::keeper::{Keeper, Shape};
use super::live::Watched;
use super::quarantine::Kept;
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Fenced, Holder, Refused, Result, Stream,
};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Memory whose blocks are watched; see [`Guard`](super::Guard), the layer that makes it.
///
/// ```
/// use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Holder, Stack, leaf, tag};
/// use bursar_memory::{Guard, Guarded};
/// use bursar_sim::Sim;
/// use std::time::Duration;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let stack = Stack::new().layer(Guard::default()).over(leaf::Async);
/// let memory = stack.build(&context)?;
/// let guarded: &Guarded<_> = memory.inner();
///
/// assert_eq!(guarded.granted_size(256, 256)?, Bytes(768), "with a margin of 256 bytes either side");
/// let block = memory.allocate(256, 256, stream, tag!("small"))?;
/// memory.deallocate(block, stream)?;
/// assert_eq!(guarded.quarantined(), Bytes(768));
/// memory.reap_blocking(Duration::MAX)?;
/// assert_eq!(guarded.quarantined(), Bytes::ZERO);
/// # Ok::<(), bursar_core::Error>(())
/// ```
pub struct Guarded<R: DeviceMemoryResource> {
    keeper: Arc<Keeper<R>>,
}

impl<R: DeviceMemoryResource> Guarded<R> {
    /// Guards `inner`.
    pub(super) fn new(inner: R, quarantine: Bytes, patience: Duration) -> Self {
        let keeper = Arc::new(Keeper::new(inner, quarantine, patience));
        let member: Weak<Keeper<R>> = Arc::downgrade(&keeper);
        keeper.context().join(member);
        Self { keeper }
    }

    pub(super) fn watch(&self) -> Weak<dyn Watch> {
        let watch: Weak<Keeper<R>> = Arc::downgrade(&self.keeper);
        watch
    }

    pub(super) fn findings(&self) -> &Arc<Findings> {
        &self.keeper.findings
    }

    /// What is guarded.
    pub fn inner(&self) -> &R {
        &self.keeper.inner
    }

    /// How much freed memory is kept.
    pub fn quarantined(&self) -> Bytes {
        Bytes(self.keeper.quarantine.bytes())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for Guarded<R> {
    fn context(&self) -> &Arc<DeviceContext> {
        self.keeper.context()
    }
    fn bytes_outstanding(&self) -> Bytes {
        self.keeper.inner.bytes_outstanding()
    }
    fn released_total(&self) -> u64 {
        self.keeper.inner.released_total()
    }

    fn reap(&self) -> Result<Bytes> {
        self.keeper.findings.report(self.context())?;
        self.keeper.drain_and_reap()
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.keeper.findings.report(self.context())?;
        self.context().order_ended(patience);
        self.keeper.drain();
        let reaped = self.keeper.inner.reap_blocking(patience)?;
        self.keeper.findings.report(self.context()).map(|()| reaped)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Guarded<R> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        let shape = Shape::of(bytes, align)?;
        self.keeper.inner.granted_size(shape.whole, align).map_err(|error| shape.named(error))
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let keeper = &self.keeper;
        let shape = Shape::of(bytes, align)?;
        keeper.findings.report(self.context())?;
        let whole = keeper.obtain(shape, align, stream, tag)?;
        let whole = keeper.paint(whole, shape, stream)?;
        let (fenced, block) = Fenced::cut(whole, shape.front, bytes, keeper.owner);
        keeper.live.put(Watched::new(fenced));
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let keeper = &self.keeper;
        keeper.findings.tell(self.context());
        let watched = if block.owner() == keeper.owner { keeper.live.remove(block.generation()) } else { None };
        let Some(watched) = watched else {
            let error = Error::ForeignBlock { device: self.context().device(), ptr: block.ptr() };
            return Err(Refused { block, error });
        };
        // Where the driver cannot even answer, the free itself meets the same failure, and is kept below.
        let ordered = match keeper.ordered(&block, stream) {
            Ok(()) => true,
            Err(error) if error.driver_error().is_some() => false,
            Err(error) => {
                keeper.live.put(watched);
                return Err(Refused { block, error });
            }
        };
        if let Some(kept) = keeper.quarantine.keep(keeper.retire(watched, block, stream, ordered)) {
            // Nobody has had time to write to it.
            keeper.give_back(Kept { filled: None, ..kept });
        }
        while let Some(kept) = keeper.quarantine.leaving() {
            keeper.give_back(kept);
        }
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        self.keeper.inner.tracks_use()
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Guarded<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("quarantined", &self.quarantined())
            .field("inner", self.inner())
            .finish_non_exhaustive()
    }
}
