//! The seam between a ledger and the operating system: everything that opening, locking, mapping and leaving a ledger ask
//! of it.
//!
//! [`Linux`](super::linux::Linux) is the system this process runs on. The tests of life and death run the same code over a
//! simulated system of many processes, where every call is a point at which a process can be stopped, forked or killed.

use super::Mapping;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A thread's work, one round at a time: it ends when a round returns false.
pub(crate) type Rounds = Box<dyn FnMut() -> bool + Send>;

/// The ways to open a file. Nothing that is opened follows a link, waits for another end or survives an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A folder, to lock it and to find files in it.
    Folder,
    /// A file, to read it.
    Read,
    /// A file, to read, lock, map and change it.
    Write,
}

/// The kinds of locks on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// By many.
    Shared,
    /// By one.
    Exclusive,
}

/// Bytes of a file that can be locked, whether or not the file is that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: i64,
    /// At least one.
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

/// The file system and the number that a file has there: the same file, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The facts the system knows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: FileKind,
    pub(crate) identity: Identity,
    pub(crate) user: u32,
    /// The permissions, with the bits above them.
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

/// News of a watched file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Somebody who could write it closed it, perhaps by dying.
    pub(crate) closed: bool,
    /// A name of it was added or removed, or it is gone.
    pub(crate) renamed: bool,
    /// The watch has ended.
    pub(crate) over: bool,
}

/// A watch on one file.
pub(crate) trait Watch: Debug + Send + Sync {
    /// Waits for news. May return none.
    fn read(&self) -> io::Result<News>;

    /// Ends the watch; whoever reads is told.
    fn end(&self);
}

/// The calls. Locks belong to an open file description: they end with its last descriptor, however its process ends.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// Returns the user this process acts as.
    fn user(&self) -> u32;
    /// Returns the number of this process, as it sees itself.
    fn pid(&self) -> u32;
    /// Returns the name of this process.
    fn name(&self) -> String;
    /// Returns how long a living process may keep the lock of a ledger before others say so.
    fn patience(&self) -> Duration;
    /// Lets time pass.
    fn sleep(&self, time: Duration);
    /// Starts a thread that runs rounds until one returns false. Returns whether it could be started.
    fn spawn(&self, rounds: Rounds) -> bool;

    /// Returns a path without links, `.` or `..`.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// Makes a folder that only its user may enter.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Returns the facts of what a path leads to, without following a link at its end.
    fn facts_of(&self, path: &Path) -> io::Result<Facts>;
    /// Returns the facts of what a name in a folder leads to, without following a link.
    fn facts_in(&self, folder: RawFd, name: &OsStr) -> io::Result<Facts>;
    /// Returns the facts of an open file.
    fn facts(&self, file: RawFd) -> io::Result<Facts>;

    /// Opens what a path leads to.
    fn open(&self, path: &Path, how: Opening) -> io::Result<RawFd>;
    /// Opens a name in a folder.
    fn open_in(&self, folder: RawFd, name: &OsStr, how: Opening) -> io::Result<RawFd>;
    /// Closes a descriptor of this process.
    fn close(&self, file: RawFd);
    /// Reads a part of a file, all of it.
    fn read_at(&self, file: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes a file in a folder that only its user may read, with these contents, on space that is really there.
    fn make_file(&self, folder: RawFd, name: &OsStr, contents: &[u8]) -> io::Result<()>;
    /// Gives a file another name in the same folder; fails if something has that name.
    fn link(&self, folder: RawFd, name: &OsStr, to: &OsStr) -> io::Result<()>;
    /// Takes a name out of a folder.
    fn unlink(&self, folder: RawFd, name: &OsStr) -> io::Result<()>;

    /// Locks a range, without waiting. Returns whether that succeeded.
    fn try_lock(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool>;
    /// Returns whether another description has a lock in the range that this one would have to wait for.
    fn is_locked(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool>;
    /// Locks all of a file for this description alone, apart from locks of ranges, without waiting.
    fn try_lock_whole(&self, file: RawFd) -> io::Result<bool>;
    /// Returns the processes other than this one that have a lock in the range of some file, where they can be seen.
    fn who_locks(&self, range: Range) -> Vec<u32>;

    /// Maps the first words of a file, a power of two, shared with everyone who maps it. The file must be that long and
    /// stay so: the system ends a process that touches what was cut off.
    fn map(&self, file: RawFd, words: usize) -> io::Result<Mapping>;
    /// Sleeps while the lower half of `word` is that of `value`, until woken, at most for `timeout`. May return early.
    fn wait(&self, word: &AtomicU64, value: u64, timeout: Option<Duration>);
    /// Wakes at most `most` of those who sleep on `word`.
    fn wake(&self, word: &AtomicU64, most: u32);
    /// Watches the file at `path`.
    fn watch(&self, path: &Path) -> io::Result<Arc<dyn Watch>>;

    /// Told before a word of a ledger is written, so that a simulated process can be stopped or killed there too.
    #[cfg(test)]
    fn writes(&self) {}
}
