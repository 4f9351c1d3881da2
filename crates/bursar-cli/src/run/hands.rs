//! Who may start workers and wait for them: one thread at a time, and none once everything is to end.

use super::parent::Parent;
use super::strays;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The hands of the crew. Whoever has them may start, wait for and kill children.
#[derive(Debug, Default)]
pub(crate) struct Hands(Mutex<()>);

impl Hands {
    /// Waits for them.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let _taken = self.take();
        loop {
            strays::end();
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
