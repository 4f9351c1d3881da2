//! Who is in: the favourite by right, or whoever's turn it is.
//!
//! The first thread there ever is becomes the favourite when it leaves. From then on it writes that it is in and then looks
//! whether it still is the favourite. Whoever takes that right away, for good, writes so and then looks whether the favourite
//! is in. Between the two of each stands a [barrier](super::barrier), so at least one of them sees what the other wrote: the
//! favourite goes out again, or the other waits until it does. Nobody but the one favourite ever writes that it is in.

use super::barrier;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// No thread's number: there is no favourite yet.
const NOBODY: usize = 0;
/// No thread's number: all take turns.
const EVERYBODY: usize = 1;

/// How a thread came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the favourite.
    ByRight,
    /// It took its turn.
    Taken,
    /// The same, and nobody did before it.
    First,
}

/// Lets one thread in at a time.
#[derive(Debug)]
pub(super) struct Turns {
    favourite: AtomicUsize,
    /// Whether the favourite is in, by right.
    is_in: AtomicBool,
    /// Whether somebody has the turn.
    taken: AtomicBool,
}

impl Turns {
    pub(super) fn new() -> Self {
        let [is_in, taken] = [AtomicBool::new(false), AtomicBool::new(false)];
        Self { favourite: AtomicUsize::new(NOBODY), is_in, taken }
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
        self.take()
    }

    /// Lets the next one in; for the one who is, with the same number as before.
    #[inline(always)]
    pub(super) fn leave(&self, turn: Turn, me: usize) {
        match turn {
            Turn::ByRight => self.is_in.store(false, Ordering::Release),
            Turn::Taken => self.taken.store(false, Ordering::Release),
            Turn::First => self.leave_favoured(me),
        }
    }

    #[inline]
    fn take(&self) -> Turn {
        if !self.try_take() {
            self.wait();
        }
        match self.favourite.load(Ordering::Relaxed) {
            EVERYBODY => Turn::Taken,
            other => self.take_over_from(other),
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

    /// With the turn in hand: sees to it that the favourite is out and stays so, or finds out that there was none.
    #[cold]
    fn take_over_from(&self, favourite: usize) -> Turn {
        if favourite == NOBODY && barrier::is_there() {
            return Turn::First;
        }
        self.favourite.store(EVERYBODY, Ordering::Relaxed);
        if favourite != NOBODY {
            barrier::heavy();
            let mut round = 0;
            while self.is_in.load(Ordering::Acquire) {
                pause(&mut round);
            }
        }
        Turn::Taken
    }

    /// From its next time on, the thread whose turn it was comes in by right.
    #[cold]
    fn leave_favoured(&self, me: usize) {
        self.favourite.store(me, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
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
