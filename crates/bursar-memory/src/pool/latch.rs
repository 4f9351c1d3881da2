//! The lock of a pool's middle: held for a few hundred instructions, never across a driver call, and cheap to let go.
//!
//! Whoever finds it taken looks again, then lets others run, then sleeps for moments. Nobody sleeps until woken, so to let
//! go is a plain store: a lock that wakes sleepers has to find out whether there are any, which costs as much as taking it.
#![allow(unsafe_code)]

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody is in.
#[derive(Debug)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Comes back when nobody else is in, until [`leave`](Self::leave).
    #[inline(always)]
    pub(super) fn enter(&self) {
        if !self.try_enter() {
            self.wait();
        }
    }

    #[inline(always)]
    fn try_enter(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut round = 0;
        while self.0.load(Ordering::Relaxed) || !self.try_enter() {
            pause(round);
            round += 1;
        }
    }

    /// Lets the next one in; for the one who is.
    #[inline(always)]
    pub(super) fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What to do before looking for the nth time.
#[cfg(not(loom))]
fn pause(round: u32) {
    match round {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        // Whoever is in may have to wait for this very processor.
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}

#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}

/// Something that one thread has at a time. A panic does not spoil it.
pub(super) struct Latch<T> {
    flag: Flag,
    inside: UnsafeCell<T>,
}

// SAFETY: the flag lets one thread in at a time, and what each of them leaves is seen by the next.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    pub(super) fn new(inside: T) -> Self {
        Self { flag: Flag::new(), inside: UnsafeCell::new(inside) }
    }

    /// Waits until no other thread has it. The same thread must not.
    #[inline(always)]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.flag.enter();
        Guard { latch: self, _of_this_thread: std::marker::PhantomData }
    }
}

impl<T> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").finish_non_exhaustive()
    }
}

/// What a [`Latch`] has inside, until it is dropped.
pub(super) struct Guard<'a, T> {
    latch: &'a Latch<T>,
    _of_this_thread: std::marker::PhantomData<*mut T>,
}

// SAFETY: it gives what `&T` gives.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: only this guard reaches what is inside while it lives.
        unsafe { &*self.latch.inside.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only this guard reaches what is inside while it lives, and it is borrowed whole.
        unsafe { &mut *self.latch.inside.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.latch.flag.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn p8_one_thread_has_it_at_a_time_and_sees_what_others_left() {
        let latch = Latch::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut pair = latch.lock();
                        pair.0 += 1;
                        assert_eq!(pair.0, pair.1 + 1, "another is in");
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), (160_000, 160_000));
    }

    #[test]
    fn p8_a_panic_lets_the_next_one_in() {
        let latch = Latch::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = latch.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        *latch.lock() += 1;
        assert_eq!(*latch.lock(), 2);
    }
}
