//! What a pool shares with the threads that use it.
//!
//! A thread that ends gives back what it kept. It must not own the pool for that, even for a moment: the last owner of a pool
//! returns its memory to the driver, which is nothing for a thread to do that is past its end.

use super::ground::Ground;
use super::hands;
use super::magazine::Kept;
use super::middle::{Fate, Middle};
use super::runs::UNIT;
use super::shards::{Here, Shards};
use bursar_core::{Bytes, DeviceContext, Latch, LatchGuard, Member, RawStream, Standing, Stream};
use std::fmt;
use std::sync::{Arc, Weak};

/// The free memory of a pool: the threads' magazines, and what is behind them. It outlives the pool while the driver has
/// not got everything back, and hears of streams that end until then.
pub(super) struct Shelf {
    pub(super) shards: Shards,
    middle: Latch<Middle>,
    context: Weak<DeviceContext>,
}

impl Shelf {
    /// An empty one of a device; a magazine holds at most so many units.
    pub(super) fn new(ground: Ground, magazine: u64, context: &Arc<DeviceContext>) -> Arc<Self> {
        let (shards, middle) = (Shards::new(magazine), Latch::new(Middle::new(ground)));
        let shelf = Arc::new(Self { shards, middle, context: Arc::downgrade(context) });
        let member: Weak<Self> = Arc::downgrade(&shelf);
        context.join(member);
        shelf
    }

    #[inline(always)]
    pub(super) fn middle(&self) -> LatchGuard<'_, Middle> {
        self.middle.lock()
    }

    /// The current thread's place, from which it will give everything back when it ends.
    pub(super) fn here(self: &Arc<Self>) -> Here<'_> {
        self.shards.here(|index| super::shards::at_thread_end(index, Arc::downgrade(self)))
    }

    /// Empties magazines into the lanes of their streams; `true` if there was anything. With the middle in hand from the
    /// first on: a stream that ended between the two would leave its place, and what was freed on it, to another.
    pub(super) fn drain(&self, thread: Option<usize>, place: Option<usize>) -> bool {
        let mut middle = self.middle();
        let kept = self.shards.drain(thread, place);
        kept.iter().for_each(|&(place, Kept { at, len })| middle.give(place, at, len));
        !kept.is_empty()
    }

    /// Gives back what the thread with this number keeps, and lets the next thread of that number enter.
    pub(super) fn thread_ended(&self, index: usize) {
        self.shards.leave(index);
        self.drain(Some(index), None);
    }
}

impl Member for Shelf {
    /// The pool itself is asked, or what is left of it.
    fn trim(&self) -> Bytes {
        Bytes::ZERO
    }

    fn standing(&self) -> Standing {
        let middle = self.middle();
        let kept = self.shards.kept();
        let bytes = |units: u64| Bytes(units * UNIT);
        Standing {
            held: bytes(middle.ground.held()),
            cached: bytes(middle.free_units() + kept),
            pending: bytes(middle.unsettled() + kept),
            largest_free_run: Some(bytes(middle.longest())),
        }
    }

    fn stream_ends(&self, stream: Stream, _: RawStream) {
        let Some(context) = self.context.upgrade() else { return };
        self.drain(None, Some(stream.slot()));
        let fate = match (context.unordered(stream), context.heir()) {
            (Some(_), _) => Fate::Unordered(stream),
            (None, Ok(heir)) => Fate::Inherited(heir.slot()),
            // It was waited for.
            (None, Err(_)) => Fate::Over,
        };
        let event = self.middle().end(stream.slot(), fate);
        event.into_iter().for_each(|event| hands::give_back(&context, event));
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Standing { held, cached, .. } = self.standing();
        f.debug_struct("Shelf").field("held", &held).field("cached", &cached).finish_non_exhaustive()
    }
}
