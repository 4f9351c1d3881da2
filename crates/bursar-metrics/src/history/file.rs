//! A history kept in a file: appended to, and rewritten when it has grown to twice what is kept.
//!
//! The file has one user, held by a lock. It begins with a line that names it, and records follow. A record that was being
//! written when the machine stopped is cut off; anything else that does not agree is an error, and the file is left as it is.

use super::record::{self, Found};
use super::{History, Thinning};
use crate::state::State;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The line that a file of this version begins with.
const HEADING: &[u8] = b"bursar history 1\n";

/// The beginning of that line in every version.
const NAME: &[u8] = b"bursar history ";

/// The size beyond which a file is not read: no history is as long.
const FILE_MAX: u64 = 512 << 20;

/// The bytes by which a file may grow beyond twice what is kept, before it is rewritten.
const SLACK: u64 = 8 << 20;

/// A [`History`] that is kept in a file across restarts.
///
/// ```
/// use bursar::metrics::{HistoryFile, Sampler, Thinning};
///
/// let path = std::env::temp_dir().join(format!("bursar-history-{}", std::process::id()));
/// let mut kept = HistoryFile::open(&path, Thinning::default())?;
/// kept.record(&Sampler::without_driver("none here").sample())?;
/// drop(kept);
/// let again = HistoryFile::open(&path, Thinning::default())?;
/// assert_eq!(again.torn_bytes(), 0);
/// # std::fs::remove_file(&path).expect("it is there");
/// # Ok::<(), bursar::metrics::HistoryFileError>(())
/// ```
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    file: File,
    length: u64,
    rewrite_at: u64,
    torn_bytes: u64,
    history: History,
    buffer: Vec<u8>,
}

/// The error of a file that a history cannot be kept in.
///
/// ```
/// use bursar::metrics::{HistoryFile, HistoryFileError, Thinning};
///
/// let error = HistoryFile::open("/dev/null".as_ref(), Thinning::default()).unwrap_err();
/// assert!(matches!(error, HistoryFileError::Foreign { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryFileError {
    /// The file is something else.
    #[error("{} is not a history of Bursar; name another file", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The file was made by another version.
    #[error("{} was made by another version of Bursar; name another file, or use that version", file.display())]
    Version {
        /// The file.
        file: PathBuf,
    },
    /// The file contradicts itself.
    #[error("{} is damaged at byte {at} of {length}; it was left as it is: move it away, or name another file", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The place of the record that is damaged.
        at: u64,
        /// The size of the file.
        length: u64,
    },
    /// The file is larger than any history.
    #[error("{} has {length} bytes, and no history has more than {max}; name another file", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The size of the file.
        length: u64,
        /// The most that a history has.
        max: u64,
    },
    /// Another process keeps its history there.
    #[error("{} is in use by another process; name another file, or end that process", file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// Another file was put in the place of the one that was opened.
    #[error("{} is another file than the one that was opened; it was left as it is: move it away", file.display())]
    Replaced {
        /// The file.
        file: PathBuf,
    },
    /// The system failed.
    #[error("{}: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
}

impl HistoryFile {
    /// Opens a history, or makes one.
    pub fn open(path: &Path, thinning: Thinning) -> Result<Self, HistoryFileError> {
        let failed = |error| HistoryFileError::Io { file: path.to_owned(), error };
        let mut file = open_locked(path)?;
        let length = file.metadata().map_err(failed)?.len();
        if length > FILE_MAX {
            return Err(HistoryFileError::TooLarge { file: path.to_owned(), length, max: FILE_MAX });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (history, good) = read_all(&bytes, path, thinning)?;
        let mut kept = Self {
            // Where the path is a link, the file that it leads to is the one that is rewritten.
            path: fs::canonicalize(path).map_err(failed)?,
            file,
            length: good,
            rewrite_at: 0,
            torn_bytes: bytes.len() as u64 - good,
            history,
            buffer: Vec::new(),
        };
        if good == 0 {
            kept.torn_bytes = 0;
            kept.append(HEADING).map_err(failed)?;
        } else if kept.torn_bytes > 0 {
            kept.file.set_len(good).map_err(failed)?;
        }
        kept.rewrite_at = 2 * kept.length + SLACK;
        Ok(kept)
    }

    /// Returns the history.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Returns the bytes at the end of the file that were cut off, because they were being written when the machine stopped.
    pub const fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Records a state, in memory and in the file. Where the file cannot be written, memory has it all the same. A file that was
    /// removed is made anew, with all that memory has.
    pub fn record(&mut self, state: &State) -> Result<(), HistoryFileError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        self.history
            .record_and(state, |uuid, label, name, sample| record::write(&mut buffer, uuid, label, name, sample));
        let written = match self.place() {
            Ok(Place::Own) => self.append(&buffer).and_then(|()| match self.length > self.rewrite_at {
                true => self.rewrite(|new, path| fs::rename(new, path)),
                false => Ok(()),
            }),
            // A file that somebody puts there meanwhile is left as it is.
            Ok(Place::Empty) => self.rewrite(|new, path| fs::hard_link(new, path).and_then(|()| fs::remove_file(new))),
            Ok(Place::Taken) => return Err(HistoryFileError::Replaced { file: self.path.clone() }),
            Err(error) => Err(error),
        };
        self.buffer = buffer;
        written.map_err(|error| HistoryFileError::Io { file: self.path.clone(), error })
    }

