//! Who may start workers and wait for them: one thread at a time, and none once everything is to end.

use super::parent::Parent;
use super::strays;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long whoever ends everything waits for the hands: somebody who has them for longer waits for something, and does
/// nothing with them meanwhile.
const TAKING_MAX: Duration = Duration::from_secs(1);

/// How often is looked whether they are free.
const LOOK: Duration = Duration::from_millis(1);

/// The hands of the crew. Whoever has them may start, wait for and kill children.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    taken: Mutex<()>,
    is_ending: AtomicBool,
}

impl Hands {
    /// Waits for them.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for them, and not for ever.
    fn take_soon(&self) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + TAKING_MAX;
        loop {
            match self.taken.try_lock() {
                Ok(taken) => return Some(taken),
                Err(TryLockError::Poisoned(taken)) => return Some(taken.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Ends every process below this one, and this one, when its parent ends.
    pub(crate) fn end_with(self: &Arc<Self>, parent: Parent) -> io::Result<()> {
        let hands = self.clone();
        let wait = move || {
            parent.wait();
            hands.end_everything()
        };
        std::thread::Builder::new().name("parent".into()).spawn(wait).map(drop)
    }

    /// Ends every process below this one, and this one. What it holds of ledgers goes with it; nobody is told anything, as
    /// whoever would be has ended.
    pub(crate) fn end_everything(&self) -> ! {
        while self.is_ending.swap(true, Ordering::AcqRel) {
            // Another thread does it, and this one ends with the process.
            std::thread::park();
        }
        let _taken = self.take_soon();
        loop {
            strays::end();
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
