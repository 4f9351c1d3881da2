//! The process that started this one, and its end.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How often is looked whether the parent has ended, where the kernel does not tell.
const LOOK: Duration = Duration::from_millis(10);

/// The process that started this one.
#[derive(Debug)]
pub(crate) struct Parent {
    pid: Pid,
    /// Readable once it has ended.
    end: Option<OwnedFd>,
}

impl Parent {
    /// The parent, where it is still the process that started this one. If it ends while this one is stopped, this one goes
    /// on: there is something to do then.
    pub(crate) fn of_this_process(pid: Pid) -> Option<Self> {
        // Where the kernel knows no such signal, somebody else has to continue us.
        let _ = set_parent_process_death_signal(Some(Signal::CONT));
        // A number that is our parent's before and after is nobody else's.
        let is_alive = || getppid() == Some(pid);
        let end = is_alive().then(|| pidfd_open(pid, PidfdFlags::empty()).ok())?;
        is_alive().then_some(Self { pid, end })
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self) {
        while getppid() == Some(self.pid) {
            let waited = self.end.as_ref().map(|end| poll(&mut [PollFd::new(end, PollFlags::IN)], None));
            match waited {
                Some(Ok(1..)) => return,
                Some(Err(rustix::io::Errno::INTR)) => (),
                _ => std::thread::sleep(LOOK),
            }
        }
    }
}
