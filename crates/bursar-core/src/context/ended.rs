//! Adopted streams that have ended: their heir, and those that nothing could be ordered after yet.
//!
//! When an adoption ends, a stream of the context's own, the *heir*, is made to wait for the stream's last point, so
//! that what was freed on the stream can be reused in the heir's order. Where the driver fails to make that order, the
//! stream is *unordered*.
//!
//! Work of an unordered stream may still run, and the context may not use its handle any more. So until there is an
//! order, memory that the work may touch is not reused, freed or unmapped: [`heir_of`](DeviceContext::heir_of) fails for
//! the stream, and resources keep what was freed on it. The order comes from an event that was recorded on the stream
//! before it ended, or from a wait for the whole device.
#![allow(unsafe_code)]

use super::{DeviceContext, Remains};
use crate::{
    Bytes, DevicePtr, DriverError, Error, HostFlags, MIN_ALIGN, RawEvent, RawStream, Result, Status, Stream,
    StreamMisuse,
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A stream that ended unordered, the event that was recorded on it if that succeeded, and the error that kept it
/// unordered.
#[derive(Clone, Copy, Debug)]
struct UnorderedStream {
    stream: Stream,
    event: Option<RawEvent>,
    error: DriverError,
}

/// The streams of one context that nothing is ordered after.
#[derive(Debug, Default)]
pub(super) struct Unordered {
    count: AtomicUsize,
    ended: Mutex<Vec<UnorderedStream>>,
    left: LastLeft,
}

impl Unordered {
    fn ended(&self) -> MutexGuard<'_, Vec<UnorderedStream>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    fn add(&self, ended: UnorderedStream) {
        let mut all = self.ended();
        all.push(ended);
        self.count.store(all.len(), SeqCst);
    }

    /// Takes out a stream that is in order now; `None` where another thread has.
    fn remove(&self, stream: Stream) -> Option<UnorderedStream> {
        let mut all = self.ended();
        let at = all.iter().position(|ended| ended.stream == stream)?;
        let removed = all.swap_remove(at);
        self.count.store(all.len(), SeqCst);
        Some(removed)
    }

    /// Returns the error that keeps a stream unordered; `None` where its heir comes after it.
    fn error(&self, stream: Stream) -> Option<DriverError> {
        if self.is_empty() {
            return None;
        }
        self.ended().iter().find(|ended| ended.stream == stream).map(|ended| ended.error)
    }
}

impl DeviceContext {
    /// Returns a stream of the context's own that comes after everything given to streams whose adoption has ended:
    /// where what was to be freed on one of them is freed instead.
    pub fn heir(&self) -> Result<Stream> {
        match self.heir.get() {
            Some(&heir) => Ok(heir),
            None => self.create_stream(0).map(|made| *self.heir.get_or_init(|| made)),
        }
    }

    /// Returns a stream of the context's own that comes after everything given to one whose adoption has ended; waits
    /// for an adoption that is just being dropped. The caller holds no adopted stream: whoever drops that one would
    /// wait for the caller, and those whom the caller waits for may be waiting for the caller.
    ///
    /// Where the driver failed to order anything after the stream when it ended, that failure is the error until there
    /// is an order; see [`order_ended`](Self::order_ended).
    pub fn heir_of(&self, ended: Stream) -> Result<Stream> {
        while self.has_ended(ended) && !self.streams.is_end_handled(ended) {
            std::thread::yield_now();
        }
        if self.order_error(ended).is_some() {
            self.order_ended(Duration::ZERO);
        }
        self.order_error(ended).map_or_else(|| self.heir(), |error| Err(Error::Driver(error)))
    }

    /// Returns a stream that comes after everything `stream` was given: itself, or its [heir](Self::heir_of) if its
    /// adoption has ended.
    pub fn lasting(&self, stream: Stream) -> Result<Stream> {
        self.check_own(stream)?;
        if self.has_ended(stream) { self.heir_of(stream) } else { Ok(stream) }
    }

    /// Calls `act` with a stream and, where that fails because its adoption has ended, with its [heir](Self::heir_of).
    /// The caller holds no adopted stream.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
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

    /// Returns whether a stream was adopted and its adoption has ended.
    pub(crate) fn has_ended(&self, stream: Stream) -> bool {
        self.streams.has_ended(stream)
    }

