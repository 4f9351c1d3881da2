//! Captures of streams into graphs that are made through this context, and the order of what is captured.
//!
//! Nothing runs while a stream is captured, so the clocks of submissions know nothing of it. A [`CaptureOrder`] has clocks
//! of its own, which live as long as the capture: one for each captured stream, with the point of every other that it comes
//! after. What the host knows, and what was submitted before, is no part of it: all of that comes before a launch.
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

use super::DeviceContext;
use crate::{
    Access, DriverError, Error, Generation, OwnerId, RawGraph, RawStream, Result, Status, Stream, StreamMisuse,
};
use std::collections::BTreeMap;
use std::fmt;
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

/// A point of a captured stream: after so many uses and frees there.
pub(crate) type Point = (Stream, u64);

/// The uses of a block that something outside this module keeps: begun again with each launch of the graph.
pub(crate) trait DeclaredUse: fmt::Debug + Send + Sync {
    /// Returns the generation of the block.
    fn generation(&self) -> Generation;

    /// Returns the resource that made the block.
    fn owner(&self) -> OwnerId;

    /// Returns the number of the capture that the block was allocated in, if it was in one.
    fn capture(&self) -> Option<u64>;

    /// Fails if the block is its owner's no more: it was freed or given away, is being, or waits for its free.
    fn check_owned(&self) -> Result<()>;

    /// Returns whether the block was freed or given away, so that its uses order nothing any more.
    fn is_over(&self) -> bool;

    /// Orders a use on `stream` by what else the block is used for; it ends when the result is dropped.
    fn begin_on(self: Arc<Self>, stream: Stream, access: Access) -> Result<Box<dyn Send>>;
}

/// The points of captured streams that one of them comes after.
#[derive(Clone, Debug, Default)]
struct CaptureClock(BTreeMap<Stream, u64>);

impl CaptureClock {
    fn covers(&self, (stream, time): Point) -> bool {
        self.0.get(&stream).is_some_and(|seen| *seen >= time)
    }

    fn join(&mut self, other: &Self) {
        for (stream, time) in &other.0 {
            let seen = self.0.entry(*stream).or_default();
            *seen = (*seen).max(*time);
        }
    }
}

/// The uses of one block in a capture.
#[derive(Debug)]
struct CapturedUses {
    uses: Arc<dyn DeclaredUse>,
    access: Access,
    write: Option<Point>,
    reads: Vec<Point>,
}

/// The maker of a capture, who has the driver begin and end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMaker {
    /// This context: its streams are captured from the moment they are entered on.
    Context,
    /// Somebody else, at a time of their own: the driver knows which streams are captured.
    Others,
}

/// The order of what one capture has so far.
#[derive(Debug)]
pub(crate) struct CaptureOrder {
    number: u64,
    maker: CaptureMaker,
    state: Mutex<OrderState>,
}

#[derive(Debug, Default)]
struct OrderState {
    clocks: BTreeMap<Stream, CaptureClock>,
    /// The streams that are exposed for as long as the capture lasts.
    exposed: Vec<Stream>,
    uses: BTreeMap<Generation, CapturedUses>,
    /// Streams of which the driver failed to say whether they became part of it: they are refused until it does.
    doubted: Vec<Stream>,
    /// Set where the driver failed to end it.
    left: Option<LeftCapture>,
}

/// A capture that the driver failed to end, to be tried again.
#[derive(Clone, Copy, Debug)]
struct LeftCapture {
    /// The stream that it began on.
    origin: Stream,
    is_being_ended: bool,
}

impl OrderState {
    /// Returns the point that a stream has reached, after one more use or free.
    fn tick(&mut self, stream: Stream) -> Point {
        let time = self.clocks.entry(stream).or_default().0.entry(stream).or_default();
        *time += 1;
        (stream, *time)
    }

