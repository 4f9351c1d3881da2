//! The seam between a ledger and the operating system: every call that opening, locking, mapping and closing a ledger
//! makes.
//!
//! [`Linux`](super::linux::Linux) is the system this process runs on. Tests run the same code over a simulated system
//! of many processes, where every call is a point at which a process can be stopped, forked or killed.

use super::Mapping;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The work of a thread: it is called again and again until it returns false.
pub(crate) type Rounds = Box<dyn FnMut() -> bool + Send>;

/// The ways to open a file. No open follows a link, waits for the other end of a pipe, or survives an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// A folder, to lock it and to find files in it.
    Folder,
    /// A file, to read it.
    Read,
    /// A file, to read, lock, map and change it.
    Write,
}

/// The kinds of locks on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Shared: any number of holders, and no exclusive one.
    Shared,
    /// Exclusive: one holder, and no shared holders.
    Exclusive,
}

/// A range of bytes of a file that can be locked, whether or not the file is that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRange {
    pub(crate) start: i64,
    /// The number of bytes: at least one.
    pub(crate) length: i64,
}

/// The kinds of things a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Folder,
    Link,
    Other,
}

/// The file system of a file and its inode there: the same for one file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMetadata {
    pub(crate) kind: FileKind,
    pub(crate) file_id: FileId,
    pub(crate) user: u32,
    /// The permissions and the bits above them.
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

/// Events of a watched file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileEvents {
    /// Somebody who had it open for writing closed it, perhaps by dying.
    pub(crate) closed: bool,
    /// A name of it was added or removed, or it was deleted.
    pub(crate) renamed: bool,
    /// The watch has ended.
    pub(crate) over: bool,
}

/// A watch on one file.
pub(crate) trait Watch: Debug + Send + Sync {
    /// Waits for events. May return without any.
    fn read(&self) -> io::Result<FileEvents>;

    /// Ends the watch; a waiting [`Self::read`] returns.
    fn end(&self);
}

/// The calls. Locks belong to an open file description: they end with its last descriptor, however its process ends.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// Returns the effective user id of this process.
    fn user(&self) -> u32;
    /// Returns the process id of this process in its own namespace.
    fn pid(&self) -> u32;
    /// Returns the name of this process.
    fn name(&self) -> String;
    /// Returns how long a living process may keep the lock of a ledger before others report it.
    fn lock_timeout(&self) -> Duration;
    /// Sleeps for a time.
    fn sleep(&self, time: Duration);
    /// Starts a thread that calls `rounds` until it returns false. Returns whether the thread could be started.
    fn spawn(&self, rounds: Rounds) -> bool;

    /// Returns a path without links, `.` or `..`.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// Makes a folder that only its user may enter.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Returns the metadata of what a path leads to, without following a link at its end.
    fn metadata_of(&self, path: &Path) -> io::Result<FileMetadata>;
    /// Returns the metadata of what a name in a folder leads to, without following a link.
    fn metadata_in(&self, folder: RawFd, name: &OsStr) -> io::Result<FileMetadata>;
    /// Returns the metadata of an open file.
    fn metadata(&self, file: RawFd) -> io::Result<FileMetadata>;

    /// Opens what a path leads to.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<RawFd>;
    /// Opens a name in a folder.
    fn open_in(&self, folder: RawFd, name: &OsStr, mode: OpenMode) -> io::Result<RawFd>;
    /// Closes a descriptor of this process.
    fn close(&self, file: RawFd);
    /// Fills `bytes` from an offset of a file.
    fn read_at(&self, file: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes a file in a folder that only its user may read, with these contents, on space that is allocated.
    fn make_file(&self, folder: RawFd, name: &OsStr, contents: &[u8]) -> io::Result<()>;
    /// Gives a file another name in the same folder; fails if something has that name.
    fn link(&self, folder: RawFd, name: &OsStr, to: &OsStr) -> io::Result<()>;
    /// Removes a name from a folder.
    fn unlink(&self, folder: RawFd, name: &OsStr) -> io::Result<()>;

    /// Locks a range without waiting. Returns whether that succeeded.
    fn try_lock(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool>;
    /// Returns whether another description holds a lock that conflicts with locking the range.
    fn is_locked(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool>;
    /// Locks a file as a whole, independently of locks on ranges, without waiting. Returns whether that succeeded.
    fn try_lock_file(&self, file: RawFd) -> io::Result<bool>;
    /// Returns the processes other than this one that hold a lock in the range of some file, where they are visible.
    fn lock_holders(&self, range: LockRange) -> Vec<u32>;

    /// Maps the first words of a file, a power of two, shared with everyone who maps it. The file must be that long and
    /// stay so: the system kills a process that touches what was cut off.
    fn map(&self, file: RawFd, words: usize) -> io::Result<Mapping>;
    /// Sleeps while the lower half of `word` equals that of `value`, until woken, at most for `timeout`. May return
    /// early.
    fn wait(&self, word: &AtomicU64, value: u64, timeout: Option<Duration>);
    /// Wakes at most `most` of the threads that sleep on `word`.
    fn wake(&self, word: &AtomicU64, most: u32);
    /// Watches the file at `path`.
    fn watch(&self, path: &Path) -> io::Result<Arc<dyn Watch>>;

    /// Called before a word of a ledger is written, so that a simulated process can be stopped or killed there too.
    #[cfg(test)]
    fn before_write(&self) {}
}
