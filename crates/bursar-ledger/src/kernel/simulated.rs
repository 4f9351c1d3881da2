//! A system of many processes in one thread, for tests of life and death.
//!
//! The fault model: every call, and every write of a ledger's word, is a moment at which anything else can happen. Just
//! before it takes effect, the one who
//! runs the test is asked what happens meanwhile: other processes and other threads of the same one may do anything, fork,
//! rename and remove files, and the caller itself may be killed. A process that is killed does nothing from that call on.
//! Descriptors are numbers, the lowest free one is given out next, and a description with its locks lives as long as any
//! process has a descriptor of it, forked children included. Sleeping and waiting take no time and wake for no reason.
//!
//! What a killed process's destructors would still write is taken back: see [`World::bury`].

use super::{Facts, FileKind, Identity, Kernel, Lock, News, Opening, Range, Rounds, Watch};
use crate::mmap::Mapping;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The number of a process.
pub(crate) type Pid = u32;

/// Asked before everything a process does that others can see.
pub(crate) type Meanwhile = Rc<dyn Fn(Pid, Moment)>;

/// A moment at which something else can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before a call to the system.
    Call,
    /// Before a word of a ledger is written, most often with its lock in hand.
    Write,
}

/// Why a process ended here: not a failure.
struct Killed;

thread_local! {
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
    /// Whether what is left of a dead process is being dropped.
    static BURYING: Cell<bool> = const { Cell::new(false) };
}

enum Contents {
    Folder(BTreeMap<OsString, usize>),
    File(Arc<Mapping>),
}

struct HeldLock {
    inode: usize,
    description: u64,
    lock: Lock,
    /// Nothing for a lock of the whole file, which is apart from those of ranges.
    range: Option<Range>,
}

struct WatchState {
    pid: Pid,
    inode: usize,
    news: News,
}

#[derive(Default)]
struct State {
    inodes: Vec<(Contents, u32)>,
    /// What each open file description is of.
    descriptions: BTreeMap<u64, usize>,
    next_description: u64,
    /// The descriptors of everyone who lives.
    processes: BTreeMap<Pid, BTreeMap<RawFd, u64>>,
    next_pid: Pid,
    locks: Vec<HeldLock>,
    watches: BTreeMap<u64, WatchState>,
    threads: Vec<(Pid, Rounds)>,
}

