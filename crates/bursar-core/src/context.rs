//! The state that all layers of one device share.
//!
//! A [`DeviceContext`] is made once for each device and handed to every layer, so that no layer keeps such state
//! itself. Each of its concerns has a file:
//!
//! | file | concern |
//! | --- | --- |
//! | `streams.rs` | creating streams, and holding one while it is used |
//! | `adoption.rs` | streams that others made, and the end of their adoption |
//! | `ended.rs` | the heir of streams that have ended, and those that nothing is ordered after yet |
//! | `order.rs` | order between streams, waiting for a stream, events |
//! | `progress.rs` | how far a stream has come with what it was given |
//! | `copies.rs` | copies and fills that have run when the call returns |
//! | `captures.rs` | captures into graphs that are made here; in `captures/`, the order of what is captured |
//! | `launched_memories.rs` | memories that launches write to without a declared use |
//! | `left_graphs.rs` | graphs that the driver failed to destroy |
//! | `members.rs` | pools and leaves that can be asked to trim |
//! | `sleepers.rs` | pools that can sleep, and the ranges that are asleep |
//! | `quiesce.rs` | waiting for every use and every stream |
//! | `usage_view.rs` | what the stacks use, for those who watch |
//! | `remains.rs` | what a dropped holder could not give back |
//! | `dropped_transfers.rs` | host memory of dropped transfers that could not be waited for |
//! | `fault.rs` | the failure that the next fallible call reports |
//! | `call_site.rs` | the place in the program that a call was made from |
//!
//! # Invariants
//! **No lock is held across a driver call** once a device is open. State is read or taken out under a lock, the driver
//! is called, and what it said is entered afterwards.
//!
//! **What is left behind keeps no context alive.** A holder that is dropped before the driver has everything back
//! leaves the rest to the context as [`Remains`], which have no handle of the context; so the context ends, and its end
//! is the last attempt. Host memory of dropped transfers may have one: whoever might be the last to use the device frees
//! it, see [`collect_transfers`](DeviceContext::collect_transfers).
//!
//! **Nothing follows a stream that ended unordered.** [`heir_of`](DeviceContext::heir_of) fails for it until an event
//! or a wait for the whole device has made an order, so every path that would touch its memory, in whichever layer,
//! meets the same refusal and keeps what it has.
//!
//! **Whoever waits for an adoption to end holds no adopted stream.** `heir_of` waits for one that is just being
//! dropped, and that one waits for its users; two of them could otherwise wait for each other.
//! [`order_after`](DeviceContext::order_after) is the way to order a free after a stream that may have ended.
#![allow(unsafe_code)]

mod adoption;
mod call_site;
mod captures;
mod copies;
mod dropped_transfers;
mod ended;
mod fault;
mod launched_memories;
mod left_graphs;
mod members;
mod order;
mod progress;
mod quiesce;
mod remains;
mod sleepers;
mod streams;
mod usage_view;

pub use adoption::AdoptedStream;
pub use call_site::CallSite;
pub(crate) use captures::{CaptureMaker, CaptureOrder, CaptureOrigin, DeclaredUse, Point};
pub use fault::Fault;
pub(crate) use launched_memories::{FirstUse, LaunchedMemory};
pub use members::Member;
pub(crate) use order::WaitFailure;
pub use progress::StreamProgress;
pub(crate) use progress::is_after;
pub use remains::Remains;
pub(crate) use sleepers::AwakeUse;
pub use sleepers::{
    AsleepId, BlocksOf, HostStore, SleepDecision, SleepReading, SleepReport, SleepRequest, SleepRequestId, SleepState,
    Sleeper, TagRecord, TaggedBlocks, WakeReport, WakeRequest,
};
pub use usage_view::{UsageSource, UsageView};

use crate::stream::{Clocks, StreamTable};
use crate::{
    Bytes, DeviceFacts, DeviceId, Driver, DriverError, Error, EventSink, LentBlocks, Note, RawContext, RawEvent,
    RawStream, Result, Status, Stream,
};
use captures::Captures;
use dropped_transfers::DroppedTransfers;
use ended::Unordered;
use launched_memories::LaunchedMemories;
use remains::RemainsList;
use sleepers::Sleepers;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The state that all layers of one device share: its driver, the table of its streams, the fault it remembers, the
/// sink its events go to, the blocks lent across raw boundaries, the members to ask for a trim, and what dropped
/// holders could not give back.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(driver: Arc<dyn Driver>) -> Result<()> {
/// let context = DeviceContext::open(driver, DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// context.synchronize(stream)?;
/// # Ok(())
/// # }
/// ```
pub struct DeviceContext {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    facts: DeviceFacts,
    primary: RawContext,
    listens: bool,
    streams: StreamTable,
    /// Streams that whoever had them needs no more, each with its priority.
    spare_streams: Mutex<Vec<(Stream, i32)>>,
    clocks: Clocks,
    fault: Fault,
    captures: Captures,
    launched_memories: LaunchedMemories,
    sink: EventSink,
    lent: LentBlocks,
    events: Mutex<Vec<RawEvent>>,
    members: Mutex<Vec<Weak<dyn Member>>>,
    heir: OnceLock<Stream>,
    /// The streams that stand for those of other contexts which read, or write, blocks of this one.
    peer_streams: [OnceLock<Stream>; 2],
    unordered: Unordered,
    left: RemainsList,
    sleepers: Sleepers,
    dropped_transfers: DroppedTransfers,
    usage_view: UsageView,
}

