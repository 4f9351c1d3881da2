//! Captures of streams into graphs that are made through this context. `order.rs` has the order of what each has captured.
//!
//! A stream that is part of a capture counts as exposed meanwhile, so that every other layer asks about it and leaves it
//! alone.
//!
//! **A capture that is made here begins when no question to its stream is under way.** Whoever asks a stream, waits for it, or has
//! it and another wait for each other, as uses and frees of blocks do
//! ([`hold_for_question`](DeviceContext::hold_for_question)), is counted first and looks for captures then. A capture is entered here
//! first, then those counted are waited for, and only then the driver captures: one of the two sees the other. Whoever tells a
//! driver that listens of a free is counted too, since that has its place in the order of a stream there. Work of a stream's own
//! user, who would be captured with it, costs no counting. Whoever waits for all of the device
//! ([`begin_device_wait`](DeviceContext::begin_device_wait)) asks every stream at once, and is counted and waited for likewise.
#![allow(unsafe_code)]

mod order;

pub(crate) use order::{CaptureMaker, CaptureOrder, CaptureOrigin, DeclaredUse, Point};

use super::DeviceContext;
use crate::{Access, DriverError, Error, RawGraph, RawStream, Result, Status, Stream, StreamMisuse};
use order::LeftCapture;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The captures under way, by the streams that are part of them.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    count: AtomicUsize,
    all: Mutex<Vec<Arc<CaptureOrder>>>,
    /// The waits for all of the device that are under way.
    device_waits: AtomicUsize,
}

/// A wait for all of the device: no capture that is made here begins before this is dropped.
#[derive(Debug)]
pub(super) struct DeviceWait<'a>(&'a AtomicUsize);

impl Drop for DeviceWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Captures {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<CaptureOrder>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The captures under way in the process, on any device.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

impl CaptureOrder {
    /// Declares a use on a captured stream: it comes after the uses of the block on others, or its allocation there, which join
    /// here.
    pub(crate) fn declare(
        &self,
        context: &DeviceContext,
        uses: Arc<dyn DeclaredUse>,
        stream: Stream,
        access: Access,
    ) -> Result<()> {
        self.end_uses(context, &*uses, stream, access)?;
        self.enter_use(uses, stream, access);
        Ok(())
    }

    /// Makes a captured stream come after the uses of a block on others, or its allocation, that an access has to wait for.
    pub(crate) fn end_uses(
        &self,
        context: &DeviceContext,
        uses: &dyn DeclaredUse,
        stream: Stream,
        access: Access,
    ) -> Result<()> {
        let needs = self.needs(uses, stream, access);
        needs.into_iter().try_for_each(|first| context.order_captured(self, first, stream))
    }
}

impl DeviceContext {
    /// Returns the capture that a stream is part of, if it was made through this context.
    #[inline]
    pub(crate) fn capture_of(&self, stream: Stream) -> Option<Arc<CaptureOrder>> {
        if self.captures.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.captures.all().iter().find(|capture| capture.takes(stream)).cloned()
    }

    /// Returns whether two streams are part of one capture that was made through this context.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let (stream, side) = (gpu.streams().lease()?, gpu.streams().lease()?);
    /// gpu.capture(&stream, |capture| -> Result<()> {
    ///     assert!(!gpu.context().is_captured_with(&stream, &side));
    ///     capture.order(&stream, &side)?;
    ///     assert!(gpu.context().is_captured_with(&stream, &side));
    ///     capture.order(&side, &stream)
    /// })?;
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn is_captured_with(&self, stream: impl Into<Stream>, other: impl Into<Stream>) -> bool {
        self.capture_of(stream.into()).is_some_and(|capture| capture.contains(other.into()))
    }

    /// Makes a call of the driver that concerns no captured stream, and that captures forbid to whoever does not say so. Those of other
    /// devices do, too.
    #[inline]
    pub(crate) fn beside_captures<T>(&self, mut call: impl FnMut() -> T) -> T {
        if UNDER_WAY.load(Ordering::Acquire) == 0 {
            return call();
        }
        self.call_beside_captures(call)
    }

