//! How a worker begins: a process that prepares itself and becomes the worker's command.
//!
//! It is `bursar` once more, because what it prepares has to happen in the process itself, and doing that between fork and
//! exec needs unsafe code.

use super::roles::{Part, Role};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// Written where a worker may run anywhere.
const ANYWHERE: &str = "-";

/// The command that becomes `words`, on these processors. Its standard input is taken by [`start`].
pub(crate) fn command(words: &[OsString], cpus: Option<&CpuSet>) -> Command {
    let cpus = cpus.map(|cpus| (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).map(|cpu| cpu.to_string()));
    let cpus = cpus.map_or(ANYWHERE.to_owned(), |cpus| cpus.collect::<Vec<_>>().join(","));
    let mut command = Role::Launch.command([OsString::from(cpus)]);
    command.args(words);
    command
}

/// A worker that is about to begin.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) child: Child,
    report: OwnedFd,
}

/// Starts a [`command`]. It is a child of this thread, and killed when that ends.
pub(crate) fn start(mut command: Command) -> io::Result<Launch> {
    let (report, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = command.stdin(theirs).spawn()?;
    Ok(Launch { child, report })
}

impl Launch {
    /// Waits until the command runs, or why it does not. Afterwards only the child is left.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut number = [0; 4];
        loop {
            return match read(&self.report, &mut number) {
                Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
                // The other end is closed by the command's beginning, or by an end before that.
                Ok(_) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Becomes the worker. Only returns where that failed.
pub(crate) fn launch(part: &Part) -> ExitCode {
    // Closed on exec, unlike the standard input that it is a copy of.
    let Ok(report) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let error = become_worker(part);
    let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    let _ = write(report, &number.to_ne_bytes());
    ExitCode::FAILURE
}

fn become_worker(Part { parent, words, .. }: &Part) -> io::Error {
    let [cpus, program, words @ ..] = &words[..] else { return Errno::INVAL.into() };
    if let Err(error) = end_with(*parent) {
        return error;
    }
    if let Some(cpus) = cpu_set(cpus) {
        // Processors that may not be used here are no reason not to start: any will do.
        let _ = sched_setaffinity(None, &cpus);
    }
    // With nothing to read: a group that is not the terminal's may not read from it.
    Command::new(program).args(words).stdin(Stdio::null()).exec()
}

/// Has the kernel kill this process, and the command that it becomes, when the crew ends.
fn end_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The signal is not sent for an end that came before.
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

fn cpu_set(cpus: &OsStr) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpus.to_str()?.split(',') {
        set.set(cpu.parse().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU)?);
    }
    Some(set)
}
