//! A biased lock: the favourite thread enters with plain stores, all others take turns by compare-and-swap.
//!
//! The first thread that ever enters becomes the favourite when it leaves. From then on it writes that it is inside and
//! then checks whether it still is the favourite. Whoever takes that right away, permanently, writes so and then checks
//! whether the favourite is inside. Between the write and the check of each stands a [barrier](super::barrier), so at
//! least one of them sees what the other wrote: the favourite leaves again, or the other waits until it does. Nobody
//! but the one favourite ever writes that it is inside; two threads that wrote to the same word could hide each other,
//! so there is one favourite ever.

use super::barrier;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// No thread's number: there is no favourite yet.
const NOBODY: usize = 0;
/// No thread's number: all take turns.
const EVERYBODY: usize = 1;

/// The way in which a thread entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// As the favourite.
    ByRight,
    /// By taking its turn.
    Taken,
    /// By taking the first turn of all.
    First,
}

/// Lets one thread in at a time.
#[derive(Debug)]
pub(super) struct Turns {
    favourite: AtomicUsize,
    /// True while the favourite is inside by right.
    is_in: AtomicBool,
    /// True while a thread has the turn.
    taken: AtomicBool,
}

impl Turns {
    pub(super) fn new() -> Self {
        let [is_in, taken] = [AtomicBool::new(false), AtomicBool::new(false)];
        Self { favourite: AtomicUsize::new(NOBODY), is_in, taken }
    }

    /// Waits until nobody else is inside and enters, until [`leave`](Self::leave). `me` is the thread's number.
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

    /// Leaves, with the number that the thread entered with.
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

    /// With the turn taken, waits until the favourite is outside and cannot enter again, or finds that there was none.
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

    /// Leaves and makes the thread the favourite, which enters by right from now on.
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

/// Pauses between two looks, the longer the more rounds there were.
#[cfg(not(loom))]
fn pause(round: &mut u32) {
    *round += 1;
    match *round {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        // The thread inside may be waiting for this very processor.
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}

#[cfg(loom)]
fn pause(_: &mut u32) {
    loom::thread::yield_now();
}
