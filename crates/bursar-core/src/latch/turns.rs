//! Who is in: the favourite by right, or whoever's turn it is.
//!
//! The favourite writes that it is in and then looks whether it still is the favourite. Whoever takes that right away writes
//! so and then looks whether the favourite is in. Between the two of each stands a [barrier](super::barrier), so at least
//! one of them sees what the other wrote: the favourite goes out again, or the other waits until it does.

use super::barrier;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// No thread's number: there is no favourite yet.
const NOBODY: usize = 0;
/// No thread's number: all take turns.
const EVERYBODY: usize = 1;

/// How often in a row a thread's turn comes until it is the favourite. What it takes to end that, a call of the kernel which
/// reaches all processors, is little beside as many turns.
const OFTEN: u32 = if cfg!(loom) { 1 } else { 1 << 14 };

/// How a thread came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the favourite.
    ByRight,
    /// It took its turn.
    Taken,
}

/// Lets one thread in at a time.
#[derive(Debug)]
pub(super) struct Turns {
    favourite: AtomicUsize,
    /// Whether the favourite is in, by right.
    is_in: AtomicBool,
    /// Whether somebody has the turn.
    taken: AtomicBool,
    /// Who had the last turn, and how often in a row; for whoever has the turn.
    last: AtomicUsize,
    row: AtomicU32,
}

impl Turns {
    pub(super) fn new() -> Self {
        let (favourite, last, row) = (AtomicUsize::new(NOBODY), AtomicUsize::new(NOBODY), AtomicU32::new(0));
        Self { favourite, is_in: AtomicBool::new(false), taken: AtomicBool::new(false), last, row }
    }

    /// Comes back when nobody else is in, until [`leave`](Self::leave). `me` is the thread's number.
    #[inline(always)]
    pub(super) fn enter(&self, me: usize) -> Turn {
        if self.favourite.load(Ordering::Relaxed) == me {
            if self.is_in.load(Ordering::Relaxed) {
                taken_twice();
            }
            self.is_in.store(true, Ordering::Relaxed);
            barrier::light();
            if self.favourite.load(Ordering::Relaxed) == me {
                return Turn::ByRight;
            }
            self.is_in.store(false, Ordering::Release);
        }
        self.take(me);
        Turn::Taken
    }

    /// Lets the next one in; for the one who is.
    #[inline(always)]
    pub(super) fn leave(&self, turn: Turn) {
        match turn {
            Turn::ByRight => self.is_in.store(false, Ordering::Release),
            Turn::Taken => self.taken.store(false, Ordering::Release),
        }
    }

    #[inline]
    fn take(&self, me: usize) {
        if !self.try_take() {
            self.wait();
        }
        if self.favourite.load(Ordering::Relaxed) != EVERYBODY {
            self.end_favour(me);
        }
        let row = if self.last.load(Ordering::Relaxed) == me { self.row.load(Ordering::Relaxed) + 1 } else { 0 };
        self.last.store(me, Ordering::Relaxed);
        self.row.store(row, Ordering::Relaxed);
        if row >= OFTEN {
            self.favour(me);
        }
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut round = 0;
        while self.taken.load(Ordering::Relaxed) || !self.try_take() {
            pause(&mut round);
        }
    }

    /// Sees to it that the favourite is out and stays so; the first there ever is becomes it.
    #[cold]
    fn end_favour(&self, me: usize) {
        if self.favourite.load(Ordering::Relaxed) == NOBODY {
            self.favourite.store(EVERYBODY, Ordering::Relaxed);
            return self.favour(me);
        }
        self.favourite.store(EVERYBODY, Ordering::Relaxed);
        barrier::heavy();
        let mut round = 0;
        while self.is_in.load(Ordering::Acquire) {
            pause(&mut round);
        }
    }

    /// From its next time on, the thread whose turn it is comes in by right.
    #[cold]
    fn favour(&self, me: usize) {
        self.row.store(0, Ordering::Relaxed);
        if barrier::is_there() {
            self.favourite.store(me, Ordering::Relaxed);
        }
    }
}

#[cold]
fn taken_twice() -> ! {
    panic!("a latch is taken twice by one thread")
}

/// Looks again soon, and the later the less often.
#[cfg(not(loom))]
fn pause(round: &mut u32) {
    *round += 1;
    match *round {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        // Whoever is in may have to wait for this very processor.
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}

#[cfg(loom)]
fn pause(_: &mut u32) {
    loom::thread::yield_now();
}
