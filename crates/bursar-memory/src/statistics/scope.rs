//! Counting one stretch of one thread's work on its own.

use super::{Amount, Counts, Statistics};
use bursar_core::Bytes;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A stretch of one thread's work that is counted on its own until it ends; see [`Statistics::scope`].
///
/// ```
/// let statistics = bursar_memory::Statistics::default();
/// let scope = statistics.scope();
/// assert_eq!(scope.counts().peak.bytes.get(), 0);
/// ```
#[derive(Debug)]
pub struct Scope {
    statistics: Statistics,
    depth: usize,
    /// A scope belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    pub(super) fn enter(statistics: Statistics) -> Self {
        let depth = statistics.shared.shards.with(|shard| shard.scopes.push());
        Self { statistics, depth, _thread: PhantomData }
    }

    /// What was counted so far, what inner scopes that have ended counted included.
    pub fn counts(&self) -> Counts {
        self.statistics.shared.shards.with(|shard| shard.scopes.read(self.depth))
    }

    /// Ends it and answers what was counted. Inner scopes that are still open end with it.
    pub fn finish(self) -> Counts {
        self.end()
    }

    fn end(&self) -> Counts {
        self.statistics.shared.shards.with(|shard| shard.scopes.pop(self.depth))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    current: i128,
    peak: i128,
    total: u64,
}

impl Tally {
    fn rise(&mut self, n: u64) {
        self.restore(n);
        self.total = self.total.wrapping_add(n);
    }

    fn restore(&mut self, n: u64) {
        self.current += i128::from(n);
        self.peak = self.peak.max(self.current);
    }

    fn fall(&mut self, n: u64) {
        self.current -= i128::from(n);
    }

    fn absorb(&mut self, inner: Self) {
        self.peak = self.peak.max(self.current + inner.peak);
        self.current += inner.current;
        self.total = self.total.wrapping_add(inner.total);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Open {
    bytes: Tally,
    count: Tally,
}

impl Open {
    fn absorb(&mut self, inner: Self) {
        self.bytes.absorb(inner.bytes);
        self.count.absorb(inner.count);
    }

    /// What frees of blocks from before the scope took away does not make a count negative.
    fn counts(self) -> Counts {
        let amount = |bytes: i128, count: i128| Amount {
            bytes: Bytes(u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)),
            count: u64::try_from(count.max(0)).unwrap_or(u64::MAX),
        };
        Counts {
            current: amount(self.bytes.current, self.count.current),
            peak: amount(self.bytes.peak, self.count.peak),
            total: Amount { bytes: Bytes(self.bytes.total), count: self.count.total },
        }
    }
}

/// The open scopes of one thread, outermost first.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    depth: AtomicUsize,
    open: Mutex<Vec<Open>>,
}

impl Scopes {
    #[inline]
    pub(super) fn rise(&self, bytes: u64) {
        if self.depth.load(Relaxed) > 0 {
            self.innermost(|open| {
                open.bytes.rise(bytes);
                open.count.rise(1);
            });
        }
    }

    #[inline]
    pub(super) fn fall(&self, bytes: u64) {
        if self.depth.load(Relaxed) > 0 {
            self.innermost(|open| {
                open.bytes.fall(bytes);
                open.count.fall(1);
            });
        }
    }

    pub(super) fn restore(&self, bytes: u64) {
        if self.depth.load(Relaxed) > 0 {
            self.innermost(|open| {
                open.bytes.restore(bytes);
                open.count.restore(1);
            });
        }
    }

    #[cold]
    fn innermost(&self, f: impl FnOnce(&mut Open)) {
        self.edit(|open| open.last_mut().map(f));
    }

    fn edit<T>(&self, f: impl FnOnce(&mut Vec<Open>) -> T) -> T {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut open);
        self.depth.store(open.len(), Relaxed);
        result
    }

    fn push(&self) -> usize {
        self.edit(|open| {
            open.push(Open::default());
            open.len() - 1
        })
    }

    fn read(&self, depth: usize) -> Counts {
        self.edit(|open| open.get(depth).copied().unwrap_or_default().counts())
    }

    /// Ends every scope from `depth` inwards, each into the one around it.
    fn pop(&self, depth: usize) -> Counts {
        self.edit(|open| {
            let mut ended = Open::default();
            while open.len() > depth {
                ended = open.pop().unwrap_or_default();
                if let Some(outer) = open.last_mut() {
                    outer.absorb(ended);
                }
            }
            ended.counts()
        })
    }
}
