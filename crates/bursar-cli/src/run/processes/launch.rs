//! The start of a worker: a process that prepares itself and becomes the worker's command.
//!
//! It is `bursar` itself, because the preparation has to happen in the worker's process, and doing that between fork and exec
//! needs unsafe code.

use super::{FAILURE, Invocation, Role};
use crate::program::Program;
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The argument that stands for any processor.
const ANY_PROCESSOR: &str = "-";

/// Returns the command that becomes `words`, on these processors. Its standard input is used by [`start`].
pub(crate) fn command(program: &Program, words: &[OsString], cpus: Option<&CpuSet>) -> Command {
    let cpus = cpus.map(|cpus| (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).map(|cpu| cpu.to_string()));
    let cpus = cpus.map_or(ANY_PROCESSOR.to_owned(), |cpus| cpus.collect::<Vec<_>>().join(","));
    let mut command = Role::Launch.command(program, [OsString::from(cpus)]);
    command.args(words);
    command
}

/// A process that is about to become a worker.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) child: Child,
    /// A pipe on which the process reports why it could not become the worker; closed on exec.
    error_pipe: OwnedFd,
}

/// Starts a [`command`] as a child of this thread. The kernel kills it when the thread ends.
pub(crate) fn start(mut command: Command) -> io::Result<Launch> {
    let (error_pipe, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = command.stdin(theirs).spawn()?;
    Ok(Launch { child, error_pipe })
}

impl Launch {
    /// Waits until the command runs, or returns why it does not.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut number = [0; 4];
        loop {
            return match read(&self.error_pipe, &mut number) {
                Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
                // The other end was closed, by exec or by an end before that.
                Ok(_) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Becomes the worker. Returns only if that failed.
pub(crate) fn exec_worker(invocation: &Invocation) -> u8 {
    // The copy is closed on exec, unlike standard input itself.
    let Ok(error_pipe) = io::stdin().as_fd().try_clone_to_owned() else { return FAILURE };
    let error = become_worker(invocation);
    let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    let _ = write(error_pipe, &number.to_ne_bytes());
    FAILURE
}

fn become_worker(Invocation { parent, words, .. }: &Invocation) -> io::Error {
    let [cpus, program, words @ ..] = &words[..] else { return Errno::INVAL.into() };
    if let Err(error) = die_with(*parent) {
        return error;
    }
    if let Some(cpus) = cpu_set(cpus) {
        // If these processors may not be used here, the worker starts on any.
        let _ = sched_setaffinity(None, &cpus);
    }
    // Without input: a process group in the background may not read from the terminal.
    Command::new(program).args(words).stdin(Stdio::null()).exec()
}

/// Has the kernel kill this process, and the command that it becomes, when the supervisor ends.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The signal is not sent if the parent ended before.
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

fn cpu_set(cpus: &OsStr) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpus.to_str()?.split(',') {
        set.set(cpu.parse().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU)?);
    }
    Some(set)
}
