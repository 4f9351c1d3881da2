//! The state of a simulated system: files, descriptors, locks, watches and threads.

use super::Pid;
use crate::system::{FileEvents, FileId, FileKind, FileMetadata, LockKind, LockRange, Mapping, Rounds};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::path::{Component, Path};
use std::sync::Arc;

/// The contents of an inode.
pub(super) enum Contents {
    Folder(BTreeMap<OsString, usize>),
    File(Arc<Mapping>),
}

pub(super) struct HeldLock {
    pub(super) inode: usize,
    pub(super) description: u64,
    pub(super) lock: LockKind,
    /// `None` for a lock of the whole file, which is independent of those on ranges.
    pub(super) range: Option<LockRange>,
}

pub(super) struct WatchState {
    pub(super) pid: Pid,
    pub(super) inode: usize,
    pub(super) events: FileEvents,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) inodes: Vec<(Contents, u32)>,
    /// The inode of each open file description.
    pub(super) descriptions: BTreeMap<u64, usize>,
    pub(super) next_description: u64,
    /// The descriptors of every living process.
    pub(super) processes: BTreeMap<Pid, BTreeMap<RawFd, u64>>,
    pub(super) next_pid: Pid,
    pub(super) locks: Vec<HeldLock>,
    pub(super) watches: BTreeMap<u64, WatchState>,
    pub(super) threads: Vec<(Pid, Rounds)>,
}

impl State {
    pub(super) fn entries(&self, folder: usize) -> io::Result<&BTreeMap<OsString, usize>> {
        match &self.inodes[folder].0 {
            Contents::Folder(entries) => Ok(entries),
            Contents::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn entries_mut(&mut self, folder: usize) -> &mut BTreeMap<OsString, usize> {
        match &mut self.inodes[folder].0 {
            Contents::Folder(entries) => entries,
            Contents::File(_) => panic!("a file has no entries"),
        }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<usize> {
        let mut inode = 0;
        for part in path.components() {
            if let Component::Normal(name) = part {
                inode = self.find_in(inode, name)?;
            }
        }
        Ok(inode)
    }

    pub(super) fn find_in(&self, folder: usize, name: &OsStr) -> io::Result<usize> {
        self.entries(folder)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn metadata(&self, inode: usize) -> FileMetadata {
        let (contents, mode) = &self.inodes[inode];
        let (kind, size) = match contents {
            Contents::Folder(_) => (FileKind::Folder, 0),
            Contents::File(words) => (FileKind::File, words.len() as u64 * 8),
        };
        FileMetadata { kind, file_id: FileId { device: 1, inode: inode as u64 }, user: 0, mode: *mode, size }
    }

    pub(super) fn description(&self, pid: Pid, file: RawFd) -> io::Result<u64> {
        let bad = || io::Error::from_raw_os_error(libc::EBADF);
        self.processes.get(&pid).and_then(|files| files.get(&file)).copied().ok_or_else(bad)
    }

    pub(super) fn inode(&self, pid: Pid, file: RawFd) -> io::Result<(u64, usize)> {
        let description = self.description(pid, file)?;
        Ok((description, self.descriptions[&description]))
    }

    pub(super) fn open(&mut self, pid: Pid, inode: usize) -> io::Result<RawFd> {
        if self.inodes[inode].1 & 0o400 == 0 {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let description = self.next_description;
        self.next_description += 1;
        self.descriptions.insert(description, inode);
        let files = self.processes.get_mut(&pid).expect("the caller is alive");
        let file = (3..).find(|file| !files.contains_key(file)).expect("numbers do not end");
        files.insert(file, description);
        Ok(file)
    }

    /// Ends descriptions that no process has a descriptor of, with an event for those who watch their files.
    pub(super) fn end_unused(&mut self) {
        let used = |id: &u64| self.processes.values().any(|files| files.values().any(|description| description == id));
        let unused: Vec<u64> = self.descriptions.keys().copied().filter(|id| !used(id)).collect();
        for description in unused {
            let inode = self.descriptions.remove(&description);
            self.locks.retain(|lock| lock.description != description);
            for watch in self.watches.values_mut().filter(|watch| Some(watch.inode) == inode) {
                watch.events.closed = true;
            }
        }
    }

    pub(super) fn renamed(&mut self, inode: usize) {
        for watch in self.watches.values_mut().filter(|watch| watch.inode == inode) {
            watch.events.renamed = true;
        }
    }

    pub(super) fn conflict(&self, description: u64, inode: usize, lock: LockKind, range: LockRange) -> bool {
        let meets = |held: LockRange| held.start < range.start + range.length && range.start < held.start + held.length;
        self.locks.iter().any(|held| {
            held.inode == inode
                && held.description != description
                && (lock == LockKind::Exclusive || held.lock == LockKind::Exclusive)
                && held.range.is_some_and(meets)
        })
    }
}
