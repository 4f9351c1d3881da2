//! Logs of what happens to memory, line by line, in a file.
//!
//! A recording thread copies the record into a bounded queue (`queue.rs`) and goes on; one thread a log takes records
//! from there, makes lines of them (`format.rs`) and writes them in batches (`writer.rs`, `target.rs`). Whatever
//! happens on that side, all that the recording side can notice is a queue that is full.

mod builder;
mod entry;
mod file_name;
mod format;
mod queue;
mod target;
mod text;
mod timestamp;
mod writer;

pub use builder::LoggingBuilder;
pub use format::LogFormat;

use bursar_core::{Actions, DeviceId, Holding, Observer, Record};
use entry::Entry;
use queue::Queue;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use target::Target;
use writer::Writer;

/// A log of what happens to the memory of the devices it observes: the observer that is given to a stack, and the
/// handle of the log. Clones share it.
///
/// # What it promises
/// - It changes no result. A log that cannot keep up, that fails or that blocks drops records and counts them
///   ([`dropped`](Self::dropped)); [`last_error`](Self::last_error) says what went wrong. A log that fails goes on
///   trying, so one on a disk that was full for a while has a gap. If the allocation of a block was dropped and its
///   free was not, readers see a free of something unknown.
/// - Recording takes no lock and allocates nothing. It costs a clock, a copy and a compare-and-swap.
/// - Records of one address are in order, whichever threads made them: an allocation, its free, the next allocation.
///   Times are read before that order is made, so those of two threads can be out of order by as much as a thread was
///   interrupted.
/// - The memory of graphs is recorded as it is taken and given back, with the tag `graph memory`. The buffers inside have no
///   records of their own: they lie in a block that has one, and readers would count them twice.
/// - A record is in the file when the program pauses, a second later at most, and after [`flush`](Self::flush) and
///   [`close`](Self::close). Being in the file means that the operating system has it; nothing is synchronised to disk.
///
/// # Closing
/// A device's context keeps its observers alive, so a log ends when [`close`](Self::close) is called or when the
/// last context and handle are gone, and then waits a second at most for its writer. A process that exits before that
/// loses what had not been written; what had been can be read, compressed or not.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::observe::Logging;
/// use bursar::sim::Sim;
/// use bursar::{DeviceId, Stack, leaf, tag};
/// use std::time::Duration;
///
/// # let folder = std::env::temp_dir().join(format!("bursar-doctest-logging-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("memory.csv");
/// let logging = Logging::to_file(&path)?;
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = Stack::new().observe(logging.clone()).over(leaf::Async).build(&context)?;
/// let stream = context.default_stream();
/// let block = memory.allocate(500, 256, stream, tag!("weights"))?;
/// memory.deallocate(block, stream)?;
///
/// let summary = logging.close(Duration::from_secs(10))?;
/// assert_eq!((summary.written, summary.dropped), (2, 0));
/// let text = std::fs::read_to_string(&path)?;
/// assert!(text.starts_with("Thread,Time,Action,Pointer,Size,Stream,"));
/// assert_eq!(text.lines().count(), 3);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Logging {
    log: Arc<Log>,
}

/// The numbers of records that a log wrote and dropped.
///
/// ```
/// use bursar::observe::Logging;
///
/// let logging = Logging::builder().to_writer(std::io::sink())?;
/// let summary = logging.close(std::time::Duration::from_secs(10))?;
/// assert_eq!((summary.written, summary.dropped), (0, 0));
/// assert!(summary.error.is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogSummary {
    /// The number of records that were written.
    pub written: u64,
    /// The number of records that were not.
    pub dropped: u64,
    /// The last thing that went wrong while writing, if anything did.
    pub error: Option<Arc<io::Error>>,
}

#[derive(Debug)]
struct Log {
    format: LogFormat,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Logging {
    /// Begins a log in a file, which is emptied if it exists. The name says what form it has: `.csv`, or `.jsonl` and
    /// `.json`, each with or without `.gz` after it.
    pub fn to_file(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::builder().to_file(path)
    }

    /// Returns a builder, for a log with settings of its own.
    pub fn builder() -> LoggingBuilder {
        LoggingBuilder::default()
    }

    fn start(format: LogFormat, capacity: usize, target: Target, rotate_at: Option<u64>) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(capacity));
        let writer = Writer::new(queue.clone(), format, target, rotate_at);
        let thread = std::thread::Builder::new().name("bursar-log".into()).spawn(|| writer.run())?;
        queue.set_writer(thread.thread());
        Ok(Self { log: Arc::new(Log { format, queue, thread: Mutex::new(Some(thread)) }) })
    }

    /// Returns how many records were written.
    pub fn written(&self) -> u64 {
        self.log.queue.written()
    }

    /// Returns how many records were lost: because too many were waiting already, because they could not be written, or
    /// because the log had been closed.
    pub fn dropped(&self) -> u64 {
        self.log.queue.dropped()
    }

    /// Returns the last thing that went wrong while writing, if anything did.
    pub fn last_error(&self) -> Option<Arc<io::Error>> {
        self.log.queue.last_error()
    }

    /// Waits until everything recorded so far is written or dropped; returns `false` where that takes longer than
    /// `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        self.log.queue.flush(patience)
    }

    /// Writes what is waiting and ends the log, for every handle; what is recorded later is dropped. Closing a closed
    /// log returns the same summary again.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut) where the writer is not done within `patience`. It is left to itself, and ends
    /// when it can; closing once more waits for that again. Failures to write are in the summary.
    pub fn close(&self, patience: Duration) -> io::Result<LogSummary> {
        if !self.log.close(patience) {
            let message = format!("the log could not be written within {patience:?}");
            return Err(io::Error::new(ErrorKind::TimedOut, message));
        }
        Ok(LogSummary { written: self.written(), dropped: self.dropped(), error: self.last_error() })
    }
}

impl Log {
    fn close(&self, patience: Duration) -> bool {
        let exited = self.queue.close(patience);
        let thread = if exited { self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None };
        // The thread has nothing left to do but to drop its target.
        exited && thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close(Duration::from_secs(1));
    }
}

impl Observer for Logging {
    fn interest(&self) -> Actions {
        self.log.format.interest()
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.log).addr()
    }

    #[inline]
    fn record(&self, record: &Record<'_>) {
        if self.interest().contains(record.action) {
            self.log.queue.push(Entry::of(record));
        }
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}
