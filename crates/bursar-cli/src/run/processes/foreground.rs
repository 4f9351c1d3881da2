//! The process that the user started: forwards signals to the supervisor, and exits as the run does.

use super::signal_socket::SignalSender;
use super::signals::{self, SignalWatch, StopSignals};
use super::{Role, children, exit_code};
use crate::output::{BAD, say_without_blocking};
use crate::program::Program;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};
use std::ffi::OsString;
use std::io;
use std::sync::mpsc::{Receiver, channel};

/// Runs `bursar` with these arguments below a watchdog. Returns its exit status.
pub(crate) fn run(program: &Program, words: &[OsString]) -> io::Result<u8> {
    signals::unblock()?;
    let adopts = adopts_orphans();
    let stops = StopSignals::note()?;
    let (sender, signals) = channel();
    let watch = SignalWatch::start(move |signal| {
        // Fails only once the receiver is gone.
        let _ = sender.send(signal);
    })?;
    let (socket, theirs) = SignalSender::new()?;
    let mut command = Role::Watchdog.command(program, words);
    let watchdog = command.stdin(theirs).spawn().map(|child| Pid::from_child(&child))?;
    // Closes our copy of the other end, so that the socket is closed when watchdog and supervisor have ended.
    drop(command);
    let status = forward_signals(&signals, &stops, &socket, watchdog)?;
    if adopts {
        // A supervisor that outlived its watchdog is our child now, and ends nobody while it is stopped.
        children::continue_all();
    }
    socket.wait_until_closed();
    if adopts {
        children::kill_all();
    }
    drop(watch);
    if let Some(signal) = status.terminating_signal() {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        say_without_blocking(format_args!(
            "{BAD}bursar: the run's watchdog was ended by {name}, and every worker with it{BAD:#}"
        ));
    }
    Ok(exit_code(status.terminating_signal().map(|signal| 128 + signal).or(status.exit_status())))
}

/// Makes this process a subreaper, so that it adopts what is left if watchdog and supervisor are both killed. Returns
/// whether it did: not if this process has children already (of a shell that it replaced), since their orphans would come
/// here too; nor if it is the first of its namespace, which adopts everybody's.
fn adopts_orphans() -> bool {
    let pid = getpid();
    !pid.is_init() && !children::exist() && set_child_subreaper(Some(pid)).is_ok()
}

/// Forwards signals until the watchdog has ended, and stops this process on SIGTSTP.
fn forward_signals(
    signals: &Receiver<i32>,
    stops: &StopSignals,
    socket: &SignalSender,
    watchdog: Pid,
) -> io::Result<WaitStatus> {
    loop {
        let mut received = vec![signals.recv().unwrap_or(SIGCHLD)];
        received.extend(signals.try_iter());
        if let Some(status) = exit_status(watchdog)? {
            return Ok(status);
        }
        // It stops once for any number of SIGTSTP, and not if a SIGCONT came later: one SIGCONT continues it.
        if stops.take_stop() {
            socket.send(SIGTSTP);
            if !stops.is_continued() {
                let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
            }
            socket.send(SIGCONT);
        }
        received
            .into_iter()
            .filter(|signal| !matches!(*signal, SIGCHLD | SIGTSTP | SIGCONT))
            .for_each(|signal| socket.send(signal));
    }
}

/// Reaps children. Returns the status of the watchdog if it has ended.
fn exit_status(watchdog: Pid) -> io::Result<Option<WaitStatus>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
        match pid == watchdog {
            // A stopped watchdog would not notice anything.
            true if status.stopped() => drop(kill_process(watchdog, Signal::CONT)),
            true => return Ok(Some(status)),
            false => (),
        }
    }
    Ok(None)
}
