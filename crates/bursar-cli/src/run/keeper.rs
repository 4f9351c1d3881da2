//! A small process between `bursar run` and its crew, that ends everything if either of them is killed.
//!
//! It has no children but the crew, and is the subreaper of all below: whatever comes to it is a worker's.

use super::parent::Parent;
use super::roles::{Part, Role};
use super::signals::Watch;
use super::strays;
use crate::output::{BAD, try_to_say};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper, setsid, wait, waitpid,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long the crew may take to end everything.
const CREW_MAX: Duration = Duration::from_secs(5);

/// Keeps a run: starts its crew, waits for it, and ends what is left. The exit status is the crew's.
pub(crate) fn keep(part: Part) -> io::Result<ExitCode> {
    // Whoever ends `bursar` by name leaves the keeper, and whoever ends a group or a session too.
    let _ = rustix::thread::set_name(c"run-keeper");
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let (tell, events) = channel();
    // Signals that end others are not for the keeper: `bursar run` passes on what it is sent.
    let told = tell.clone();
    let _watch = Watch::start(move |_| {
        let _ = told.send(());
    })?;
    let Some(parent) = Parent::of_this_process(part.parent) else { return Ok(ExitCode::FAILURE) };
    let crew = start_crew(&part.words)?;
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        parent.wait();
        let _ = tell.send(());
    })?;
    let status = kept(crew, part.parent, &events);
    strays::end();
    Ok(judge(status))
}

fn start_crew(words: &[OsString]) -> io::Result<Pid> {
    let mut command = Role::Crew.command(words);
    command.process_group(0).spawn().map(|child| Pid::from_child(&child))
}

/// Waits until the crew has ended; none where that could not be found out. If `bursar run` ends first, the crew ends everything
/// by itself, and as long as it does there are two of us to do it.
fn kept(crew: Pid, parent: Pid, events: &Receiver<()>) -> Option<WaitStatus> {
    let mut until = None;
    loop {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                // A crew that stands still ends nobody.
                Ok(Some((pid, status))) if pid == crew && status.stopped() => {
                    let _ = kill_process(crew, Signal::CONT);
                }
                Ok(Some((pid, status))) if pid == crew => return Some(status),
                Ok(Some(_)) => (),
                Ok(None) => break,
                Err(_) => return None,
            }
        }
        match until {
            None if getppid() != Some(parent) => {
                // It may have been stopped.
                let _ = kill_process(crew, Signal::CONT);
                until = Some(Instant::now() + CREW_MAX);
            }
            None => {
                let _ = events.recv();
            }
            Some(until) => {
                if events.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
                    let _ = kill_process(crew, Signal::KILL);
                    return waitpid(Some(crew), WaitOptions::empty()).ok().flatten().map(|(_, status)| status);
                }
            }
        }
    }
}

/// The exit status that tells of the crew's.
fn judge(status: Option<WaitStatus>) -> ExitCode {
    let signal = status.and_then(WaitStatus::terminating_signal);
    if let Some(signal) = signal {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        try_to_say(format_args!("{BAD}bursar: the run was ended by {name}, and every worker with it{BAD:#}"));
    }
    exit_code(signal.map(|signal| 128 + signal).or(status.and_then(WaitStatus::exit_status)))
}

/// An exit status; 3 where it is not known.
pub(super) fn exit_code(code: Option<i32>) -> ExitCode {
    const MACHINE_FAILED: u8 = 3;
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(MACHINE_FAILED))
}
