//! What is in a trace, in numbers that need not all of its events at once.

use crate::{Event, EventKind, Format, Reason, Trace, TraceError, Unmatched};
use bursar_core::Bytes;

/// What is in a trace, in numbers.
///
/// ```
/// let trace = bursar_trace::bundled();
/// let summary = trace.summary();
/// assert_eq!(summary.operations, trace.events.len() as u64);
/// assert_eq!((summary.threads, summary.streams, summary.unknown_frees), (1, 1, 0));
/// assert!(summary.strict().is_err(), "{} blocks are never freed", summary.missing_frees);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The file it was read from.
    pub name: String,
    /// What that file was.
    pub format: Format,
    /// Allocations and frees.
    pub operations: u64,
    /// Allocations that were refused or failed.
    pub failures: u64,
    /// How many blocks there are.
    pub blocks: u32,
    /// How many threads there are.
    pub threads: usize,
    /// How many streams something happened on.
    pub streams: usize,
    /// The most that was live at a time, on all devices together, by what was asked for.
    pub peak_live: Bytes,
    /// Frees of what was not allocated in the trace.
    pub unknown_frees: u64,
    /// Allocations that were never freed.
    pub missing_frees: u64,
    live: Bytes,
    used: Vec<bool>,
    first_unknown: Option<Unmatched>,
    first_missing: Option<Unmatched>,
}

impl Summary {
    pub(crate) fn new(name: &str, format: Format) -> Self {
        Self { name: name.to_owned(), format, ..Self::default() }
    }

    /// Adds what a part of the trace holds; parts come in order.
    pub(crate) fn count(&mut self, part: &Trace) {
        part.events.iter().for_each(|event| self.count_event(event));
        self.unknown_frees += part.unknown_frees.len() as u64;
        self.missing_frees += part.missing_frees.len() as u64;
        self.first_unknown = self.first_unknown.or(part.unknown_frees.first().copied());
        let missing = self.first_missing.iter().chain(&part.missing_frees);
        self.first_missing = missing.min_by_key(|missing| (missing.place, missing.pointer)).copied();
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

    /// Adds what is known at the trace's end.
    pub(crate) fn complete(&mut self, last: &Trace) {
        self.blocks = last.blocks;
        self.threads = last.threads.len();
        self.streams = self.used.iter().filter(|used| **used).count();
    }

    /// Whether nothing happened.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations + self.failures + self.unknown_frees == 0
    }

    /// An error if anything has no other half: the first free of what was not allocated, else the first block that was
    /// never freed.
    pub fn strict(&self) -> Result<(), TraceError> {
        let error = |place, reason| Err(TraceError::at(&self.name, self.format, place, reason));
        if let Some(first) = &self.first_unknown {
            return error(first.place, Reason::UnknownFree { pointer: first.pointer, count: self.unknown_frees });
        }
        if let Some(first) = &self.first_missing {
            let reason = Reason::MissingFree { pointer: first.pointer, bytes: first.bytes, count: self.missing_frees };
            return error(first.place, reason);
        }
        Ok(())
    }
}