    #[cold]
    fn call_beside_captures<T>(&self, mut call: impl FnMut() -> T) -> T {
        let mut result = None;
        self.driver.beside_captures(&mut || result = Some(call()));
        result.unwrap_or_else(call)
    }

    /// Begins a wait for all work of the device. Fails while a stream is being captured: the wait would invalidate the capture.
    pub(super) fn begin_device_wait(&self) -> Result<DeviceWait<'_>, DriverError> {
        let waits = &self.captures.device_waits;
        // Counted before it looks, as a capture is entered before it counts: one of the two sees the other.
        waits.fetch_add(1, Ordering::SeqCst);
        let wait = DeviceWait(waits);
        match self.is_capturing_any()? {
            true => Err(DriverError::new("free", self.device, Status::Capturing)),
            false => Ok(wait),
        }
    }

    /// Returns whether the stream in a slot is part of a capture that this context makes.
    pub(super) fn is_captured_here(&self, slot: usize) -> bool {
        if self.captures.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let made_here = |capture: &&Arc<CaptureOrder>| capture.maker == CaptureMaker::Context;
        let of_slot = |capture: &Arc<CaptureOrder>| capture.in_slot(slot).map(|stream| (capture.clone(), stream));
        let found = self.captures.all().iter().filter(made_here).find_map(of_slot);
        // One of which the driver fails to say whether it is captured counts as captured.
        let is_part = |capture: &CaptureOrder, stream| self.is_part_of(capture, stream).unwrap_or(true);
        found.is_some_and(|(capture, stream)| !self.ends_at_last(&capture) && is_part(&capture, stream))
    }

    /// Returns whether a stream is part of a capture. The driver is asked where it failed to say so, and a stream that did not
    /// become part is what it was before.
    pub(crate) fn is_part_of(&self, order: &CaptureOrder, stream: Stream) -> Result<bool> {
        if !order.state().doubted.contains(&stream) {
            return Ok(order.contains(stream));
        }
        let held = self.hold(stream)?;
        // SAFETY: the stream is live while it is held.
        let is_captured = unsafe { self.driver.stream_is_capturing(self.device, held.raw()) };
        let is_captured = is_captured.map_err(|error| self.failed(error))?;
        let _all = self.captures.all();
        let mut state = order.state();
        let doubts = state.doubted.len();
        state.doubted.retain(|doubted| *doubted != stream);
        if !is_captured && state.doubted.len() < doubts {
            state.clocks.remove(&stream);
            if let Some(at) = state.exposed.iter().position(|exposed| *exposed == stream) {
                state.exposed.swap_remove(at);
                self.streams.conceal(stream);
            }
        }
        Ok(state.clocks.contains_key(&stream))
    }

    /// Tries to end a capture that [could not be ended](Self::leave_captured); returns whether it is over.
    fn ends_at_last(&self, capture: &Arc<CaptureOrder>) -> bool {
        let origin = match &mut capture.state().left {
            Some(left) if !left.is_being_ended => {
                left.is_being_ended = true;
                left.origin
            }
            _ => return false,
        };
        let is_over = self.end_at_driver(origin).is_ok();
        match is_over {
            true => self.end_capture(capture),
            false => capture.state().left = Some(LeftCapture { origin, is_being_ended: false }),
        }
        is_over
    }

    /// Leaves a capture alone that the driver failed to end: its streams are refused by name, and whoever would use them next
    /// tries again.
    pub(crate) fn leave_captured(&self, order: &CaptureOrder, origin: Stream) {
        order.state().left = Some(LeftCapture { origin, is_being_ended: false });
    }

    /// Has the driver end the capture that began on a stream.
    pub(crate) fn capture_end(&self, origin: Stream) -> Result<RawGraph> {
        let held = self.hold(origin)?;
        // SAFETY: the stream is live while it is held.
        let graph = unsafe { self.driver.capture_end(self.device, held.raw()) };
        graph.map_err(|error| self.failed(error))
    }

