//! A small process between `bursar run` and the supervisor, which ends everything if either of them is killed.
//!
//! It has no children but the supervisor, and is a subreaper: every process that is reparented to it is a worker's.

use super::parent_process::ParentProcess;
use super::signals::SignalWatch;
use super::{FAILURE, Invocation, Role, children, exit_code};
use crate::output::{BAD, say_without_blocking};
use crate::program::Program;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper, setsid, wait, waitpid,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest that the supervisor may take to end everything.
const SUPERVISOR_MAX: Duration = Duration::from_secs(5);

/// Starts the supervisor, waits for it, and kills what is left. Returns the supervisor's exit status.
pub(crate) fn watch(program: &Program, invocation: Invocation) -> io::Result<u8> {
    // Its name and session are its own, so that killing `bursar` by name, a process group or a session spares it.
    let _ = rustix::thread::set_name(c"run-watchdog");
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let (wake, wakeups) = channel();
    // Signals that end others are ignored here: `bursar run` forwards what it receives.
    let on_signal = wake.clone();
    let _watch = SignalWatch::start(move |_| {
        let _ = on_signal.send(());
    })?;
    let Some(parent) = ParentProcess::of_this_process(invocation.parent) else { return Ok(FAILURE) };
    let supervisor = start_supervisor(program, &invocation.words)?;
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        parent.wait();
        let _ = wake.send(());
    })?;
    let status = wait_for_supervisor(supervisor, invocation.parent, &wakeups);
    children::kill_all();
    Ok(report(status))
}

fn start_supervisor(program: &Program, words: &[OsString]) -> io::Result<Pid> {
    let mut command = Role::Supervisor.command(program, words);
    command.process_group(0).spawn().map(|child| Pid::from_child(&child))
}

/// Waits until the supervisor has ended. Returns its status, or none if that cannot be found out.
///
/// If `bursar run` ends first, the supervisor ends everything by itself, and this process is left to do it if the
/// supervisor is killed or takes too long.
fn wait_for_supervisor(supervisor: Pid, parent: Pid, wakeups: &Receiver<()>) -> Option<WaitStatus> {
    let mut deadline = None;
    loop {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                // A stopped supervisor ends nobody.
                Ok(Some((pid, status))) if pid == supervisor && status.stopped() => {
                    let _ = kill_process(supervisor, Signal::CONT);
                }
                Ok(Some((pid, status))) if pid == supervisor => return Some(status),
                Ok(Some(_)) => (),
                Ok(None) => break,
                Err(_) => return None,
            }
        }
        match deadline {
            None if getppid() != Some(parent) => {
                // It may have been stopped.
                let _ = kill_process(supervisor, Signal::CONT);
                deadline = Some(Instant::now() + SUPERVISOR_MAX);
            }
            None => {
                let _ = wakeups.recv();
            }
            Some(deadline) => {
                if wakeups.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                    let _ = kill_process(supervisor, Signal::KILL);
                    return waitpid(Some(supervisor), WaitOptions::empty()).ok().flatten().map(|(_, status)| status);
                }
            }
        }
    }
}

/// Prints the signal that killed the supervisor, if one did, and returns the exit status that stands for the supervisor's.
fn report(status: Option<WaitStatus>) -> u8 {
    let signal = status.and_then(WaitStatus::terminating_signal);
    if let Some(signal) = signal {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        say_without_blocking(format_args!("{BAD}bursar: the run was ended by {name}, and every worker with it{BAD:#}"));
    }
    exit_code(signal.map(|signal| 128 + signal).or(status.and_then(WaitStatus::exit_status)))
}
