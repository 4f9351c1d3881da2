//! A simulated system of many processes in one thread, for tests of their lives and deaths.
//!
//! The fault model: every call, and every write of a ledger's word, is a moment at which anything else can happen. Just
//! before it takes effect a hook of the test runs: other processes and other threads of the same process may do
//! anything, fork, rename and remove files, and the caller itself may be killed. A process that is killed does nothing
//! from that call on. Descriptors are numbers, of which the lowest free one is given out next, and an open file
//! description with its locks lives as long as any process has a descriptor of it, forked children included. Sleeping
//! and waiting take no time and end for no reason.
//!
//! Writes that destructors of a killed process still make are reverted: see [`World::discard`].

mod calls;
mod state;

use super::{Kernel, Mapping, Rounds};
use calls::Simulated;
use state::{Contents, State};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// The id of a process.
pub(crate) type Pid = u32;

/// A hook that runs before everything a process does that others can see.
pub(crate) type Hook = Rc<dyn Fn(Pid, Moment)>;

/// A moment at which something else can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before a call to the system.
    Call,
    /// Before a word of a ledger is written, most often with its lock held.
    Write,
}

/// The payload of the panic that ends a killed process: not a failure.
struct KillMarker;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// True while the remains of a dead process are being dropped.
    static DISCARDING: Cell<bool> = const { Cell::new(false) };
}

/// The system that all processes share.
pub(crate) struct World(Mutex<State>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// The words of every file at a moment.
type Snapshot = Vec<(Arc<Mapping>, Vec<u64>)>;

impl World {
    /// Makes a system with nothing but a folder `/shm`.
    pub(crate) fn new() -> Arc<Self> {
        let mut state = State { next_pid: 100, ..State::default() };
        state.inodes.push((Contents::Folder(BTreeMap::from([("shm".into(), 1)])), 0o755));
        state.inodes.push((Contents::Folder(BTreeMap::new()), 0o755));
        Arc::new(Self(Mutex::new(state)))
    }

    /// Sets the hook that runs before every call from here on, in this thread.
    pub(crate) fn set_hook(hook: Option<Hook>) {
        HOOK.set(hook);
    }

    /// Runs the hook, then returns whether the process is still alive. One that was killed meanwhile ends here by a
    /// panic, unless it is being discarded already.
    fn reach(&self, pid: Pid, moment: Moment) -> bool {
        let discarding = DISCARDING.get() || std::thread::panicking();
        let hook = HOOK.with_borrow(Clone::clone).filter(|_| !discarding);
        if let Some(hook) = hook {
            hook(pid, moment);
        }
        let lives = self.is_alive(pid);
        if !lives && !discarding {
            panic_any((KillMarker, self.snapshot()));
        }
        lives
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

    /// Kills a process: its descriptors are closed and its threads end. Returns its threads, to be discarded.
    #[must_use]
    pub(crate) fn kill(&self, pid: Pid) -> Vec<Rounds> {
        let mut state = self.state();
        state.processes.remove(&pid);
        state.watches.retain(|_, watch| watch.pid != pid);
        state.end_unused();
        state.threads.extract_if(.., |(owner, _)| *owner == pid).map(|(_, rounds)| rounds).collect()
    }

    /// Drops what remains of a dead process, and reverts what its destructors write. Must not be called while the
    /// process is in the middle of a call: a destructor might wait for what that call has locked.
    pub(crate) fn discard<T>(&self, remains: T) {
        let before = self.snapshot();
        let outermost = !DISCARDING.replace(true);
        drop(remains);
        if outermost {
            DISCARDING.set(false);
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

    /// Runs what a process does. Returns `None` if it was killed meanwhile.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => Some(done),
            Err(reason) if reason.is::<(KillMarker, Snapshot)>() => {
                if let Ok(killed) = reason.downcast::<(KillMarker, Snapshot)>() {
                    restore(killed.1);
                }
                None
            }
            Err(reason) => resume_unwind(reason),
        }
    }

    /// Wakes a thread of a process, runs one round of it, and puts it back unless it has ended.
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
            // What a thread owns is dropped when it ends.
            self.run(move || drop(rounds));
        } else {
            self.discard(rounds);
        }
    }

    /// Renames what is at `path`, as somebody with a shell might.
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

/// Keeps the panics of killed processes out of what a failing test prints.
pub(crate) fn silence_kill_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<(KillMarker, Snapshot)>() {
                usual(info);
            }
        }));
    });
}