    /// Returns the streams whose uses of a block an access on `stream` has to wait for.
    fn needs(&self, block: Generation, stream: Stream, access: Access) -> Vec<Stream> {
        let Some(uses) = self.uses.get(&block) else { return Vec::new() };
        let reads = if access == Access::Write { &uses.reads[..] } else { &[] };
        let is_news = |point: &&Point| self.clocks.get(&stream).is_none_or(|clock| !clock.covers(**point));
        let mut needs: Vec<Stream> = uses.write.iter().chain(reads).filter(is_news).map(|(of, _)| *of).collect();
        needs.dedup();
        needs
    }
}

impl CaptureOrder {
    fn state(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other capture of the process has.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn contains(&self, stream: Stream) -> bool {
        self.state().clocks.contains_key(&stream)
    }

    /// Returns whether work on a stream becomes part of it.
    fn takes(&self, stream: Stream) -> bool {
        let state = self.state();
        state.left.is_none() && state.clocks.contains_key(&stream) && !state.doubted.contains(&stream)
    }

    fn in_slot(&self, slot: usize) -> Option<Stream> {
        self.state().clocks.keys().find(|stream| stream.slot() == slot).copied()
    }

    /// Returns the points that a free on several streams of a block of `home` comes after, which is one more point of each.
    pub(crate) fn free_points(&self, streams: &[Stream], home: Stream) -> Vec<Point> {
        let mut state = self.state();
        let mut points: Vec<_> = streams.iter().map(|stream| state.tick(*stream)).collect();
        if !streams.contains(&home) && state.clocks.contains_key(&home) {
            points.push(state.tick(home));
        }
        points.sort_unstable();
        points.dedup_by_key(|(stream, _)| *stream);
        points
    }

    /// Calls `act` with the question whether a stream comes after some points of the capture.
    pub(crate) fn with_clock<T>(&self, stream: Stream, act: impl FnOnce(&dyn Fn(&[Point]) -> bool) -> T) -> T {
        let clock = self.state().clocks.get(&stream).cloned().unwrap_or_default();
        act(&|points| points.iter().all(|point| clock.covers(*point)))
    }

    /// Returns the streams that are part of it.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        self.state().clocks.keys().copied().collect()
    }

    /// Returns the streams that are captured beside `origin`.
    pub(crate) fn beside(&self, origin: Stream) -> Vec<Stream> {
        self.streams().into_iter().filter(|&stream| stream != origin).collect()
    }

    /// Records that a captured stream comes after what was captured on another so far.
    pub(crate) fn joined(&self, first: Stream, then: Stream) {
        let mut state = self.state();
        let seen = state.clocks.get(&first).cloned().unwrap_or_default();
        state.clocks.entry(then).or_default().join(&seen);
    }

    /// Declares a use on a captured stream: it comes after the uses of the block on others, which join here.
    pub(crate) fn declare(
        &self,
        context: &DeviceContext,
        uses: Arc<dyn DeclaredUse>,
        stream: Stream,
        access: Access,
    ) -> Result<()> {
        let block = uses.generation();
        self.end_uses(context, block, stream, access)?;
        let mut state = self.state();
        let point = state.tick(stream);
        let made = || CapturedUses { uses, access, write: None, reads: Vec::new() };
        let uses = state.uses.entry(block).or_insert_with(made);
        uses.access = uses.access.max(access);
        match access {
            Access::Write => (uses.write, uses.reads) = (Some(point), Vec::new()),
            Access::Read => {
                uses.reads.retain(|(of, _)| *of != stream);
                uses.reads.push(point);
            }
        }
        Ok(())
    }

    /// Makes a captured stream come after the uses of a block on others that an access has to wait for.
    pub(crate) fn end_uses(
        &self,
        context: &DeviceContext,
        block: Generation,
        stream: Stream,
        access: Access,
    ) -> Result<()> {
        let needs = self.state().needs(block, stream, access);
        needs.into_iter().try_for_each(|first| context.order_captured(self, first, stream))
    }

    /// Takes the uses that were declared of blocks, with the strongest access to each.
    pub(crate) fn take_uses(&self) -> Vec<(Arc<dyn DeclaredUse>, Access)> {
        let uses = std::mem::take(&mut self.state().uses);
        uses.into_values().map(|uses| (uses.uses, uses.access)).collect()
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
        let order = Arc::new(CaptureOrder { number, maker, state: Mutex::default() });
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
