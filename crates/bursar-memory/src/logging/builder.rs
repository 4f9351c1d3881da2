//! The settings of a log.

use super::Logging;
use super::file_name::FileName;
use super::format::LogFormat;
use super::target::Target;
use bursar_core::Bytes;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// The settings of a log that is to be opened.
///
/// ```
/// use bursar::Bytes;
/// use bursar::observe::{LogFormat, Logging};
///
/// let logging = Logging::builder()
///     .format(LogFormat::JsonLines)
///     .capacity(1 << 12)
///     .to_writer(std::io::sink())?;
/// assert_eq!(logging.dropped(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LoggingBuilder {
    format: Option<LogFormat>,
    compressed: Option<bool>,
    capacity: usize,
    rotate_at: Option<Bytes>,
}

impl Default for LoggingBuilder {
    fn default() -> Self {
        Self { format: None, compressed: None, capacity: Self::CAPACITY, rotate_at: None }
    }
}

impl LoggingBuilder {
    /// The number of records that may wait to be written unless something else is set: 9 MiB of them.
    pub const CAPACITY: usize = 1 << 16;

    /// The most records that may wait: all room for them is taken when the log is opened.
    pub const MAX_CAPACITY: usize = 1 << 24;

    /// Sets the form of the log, whatever the file is called. A writer without a name gets JSON lines unless this is
    /// set.
    pub fn format(mut self, format: LogFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets whether the log is compressed with gzip, whatever the file is called.
    pub fn compressed(mut self, compressed: bool) -> Self {
        self.compressed = Some(compressed);
        self
    }

    /// Sets how many records may wait to be written, from one to [`MAX_CAPACITY`](Self::MAX_CAPACITY). What does not
    /// fit is dropped and counted.
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Continues the log in another file where one would get larger than this, before compression.
    ///
    /// `memory.csv` is continued in `memory.1.csv`, that in `memory.2.csv`, and so on: no file is renamed, and in this
    /// order they are the log. Each begins with the header and holds whole records, one at least, however large. Files
    /// with these names that an earlier log left are removed when the log is opened.
    pub fn rotate_at(mut self, bytes: Bytes) -> Self {
        self.rotate_at = Some(bytes);
        self
    }

    /// Begins a log in a file, which is emptied if it exists. Unless they were chosen, the name says what form it has
    /// and whether it is compressed: see [`LogFormat::of`].
    pub fn to_file(self, path: impl AsRef<Path>) -> io::Result<Logging> {
        let path = path.as_ref();
        let format = self.format.or_else(|| LogFormat::of(path)).ok_or_else(|| {
            let message = format!("{}: a log is called .csv, .jsonl or .json, with .gz or without", path.display());
            io::Error::new(ErrorKind::InvalidInput, message)
        })?;
        let compressed = self.compressed.unwrap_or_else(|| FileName::of(path).is_some_and(|name| name.is_gz));
        self.check()?;
        let target = Target::file(path, compressed, self.rotate_at.is_some())?;
        Logging::start(format, self.capacity, target, self.rotate_at.map(Bytes::get))
    }

    /// Begins a log in anything that can be written to. It is written to and flushed by the log's own thread, and
    /// dropped there when the log is closed; it may block, fail and panic. One that fails in the middle of a batch is
    /// not written to again, since what follows could not be told from the rest of that batch.
    pub fn to_writer(self, writer: impl Write + Send + 'static) -> io::Result<Logging> {
        self.check()?;
        if self.rotate_at.is_some() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "only a log in a file can be continued in another"));
        }
        let target = Target::writer(Box::new(writer), self.compressed.unwrap_or(false));
        Logging::start(self.format.unwrap_or(LogFormat::JsonLines), self.capacity, target, None)
    }

    fn check(&self) -> io::Result<()> {
        match self.capacity {
            0 => Err(io::Error::new(ErrorKind::InvalidInput, "a log needs room for one record at least")),
            records if records > Self::MAX_CAPACITY => {
                let message = format!("a log has room for {} records at most, not for {records}", Self::MAX_CAPACITY);
                Err(io::Error::new(ErrorKind::InvalidInput, message))
            }
            _ => Ok(()),
        }
    }
}
