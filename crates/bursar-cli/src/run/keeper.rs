//! A small process that outlives us if we are killed, and then ends what we started.
//!
//! It reads from us which process groups there are. When the pipe ends, because we have ended in whatever way, it kills
//! those that are left; after an orderly end there are none.

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

/// The command that makes a process a keeper.
pub(crate) const COMMAND: &str = "keep-workers";

/// The keeper, from where we see it.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: Pid,
    told: Option<ChildStdin>,
}

impl Keeper {
    /// Starts it, in a group of its own so that what ends us spares it.
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bursar").arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.process_group(0).current_dir("/").spawn()?;
        Ok(Self { pid: Pid::from_child(&child), told: child.stdin.take() })
    }

    /// A group of which something is left.
    pub(crate) fn began(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// A group of which nothing is left.
    pub(crate) fn ended(&mut self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&mut self, what: char, group: Pid) {
        if let Some(told) = &mut self.told {
            // Without its keeper a run is as good, as long as nobody kills it.
            let _ = told.write_all(format!("{what}{}\n", group.as_raw_pid()).as_bytes());
        }
    }
}

/// Nobody tells it anything any more, so it ends.
impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.told.take());
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// What the keeper does, until nobody tells it anything any more.
pub(crate) fn keep(told: impl BufRead) {
    let mut groups = BTreeSet::new();
    for line in told.lines().map_while(Result::ok) {
        let Some((what, number)) = line.split_at_checked(1) else { continue };
        match (what, number.parse::<i32>()) {
            ("+", Ok(group)) => drop(groups.insert(group)),
            ("-", Ok(group)) => drop(groups.remove(&group)),
            _ => (),
        }
    }
    for group in groups.into_iter().filter(|group| *group > 1).filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