    /// Looks at what is where the file was opened.
    fn place(&self) -> io::Result<Place> {
        let own = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Ok(Place::Own),
            Ok(_) => Ok(Place::Taken),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Place::Empty),
            Err(error) => Err(error),
        }
    }

    /// Appends bytes, all or nothing.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length + bytes.len() as u64 > FILE_MAX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "the history has grown to its bound"));
        }
        self.file.seek(SeekFrom::Start(self.length))?;
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // What was written of it is overwritten by the next, or cut off when the file is opened.
                let _ = self.file.set_len(self.length);
                Err(error)
            }
        }
    }

    /// Writes what is kept to a new file and has `put` put that in the place of the old one.
    fn rewrite(&mut self, put: impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
        let mut bytes = HEADING.to_vec();
        for device in self.history.devices() {
            for sample in device.samples() {
                record::write(&mut bytes, device.uuid(), device.label(), device.name(), sample);
            }
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new_path = self.path.with_file_name(name);
        let written = (|| {
            let mut new = options().truncate(true).open(&new_path)?;
            new.try_lock().map_err(io::Error::from)?;
            new.write_all(&bytes)?;
            new.sync_data()?;
            put(&new_path, &self.path)?;
            Ok(new)
        })();
        // Whether it worked or not, the next try waits until as much again was written.
        self.rewrite_at = 2 * (bytes.len() as u64).max(self.length / 2) + SLACK;
        match written {
            Ok(new) => {
                (self.file, self.length) = (new, bytes.len() as u64);
                self.rewrite_at = 2 * self.length + SLACK;
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_file(&new_path);
                Err(error)
            }
        }
    }
}

/// The state of the place that a file was opened at.
enum Place {
    /// The file.
    Own,
    /// Nothing.
    Empty,
    /// Another file.
    Taken,
}

impl Drop for HistoryFile {
    fn drop(&mut self) {
        // Without it the system writes the file a little later.
        let _ = self.file.sync_data();
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe in the file's place is refused and not waited for.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(flags);
    options
}

/// Opens the file at a path and locks it. Another process may be putting a new one in its place.
fn open_locked(path: &Path) -> Result<File, HistoryFileError> {
    let failed = |error| HistoryFileError::Io { file: path.to_owned(), error };
    for _ in 0..100 {
        let file = options().truncate(false).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(HistoryFileError::Foreign { file: path.to_owned() });
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HistoryFileError::InUse { file: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let is_same =
            fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (metadata.dev(), metadata.ino()));
        if is_same {
            return Ok(file);
        }
    }
    Err(HistoryFileError::InUse { file: path.to_owned() })
}

/// Reads every record. Returns the history and the length of what is whole.
fn read_all(bytes: &[u8], path: &Path, thinning: Thinning) -> Result<(History, u64), HistoryFileError> {
    let file = path.to_owned();
    let mut history = History::new(thinning);
    if !bytes.starts_with(HEADING) {
        return match () {
            () if HEADING.starts_with(bytes) => Ok((history, 0)),
            () if bytes.starts_with(NAME) => Err(HistoryFileError::Version { file }),
            () => Err(HistoryFileError::Foreign { file }),
        };
    }
    let mut at = HEADING.len();
    while at < bytes.len() {
        match record::read(bytes, at, history.parties()) {
            Found::Whole(found, next) => {
                history.insert(&found.uuid, &found.label, &found.name, found.sample);
                at = next;
            }
            Found::Torn => break,
            Found::Damaged => {
                return Err(HistoryFileError::Damaged { file, at: at as u64, length: bytes.len() as u64 });
            }
        }
    }
    Ok((history, at as u64))
}
