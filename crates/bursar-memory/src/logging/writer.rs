//! The thread that writes a log.

use super::format::LogFormat;
use super::queue::Queue;
use super::target::Target;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bytes of text that are written at a time.
const BATCH_BYTES: usize = 64 << 10;

/// The time that the writer leaves a queue alone which it found nearly empty: long enough to find many records at a
/// time, short enough that it does not fill up.
const POLL: Duration = Duration::from_millis(1);

/// The longest that a record waits in a batch for others, where records keep coming or are compressed.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The writer of a log: takes records from the queue, makes lines of them, and writes them in batches.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Arc<Queue>,
    format: LogFormat,
    target: Target,
    /// The bytes of text that a file may have.
    rotate_at: Option<u64>,
    /// The bytes of text that the current file has.
    file_bytes: u64,
    /// Whole lines that are not written yet, with the header where the file has none.
    batch: Vec<u8>,
    /// The number of records in the batch, and the time of the first.
    records: u64,
    since: Instant,
}

impl Writer {
    pub(super) fn new(queue: Arc<Queue>, format: LogFormat, target: Target, rotate_at: Option<u64>) -> Self {
        let batch = Vec::with_capacity(BATCH_BYTES + 4096);
        let mut writer =
            Self { queue, format, target, rotate_at, file_bytes: 0, batch, records: 0, since: Instant::now() };
        writer.begin_batch();
        writer
    }

    /// Writes until the log is closed.
    pub(super) fn run(mut self) {
        let mut idle = false;
        loop {
            // Read before the queue: what was pushed before a request is in the queue by then.
            let requests = self.queue.requests();
            let found = self.queue.len();
            let taken = self.take(found);
            if taken == found && requests.any() {
                self.write_out();
                self.queue.complete(requests);
                if requests.close {
                    break;
                }
            } else if taken <= self.queue.capacity() / 8 {
                self.rest(idle && found == 0);
            }
            idle = found == 0;
        }
        if let Err(error) = self.target.close() {
            self.queue.count_lost(0, error);
        }
        self.queue.exit();
    }

    /// Takes up to `found` records; fewer where one of them is still being pushed.
    fn take(&mut self, found: usize) -> usize {
        for taken in 0..found {
            let Some(entry) = self.queue.take() else { return taken };
            let start = self.batch.len();
            self.format.push(&entry, &mut self.batch);
            self.keep_within_file(start);
            if self.records == 0 {
                self.since = Instant::now();
            }
            self.records += 1;
            if self.batch.len() >= BATCH_BYTES {
                self.write_out();
            }
        }
        found
    }

    /// Moves the line that starts at `start` of the batch to the next file where it does not fit into the current one.
    /// A file has one record at least.
    fn keep_within_file(&mut self, start: usize) {
        let full = self.rotate_at.is_some_and(|limit| self.file_bytes + self.batch.len() as u64 > limit);
        if full && (self.file_bytes > 0 || self.records > 0) {
            let line = self.batch.split_off(start);
            self.write_out();
            // A file that nothing could be written to is tried again, instead of leaving many such files behind.
            if self.file_bytes > 0 {
                self.target.rotate();
                self.file_bytes = 0;
                self.begin_batch();
            }
            self.batch.extend_from_slice(&line);
        }
    }

    fn begin_batch(&mut self) {
        self.records = 0;
        self.batch.clear();
        if self.file_bytes == 0 {
            self.batch.extend_from_slice(self.format.header().as_bytes());
        }
    }

    /// Writes what there is, or counts it as dropped.
    fn write_out(&mut self) {
        if !self.batch.is_empty() {
            match self.target.append(&self.batch) {
                Ok(()) => {
                    self.file_bytes += self.batch.len() as u64;
                    self.queue.count_written(self.records);
                }
                Err(error) => self.queue.count_lost(self.records, error),
            }
            self.begin_batch();
        }
    }

    /// Leaves the queue alone for a while. Lines that can be read at once are written as soon as no more come;
    /// compressed ones wait for others, since each batch is compressed by itself.
    fn rest(&mut self, idle: bool) {
        let ripe = self.since.elapsed() >= BATCH_WAIT || idle && !self.target.is_compressed();
        if self.records > 0 && ripe {
            self.write_out();
        } else if idle {
            self.queue.sleep();
        } else {
            std::thread::park_timeout(POLL);
        }
    }
}