    /// Orders the heir after a stream whose adoption ends. If that fails, the stream is waited for; and if that fails
    /// too, it is remembered as unordered. So is one that is being captured: recording or waiting would invalidate the
    /// capture.
    pub(super) fn inherit(&self, stream: Stream, raw: RawStream) {
        let recorded = self.record_last(raw);
        let event = recorded.as_ref().ok().copied();
        let ordered = recorded.and_then(|event| self.have_heir_wait(event)).or_else(|error| {
            if error.status == Status::Capturing {
                return Err(error);
            }
            // SAFETY: the adoption's stream is live until this returns.
            let waited = unsafe { self.driver().stream_synchronize(self.device(), raw) };
            waited.map_err(|_| error)
        });
        match ordered {
            Ok(()) => event.into_iter().for_each(|event| self.return_last_event(event)),
            Err(error) => {
                self.fault().record(error);
                self.unordered.add(UnorderedStream { stream, event, error });
            }
        }
    }

    /// Records an event at the last point of a stream that ends. One that is being captured is left alone: the event
    /// would become part of the graph.
    fn record_last(&self, raw: RawStream) -> Result<RawEvent, DriverError> {
        // SAFETY: the adoption's stream is live until its end has been handled.
        if matches!(unsafe { self.driver().stream_is_capturing(self.device(), raw) }, Ok(true)) {
            return Err(DriverError::new("event_record", self.device(), Status::Capturing));
        }
        // SAFETY: as above.
        unsafe { self.record_event(raw) }
    }

    fn have_heir_wait(&self, event: RawEvent) -> Result<(), DriverError> {
        let held = self.heir().and_then(|heir| self.hold(heir));
        let held = held.map_err(|error| {
            error.driver_error().unwrap_or(DriverError::new("stream_wait", self.device(), Status::InvalidHandle))
        })?;
        // SAFETY: the heir is held, and the event is this context's.
        unsafe { self.driver().stream_wait(self.device(), held.raw(), event) }
    }

    fn return_last_event(&self, event: RawEvent) {
        // SAFETY: taken from this context in `record_last`, and returned once: by whoever finds its stream in order.
        unsafe { self.return_event(event) };
    }

    /// Returns the error that keeps a stream whose adoption has ended unordered; `None` where its [heir](Self::heir_of)
    /// comes after it. For members to check when a stream ends, and before they reuse what was freed on one.
    pub fn order_error(&self, ended: Stream) -> Option<DriverError> {
        self.unordered.error(ended)
    }

    /// Returns the driver's failure behind a free on `stream` that was refused with `error`: a failure to order the
    /// free, or to order anything after the stream if that has ended. `None` where the stream is not of this context:
    /// then the block goes back to the caller.
    pub fn failed_order(&self, error: &Error, stream: Stream) -> Option<DriverError> {
        match (self.is_own(stream), self.has_ended(stream)) {
            (true, true) => self.heir_of(stream).err()?.driver_error(),
            (true, false) => error.driver_error(),
            (false, _) => None,
        }
    }

    /// Puts unordered streams in order, by their events where they have one. Where `patience` is [`Duration::MAX`],
    /// waits for all work of the device if that is what it takes; otherwise waits for nothing.
    pub fn order_ended(&self, patience: Duration) {
        if let Err(error) = self.try_to_order_ended(patience) {
            drop(self.failed(error));
        }
    }

    /// As [`order_ended`](Self::order_ended); a failure to wait for the device is the error.
    pub(super) fn try_to_order_ended(&self, patience: Duration) -> Result<(), DriverError> {
        if self.unordered.is_empty() {
            return Ok(());
        }
        // They stay in the list meanwhile, so that nobody takes them for ordered.
        let all = self.unordered.ended().clone();
        let (ordered, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|ended| self.is_in_order(ended));
        ordered.iter().for_each(|ended| self.put_in_order(ended));
        if patience == Duration::MAX && !left.is_empty() {
            self.wait_for_device()?;
            left.iter().for_each(|ended| self.put_in_order(ended));
        }
        Ok(())
    }

