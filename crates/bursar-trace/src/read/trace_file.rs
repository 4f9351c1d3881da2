//! Traces that stay in their files.
//!
//! A log of more than about a million events is read in windows, once when it is opened and again in each pass of a replay:
//! parsing costs less than keeping every event in memory. Only the live blocks are carried from one window to the next, so
//! memory is bounded by one window and by what is live, whatever the length of the file. A file that changes between two
//! passes ends the replay with an error ([`Reason::Changed`]).

use super::log::{Log, TraceReader};
use crate::{Event, Format, Reason, Summary, Trace, TraceError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The number of events in a window: a real recording of a few minutes fits into one, and a window into 100 MiB.
const WINDOW_EVENTS: usize = 1 << 20;

/// A trace in a file. A short one is kept in memory whole; of a long one only the numbers are, and each pass reads the file
/// again, a window at a time. PyTorch's snapshots, and files that cannot be read twice, such as pipes, are always kept
/// whole.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-open-{}.csv", std::process::id()));
/// # bursar::trace::write(&bursar::trace::bundled(), &path)?;
/// let short = bursar::trace::open(&path)?;
/// assert!(short.whole().is_some());
///
/// let long = bursar::trace::TraceFile::open_in_windows(&path, 1000)?;
/// assert!(long.whole().is_none());
/// assert_eq!(long.summary(), short.summary());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TraceFile {
    summary: Summary,
    storage: Storage,
}

/// The storage of a trace's events.
#[derive(Clone, Debug)]
enum Storage {
    /// In memory.
    Whole(Trace),
    /// In the file, read in windows of `events` events.
    Windows { path: PathBuf, events: usize, streams: Vec<u64> },
}

/// Opens a trace to be replayed; see [`TraceFile`]. The file is read once to its end, so whatever is wrong with it is
/// reported now.
///
/// ```
/// let error = bursar::trace::open("no/such/file.csv").unwrap_err();
/// assert!(error.to_string().starts_with("no/such/file.csv: "));
/// ```
pub fn open(path: impl AsRef<Path>) -> Result<TraceFile, TraceError> {
    TraceFile::open_in_windows(path, WINDOW_EVENTS)
}

impl TraceFile {
    /// Opens a trace that is kept whole if it has at most `events` events, and read in windows of `events` otherwise.
    pub fn open_in_windows(path: impl AsRef<Path>, events: usize) -> Result<Self, TraceError> {
        let (path, events) = (path.as_ref(), events.max(1));
        if !path.is_file() {
            return crate::read(path).map(Self::from);
        }
        let mut log = match open_reader(path)? {
            TraceReader::Snapshot(trace) => return Self::of_whole(trace),
            TraceReader::Log(log) => log,
        };
        // One event more distinguishes a trace that ends with its first window from a longer one.
        if !log.fill(events.saturating_add(1))? {
            return Self::of_whole(log.builder.finish());
        }
        let mut summary = Summary::new(&path.display().to_string(), Format::default());
        let last = each_part(*log, events, |part| {
            summary.count(part);
            Ok::<_, TraceError>(())
        })?;
        summary.format = last.format;
        summary.complete(&last);
        let storage = Storage::Windows { path: path.to_owned(), events, streams: last.streams };
        Ok(Self { summary, storage })
    }

    fn of_whole(trace: Trace) -> Result<Self, TraceError> {
        let file = Self::from(trace);
        match file.summary.is_empty() {
            true => Err(TraceError::new(&file.summary.name, Reason::Empty)),
            false => Ok(file),
        }
    }

    /// Returns the trace in numbers.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the trace itself, if it is kept whole.
    pub fn whole(&self) -> Option<&Trace> {
        match &self.storage {
            Storage::Whole(trace) => Some(trace),
            Storage::Windows { .. } => None,
        }
    }

    /// Returns the recording's identifier of each stream; the first is the default stream, 0.
    pub fn streams(&self) -> &[u64] {
        match &self.storage {
            Storage::Whole(trace) => &trace.streams,
            Storage::Windows { streams, .. } => streams,
        }
    }

    /// Calls `visit` with the events of each window, in order. A trace that is not kept whole is read from its file again,
    /// and a file that has changed since is an error.
    pub fn each_window<E: From<TraceError>>(&self, mut visit: impl FnMut(&[Event]) -> Result<(), E>) -> Result<(), E> {
        let (path, events, streams) = match &self.storage {
            Storage::Whole(trace) => return visit(&trace.events),
            Storage::Windows { path, events, streams } => (path, *events, streams.len()),
        };
        let Summary { name, format, threads, .. } = &self.summary;
        let changed = || E::from(TraceError::new(name, Reason::Changed));
        let TraceReader::Log(log) = open_reader(path)? else { return Err(changed()) };
        let is_known = |event: &Event| usize::from(event.stream) < streams && usize::from(event.thread) < *threads;
        let mut seen = Summary::new(name, *format);
        let last = each_part(*log, events, |part| {
            seen.count(part);
            match part.events.iter().all(is_known) {
                true => visit(&part.events),
                false => Err(changed()),
            }
        })?;
        seen.complete(&last);
        if seen == self.summary { Ok(()) } else { Err(changed()) }
    }
}

impl From<Trace> for TraceFile {
    fn from(trace: Trace) -> Self {
        Self { summary: trace.summary(), storage: Storage::Whole(trace) }
    }
}

fn open_reader(path: &Path) -> Result<TraceReader<'static>, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| TraceError::new(&name, error))?;
    TraceReader::open(file, &name)
}

/// Reads a log to its end in parts of `events` events and calls `visit` with each. Returns the trace without its events:
/// the identifiers and the number of blocks.
fn each_part<E: From<TraceError>>(
    mut log: Log<'_>,
    events: usize,
    mut visit: impl FnMut(&Trace) -> Result<(), E>,
) -> Result<Trace, E> {
    while log.fill(events)? {
        let part = log.builder.partial_trace();
        visit(part)?;
        part.events.clear();
        part.unknown_frees.clear();
        part.missing_frees.clear();
    }
    let mut last = log.builder.finish();
    visit(&last)?;
    last.events.clear();
    Ok(last)
}
