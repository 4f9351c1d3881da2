//! Counting one stretch of one thread's work on its own.

use super::{Counts, Statistics};
use std::marker::PhantomData;

/// A stretch of one thread's work that is counted on its own until it ends; see [`Statistics::scope`].
///
/// ```
/// let statistics = bursar::Statistics::default();
/// let scope = statistics.scope();
/// assert_eq!(scope.counts().peak.bytes.get(), 0);
/// ```
#[derive(Debug)]
pub struct Scope {
    statistics: Statistics,
    depth: usize,
    /// Keeps the scope on its thread.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    pub(super) fn enter(statistics: Statistics) -> Self {
        let depth = statistics.shared.tally.open_scope();
        Self { statistics, depth, _thread: PhantomData }
    }

    /// Returns what was counted so far, with what inner scopes counted that have ended.
    pub fn counts(&self) -> Counts {
        self.statistics.shared.tally.counts_in_scope(self.depth)
    }

    /// Ends the scope and returns what was counted. Inner scopes that are still open end with it.
    pub fn finish(self) -> Counts {
        self.end()
    }

    fn end(&self) -> Counts {
        self.statistics.shared.tally.close_scope(self.depth)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.end();
    }
}
