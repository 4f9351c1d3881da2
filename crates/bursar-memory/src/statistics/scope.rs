//! Counting one stretch of one thread's work on its own.

use super::{Counts, Statistics};
use std::marker::PhantomData;

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
        let depth = statistics.shared.tally.open_scope();
        Self { statistics, depth, _thread: PhantomData }
    }

    /// What was counted so far, what inner scopes that have ended counted included.
    pub fn counts(&self) -> Counts {
        self.statistics.shared.tally.counts_in_scope(self.depth)
    }

    /// Ends it and answers what was counted. Inner scopes that are still open end with it.
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