    /// Returns whether the heir comes after a stream's work by now, or that work has run.
    fn is_in_order(&self, ended: &UnorderedStream) -> bool {
        let Some(event) = ended.event else { return false };
        self.have_heir_wait(event).is_ok() || {
            // SAFETY: the event is this context's; it is at most asked about twice where another thread was faster.
            let progress = unsafe { self.driver().event_query(self.device(), event) };
            progress.is_ok_and(|progress| progress.is_complete())
        }
    }

    fn put_in_order(&self, ended: &UnorderedStream) {
        if let Some(UnorderedStream { event: Some(event), .. }) = self.unordered.remove(ended.stream) {
            self.return_last_event(event);
        }
    }

    /// Waits for all work of the device, by freeing a small allocation or, where the device has no room for that, by
    /// unpinning a page of the host. Fails while a stream is being captured, since it would invalidate the capture; an
    /// allocation whose free failed is the next wait's.
    fn wait_for_device(&self) -> Result<(), DriverError> {
        let _wait = self.begin_device_wait()?;
        let ptr = match self.unordered.left.take().map_or_else(|| self.driver().allocate(self.device(), MIN_ALIGN), Ok)
        {
            Err(error) if error.status == Status::OutOfMemory => return self.wait_by_unpinning(),
            allocated => allocated?,
        };
        // SAFETY: allocated for a wait, taken by this one alone, and used by nobody.
        let freed = unsafe { self.driver().free(self.device(), ptr) };
        freed.inspect_err(|_| self.leave(self.unordered.left.put(ptr)))
    }

    fn wait_by_unpinning(&self) -> Result<(), DriverError> {
        let page = Box::leak(Box::new(HostPage([0; 4096])));
        let (driver, device, ptr) = (self.driver(), self.device(), page.0.as_mut_ptr());
        // SAFETY: the page is not given back before it is unregistered.
        let registered = unsafe { driver.host_register(device, ptr, page.0.len(), HostFlags::default()) };
        if registered.is_ok() {
            // SAFETY: registered just above.
            let unregister = || unsafe { driver.host_unregister(device, ptr) };
            // A page that stays registered is left to the process.
            unregister().or_else(|_| unregister())?;
        }
        // SAFETY: leaked above, and nobody has it any more.
        drop(unsafe { Box::from_raw(page) });
        registered
    }
}

/// A page of host memory.
#[repr(align(4096))]
struct HostPage([u8; 4096]);

/// The last allocation that a wait for the device was made with and could not free.
#[derive(Debug, Default)]
struct LastLeft(Mutex<LeftAllocation>);

impl LastLeft {
    fn last(&self) -> MutexGuard<'_, LeftAllocation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it from the context, if that has not given it back.
    fn take(&self) -> Option<DevicePtr> {
        self.last().take()
    }

    /// Makes `ptr` the last, and returns it to be left to the context.
    fn put(&self, ptr: DevicePtr) -> LeftAllocation {
        let left = LeftAllocation(Arc::new(Mutex::new(Some(ptr))));
        self.last().clone_from(&left);
        left
    }
}

/// A small allocation that a wait for the device was made with, where freeing it failed: the context frees it, or the
/// next wait does.
#[derive(Clone, Debug, Default)]
struct LeftAllocation(Arc<Mutex<Option<DevicePtr>>>);

impl LeftAllocation {
    fn ptr(&self) -> MutexGuard<'_, Option<DevicePtr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<DevicePtr> {
        self.ptr().take()
    }
}

impl Remains for LeftAllocation {
    fn give_back(&mut self, context: &DeviceContext, _: Duration) -> Bytes {
        let Some(ptr) = self.take() else { return Bytes::ZERO };
        // This free waits for the device, too.
        let freed = context.begin_device_wait().and_then(|_wait| {
            // SAFETY: the pointer is from `wait_for_device`, and only whoever took it frees it.
            unsafe { context.driver().free(context.device(), ptr) }
        });
        match freed {
            Ok(()) => Bytes(MIN_ALIGN),
            Err(error) => {
                *self.ptr() = Some(ptr);
                context.fault().record(error);
                Bytes::ZERO
            }
        }
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.ptr().map_or(0, |_| MIN_ALIGN))
    }

    fn is_empty(&self) -> bool {
        self.ptr().is_none()
    }
}
