//! Dense numbers of living threads, so that per-thread state is an array and not a map.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// The number of a living thread: small, dense, and given to another thread once this one has ended.
///
/// At any moment no two living threads share a number, so whoever indexes by it is the only writer of that entry; what
/// an earlier holder of the number wrote is visible to a later one.
///
/// ```
/// use bursar::sync::ThreadIndex;
///
/// let here = ThreadIndex::current();
/// let there = std::thread::spawn(ThreadIndex::current).join().unwrap();
/// assert_ne!(here, there);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(u32);

static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

const UNSET: u32 = u32::MAX;

/// Called by every thread that gives its number up, before another thread can have it.
static AT_END: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has every thread call `call` when it gives its number up, so that it forgets what it found under that number.
pub(crate) fn at_thread_end(call: fn()) {
    AT_END.lock().unwrap_or_else(PoisonError::into_inner).push(call);
}

struct Lease {
    index: u32,
    /// The process of the thread. One that is forked off may find the locks held by a thread that it does not have.
    process: u32,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // From here on the thread has no number, so that its last destructors share none with a new thread.
        let _ = CURRENT.try_with(|current| current.set(UNSET));
        if self.process != std::process::id() {
            return;
        }
        for call in AT_END.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            call();
        }
        FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.index);
    }
}

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(UNSET) };
    static LEASE: Lease = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let index = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1 - 1
        });
        Lease { index, process: std::process::id() }
    };
}

impl ThreadIndex {
    /// Returns the current thread's number; `None` while the thread's last destructors run.
    #[inline]
    pub fn current() -> Option<Self> {
        match CURRENT.try_with(Cell::get) {
            Ok(UNSET) => Self::enter(),
            Ok(index) => Some(Self(index)),
            Err(_) => None,
        }
    }

    /// Returns the current thread's number, if it has one already and that is below a limit: for callers that can do
    /// without.
    #[inline]
    pub fn known_below(limit: usize) -> Option<usize> {
        let index = CURRENT.try_with(Cell::get).unwrap_or(UNSET);
        ((index as usize) < limit.min(UNSET as usize)).then_some(index as usize)
    }

    #[cold]
    fn enter() -> Option<Self> {
        let index = LEASE.try_with(|lease| lease.index).ok()?;
        CURRENT.try_with(|current| current.set(index)).ok()?;
        Some(Self(index))
    }

    /// Returns the number itself.
    #[inline]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn living_threads_never_share_a_number_and_numbers_stay_dense() {
        let mut highest = 0;
        for _ in 0..20 {
            let barrier = Barrier::new(8);
            let seen: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            let index = ThreadIndex::current().expect("alive").get();
                            barrier.wait();
                            index
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 8);
            highest = highest.max(*seen.iter().max().expect("eight"));
        }
        // Other tests of this binary hold numbers too; recycled ones keep the range from growing with every round.
        assert!(highest < 8 * 20);
    }
}