    /// Has the driver end the capture that began on a stream, and drops what was captured. Fails where it is still captured.
    pub(crate) fn end_at_driver(&self, origin: Stream) -> Result<()> {
        match self.capture_end(origin) {
            Ok(graph) => {
                self.destroy_graph(graph);
                Ok(())
            }
            Err(error) => {
                let held = self.hold(origin)?;
                // SAFETY: the stream is live while it is held.
                let is_captured = unsafe { self.driver.stream_is_capturing(self.device, held.raw()) };
                if matches!(is_captured, Ok(false)) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Announces a capture, which is under way or about to be, on a stream that is known already or on none. Everybody else
    /// leaves its streams alone from now on.
    pub(crate) fn announce_capture(&self, origin: Option<Stream>, maker: CaptureMaker) -> Result<Arc<CaptureOrder>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let order = Arc::new(CaptureOrder::new(number, maker));
        self.captures.all().push(order.clone());
        self.captures.count.fetch_add(1, Ordering::SeqCst);
        UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        origin.map_or(Ok(()), |origin| self.enter_new(&order, origin)).inspect_err(|_| self.end_capture(&order))?;
        Ok(order)
    }

    /// Makes a stream part of a capture, unless it is the default stream or part of another. Returns when nobody asks it
    /// anything any more, nor all of the device, unless others make the capture.
    pub(crate) fn enter_new(&self, order: &CaptureOrder, stream: Stream) -> Result<()> {
        if order.contains(stream) {
            return Ok(());
        }
        self.streams.check_own(stream)?;
        let all = self.captures.all();
        if stream.is_default() || all.iter().any(|capture| capture.contains(stream)) {
            return Err(self.captured(stream));
        }
        let was_private = self.streams.is_private(stream);
        self.streams.expose(stream)?;
        self.fault.alarm();
        let mut state = order.state();
        state.clocks.entry(stream).or_default();
        if was_private {
            state.exposed.push(stream);
        }
        drop(state);
        drop(all);
        if order.maker == CaptureMaker::Context {
            self.streams.wait_for_users(stream);
            while self.captures.device_waits.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Exposes a stream whose handle others get, also after a capture that it is part of.
    pub(super) fn expose_for_good(&self, stream: Stream) -> Result<RawStream> {
        let all = self.captures.all();
        all.iter().for_each(|capture| capture.state().exposed.retain(|other| *other != stream));
        self.streams.expose(stream)
    }

    /// Ends what [`announce_capture`](Self::announce_capture) began: the streams are what they were before.
    pub(crate) fn end_capture(&self, order: &Arc<CaptureOrder>) {
        let mut all = self.captures.all();
        let before = all.len();
        all.retain(|other| !Arc::ptr_eq(other, order));
        self.captures.count.fetch_sub(before - all.len(), Ordering::SeqCst);
        UNDER_WAY.fetch_sub(before - all.len(), Ordering::AcqRel);
        let exposed = std::mem::take(&mut order.state().exposed);
        exposed.into_iter().for_each(|stream| self.streams.conceal(stream));
    }

    /// Makes a stream come after what was captured on another so far, and part of the same capture. One that was no part of it
    /// is none after a failure, unless the driver says that it is.
    pub(crate) fn order_captured(&self, order: &CaptureOrder, first: Stream, then: Stream) -> Result<()> {
        self.hold(first)?;
        if first == then {
            return Ok(());
        }
        let is_new = !self.is_part_of(order, then)?;
        if is_new {
            // One that somebody else captures would spoil both captures.
            self.check_use(then)?;
            self.enter_new(order, then)?;
        }
        let ordered = self.chain_captured(first, then);
        match ordered {
            Ok(()) => order.joined(first, then),
            Err(_) if is_new => {
                order.state().doubted.push(then);
                // What cannot be said now is asked again when one of the two is used.
                let _may_be_unknown = self.is_part_of(order, then);
            }
            Err(_) => {}
        }
        ordered
    }

    fn chain_captured(&self, first: Stream, then: Stream) -> Result<()> {
        let (held_first, held_then) = (self.hold(first)?, self.hold(then)?);
        // SAFETY: the streams are live while they are held.
        unsafe { self.chain(held_first.raw(), held_then.raw()) }.map_err(|error| self.failed(error))
    }

    #[cold]
    pub(crate) fn captured(&self, stream: Stream) -> Error {
        Error::StreamMisuse { device: self.device, stream: stream.number(), why: StreamMisuse::Capturing }
    }
}
