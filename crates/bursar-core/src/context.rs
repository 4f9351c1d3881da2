//! What all layers of one device share.
#![allow(unsafe_code)]

mod adopted;

pub use adopted::AdoptedStream;

use crate::remains::LeftBehind;
use crate::stream::{Held, StreamTable};
use crate::unordered::Unordered;
use crate::uses::Clocks;
use crate::{
    Bytes, DeviceFacts, DeviceId, Driver, DriverError, Error, EventSink, Fault, LentBlocks, Note, Progress, RawContext,
    RawEvent, RawStream, Result, STREAM_SLOTS, Standing, Status, Stream, StreamMisuse,
};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Someone who keeps memory of a device and can be asked to let some go, or to prepare for the end of a stream.
///
/// ```
/// use bursar_core::{Bytes, Member, RawStream, Standing, Stream};
///
/// #[derive(Debug)]
/// struct Hoard;
///
/// impl Member for Hoard {
///     fn trim(&self) -> Bytes {
///         Bytes::ZERO
///     }
///     fn standing(&self) -> Standing {
///         Standing::default()
///     }
///     fn stream_ends(&self, _: Stream, _: RawStream) {}
/// }
/// ```
pub trait Member: fmt::Debug + Send + Sync {
    /// Gives back to the driver what it can spare; answers how much.
    fn trim(&self) -> Bytes;

    /// How much it holds, and how; asked when a request was refused.
    fn standing(&self) -> Standing;

    /// Hears that an adopted stream is about to be forgotten: the last moment at which it can be recorded on, by its raw
    /// handle, since its token resolves no more. Nobody else uses the stream, and the context's
    /// [`heir`](DeviceContext::heir) comes after it already, unless it is [unordered](DeviceContext::unordered).
    /// Everything freed on it must stay reusable, or become so once there is an order.
    fn stream_ends(&self, stream: Stream, raw: RawStream);
}

