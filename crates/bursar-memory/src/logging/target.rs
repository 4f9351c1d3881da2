//! The files or the writer that a log goes to.

use super::file_name::FileName;
use flate2::{Compression, write::GzEncoder};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The destination of batches of whole lines: a file, the files it is continued in, or anything that can be written to.
///
/// A batch is there whole or not at all. What was written of a batch before a failure is taken back from a file;
/// where that cannot be done, nothing is written again, so that everything up to there can be read.
///
/// Compressed, each batch is a gzip member of its own. Members after each other are a gzip file, and one that is cut
/// off between two of them (by a crash, by a full disk) is whole.
#[derive(Debug)]
pub(super) struct Target {
    output: Output,
    compressed: bool,
    /// The bytes of the current output that are whole batches.
    whole_bytes: u64,
    /// Set where something stands behind those that cannot be taken back.
    torn: bool,
}

enum Output {
    Files { path: PathBuf, continuation: u64, file: Option<File> },
    Writer(Box<dyn Write + Send>),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files { path, continuation, .. } => f.debug_tuple("Files").field(path).field(continuation).finish(),
            Self::Writer(_) => f.write_str("Writer"),
        }
    }
}

impl Target {
    /// Opens a file, which is emptied. Where the log may be continued in other files, those an earlier log left are
    /// removed.
    pub(super) fn file(path: &Path, compressed: bool, continued: bool) -> io::Result<Self> {
        let file = Some(File::create(path)?);
        if continued {
            remove_continuations(path)?;
        }
        Ok(Self::over(Output::Files { path: path.into(), continuation: 0, file }, compressed))
    }

    pub(super) fn writer(writer: Box<dyn Write + Send>, compressed: bool) -> Self {
        Self::over(Output::Writer(writer), compressed)
    }

    fn over(output: Output, compressed: bool) -> Self {
        Self { output, compressed, whole_bytes: 0, torn: false }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// Goes on to the next file, which is made when it is first needed.
    pub(super) fn rotate(&mut self) {
        if let Output::Files { continuation, file, .. } = &mut self.output {
            (*continuation, *file) = (*continuation + 1, None);
            (self.whole_bytes, self.torn) = (0, false);
        }
    }

    /// Closes it. Code of the user's writer may run here too.
    pub(super) fn close(self) -> io::Result<()> {
        catch_unwind(AssertUnwindSafe(|| drop(self)))
            .map_err(|_| io::Error::other("the writer of a log panicked when it was dropped"))
    }

    /// Writes whole lines.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if !self.compressed {
            return self.write(lines);
        }
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        member.write_all(lines)?;
        self.write(&member.finish()?)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.torn {
            return Err(io::Error::other("an earlier failure left part of a record behind"));
        }
        let mut done = 0;
        let result = self.output.write_all(bytes, &mut done);
        match result {
            Ok(()) => self.whole_bytes += bytes.len() as u64,
            Err(_) => self.torn = done > 0 && self.output.take_back(self.whole_bytes).is_err(),
        }
        result
    }
}

impl Output {
    fn write_all(&mut self, bytes: &[u8], done: &mut usize) -> io::Result<()> {
        match self {
            Self::Files { path, continuation, file } => {
                let file = match file {
                    Some(file) => file,
                    None => file.insert(File::create(continuation_of(path, *continuation)?)?),
                };
                write_all(file, bytes, done)
            }
            // Code of the user: if it panics, it may have written anything.
            Self::Writer(writer) => {
                catch_unwind(AssertUnwindSafe(|| write_all(writer, bytes, done))).unwrap_or_else(|_| {
                    *done = bytes.len();
                    Err(io::Error::other("the writer of a log panicked"))
                })
            }
        }
    }

    /// Takes back what was written behind the first `whole` bytes.
    fn take_back(&mut self, whole: u64) -> io::Result<()> {
        match self {
            Self::Files { file: Some(file), .. } => {
                file.set_len(whole)?;
                file.seek(SeekFrom::Start(whole)).map(drop)
            }
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// Writes and flushes everything; `done` is how much of it was written, also where that fails.
fn write_all(writer: &mut impl Write, bytes: &[u8], done: &mut usize) -> io::Result<()> {
    while *done < bytes.len() {
        match writer.write(&bytes[*done..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => *done += written,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    writer.flush()
}

fn continuation_of(path: &Path, number: u64) -> io::Result<PathBuf> {
    Ok(FileName::of(path).ok_or(ErrorKind::InvalidFilename)?.continuation(number))
}

fn remove_continuations(path: &Path) -> io::Result<()> {
    for number in 1.. {
        match std::fs::remove_file(continuation_of(path, number)?) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_what_was_written_of_a_batch_before_a_failure_is_taken_back() {
        let path = std::env::temp_dir().join(format!("bursar-target-{}.csv", std::process::id()));
        let mut target = Target::file(&path, false, false).expect("a file");
        target.append(b"first\n").expect("room");
        target.output.write_all(b"half of a li", &mut 0).expect("room");
        target.output.take_back(target.whole_bytes).expect("a file can be cut");
        target.append(b"second\n").expect("room");
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(text, "first\nsecond\n");
    }
}