impl State {
    fn entries(&self, folder: usize) -> io::Result<&BTreeMap<OsString, usize>> {
        match &self.inodes[folder].0 {
            Contents::Folder(entries) => Ok(entries),
            Contents::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn entries_mut(&mut self, folder: usize) -> &mut BTreeMap<OsString, usize> {
        match &mut self.inodes[folder].0 {
            Contents::Folder(entries) => entries,
            Contents::File(_) => panic!("a file has no entries"),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut inode = 0;
        for part in path.components() {
            if let Component::Normal(name) = part {
                inode = self.find_in(inode, name)?;
            }
        }
        Ok(inode)
    }

    fn find_in(&self, folder: usize, name: &OsStr) -> io::Result<usize> {
        self.entries(folder)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn facts(&self, inode: usize) -> Facts {
        let (contents, mode) = &self.inodes[inode];
        let (kind, size) = match contents {
            Contents::Folder(_) => (FileKind::Folder, 0),
            Contents::File(words) => (FileKind::File, words.len() as u64 * 8),
        };
        Facts { kind, identity: Identity { device: 1, inode: inode as u64 }, user: 0, mode: *mode, size }
    }

    fn description(&self, pid: Pid, file: RawFd) -> io::Result<u64> {
        let bad = || io::Error::from_raw_os_error(libc::EBADF);
        self.processes.get(&pid).and_then(|files| files.get(&file)).copied().ok_or_else(bad)
    }

    fn inode(&self, pid: Pid, file: RawFd) -> io::Result<(u64, usize)> {
        let description = self.description(pid, file)?;
        Ok((description, self.descriptions[&description]))
    }

    fn open(&mut self, pid: Pid, inode: usize) -> io::Result<RawFd> {
        if self.inodes[inode].1 & 0o400 == 0 {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let description = self.next_description;
        self.next_description += 1;
        self.descriptions.insert(description, inode);
        let files = self.processes.get_mut(&pid).expect("whoever opens lives");
        let file = (3..).find(|file| !files.contains_key(file)).expect("numbers do not end");
        files.insert(file, description);
        Ok(file)
    }

    /// Ends descriptions that nobody has a descriptor of, and tells who watches their files.
    fn end_unused(&mut self) {
        let used = |id: &u64| self.processes.values().any(|files| files.values().any(|description| description == id));
        let unused: Vec<u64> = self.descriptions.keys().copied().filter(|id| !used(id)).collect();
        for description in unused {
            let inode = self.descriptions.remove(&description);
            self.locks.retain(|lock| lock.description != description);
            for watch in self.watches.values_mut().filter(|watch| Some(watch.inode) == inode) {
                watch.news.closed = true;
            }
        }
    }

    fn renamed(&mut self, inode: usize) {
        for watch in self.watches.values_mut().filter(|watch| watch.inode == inode) {
            watch.news.renamed = true;
        }
    }

    fn conflict(&self, description: u64, inode: usize, lock: Lock, range: Range) -> bool {
        let meets = |held: Range| held.start < range.start + range.length && range.start < held.start + held.length;
        self.locks.iter().any(|held| {
            held.inode == inode
                && held.description != description
                && (lock == Lock::Exclusive || held.lock == Lock::Exclusive)
                && held.range.is_some_and(meets)
        })
    }
}

/// The system all processes share.
pub(crate) struct World(Mutex<State>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// The words of every file, as they were at a moment.
type Snapshot = Vec<(Arc<Mapping>, Vec<u64>)>;

impl World {
    /// A system with nothing but a folder `/shm`, where `meanwhile` is asked before every call.
    pub(crate) fn new() -> Arc<Self> {
        let mut state = State { next_pid: 100, ..State::default() };
        state.inodes.push((Contents::Folder(BTreeMap::from([("shm".into(), 1)])), 0o755));
        state.inodes.push((Contents::Folder(BTreeMap::new()), 0o755));
        Arc::new(Self(Mutex::new(state)))
    }

    /// Has `meanwhile` asked before every call from here on, in this thread.
    pub(crate) fn ask(meanwhile: Option<Meanwhile>) {
        MEANWHILE.set(meanwhile);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Starts a process.
    pub(crate) fn start(self: &Arc<Self>) -> (Pid, Box<dyn Kernel>) {
        self.with_files(BTreeMap::new())
    }

    /// Starts a process that has all descriptors of another.
    pub(crate) fn fork(self: &Arc<Self>, parent: Pid) -> (Pid, Box<dyn Kernel>) {
        let files = self.state().processes[&parent].clone();
        self.with_files(files)
    }

    fn with_files(self: &Arc<Self>, files: BTreeMap<RawFd, u64>) -> (Pid, Box<dyn Kernel>) {
        let mut state = self.state();
        let pid = state.next_pid;
        state.next_pid += 1;
        state.processes.insert(pid, files);
        (pid, Box::new(Simulated { world: Arc::clone(self), pid }))
    }

    pub(crate) fn is_alive(&self, pid: Pid) -> bool {
        self.state().processes.contains_key(&pid)
    }

    /// Kills a process: its descriptors are closed and its threads end. Returns what is to be buried.
    #[must_use]
    pub(crate) fn kill(&self, pid: Pid) -> Vec<Rounds> {
        let mut state = self.state();
        state.processes.remove(&pid);
        state.watches.retain(|_, watch| watch.pid != pid);
        state.end_unused();
        state.threads.extract_if(.., |(owner, _)| *owner == pid).map(|(_, rounds)| rounds).collect()
    }

    /// Drops what is left of a dead process, so that nothing it does in doing so is seen. Not while the process is in the
    /// middle of a call: what is dropped might wait for what that call has locked.
    pub(crate) fn bury<T>(&self, remains: T) {
        let before = self.snapshot();
        let outermost = !BURYING.replace(true);
        drop(remains);
        if outermost {
            BURYING.set(false);
        }
        restore(before);
    }

    fn snapshot(&self) -> Snapshot {
        let files = |state: &State| -> Vec<Arc<Mapping>> {
            let file = |(contents, _): &(Contents, u32)| match contents {
                Contents::File(words) => Some(Arc::clone(words)),
                Contents::Folder(_) => None,
            };
            state.inodes.iter().filter_map(file).collect()
        };
        let files = files(&self.state());
        files.into_iter().map(|file| (Arc::clone(&file), (0..file.len()).map(|at| file.load(at)).collect())).collect()
    }

    /// Runs what a process does. Returns nothing if it was killed in the middle of it.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => Some(done),
            Err(reason) if reason.is::<(Killed, Snapshot)>() => {
                if let Ok(killed) = reason.downcast::<(Killed, Snapshot)>() {
                    restore(killed.1);
                }
                None
            }
            Err(reason) => resume_unwind(reason),
        }
    }

    /// Takes a thread of a process out of its sleep, has it do one round, and puts it back unless it has ended.
    pub(crate) fn run_thread(&self, pid: Pid, which: usize) {
        let mut state = self.state();
        let own: Vec<usize> = (0..state.threads.len()).filter(|&at| state.threads[at].0 == pid).collect();
        if own.is_empty() {
            return;
        }
        let (_, mut rounds) = state.threads.remove(own[which % own.len()]);
        drop(state);
        let goes_on = self.run(&mut rounds);
        if self.is_alive(pid) && goes_on == Some(true) {
            self.state().threads.push((pid, rounds));
        } else if self.is_alive(pid) {
            // What a thread still had is dropped when it ends.
            self.run(move || drop(rounds));
        } else {
            self.bury(rounds);
        }
    }

    /// Renames or removes what is at `path`, as somebody with a shell might.
    pub(crate) fn rename(&self, path: &str, to: &str) {
        let mut state = self.state();
        let (Ok(from_folder), Ok(to_folder)) = (parent(&state, path), parent(&state, to)) else { return };
        let (name, to_name) = (file_name(path), file_name(to));
        if state.find_in(to_folder, &to_name).is_err()
            && let Some(inode) = state.entries_mut(from_folder).remove(&name)
        {
            state.entries_mut(to_folder).insert(to_name, inode);
            state.renamed(inode);
        }
    }

    pub(crate) fn remove(&self, path: &str) {
        let mut state = self.state();
        let Ok(folder) = parent(&state, path) else { return };
        if let Some(inode) = state.entries_mut(folder).remove(&file_name(path)) {
            state.renamed(inode);
            if let Contents::Folder(entries) = &mut state.inodes[inode].0 {
                let inside: Vec<usize> = std::mem::take(entries).into_values().collect();
                inside.into_iter().for_each(|inode| state.renamed(inode));
            }
        }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.state().find(Path::new(path)).is_ok()
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) {
        let mut state = self.state();
        let inode = state.find(Path::new(path)).unwrap();
        state.inodes[inode].1 = mode;
    }
}

fn parent(state: &State, path: &str) -> io::Result<usize> {
    state.find(Path::new(path).parent().unwrap_or(Path::new("/")))
}

fn file_name(path: &str) -> OsString {
    Path::new(path).file_name().unwrap_or_default().to_owned()
}

fn restore(snapshot: Snapshot) {
    for (file, words) in snapshot {
        for (at, word) in words.into_iter().enumerate() {
            file.word(at).store(word, Ordering::Relaxed);
        }
    }
}

/// Keeps deaths out of what a failing test prints.
pub(crate) fn die_quietly() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<(Killed, Snapshot)>() {
                usual(info);
            }
        }));
    });
}