impl DeviceContext {
    /// Opens a device of `driver`.
    pub fn open(driver: Arc<dyn Driver>, device: DeviceId) -> Result<Arc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let count = driver.device_count();
        if device.0 >= count {
            return Err(Error::InvalidDevice { device, count });
        }
        let primary = driver.open(device)?;
        let facts = driver.facts(device).inspect_err(|_| {
            // SAFETY: opened just above, and nothing was taken from it yet.
            let close = || unsafe { driver.close(device) };
            // The first failure is the cause; that the device cannot be closed either would hide it.
            let _closed = close().or_else(|_| close());
        })?;
        let sink = EventSink::default();
        Ok(Arc::new(Self {
            usage_view: UsageView::new(device, sink.counting_tally()),
            listens: driver.listens(),
            driver,
            device,
            facts,
            primary,
            streams: StreamTable::new(NEXT.fetch_add(1, Relaxed), device),
            spare_streams: Mutex::default(),
            clocks: Clocks::default(),
            fault: Fault::default(),
            captures: Captures::default(),
            launched_memories: LaunchedMemories::default(),
            sink,
            lent: LentBlocks::new(device),
            events: Mutex::default(),
            members: Mutex::default(),
            heir: OnceLock::new(),
            peer_streams: [const { OnceLock::new() }; 2],
            unordered: Unordered::default(),
            left: RemainsList::default(),
            sleepers: Sleepers::default(),
            dropped_transfers: DroppedTransfers::default(),
        }))
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the device's ordinal.
    #[inline]
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the facts about the device that do not change.
    pub const fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Returns the raw handle of the device's primary context, for other libraries in the process.
    pub const fn raw_context(&self) -> RawContext {
        self.primary
    }

    /// Returns the fault that the device remembers.
    #[inline]
    pub const fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Returns the sink that the device's events go to.
    #[inline]
    pub const fn sink(&self) -> &EventSink {
        &self.sink
    }

    /// Returns the blocks that are on the other side of a raw boundary.
    pub const fn lent(&self) -> &LentBlocks {
        &self.lent
    }

    /// Returns the clocks of the submissions to the device's streams.
    #[inline]
    pub(crate) const fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    pub(crate) const fn peer_streams(&self) -> &[OnceLock<Stream>; 2] {
        &self.peer_streams
    }

    /// Returns whether the driver wants to know which ranges are blocks, so that [`note`](Self::note) calls it.
    #[inline]
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// Tells a driver that listens which range is a block; one branch otherwise.
    ///
    /// # Safety
    /// As for [`Driver::note`].
    #[inline]
    pub unsafe fn note(&self, note: Note) {
        if self.listens {
            // SAFETY: the caller's own promise.
            unsafe { self.driver.note(self.device, note) };
        }
    }

    /// Returns the error of a failed call for its caller, and remembers it if the device is lost.
    #[cold]
    pub fn failed(&self, error: DriverError) -> Error {
        if error.is_sticky() {
            self.fault.record(error);
        }
        Error::Driver(error)
    }

    /// Returns the error of a failed allocation of `requested` for its caller: [`Error::OutOfMemory`] with the figures
    /// of the device where that was the reason.
    #[cold]
    pub fn allocation_failed(&self, error: DriverError, requested: Bytes) -> Error {
        match (error.status, self.driver.memory(self.device)) {
            (Status::OutOfMemory, Ok(info)) => Error::out_of_memory(self.device, requested, info.free, info.total),
            _ => self.failed(error),
        }
    }

    fn destroy_stream(&self, raw: RawStream) {
        self.destroy(|| {
            // SAFETY: the stream was created by this context's driver and its token is in no table any more.
            unsafe { self.driver.stream_destroy(self.device, raw) }
        });
    }

    /// Destroys something that nobody can destroy later: a second attempt follows at once where the first fails.
    fn destroy(&self, destroy: impl Fn() -> Result<(), DriverError>) {
        if let Err(error) = destroy().or_else(|_| destroy()) {
            self.fault.record(error);
        }
    }
}

/// Something that belongs to one device: its context itself, or a GPU. Functions that need a context take either.
///
/// ```
/// # use bursar::device::HasContext;
/// # use bursar::prelude::*;
/// fn name_of(place: &impl HasContext) -> &str {
///     &place.device_context().facts().name
/// }
/// ```
pub trait HasContext {
    /// Returns the device's context.
    fn device_context(&self) -> &Arc<DeviceContext>;
}

impl HasContext for Arc<DeviceContext> {
    fn device_context(&self) -> &Arc<DeviceContext> {
        self
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        self.order_ended(Duration::MAX);
        self.collect_last_transfers();
        self.give_back_last_remains();
        for raw in self.streams.take_owned() {
            self.destroy_stream(raw);
        }
        for event in std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.destroy(|| {
                // SAFETY: spare events came from this driver and nobody else has them.
                unsafe { self.driver.event_destroy(self.device, event) }
            });
        }
        self.destroy(|| {
            // SAFETY: whoever uses what the device gave out keeps its context alive.
            unsafe { self.driver.close(self.device) }
        });
    }
}

impl fmt::Debug for DeviceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceContext")
            .field("device", &self.device)
            .field("driver", &format_args!("{}", self.driver.describe()))
            .field("left_behind", &self.left_behind())
            .finish_non_exhaustive()
    }
}