/// Beside each device's column of layers: its driver, the table of its streams, the fault it remembers, the sink its
/// events go to, the blocks lent across raw boundaries, the members to ask for a trim, and what those who are gone could
/// not give back.
///
/// ```
/// # use bursar_core::*;
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
    clocks: Clocks,
    fault: Fault,
    sink: EventSink,
    lent: LentBlocks,
    events: Mutex<Vec<RawEvent>>,
    members: Mutex<Vec<Weak<dyn Member>>>,
    heir: OnceLock<Stream>,
    pub(crate) unordered: Unordered,
    pub(crate) left: LeftBehind,
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
        let facts = driver.facts(device).or_else(|error| {
            // SAFETY: opened just above, and nothing was taken from it yet.
            let close = || unsafe { driver.close(device) };
            close().or_else(|_| close()).and(Err(error))
        })?;
        Ok(Arc::new(Self {
            listens: driver.listens(),
            driver,
            device,
            facts,
            primary,
            streams: StreamTable::new(NEXT.fetch_add(1, Relaxed), device),
            clocks: Clocks::default(),
            fault: Fault::default(),
            sink: EventSink::default(),
            lent: LentBlocks::new(device),
            events: Mutex::default(),
            members: Mutex::default(),
            heir: OnceLock::new(),
            unordered: Unordered::default(),
            left: LeftBehind::default(),
        }))
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The device.
    #[inline]
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// What does not change about the device.
    pub const fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The raw handle of the device's primary context, for other libraries in the process.
    pub const fn raw_context(&self) -> RawContext {
        self.primary
    }

    /// The fault it remembers.
    #[inline]
    pub const fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Where its events go.
    #[inline]
    pub const fn sink(&self) -> &EventSink {
        &self.sink
    }

    /// The blocks that are on the other side of a raw boundary.
    pub const fn lent(&self) -> &LentBlocks {
        &self.lent
    }

    /// The legacy default stream.
    pub fn default_stream(&self) -> Stream {
        self.streams.default_stream()
    }

    /// Creates a stream that lives as long as the context. `priority` is within the facts' range.
    pub fn create_stream(&self, priority: i32) -> Result<Stream> {
        if !self.facts.stream_priorities.contains(&priority) {
            return Err(Error::InvalidValue { what: "the priority is outside the device's range" });
        }
        let raw = self.driver.stream_create(self.device, priority).map_err(Error::CreateFailed)?;
        self.streams.own(raw).inspect_err(|_| self.destroy_stream(raw))
    }

    /// A stream of the context's own that comes after everything given to streams whose adoption has ended: where what
    /// was to be freed on one of them is freed instead.
    pub fn heir(&self) -> Result<Stream> {
        match self.heir.get() {
            Some(&heir) => Ok(heir),
            None => self.create_stream(0).map(|made| *self.heir.get_or_init(|| made)),
        }
    }

    /// Makes what is submitted to `then` from here on wait for what was submitted to `first` before.
    ///
    /// # Safety
    /// Both are live streams of this device.
    pub(crate) unsafe fn chain(&self, first: RawStream, then: RawStream) -> Result<(), DriverError> {
        let event = self.take_event()?;
        // SAFETY: the caller's own promise, and the event is this context's.
        let recorded = unsafe { self.driver.event_record(self.device, event, first) };
        let ordered = recorded.and_then(|()| {
            // SAFETY: as above.
            unsafe { self.driver.stream_wait(self.device, then, event) }
        });
        // SAFETY: taken above; a wait that was submitted keeps what it waits for.
        unsafe { self.give_event(event) };
        ordered
    }

    fn destroy_stream(&self, raw: RawStream) {
        self.destroy(|| {
            // SAFETY: the stream was created by this context's driver and its token is in no table any more.
            unsafe { self.driver.stream_destroy(self.device, raw) }
        });
    }

    /// Destroys something that nobody can try to destroy again later: tries a second time where that fails.
    fn destroy(&self, destroy: impl Fn() -> Result<(), DriverError>) {
        if let Err(error) = destroy().or_else(|_| destroy()) {
            self.fault.record(error);
        }
    }

    /// Whether any stream that is known here is being captured into a graph.
    pub(crate) fn is_capturing_any(&self) -> Result<bool, DriverError> {
        for slot in 0..STREAM_SLOTS {
            if let Some(held) = self.hold_slot(slot)
                && self.streams.is_exposed_slot(slot)
                // SAFETY: the stream is live while it is held.
                && unsafe { self.driver.stream_is_capturing(self.device, held.raw()) }?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets a stream that somebody else made be used here, until the adoption is dropped. A raw handle of zero, like
    /// [`RawStream::LEGACY`], is the legacy default stream; [`RawStream::PER_THREAD`] is refused.
    ///
    /// Drop the adoption before the stream is destroyed: that is when everything freed on it is put in order, so that
    /// its memory stays reusable. Dropping it waits for calls that use the stream to return.
    ///
    /// # Safety
    /// `raw` is a live stream of this device until the adoption has been dropped.
    pub unsafe fn adopt_stream(self: &Arc<Self>, raw: RawStream) -> Result<AdoptedStream> {
        let stream = self.streams.adopt(raw)?;
        Ok(AdoptedStream::new(self.clone(), stream))
    }

    /// The driver's handle of a stream that may be used here, for the driver and other libraries. Whoever has it can
    /// capture the stream into a graph, so from now on the driver is asked about that at each allocation and free.
    pub fn resolve(&self, stream: Stream) -> Result<RawStream> {
        let raw = self.streams.expose(stream)?;
        self.fault.alarm();
        Ok(raw)
    }

    /// Keeps a stream that may be used here alive while it is used: for those who hand out memory.
    #[inline]
    pub fn hold(&self, stream: Stream) -> Result<Held<'_>> {
        self.streams.hold(stream)
    }

    /// The driver's handle of a stream that memory may be ordered on without a further question: one that this context
    /// made, so that it stays, and that nobody else has the handle of, so that it is not being captured. For all others,
    /// [`hold_for_memory`](Self::hold_for_memory). The answer stays right while there are no more
    /// [`alarms`](Self::alarms).
    pub fn own_stream(&self, stream: Stream) -> Option<RawStream> {
        self.streams.unexposed(stream)
    }

    /// How often there was reason to look twice: a fault was remembered, or the handle of a stream given to others. Whoever
    /// reads it before looking need not look again while it stays the same.
    #[inline]
    pub fn alarms(&self) -> u32 {
        self.fault.alarms()
    }

    /// What its streams are known to come after.
    #[inline]
    pub(crate) const fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Whether a stream is of this context; it may have ended.
    #[inline]
    pub(crate) fn is_own(&self, stream: Stream) -> bool {
        self.streams.is_own(stream)
    }

    /// Refuses a stream of another context.
    #[inline]
    pub(crate) fn check_own(&self, stream: Stream) -> Result<()> {
        self.streams.check_own(stream)
    }

    /// A stream that comes after everything `stream` was given: itself, or its [heir](Self::heir_of) if its adoption has
    /// ended.
    pub fn lasting(&self, stream: Stream) -> Result<Stream> {
        self.check_own(stream)?;
        if self.has_ended(stream) { self.heir_of(stream) } else { Ok(stream) }
    }

    /// Calls `act` with a stream and, where that fails because its adoption has ended, with its [heir](Self::heir_of). The
    /// caller holds no adopted stream.
    ///
    /// ```
    /// # use bursar_core::*;
    /// # fn show(context: &DeviceContext, stream: Stream) -> Result<()> {
    /// context.on_lasting(stream, |stream| context.synchronize(stream))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lasting<T>(&self, stream: Stream, act: impl Fn(Stream) -> Result<T>) -> Result<T> {
        match act(stream) {
            Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }) if self.has_ended(stream) => {
                act(self.heir_of(stream)?)
            }
            outcome => outcome,
        }
    }

    /// Whether a stream was adopted and its adoption has ended.
    pub(crate) fn has_ended(&self, stream: Stream) -> bool {
        self.streams.has_ended(stream)
    }

    /// Whether, besides, the heir comes after what it was given.
    pub(crate) fn has_parted(&self, stream: Stream) -> bool {
        self.streams.has_parted(stream)
    }

    /// Keeps the stream that is at a place of the table now alive while it is used, if there is one.
    pub fn hold_slot(&self, slot: usize) -> Option<Held<'_>> {
        self.streams.hold_slot(slot)
    }

    /// Keeps the stream that is at a place of the table now alive, unless it is being captured into a graph, when nothing
    /// may be asked of it.
    pub fn hold_slot_for_memory(&self, slot: usize) -> Result<Option<Held<'_>>, DriverError> {
        let Some(held) = self.hold_slot(slot) else { return Ok(None) };
        // SAFETY: the stream is live while it is held.
        let free = !self.streams.is_exposed_slot(slot)
            || !unsafe { self.driver.stream_is_capturing(self.device, held.raw()) }?;
        Ok(free.then_some(held))
    }

    /// Whether memory may be ordered on a stream: one of this context, not being captured into a graph.
    pub fn check_stream(&self, stream: Stream) -> Result<()> {
        self.hold_for_memory(stream).map(drop)
    }

    /// Keeps a stream alive that memory may be ordered on: one of this context, not being captured.
    #[inline]
    pub fn hold_for_memory(&self, stream: Stream) -> Result<Held<'_>> {
        let held = self.hold(stream)?;
        // SAFETY: the stream is live while it is held.
        if self.streams.is_exposed(stream) && unsafe { self.driver.stream_is_capturing(self.device, held.raw()) }? {
            let (device, stream) = (self.device, stream.number());
            return Err(Error::StreamMisuse { device, stream, why: StreamMisuse::Capturing });
        }
        Ok(held)
    }

    /// As [`check_stream`](Self::check_stream): one of our own whose handle nobody else has takes no question.
    #[inline]
    pub(crate) fn check_use(&self, stream: Stream) -> Result<()> {
        if self.streams.is_private(stream) { Ok(()) } else { self.check_stream(stream) }
    }

    /// As [`hold_for_memory`](Self::hold_for_memory), for a free: where the driver cannot even answer, the free itself
    /// meets the same failure and is kept.
    pub fn hold_for_free(&self, stream: Stream) -> Result<Held<'_>> {
        match self.hold_for_memory(stream) {
            Err(Error::Driver(_)) => self.hold(stream),
            other => other,
        }
    }

    /// Waits until everything submitted to the stream so far has run.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        let held = self.hold(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        unsafe { self.driver.stream_synchronize(self.device, held.raw()) }.map_err(|error| self.failed(error))?;
        self.clocks.completed(stream, &view);
        Ok(())
    }

    /// Whether everything submitted to the stream so far has run.
    pub(crate) fn query(&self, stream: Stream) -> Result<Progress> {
        let held = self.hold(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        let progress = unsafe { self.driver.stream_query(self.device, held.raw()) };
        let progress = progress.map_err(|error| self.failed(error))?;
        if progress.is_complete() {
            self.clocks.completed(stream, &view);
        }
        Ok(progress)
    }

    /// Whether everything has run that was submitted to the stream so far; it may have ended. Where `patience` is
    /// [`Duration::MAX`], waits until it has.
    pub fn has_run(&self, stream: Stream, patience: Duration) -> Result<bool> {
        let stream = self.lasting(stream)?;
        self.check_use(stream)?;
        match patience {
            Duration::MAX => self.synchronize(stream).map(|()| true),
            _ => self.query(stream).map(Progress::is_complete),
        }
    }

    /// Whether the driver wants to know which ranges are blocks; what [`note`](Self::note) asks first.
    #[inline]
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// Tells a listening driver which range is a block; free of cost otherwise.
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

    /// An event of the device, new or used before; give it back with [`give_event`](Self::give_event).
    pub fn take_event(&self) -> Result<RawEvent, DriverError> {
        let spare = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            Some(event) => Ok(event),
            None => self.driver.event_create(self.device),
        }
    }

    /// Takes an event back that nobody will query or wait for again.
    ///
    /// # Safety
    /// The event came from [`take_event`](Self::take_event) of this context, and is given back once.
    pub unsafe fn give_event(&self, event: RawEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Makes `member` be asked for trims and told of streams that end, for as long as it lives.
    pub fn join(&self, member: Weak<dyn Member>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Gives back what was [left behind](Self::left_behind) and asks every member for a trim; returns how much went.
    pub fn trim(&self) -> Bytes {
        self.order_ended(Duration::ZERO);
        let left = self.give_back_remains(Duration::ZERO);
        self.members().iter().fold(left, |sum, member| sum.saturating_add(member.trim()))
    }

    /// How its members stand together; nothing where there are none.
    pub fn standing(&self) -> Option<Standing> {
        self.members().iter().map(|member| member.standing()).reduce(Standing::and)
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Turns a failed call into what its caller should see, and remembers it if the device is lost.
    #[cold]
    pub fn failed(&self, error: DriverError) -> Error {
        if error.is_sticky() {
            self.fault.record(error);
        }
        Error::Driver(error)
    }

    /// Turns a failed allocation of `requested` into what its caller should see.
    #[cold]
    pub fn allocation_failed(&self, error: DriverError, requested: Bytes) -> Error {
        match (error.status, self.driver.memory(self.device)) {
            (Status::OutOfMemory, Ok(info)) => {
                Error::OutOfMemory { device: self.device, requested, free: info.free, total: info.total }
            }
            _ => self.failed(error),
        }
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        self.order_ended(Duration::MAX);
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
