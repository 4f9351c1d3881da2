//! A lock for short critical sections, nearly free for a thread that has it to itself.
#![allow(unsafe_code)]

mod barrier;
mod turns;

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use turns::{Turn, Turns};

/// A lock that is biased towards its first thread, for critical sections of a few hundred instructions that never make
/// a call that may wait.
///
/// The first thread that takes it is its favourite, and enters with plain stores. Once another thread wants to enter,
/// the favourite loses that right permanently, and all take turns. A locked instruction has to wait for every store
/// before it, so on a path that writes much it costs more than most of what it guards. Letting go is always a plain
/// store.
///
/// To take the favourite's right away, the kernel executes a barrier in every thread of the process (`membarrier`).
/// Where the kernel has no such barrier, there is no favourite. On the pool's path the bias saves a twentieth of the
/// time of an operation, and a tenth if other processes load the machine; loom checks the protocol with a full barrier
/// on both sides. There is no wake-up: a thread that has to wait spins, then yields, then sleeps for 20 µs at a time. A
/// panic while it is locked does not poison it. A thread that locks it twice panics or deadlocks.
///
/// ```
/// let latch = bursar::sync::Latch::new(1);
/// *latch.lock() += 1;
/// std::thread::scope(|scope| scope.spawn(|| *latch.lock() += 1).join()).unwrap();
/// assert_eq!(*latch.lock(), 3);
/// ```
pub struct Latch<T> {
    turns: Turns,
    inside: UnsafeCell<T>,
}

// SAFETY: one thread is inside at a time, and the next one sees what it wrote.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    /// Makes a latch around a value, with no favourite yet.
    pub fn new(inside: T) -> Self {
        Self { turns: Turns::new(), inside: UnsafeCell::new(inside) }
    }

    /// Waits until no other thread has it, and takes it.
    #[inline(always)]
    pub fn lock(&self) -> LatchGuard<'_, T> {
        LatchGuard { turn: self.turns.enter(here()), latch: self, _stays: PhantomData }
    }
}

impl<T: Default> Default for Latch<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").finish_non_exhaustive()
    }
}

/// Access to the value of a [`Latch`], until it is dropped.
///
/// ```
/// let latch = bursar::sync::Latch::new(String::from("one"));
/// let mut guard: bursar::sync::LatchGuard<'_, String> = latch.lock();
/// guard.push_str(" at a time");
/// assert_eq!(*guard, "one at a time");
/// ```
pub struct LatchGuard<'a, T> {
    latch: &'a Latch<T>,
    turn: Turn,
    _stays: PhantomData<*mut T>,
}

impl<T> Deref for LatchGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: only this guard reaches what is inside while it lives.
        unsafe { &*self.latch.inside.get() }
    }
}

impl<T> DerefMut for LatchGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only this guard reaches what is inside while it lives, and it is borrowed whole.
        unsafe { &mut *self.latch.inside.get() }
    }
}

impl<T> Drop for LatchGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.latch.turns.leave(self.turn, here());
    }
}

impl<T: fmt::Debug> fmt::Debug for LatchGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Returns a number that no other running thread has: the address of a thread-local. A later thread may have the same
/// one, since it was given the memory of a thread that has ended, and so comes after everything that thread did.
#[inline(always)]
fn here() -> usize {
    thread_local! {
        static HERE: u64 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Adds to both halves of a pair, which differ while a thread is inside.
    fn add(latch: &Latch<(u64, u64)>, times: u64) {
        for _ in 0..times {
            let mut pair = latch.lock();
            assert_eq!(pair.0, pair.1, "another is in");
            pair.0 += 1;
            std::hint::black_box(&mut *pair);
            pair.1 += 1;
        }
    }

    #[test]
    fn p8_one_thread_has_it_at_a_time_whoever_was_favoured_before() {
        for favoured in [0, 1, 50_000] {
            let (latch, line) = (Latch::new((0, 0)), Barrier::new(4));
            add(&latch, favoured);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        line.wait();
                        add(&latch, 50_000);
                    });
                }
            });
            assert_eq!(*latch.lock(), (favoured + 200_000, favoured + 200_000));
        }
    }

    /// A favourite enters and leaves while another thread takes its right away, again and again.
    #[test]
    fn p8_the_favourite_loses_its_right_and_nothing_is_lost() {
        for round in 0..200 {
            let (latch, line) = (Latch::new((0, 0)), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    add(&latch, 1 + round % 7);
                    line.wait();
                    add(&latch, 2_000);
                });
                line.wait();
                add(&latch, 1_000);
            });
            assert_eq!(*latch.lock(), (3_001 + round % 7, 3_001 + round % 7));
        }
    }

    #[test]
    fn p8_a_panic_lets_the_next_one_in() {
        let latch = Latch::new(1);
        for _ in 0..3 {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = latch.lock();
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(panicked.is_err());
            *latch.lock() += 1;
        }
        assert_eq!(*latch.lock(), 4);
    }

    #[test]
    #[should_panic(expected = "taken twice")]
    fn p8_the_favourite_does_not_get_it_twice() {
        let latch = Latch::new(());
        drop(latch.lock());
        if !barrier::is_there() {
            panic!("nobody is favoured here, and would wait for itself: taken twice");
        }
        let _first = latch.lock();
        let _second = latch.lock();
    }
}
