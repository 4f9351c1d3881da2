//! Memory under guard.

use super::Inspect;
use super::findings::Findings;
use super::live_blocks::LiveBlock;
use super::watcher::{PaddedSize, Watcher};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, Error, FencedBlock, Holder, Refused, Result, Stream, Survey,
    SurveyStep, forward_holder, forward_memory_resource,
};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Memory whose blocks are watched; [`Guard`](super::Guard) makes it.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource, GuardResource, Holder};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, Guard, Stack, leaf, tag};
/// use std::time::Duration;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let stack = Stack::new().layer(Guard::default()).over(leaf::Async);
/// let memory = stack.build(&context)?;
/// let guard: &GuardResource<_> = memory.inner();
///
/// assert_eq!(guard.granted_size(256, 256)?, Bytes(768), "with a margin of 256 bytes either side");
/// let block = memory.allocate(256, 256, stream, tag!("small"))?;
/// memory.deallocate(block, stream)?;
/// assert_eq!(guard.quarantined(), Bytes(768));
/// memory.reap_blocking(Duration::MAX)?;
/// assert_eq!(guard.quarantined(), Bytes::ZERO);
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct GuardResource<R: DeviceMemoryResource> {
    watcher: Arc<Watcher<R>>,
}

impl<R: DeviceMemoryResource> GuardResource<R> {
    /// Guards `inner`.
    pub(super) fn new(inner: R, quarantine: Bytes, patience: Duration) -> Self {
        let watcher = Arc::new(Watcher::new(inner, quarantine, patience));
        let member: Weak<Watcher<R>> = Arc::downgrade(&watcher);
        watcher.context().join(member);
        Self { watcher }
    }

    pub(super) fn inspect(&self) -> Weak<dyn Inspect> {
        let inspect: Weak<Watcher<R>> = Arc::downgrade(&self.watcher);
        inspect
    }

    pub(super) fn findings(&self) -> &Arc<Findings> {
        &self.watcher.findings
    }

    /// Returns the memory that is guarded.
    pub fn inner(&self) -> &R {
        &self.watcher.inner
    }

    /// Returns how much freed memory is kept.
    pub fn quarantined(&self) -> Bytes {
        Bytes(self.watcher.quarantine.bytes())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for GuardResource<R> {
    forward_holder!(self.watcher.inner; context, bytes_outstanding, released_total);

    fn survey(&self, survey: &mut Survey) {
        survey.add(SurveyStep::Quarantine(self.quarantined()));
        self.watcher.inner.survey(survey);
    }

    fn reap(&self) -> Result<Bytes> {
        self.watcher.findings.report(self.context())?;
        self.watcher.drain_and_reap()
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.watcher.findings.report(self.context())?;
        self.context().order_ended(patience);
        self.watcher.drain();
        let reaped = self.watcher.inner.reap_blocking(patience)?;
        self.watcher.findings.report(self.context()).map(|()| reaped)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for GuardResource<R> {
    forward_memory_resource!(self.watcher.inner; tracks_use);

    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        let size = PaddedSize::of(bytes, align)?;
        self.watcher.inner.granted_size(size.whole, align).map_err(|error| size.name_requested(error))
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let watcher = &self.watcher;
        let size = PaddedSize::of(bytes, align)?;
        watcher.findings.report(self.context())?;
        watcher.retire_awake();
        let whole = watcher.allocate(size, align, stream, tag)?;
        let whole = watcher.fill_fresh(whole, size, stream)?;
        let (fenced, block) = FencedBlock::cut(whole, size.front, bytes, watcher.owner);
        watcher.live.put(LiveBlock::new(fenced));
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let watcher = &self.watcher;
        watcher.findings.emit(self.context());
        let live = if block.owner() == watcher.owner { watcher.live.remove(block.generation()) } else { None };
        let Some(live) = live else {
            let error = Error::ForeignBlock { device: self.context().device(), ptr: block.ptr() };
            return Err(Refused { block, error });
        };
        // Where the driver fails, the free itself meets the same failure, and is kept below.
        let ordered = match watcher.ordered(&block, stream) {
            Ok(()) => true,
            Err(error) if error.driver_error().is_some() => false,
            Err(error) => {
                watcher.live.put(live);
                return Err(Refused { block, error });
            }
        };
        watcher.retire(live, block, stream, ordered);
        Ok(())
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for GuardResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardResource")
            .field("quarantined", &self.quarantined())
            .field("inner", self.inner())
            .finish_non_exhaustive()
    }
}
