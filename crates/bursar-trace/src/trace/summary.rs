//! A trace in numbers, counted part by part so that no more than one window of events is in memory.

use super::{Event, EventKind, Format, Reason, Trace, TraceError, UnmatchedEvent};
use bursar_core::Bytes;

/// A trace in numbers.
///
/// ```
/// let trace = bursar::trace::bundled();
/// let summary = trace.summary();
/// assert_eq!(summary.operations, trace.events.len() as u64);
/// assert_eq!((summary.threads, summary.streams, summary.unknown_frees), (1, 1, 0));
/// assert!(summary.strict().is_err(), "{} blocks are never freed", summary.missing_frees);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The name of the file it was read from.
    pub name: String,
    /// The format of that file.
    pub format: Format,
    /// The number of allocations and frees.
    pub operations: u64,
    /// The number of allocations that were refused or failed.
    pub failures: u64,
    /// The number of blocks.
    pub blocks: u32,
    /// The number of threads.
    pub threads: usize,
    /// The number of streams that have events.
    pub streams: usize,
    /// The most requested bytes that were live at a time, on all devices together.
    pub peak_live: Bytes,
    /// The number of frees of addresses that were not allocated in the trace.
    pub unknown_frees: u64,
    /// The number of allocations that were never freed.
    pub missing_frees: u64,
    live: Bytes,
    used: Vec<bool>,
    first_unknown: Option<UnmatchedEvent>,
    first_missing: Option<UnmatchedEvent>,
}

impl Summary {
    pub(crate) fn new(name: &str, format: Format) -> Self {
        Self { name: name.to_owned(), format, ..Self::default() }
    }

    /// Counts a part of the trace; parts come in order.
    pub(crate) fn count(&mut self, part: &Trace) {
        part.events.iter().for_each(|event| self.count_event(event));
        self.unknown_frees += part.unknown_frees.len() as u64;
        self.missing_frees += part.missing_frees.len() as u64;
        self.first_unknown = self.first_unknown.or(part.unknown_frees.first().copied());
        let missing = self.first_missing.iter().chain(&part.missing_frees);
        self.first_missing = missing.min_by_key(|missing| (missing.position, missing.pointer)).copied();
    }

    fn count_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Allocate => self.live = Bytes(self.live.get().saturating_add(event.bytes)),
            EventKind::Free => self.live = self.live.saturating_sub(Bytes(event.bytes)),
            EventKind::Fail => {}
        }
        self.peak_live = self.peak_live.max(self.live);
        match event.kind {
            EventKind::Allocate | EventKind::Free => self.operations += 1,
            EventKind::Fail => self.failures += 1,
        }
        let stream = usize::from(event.stream);
        if self.used.len() <= stream {
            self.used.resize(stream + 1, false);
        }
        self.used[stream] = true;
    }

    /// Adds the numbers that are known at the end of the trace only.
    pub(crate) fn complete(&mut self, last: &Trace) {
        self.blocks = last.blocks;
        self.threads = last.threads.len();
        self.streams = self.used.iter().filter(|used| **used).count();
    }

    /// Returns whether the trace has neither events nor unknown frees.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations + self.failures + self.unknown_frees == 0
    }

    /// Checks that every free has its allocation and every allocation its free; see [`Trace::strict`].
    pub fn strict(&self) -> Result<(), TraceError> {
        let error = |position, reason| Err(TraceError::at(&self.name, self.format, position, reason));
        if let Some(first) = &self.first_unknown {
            return error(first.position, Reason::UnknownFree { pointer: first.pointer, count: self.unknown_frees });
        }
        if let Some(first) = &self.first_missing {
            let reason = Reason::MissingFree { pointer: first.pointer, bytes: first.bytes, count: self.missing_frees };
            return error(first.position, reason);
        }
        Ok(())
    }
}
