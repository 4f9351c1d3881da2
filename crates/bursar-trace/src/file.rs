//! Traces that stay in their files: read in windows, so that memory is needed for a window and for what is live.

use crate::read::{Log, Reading};
use crate::{Event, Format, Reason, Summary, Trace, TraceError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// How many events a window has: a real recording of a few minutes fits into one, and a window into 100 MiB.
const WINDOW: usize = 1 << 20;

/// A trace in a file. A short one is held whole; of a long one only the numbers are, and each pass through it reads it
/// again, a window at a time. PyTorch's snapshots and what is no plain file, such as a pipe, are always held whole.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-open-{}.csv", std::process::id()));
/// # bursar_trace::write(&bursar_trace::bundled(), &path)?;
/// let short = bursar_trace::open(&path)?;
/// assert!(short.whole().is_some());
///
/// let long = bursar_trace::TraceFile::open_in_windows(&path, 1000)?;
/// assert!(long.whole().is_none());
/// assert_eq!(long.summary(), short.summary());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TraceFile {
    summary: Summary,
    held: Held,
}

#[derive(Clone, Debug)]
enum Held {
    Whole(Trace),
    /// So many events are a window.
    Windows {
        path: PathBuf,
        events: usize,
        streams: Vec<u64>,
    },
}

/// Opens a trace to be replayed; see [`TraceFile`]. The file is read once to its end, so whatever is wrong with it is
/// told now.
///
/// ```
/// let error = bursar_trace::open("no/such/file.csv").unwrap_err();
/// assert!(error.to_string().starts_with("no/such/file.csv: "));
/// ```
pub fn open(path: impl AsRef<Path>) -> Result<TraceFile, TraceError> {
    TraceFile::open_in_windows(path, WINDOW)
}

impl TraceFile {
    /// Opens a trace that is held whole if it has at most `events` events, and read in windows of as many if it has more.
    pub fn open_in_windows(path: impl AsRef<Path>, events: usize) -> Result<Self, TraceError> {
        let (path, events) = (path.as_ref(), events.max(1));
        if !path.is_file() {
            return crate::read(path).map(Self::from);
        }
        let mut log = match start(path)? {
            Reading::Whole(trace) => return Self::of_whole(trace),
            Reading::Log(log) => log,
        };
        // One event too many tells a trace that ends with its first window from one that does not.
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
        let held = Held::Windows { path: path.to_owned(), events, streams: last.streams };
        Ok(Self { summary, held })
    }

    fn of_whole(trace: Trace) -> Result<Self, TraceError> {
        let file = Self::from(trace);
        match file.summary.is_empty() {
            true => Err(TraceError::new(&file.summary.name, Reason::Empty)),
            false => Ok(file),
        }
    }

    /// What is in it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The trace itself, where it is held whole.
    pub fn whole(&self) -> Option<&Trace> {
        match &self.held {
            Held::Whole(trace) => Some(trace),
            Held::Windows { .. } => None,
        }
    }

    /// The recording's own name of each stream; the first is the default stream, 0.
    pub fn streams(&self) -> &[u64] {
        match &self.held {
            Held::Whole(trace) => &trace.streams,
            Held::Windows { streams, .. } => streams,
        }
    }

    /// Gives each window's events to `visit`, in order. Where the trace is not held whole, its file is read again, and an
    /// error if it is not what it was.
    pub fn each_window<E: From<TraceError>>(&self, mut visit: impl FnMut(&[Event]) -> Result<(), E>) -> Result<(), E> {
        let (path, events, streams) = match &self.held {
            Held::Whole(trace) => return visit(&trace.events),
            Held::Windows { path, events, streams } => (path, *events, streams.len()),
        };
        let Summary { name, format, threads, .. } = &self.summary;
        let changed = || E::from(TraceError::new(name, Reason::Changed));
        let Reading::Log(log) = start(path)? else { return Err(changed()) };
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
        Self { summary: trace.summary(), held: Held::Whole(trace) }
    }
}

fn start(path: &Path) -> Result<Reading<'static>, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| TraceError::new(&name, error))?;
    Reading::start(file, &name)
}

/// Reads a log to its end in parts of `events` events, each of which is given to `visit`, and answers what is left
/// then: the names, and no events.
fn each_part<E: From<TraceError>>(
    mut log: Log<'_>,
    events: usize,
    mut visit: impl FnMut(&Trace) -> Result<(), E>,
) -> Result<Trace, E> {
    while log.fill(events)? {
        let part = log.builder.so_far();
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
