//! Scopes: parts of one thread's work that are counted separately.

use super::{Amount, Counts};
use crate::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    current: i128,
    peak: i128,
    total: u64,
}

impl Balance {
    fn add(&mut self, n: u64) {
        self.restore(n);
        self.total = self.total.wrapping_add(n);
    }

    fn restore(&mut self, n: u64) {
        self.current += i128::from(n);
        self.peak = self.peak.max(self.current);
    }

    fn remove(&mut self, n: u64) {
        self.current -= i128::from(n);
    }

    fn absorb(&mut self, inner: Self) {
        self.peak = self.peak.max(self.current + inner.peak);
        self.current += inner.current;
        self.total = self.total.wrapping_add(inner.total);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenScope {
    bytes: Balance,
    count: Balance,
}

impl OpenScope {
    fn absorb(&mut self, inner: Self) {
        self.bytes.absorb(inner.bytes);
        self.count.absorb(inner.count);
    }

    /// Returns the counts; frees of blocks from before the scope do not make them negative.
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
    open: Mutex<Vec<OpenScope>>,
}

impl Scopes {
    pub(super) const fn new() -> Self {
        Self { depth: AtomicUsize::new(0), open: Mutex::new(Vec::new()) }
    }

    pub(super) fn any_open(&self) -> bool {
        self.depth.load(Relaxed) > 0
    }

    pub(super) fn add(&self, bytes: u64) {
        self.innermost(|open| {
            open.bytes.add(bytes);
            open.count.add(1);
        });
    }

    pub(super) fn remove(&self, bytes: u64) {
        self.innermost(|open| {
            open.bytes.remove(bytes);
            open.count.remove(1);
        });
    }

    pub(super) fn restore(&self, bytes: u64) {
        self.innermost(|open| {
            open.bytes.restore(bytes);
            open.count.restore(1);
        });
    }

    fn innermost(&self, f: impl FnOnce(&mut OpenScope)) {
        if self.any_open() {
            self.edit(|open| open.last_mut().map(f));
        }
    }

    fn edit<T>(&self, f: impl FnOnce(&mut Vec<OpenScope>) -> T) -> T {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut open);
        self.depth.store(open.len(), Relaxed);
        result
    }

    pub(super) fn push(&self) -> usize {
        self.edit(|open| {
            open.push(OpenScope::default());
            open.len() - 1
        })
    }

    pub(super) fn read(&self, depth: usize) -> Counts {
        self.edit(|open| open.get(depth).copied().unwrap_or_default().counts())
    }

    /// Closes all scopes.
    pub(super) fn clear(&self) {
        self.edit(Vec::clear);
    }

    /// Ends every scope from `depth` inwards, adds each to the one around it, and returns the counts of the outermost
    /// of them.
    pub(super) fn pop(&self, depth: usize) -> Counts {
        self.edit(|open| {
            let mut ended = OpenScope::default();
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
