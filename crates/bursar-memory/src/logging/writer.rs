//! The thread that writes a log.

use super::format::LogFormat;
use super::queue::Queue;
use super::target::Target;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much text is written at a time.
const BATCH_BYTES: usize = 64 << 10;

/// How long the writer leaves a queue alone that it found nearly empty: long enough to find many records at a time, short
/// enough that it does not fill up.
const NAP: Duration = Duration::from_millis(1);

/// The longest a record waits in a batch for others, where records keep coming or are compressed.
const WAIT: Duration = Duration::from_secs(1);

/// Takes records from a queue, makes lines of them, and writes them in batches.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Arc<Queue>,
    format: LogFormat,
    target: Target,
    /// How many bytes of text a file may have.
    rotate_at: Option<u64>,
    /// How many bytes of text the current file has.
    file_bytes: u64,
    /// Whole lines that are not written yet, with the header where the file has none.
    batch: Vec<u8>,
    /// How many records are in the batch, and since when there has been one.
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
            // Read before the queue is looked at: what was offered before a wish is in the queue by then.
            let wishes = self.queue.wishes();
            let found = self.queue.len();
            let taken = self.take(found);
            if taken == found && wishes.any() {
                self.write_out();
                self.queue.grant(wishes);
                if wishes.close {
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
        self.queue.leave();
    }

    /// Takes up to `found` records; fewer where one of them is still being offered.
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

    /// Where the line that starts at `start` of the batch does not fit into the current file, moves it to the next one. A
    /// file has one record at least.
    fn keep_within_file(&mut self, start: usize) {
        let full = self.rotate_at.is_some_and(|limit| self.file_bytes + self.batch.len() as u64 > limit);
        if full && (self.file_bytes > 0 || self.records > 0) {
            let line = self.batch.split_off(start);
            self.write_out();
            // A file that nothing could be written to is tried again, instead of leaving many such files behind.
            if self.file_bytes > 0 {
                self.target.turn_over();
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

    /// Leaves the queue alone for a while. Lines that can be read at once are written as soon as no more come; compressed
    /// ones wait for company, since each batch is compressed by itself.
    fn rest(&mut self, idle: bool) {
        let ripe = self.since.elapsed() >= WAIT || idle && !self.target.is_compressed();
        if self.records > 0 && ripe {
            self.write_out();
        } else if idle {
            self.queue.sleep();
        } else {
            std::thread::park_timeout(NAP);
        }
    }
}
