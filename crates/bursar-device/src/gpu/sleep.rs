//! Devices whose memory sleeps.

use super::Gpu;
use bursar_core::{
    AllocTag, Bytes, Error, HostStore, Result, SleepReading, SleepReport, SleepRequest, SleepRequestId, TaggedBlocks,
    WakeReport, WakeRequest,
};
use std::sync::Arc;
use std::time::Duration;

/// Options for putting memory to sleep: which of it, and what becomes of its contents and its place.
///
/// ```
/// use bursar::device::SleepOptions;
/// use bursar::tag;
/// use std::time::Duration;
///
/// let all = SleepOptions::new().discard(tag!("kv-cache")).keep_place();
/// let weights = SleepOptions::new().only(tag!("weights")).patience(Duration::from_secs(5));
/// # let _ = (all, weights);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until memory is put to sleep with them"]
pub struct SleepOptions {
    only: Vec<AllocTag>,
    discard: Vec<AllocTag>,
    id: Option<SleepRequestId>,
    request: SleepRequest,
}

impl SleepOptions {
    /// Makes the options with which everything sleeps and nothing is lost.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the blocks of a tag sleep, and of other tags that are given so, and no others. Their blocks must have been
    /// [recorded](Gpu::record_tags). The memory of graphs has the tag `graph memory`, whatever its buffers were tagged with in the
    /// capture: a graph needs all of it, so it sleeps as one.
    pub fn only(mut self, tag: AllocTag) -> Self {
        self.only.push(tag);
        self
    }

    /// Gives the contents of a tag up, which is faster and takes no host memory. Its blocks must have been
    /// [recorded](Gpu::record_tags).
    pub fn discard(mut self, tag: AllocTag) -> Self {
        self.discard.push(tag);
        self
    }

    /// Gives all contents up.
    pub const fn discard_all(mut self) -> Self {
        self.request.discard_all = true;
        self
    }

    /// Keeps the place: limits and ledgers go on charging for what sleeps, so that nobody else gets it and waking is not
    /// refused by them.
    pub const fn keep_place(mut self) -> Self {
        self.request.keep_place = true;
        self
    }

    /// Gives the call an identity, by which [what it puts to sleep](WakeOptions::slept_by) is woken, with that of other calls that were
    /// given the same one.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::device::{SleepOptions, WakeOptions};
    /// # use bursar::host::PinnedPool;
    /// # use bursar::memory::SleepRequestId;
    /// # use bursar::prelude::*;
    /// fn while_idle(gpu: &Gpu, pinned: &PinnedPool) -> Result<()> {
    ///     let idle = SleepRequestId::unique();
    ///     gpu.sleep(pinned, &SleepOptions::new().id(idle))?;
    ///     // … and what slept before sleeps on.
    ///     gpu.wake(&WakeOptions::new().slept_by(idle))?;
    ///     Ok(())
    /// }
    /// ```
    pub const fn id(mut self, id: SleepRequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets how long uses and streams are waited for, a minute by default.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.request.patience = patience;
        self
    }

    /// Sets the length of the pieces of host memory that contents are packed into, 64 MiB by default: the driver keeps other
    /// threads waiting while it pins one.
    pub const fn piece(mut self, bytes: Bytes) -> Self {
        self.request.piece = bytes;
        self
    }
}

/// Options for waking memory.
///
/// ```
/// use bursar::device::WakeOptions;
/// use bursar::tag;
/// use std::time::Duration;
///
/// let options = WakeOptions::new().only(tag!("weights")).patience(Duration::from_secs(30));
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until memory is woken with them"]
pub struct WakeOptions {
    request: WakeRequest,
}

impl WakeOptions {
    /// Makes the options with which everything wakes, or is refused at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the blocks of a tag wake that was put to sleep by itself, and of other tags that are given so: all of them, or none where
    /// there is no room for all.
    pub fn only(mut self, tag: AllocTag) -> Self {
        self.request.only.push(tag);
        self
    }

    /// Has what one call to [`Gpu::sleep`] put to sleep wake, whatever its tags are, and nothing that others put to sleep before or
    /// since. What was woken already stays as it is.
    pub const fn slept_by(mut self, id: SleepRequestId) -> Self {
        self.request.slept_by = Some(id);
        self
    }

    /// Sets how long to wait for memory that others have: in the queue of a ledger. Not at all by default.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.request.patience = patience;
        self
    }
}

impl Gpu {
    /// Records from now on which blocks are of which tag, through this handle and all others of the device, so that the blocks
    /// of a tag can sleep by themselves. It costs each allocation and free a lookup.
    pub fn record_tags(&self) -> Result<()> {
        self.shared.live.record_tags(self.context())
    }

    /// Puts the memory of the device's pools to sleep: contents are copied to memory that `store` lends, device memory goes
    /// back to the driver and its charge to the ledger, and addresses stay, so that buffers are where they were after
    /// [`wake`](Self::wake).
    ///
    /// Uses that were declared are waited for; from then on they are refused with [`Error::Asleep`], and so are
    /// allocations where everything sleeps. Buffers can be dropped. Work that was launched without being declared, on a
    /// stream that the device does not know, must have run.
    ///
    /// ```
    /// use bursar::device::{SleepOptions, WakeOptions};
    /// use bursar::host::PinnedPool;
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, Error, Gpu, PagePool, Stack, leaf, tag};
    ///
    /// let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames))?;
    /// let pinned = PinnedPool::near(&gpu)?;
    /// let stream = gpu.streams().lease()?;
    /// let weights = gpu.buffer_from(&[7u32; 1000], &stream, tag!("weights"))?;
    ///
    /// let before = gpu.memory_info()?.free;
    /// let report = gpu.sleep(&pinned, &SleepOptions::new())?;
    /// assert_eq!(gpu.memory_info()?.free, before + report.released);
    /// assert!(matches!(weights.to_vec(), Err(Error::Asleep { .. })));
    /// assert!(matches!(gpu.buffer::<u8>(1, &stream, tag!("more")), Err(Error::Asleep { .. })));
    ///
    /// gpu.wake(&WakeOptions::new())?;
    /// assert_eq!(weights.to_vec()?, [7; 1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sleep(&self, store: &dyn HostStore, options: &SleepOptions) -> Result<SleepReport> {
        let (only, discard) = (options.only.clone(), options.discard.clone());
        let has_tags = !(only.is_empty() && discard.is_empty());
        if has_tags && !self.shared.live.has_tags() {
            return Err(Error::InvalidValue { what: "blocks are not recorded by tag: see `Gpu::record_tags`" });
        }
        let tagged = move || TaggedBlocks { only, discard, record: Arc::new(self.shared.live.clone()) };
        let id = options.id.unwrap_or_else(SleepRequestId::unique);
        let request = SleepRequest { id, tagged: has_tags.then(tagged), ..options.request.clone() };
        if self.context().sleepers().is_empty() {
            return Err(Error::Unsupported { device: self.id(), what: "sleep: its stack has no pool" });
        }
        self.context().sleep(store, &request)
    }

    /// Wakes what sleeps: at the same addresses, with the same contents. After a refusal it sleeps on, and can be woken later; where
    /// tags slept by themselves before everything did, that may be these tags alone.
    pub fn wake(&self, options: &WakeOptions) -> Result<WakeReport> {
        self.context().wake(&options.request)
    }

    /// Returns whether the memory of the device's pools sleeps, and how much of it.
    pub fn sleep_reading(&self) -> SleepReading {
        let readings = self.context().sleepers().into_iter().map(|sleeper| sleeper.sleep_reading());
        readings.reduce(SleepReading::and).unwrap_or_default()
    }
}
