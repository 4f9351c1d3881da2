//! The order of what one capture has so far.
//!
//! Nothing runs while a stream is captured, so the clocks of submissions know nothing of it. A [`CaptureOrder`] has clocks
//! of its own, which live as long as the capture: one for each captured stream, with the point of every other that it comes
//! after. What the host knows, and what was submitted before, is no part of it: all of that comes before a launch.

use crate::{Access, Generation, OwnerId, Result, Stream};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A point of a captured stream: after so many allocations, uses and frees there.
pub(crate) type Point = (Stream, u64);

/// The origin of a block that was allocated in a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaptureOrigin {
    /// The number of the capture.
    pub(crate) capture: u64,
    /// The point of its own stream that it was allocated at, which comes after whatever had its memory before. Where others make
    /// the capture, nothing is known of its order.
    pub(crate) granted: Option<Point>,
}

/// The uses of a block that something outside this module keeps: begun again with each launch of the graph.
pub(crate) trait DeclaredUse: fmt::Debug + Send + Sync {
    /// Returns the generation of the block.
    fn generation(&self) -> Generation;

    /// Returns the resource that made the block.
    fn owner(&self) -> OwnerId;

    /// Returns the capture that the block was allocated in, if it was in one, and where there.
    fn origin(&self) -> Option<CaptureOrigin>;

    /// Fails if the block is its owner's no more: it was freed or given away, is being, or waits for its free.
    fn check_owned(&self) -> Result<()>;

    /// Returns whether the block was freed or given away, so that its uses order nothing any more.
    fn is_over(&self) -> bool;

    /// Orders a use on `stream` by what else the block is used for; it ends when the result is dropped.
    fn begin_on(self: Arc<Self>, stream: Stream, access: Access) -> Result<Box<dyn Send>>;
}

/// The points of captured streams that one of them comes after.
#[derive(Clone, Debug, Default)]
pub(super) struct CaptureClock(BTreeMap<Stream, u64>);

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
    pub(super) maker: CaptureMaker,
    state: Mutex<OrderState>,
}

#[derive(Debug, Default)]
pub(super) struct OrderState {
    pub(super) clocks: BTreeMap<Stream, CaptureClock>,
    /// The streams that are exposed for as long as the capture lasts.
    pub(super) exposed: Vec<Stream>,
    uses: BTreeMap<Generation, CapturedUses>,
    /// Streams of which the driver failed to say whether they became part of it: they are refused until it does.
    pub(super) doubted: Vec<Stream>,
    /// Set where the driver failed to end it.
    pub(super) left: Option<LeftCapture>,
}

/// A capture that the driver failed to end, to be tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftCapture {
    /// The stream that it began on.
    pub(super) origin: Stream,
    pub(super) is_being_ended: bool,
}

impl OrderState {
    /// Returns the point that a stream has reached, after one more allocation, use or free.
    fn tick(&mut self, stream: Stream) -> Point {
        let time = self.clocks.entry(stream).or_default().0.entry(stream).or_default();
        *time += 1;
        (stream, *time)
    }

    /// Returns the streams whose uses of a block an access on `stream` has to wait for. The allocation at `granted` counts as a
    /// write.
    fn needs(&self, block: Generation, granted: Option<Point>, stream: Stream, access: Access) -> Vec<Stream> {
        let (write, reads) = match self.uses.get(&block) {
            Some(uses) if access == Access::Write => (uses.write, &uses.reads[..]),
            Some(uses) => (uses.write, &[][..]),
            None => (granted, &[][..]),
        };
        let is_news = |point: &&Point| self.clocks.get(&stream).is_none_or(|clock| !clock.covers(**point));
        let mut needs: Vec<Stream> = write.iter().chain(reads).filter(is_news).map(|(of, _)| *of).collect();
        needs.dedup();
        needs
    }
}

impl CaptureOrder {
    pub(super) fn new(number: u64, maker: CaptureMaker) -> Self {
        Self { number, maker, state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, OrderState> {
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
    pub(super) fn takes(&self, stream: Stream) -> bool {
        let state = self.state();
        state.left.is_none() && state.clocks.contains_key(&stream) && !state.doubted.contains(&stream)
    }

    pub(super) fn in_slot(&self, slot: usize) -> Option<Stream> {
        self.state().clocks.keys().find(|stream| stream.slot() == slot).copied()
    }

    /// Returns the origin of a block that is allocated on a captured stream now.
    pub(crate) fn origin_on(&self, stream: Stream) -> CaptureOrigin {
        let granted = (self.maker == CaptureMaker::Context).then(|| self.state().tick(stream));
        CaptureOrigin { capture: self.number, granted }
    }

    /// Returns the point at which a block was allocated, where that was in this capture.
    fn granted(&self, uses: &dyn DeclaredUse) -> Option<Point> {
        uses.origin().filter(|origin| origin.capture == self.number)?.granted
    }

    /// Returns the streams that `stream` has to come after before an access to a block: those of the uses there, or else of its
    /// allocation.
    pub(super) fn needs(&self, uses: &dyn DeclaredUse, stream: Stream, access: Access) -> Vec<Stream> {
        self.state().needs(uses.generation(), self.granted(uses), stream, access)
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

    /// Records a use of a block on a captured stream.
    pub(super) fn enter_use(&self, uses: Arc<dyn DeclaredUse>, stream: Stream, access: Access) {
        let (block, granted) = (uses.generation(), self.granted(&*uses));
        let mut state = self.state();
        let point = state.tick(stream);
        let made = || CapturedUses { uses, access, write: granted, reads: Vec::new() };
        let uses = state.uses.entry(block).or_insert_with(made);
        uses.access = uses.access.max(access);
        match access {
            Access::Write => (uses.write, uses.reads) = (Some(point), Vec::new()),
            Access::Read => {
                uses.reads.retain(|(of, _)| *of != stream);
                uses.reads.push(point);
            }
        }
    }

    /// Takes the uses that were declared of blocks, with the strongest access to each.
    pub(crate) fn take_uses(&self) -> Vec<(Arc<dyn DeclaredUse>, Access)> {
        let uses = std::mem::take(&mut self.state().uses);
        uses.into_values().map(|uses| (uses.uses, uses.access)).collect()
    }
}
