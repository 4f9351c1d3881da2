//! The calls of one process.

use super::state::{Contents, HeldLock, State, WatchState};
use super::{Moment, Pid, World};
use crate::system::{FileEvents, FileMetadata, Kernel, LockKind, LockRange, Mapping, OpenMode, Rounds, Watch};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kernel as one process sees it.
#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) world: Arc<World>,
    pub(super) pid: Pid,
}

impl Simulated {
    /// Runs the hook, then makes the call. A call of a dead process fails.
    fn call<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        self.at(Moment::Call, call)
    }

    fn at<T>(&self, moment: Moment, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        if self.world.reach(self.pid, moment) {
            call(&mut self.world.state())
        } else {
            Err(io::Error::other("the dead call nobody"))
        }
    }
}

impl Kernel for Simulated {
    fn user(&self) -> u32 {
        0
    }
    fn pid(&self) -> u32 {
        self.pid
    }
    fn name(&self) -> String {
        "simulated".to_owned()
    }
    fn lock_timeout(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, _: Duration) {
        let _ = self.call(|_| Ok(()));
    }
    fn spawn(&self, rounds: Rounds) -> bool {
        self.call(|state| {
            state.threads.push((self.pid, rounds));
            Ok(())
        })
        .is_ok()
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.call(|state| state.find(path).map(|_| path.to_owned()))
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            let (folder, name) = (state.find(path.parent().unwrap())?, path.file_name().unwrap());
            if state.find_in(folder, name).is_ok() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let inode = state.inodes.len();
            state.inodes.push((Contents::Folder(BTreeMap::new()), 0o700));
            state.entries_mut(folder).insert(name.to_owned(), inode);
            Ok(())
        })
    }
    fn metadata_of(&self, path: &Path) -> io::Result<FileMetadata> {
        self.call(|state| state.find(path).map(|inode| state.metadata(inode)))
    }
    fn metadata_in(&self, folder: RawFd, name: &OsStr) -> io::Result<FileMetadata> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            state.find_in(folder, name).map(|inode| state.metadata(inode))
        })
    }
    fn metadata(&self, file: RawFd) -> io::Result<FileMetadata> {
        self.call(|state| state.inode(self.pid, file).map(|(_, inode)| state.metadata(inode)))
    }

    fn open(&self, path: &Path, _: OpenMode) -> io::Result<RawFd> {
        self.call(|state| state.find(path).and_then(|inode| state.open(self.pid, inode)))
    }
    fn open_in(&self, folder: RawFd, name: &OsStr, _: OpenMode) -> io::Result<RawFd> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            state.find_in(folder, name).and_then(|inode| state.open(self.pid, inode))
        })
    }
    fn close(&self, file: RawFd) {
        let _ = self.call(|state| {
            let files = state.processes.get_mut(&self.pid).expect("the caller is alive");
            assert!(files.remove(&file).is_some(), "descriptor {file} is closed twice");
            state.end_unused();
            Ok(())
        });
    }
    fn read_at(&self, file: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.call(|state| {
            let (_, inode) = state.inode(self.pid, file)?;
            let Contents::File(words) = &state.inodes[inode].0 else { return Err(ErrorKind::IsADirectory.into()) };
            for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
                chunk.copy_from_slice(&words.load(offset as usize / 8 + at).to_le_bytes());
            }
            Ok(())
        })
    }
    fn make_file(&self, folder: RawFd, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            if state.find_in(folder, name).is_ok() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let words = Mapping::private(contents.len() / 8)?;
            for (at, word) in contents.chunks_exact(8).enumerate() {
                words.word(at).store(u64::from_le_bytes(word.try_into().unwrap()), Ordering::Relaxed);
            }
            let inode = state.inodes.len();
            state.inodes.push((Contents::File(Arc::new(words)), 0o600));
            state.entries_mut(folder).insert(name.to_owned(), inode);
            Ok(())
        })
    }
    fn link(&self, folder: RawFd, name: &OsStr, to: &OsStr) -> io::Result<()> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            let inode = state.find_in(folder, name)?;
            if state.find_in(folder, to).is_ok() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            state.entries_mut(folder).insert(to.to_owned(), inode);
            Ok(())
        })
    }
    fn unlink(&self, folder: RawFd, name: &OsStr) -> io::Result<()> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            state.find_in(folder, name)?;
            state.entries_mut(folder).remove(name);
            Ok(())
        })
    }

    fn try_lock(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            let free = !state.conflict(description, inode, lock, range);
            if free {
                state.locks.push(HeldLock { inode, description, lock, range: Some(range) });
            }
            Ok(free)
        })
    }
    fn is_locked(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            Ok(state.conflict(description, inode, lock, range))
        })
    }
    fn try_lock_file(&self, file: RawFd) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            let other =
                |held: &HeldLock| held.inode == inode && held.range.is_none() && held.description != description;
            let free = !state.locks.iter().any(other);
            if free {
                state.locks.push(HeldLock { inode, description, lock: LockKind::Exclusive, range: None });
            }
            Ok(free)
        })
    }
    fn lock_holders(&self, _: LockRange) -> Vec<u32> {
        Vec::new()
    }

    fn map(&self, file: RawFd, words: usize) -> io::Result<Mapping> {
        self.call(|state| {
            let (_, inode) = state.inode(self.pid, file)?;
            let Contents::File(mapping) = &state.inodes[inode].0 else { return Err(ErrorKind::IsADirectory.into()) };
            assert_eq!(mapping.len(), words, "all of a ledger is mapped");
            Ok(Mapping::alias(mapping))
        })
    }
    fn wait(&self, _: &AtomicU64, _: u64, _: Option<Duration>) {
        let _ = self.call(|_| Ok(()));
    }
    fn wake(&self, _: &AtomicU64, _: u32) {
        let _ = self.call(|_| Ok(()));
    }
    fn before_write(&self) {
        let _ = self.at(Moment::Write, |_| Ok(()));
    }
    fn watch(&self, path: &Path) -> io::Result<Arc<dyn Watch>> {
        let number = self.call(|state| {
            let inode = state.find(path)?;
            let number = state.next_description;
            state.next_description += 1;
            state.watches.insert(number, WatchState { pid: self.pid, inode, events: FileEvents::default() });
            Ok(number)
        })?;
        let kernel = Self { world: Arc::clone(&self.world), pid: self.pid };
        Ok(Arc::new(SimulatedWatch { kernel, number }))
    }
}

#[derive(Debug)]
struct SimulatedWatch {
    kernel: Simulated,
    number: u64,
}

impl Watch for SimulatedWatch {
    fn read(&self) -> io::Result<FileEvents> {
        self.kernel.call(|state| {
            let over = FileEvents { over: true, ..FileEvents::default() };
            Ok(state.watches.get_mut(&self.number).map_or(over, |watch| std::mem::take(&mut watch.events)))
        })
    }

    fn end(&self) {
        let _ = self.kernel.call(|state| {
            state.watches.remove(&self.number);
            Ok(())
        });
    }
}
