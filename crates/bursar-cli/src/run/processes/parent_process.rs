//! Waiting for the end of the process that started this one.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The interval of looking whether the parent has ended, on kernels without pidfds.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The process that started this one.
#[derive(Debug)]
pub(crate) struct ParentProcess {
    pid: Pid,
    /// A pidfd, readable once the process has ended.
    pidfd: Option<OwnedFd>,
}

impl ParentProcess {
    /// Returns the parent if it is still the process `pid` that started this one. If it ends while this process is stopped,
    /// the kernel continues this one, since there is something to do then.
    pub(crate) fn of_this_process(pid: Pid) -> Option<Self> {
        // On kernels without this signal, somebody else has to continue us.
        let _ = set_parent_process_death_signal(Some(Signal::CONT));
        // If `pid` is our parent before and after, it was not reused in between.
        let is_alive = || getppid() == Some(pid);
        let pidfd = is_alive().then(|| pidfd_open(pid, PidfdFlags::empty()).ok())?;
        is_alive().then_some(Self { pid, pidfd })
    }

    /// Waits until the parent has ended.
    pub(crate) fn wait(&self) {
        while getppid() == Some(self.pid) {
            let polled = self.pidfd.as_ref().map(|pidfd| poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None));
            match polled {
                Some(Ok(1..)) => return,
                Some(Err(rustix::io::Errno::INTR)) => (),
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