/// One process's end of it.
#[derive(Debug)]
struct Simulated {
    world: Arc<World>,
    pid: Pid,
}

impl Simulated {
    /// Lets others act, then dies or makes the call. The dead make no calls, and are told that they failed.
    fn call<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        self.at(Moment::Call, call)
    }

    fn at<T>(&self, moment: Moment, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let buried = BURYING.get() || std::thread::panicking();
        if !buried {
            let meanwhile = MEANWHILE.with_borrow(Clone::clone);
            if let Some(meanwhile) = meanwhile {
                meanwhile(self.pid, moment);
            }
        }
        if !self.world.is_alive(self.pid) {
            if !buried {
                panic_any((Killed, self.world.snapshot()));
            }
            return Err(io::Error::other("the dead call nobody"));
        }
        call(&mut self.world.state())
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
    fn patience(&self) -> Duration {
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
    fn facts_of(&self, path: &Path) -> io::Result<Facts> {
        self.call(|state| state.find(path).map(|inode| state.facts(inode)))
    }
    fn facts_in(&self, folder: RawFd, name: &OsStr) -> io::Result<Facts> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            state.find_in(folder, name).map(|inode| state.facts(inode))
        })
    }
    fn facts(&self, file: RawFd) -> io::Result<Facts> {
        self.call(|state| state.inode(self.pid, file).map(|(_, inode)| state.facts(inode)))
    }

    fn open(&self, path: &Path, _: Opening) -> io::Result<RawFd> {
        self.call(|state| state.find(path).and_then(|inode| state.open(self.pid, inode)))
    }
    fn open_in(&self, folder: RawFd, name: &OsStr, _: Opening) -> io::Result<RawFd> {
        self.call(|state| {
            let (_, folder) = state.inode(self.pid, folder)?;
            state.find_in(folder, name).and_then(|inode| state.open(self.pid, inode))
        })
    }
    fn close(&self, file: RawFd) {
        let _ = self.call(|state| {
            let files = state.processes.get_mut(&self.pid).expect("whoever closes lives");
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

    fn try_lock(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            let free = !state.conflict(description, inode, lock, range);
            if free {
                state.locks.push(HeldLock { inode, description, lock, range: Some(range) });
            }
            Ok(free)
        })
    }
    fn is_locked(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            Ok(state.conflict(description, inode, lock, range))
        })
    }
    fn try_lock_whole(&self, file: RawFd) -> io::Result<bool> {
        self.call(|state| {
            let (description, inode) = state.inode(self.pid, file)?;
            let other =
                |held: &HeldLock| held.inode == inode && held.range.is_none() && held.description != description;
            let free = !state.locks.iter().any(other);
            if free {
                state.locks.push(HeldLock { inode, description, lock: Lock::Exclusive, range: None });
            }
            Ok(free)
        })
    }
    fn who_locks(&self, _: Range) -> Vec<u32> {
        Vec::new()
    }

    fn map(&self, file: RawFd, words: usize) -> io::Result<Mapping> {
        self.call(|state| {
            let (_, inode) = state.inode(self.pid, file)?;
            let Contents::File(mapping) = &state.inodes[inode].0 else { return Err(ErrorKind::IsADirectory.into()) };
            assert_eq!(mapping.len(), words, "all of a ledger is mapped");
            Ok(Mapping::again(mapping))
        })
    }
    fn wait(&self, _: &AtomicU64, _: u64, _: Option<Duration>) {
        let _ = self.call(|_| Ok(()));
    }
    fn wake(&self, _: &AtomicU64, _: u32) {
        let _ = self.call(|_| Ok(()));
    }
    fn writes(&self) {
        let _ = self.at(Moment::Write, |_| Ok(()));
    }
    fn watch(&self, path: &Path) -> io::Result<Arc<dyn Watch>> {
        let number = self.call(|state| {
            let inode = state.find(path)?;
            let number = state.next_description;
            state.next_description += 1;
            state.watches.insert(number, WatchState { pid: self.pid, inode, news: News::default() });
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
    fn read(&self) -> io::Result<News> {
        self.kernel.call(|state| {
            let over = News { over: true, ..News::default() };
            Ok(state.watches.get_mut(&self.number).map_or(over, |watch| std::mem::take(&mut watch.news)))
        })
    }

    fn end(&self) {
        let _ = self.kernel.call(|state| {
            state.watches.remove(&self.number);
            Ok(())
        });
    }
}
