//! Counts of what happens to a device's memory.
//!
//! The counting itself is the core's [`Tally`], which a stack counts into directly: no record is made for an observer
//! that only counts. **A thread claims exactly what its slack does not cover.** It keeps what it frees, up to 1 MiB, as
//! slack and allocates from it first; only the rest touches the shared total. In a steady state of small blocks no
//! shared line is written, a large one writes two, and a program with one thread gets an exact peak.

mod scope;

pub use bursar_core::{Amount, Counts};
pub use scope::Scope;

use bursar_core::{Action, Actions, AllocTag, DeviceId, Error, Holding, Observer, Record, Tally};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of blocks and bytes, whole and by tag: the observer that is given to a stack, and the handle that reads the
/// counts. Clones share them.
///
/// Each thread counts in memory of its own; most counts write no cache line that threads share.
///
/// The first that observes a device counts the buffers inside its graphs under their own tags. Another one is told by records, as a
/// log is, and knows of that memory as `graph memory` alone.
///
/// It counts only what happens while it observes a device. A block from before is not counted, and once that is freed the
/// current amount may read too low by its size, but never below zero.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, Stack, Statistics, leaf, tag};
///
/// let statistics = Statistics::default();
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = Stack::new().observe(statistics.clone()).over(leaf::Async).build(&context)?;
/// let stream = context.create_stream(0)?;
///
/// let block = memory.allocate(1000, 256, stream, tag!("weights"))?;
/// assert_eq!(statistics.counts().current.bytes, Bytes::kib(1));
/// assert_eq!(statistics.counts_of(tag!("weights")).current.count, 1);
/// memory.deallocate(block, stream)?;
/// assert_eq!(statistics.counts().current.count, 0);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    shared: Arc<SharedCounts>,
}

#[derive(Debug, Default)]
struct SharedCounts {
    tally: Arc<Tally>,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl SharedCounts {
    /// Counts a request that a stack did not grant. The refusal of a limit over blocks was counted when it refused; that
    /// of one over frames becomes the request's when its pool gives up, and explains it.
    fn count_failure(&self, error: Option<&Error>) {
        match error {
            Some(Error::OutOfBudget { by: Some(_), explanation: None, .. }) => {}
            Some(Error::OutOfBudget { .. }) => {
                self.refused.fetch_add(1, Relaxed);
            }
            _ => {
                self.failed.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Statistics {
    /// Returns the counts of everything, whatever its tag.
    pub fn counts(&self) -> Counts {
        self.shared.tally.counts()
    }

    /// Returns the counts of one tag.
    pub fn counts_of(&self, tag: AllocTag) -> Counts {
        self.shared.tally.counts_of(tag)
    }

    /// Returns every tag that was ever counted, the largest holder first.
    pub fn tags(&self) -> Vec<(AllocTag, Counts)> {
        self.shared.tally.tags()
    }

    /// Returns how often a limit refused a request: once for each request, however many frames a pool asked for.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Relaxed)
    }

    /// Returns how many requests failed for another reason than the refusal of a limit.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Relaxed)
    }

    /// Counts what this thread does from here until the scope ends, on its own. Scopes nest: what an inner one counted
    /// is part of the outer one.
    ///
    /// ```
    /// use bursar::Statistics;
    ///
    /// let statistics = Statistics::default();
    /// let outer = statistics.scope();
    /// let inner = statistics.scope();
    /// assert_eq!(inner.finish().total.count, 0);
    /// assert_eq!(outer.finish().total.count, 0);
    /// ```
    pub fn scope(&self) -> Scope {
        Scope::enter(self.clone())
    }

    /// Returns all counts, to be printed.
    pub fn report(&self) -> StatisticsReport {
        StatisticsReport { whole: self.counts(), tags: self.tags(), refused: self.refused(), failed: self.failed() }
    }
}

const INTEREST: Actions = Actions::of(&[Action::Allocate, Action::Free, Action::Refuse, Action::Fail]);

impl Observer for Statistics {
    fn interest(&self) -> Actions {
        INTEREST
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    fn record(&self, record: &Record<'_>) {
        let shared = &*self.shared;
        let Record { action, device, tag, granted, .. } = *record;
        match action {
            Action::Allocate if record.error.is_some() => shared.tally.restored(device, tag, granted),
            Action::Allocate => shared.tally.granted(device, tag, granted),
            Action::Free => shared.tally.freed(device, tag, granted),
            // One without a stream is about a frame, and its pool goes on.
            Action::Refuse if record.stream.is_some() => {
                shared.refused.fetch_add(1, Relaxed);
            }
            // One that names a block is about memory that was found damaged, and not about a request.
            Action::Fail if record.generation.is_none() => {
                shared.count_failure(record.error);
            }
            _ => {}
        }
    }

    fn holders(&self, device: DeviceId) -> Option<Vec<Holding>> {
        self.shared.tally.holders(device)
    }

    fn tally(&self) -> Option<Arc<Tally>> {
        Some(self.shared.tally.clone())
    }
}

/// Statistics at a moment, printed as a small table.
///
/// ```
/// let report = bursar::Statistics::default().report();
/// assert!(report.to_string().contains("0 refused"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsReport {
    /// The counts of everything, whatever its tag.
    pub whole: Counts,
    /// Every tag, the largest holder first.
    pub tags: Vec<(AllocTag, Counts)>,
    /// The number of times that a limit refused a request.
    pub refused: u64,
    /// The number of requests that failed for another reason.
    pub failed: u64,
}

impl fmt::Display for StatisticsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole, tags, refused, failed } = self;
        writeln!(f, "live {}, peak {}, ever {}", whole.current, whole.peak.bytes, whole.total)?;
        write!(f, "{refused} refused, {failed} failed")?;
        for (tag, counts) in tags {
            let Counts { current, peak, total } = counts;
            write!(f, "\n  {tag:<20} live {:>10}  peak {:>10}  ever {total}", current.bytes, peak.bytes)?;
        }
        Ok(())
    }
}
