//! The lock that a thread holds to start, wait for or kill children, and the end of this process with all below it.

use super::children;
use super::parent_process::ParentProcess;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The longest that [`kill_all_and_exit`](ChildLock::kill_all_and_exit) waits for the lock: a thread that holds it for
/// longer is blocked, and does nothing with children meanwhile.
const LOCK_MAX: Duration = Duration::from_secs(1);

/// The interval of trying to take the lock.
const TRY_INTERVAL: Duration = Duration::from_millis(1);

/// The supervisor's right to start, wait for and kill children: one thread's at a time, since a process number is only safe
/// to signal while nobody else can reap it.
#[derive(Debug, Default)]
pub(crate) struct ChildLock {
    mutex: Mutex<()>,
    is_exiting: AtomicBool,
}

impl ChildLock {
    /// Waits for the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the lock, at most [`LOCK_MAX`].
    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + LOCK_MAX;
        loop {
            match self.mutex.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRY_INTERVAL),
            }
        }
    }

    /// Kills every process below this one, and this one, when its parent ends.
    pub(crate) fn exit_with(self: &Arc<Self>, parent: ParentProcess) -> io::Result<()> {
        let lock = self.clone();
        let wait = move || {
            parent.wait();
            lock.kill_all_and_exit()
        };
        std::thread::Builder::new().name("parent".into()).spawn(wait).map(drop)
    }

    /// Kills every process below this one, and this one. Its reservations in ledgers end with it. Nothing is reported,
    /// since those who would read it have ended.
    pub(crate) fn kill_all_and_exit(&self) -> ! {
        while self.is_exiting.swap(true, Ordering::AcqRel) {
            // Another thread does it, and this one ends with the process.
            std::thread::park();
        }
        let _guard = self.try_lock();
        loop {
            children::kill_all();
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
