//! The process that a user started and knows: it passes signals on to the crew, and ends as that does.

use super::keeper::exit_code;
use super::line::Line;
use super::roles::Role;
use super::signals::{self, Watch};
use super::strays;
use crate::output::{BAD, try_to_say};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};

/// Runs `bursar` with these words in a process that is kept, and ends as that does.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    signals::unblock()?;
    let adopts = adopts_orphans();
    let (tell, signals) = channel();
    let watch = Watch::start(move |signal| {
        // Whoever hears has ended.
        let _ = tell.send(signal);
    })?;
    let (line, theirs) = Line::new()?;
    let mut command = Role::Keeper.command(words);
    let keeper = command.stdin(theirs).spawn().map(|child| Pid::from_child(&child))?;
    // The other end is theirs alone, so that the line ends with them.
    drop(command);
    let status = pass_on(&signals, &line, keeper)?;
    if adopts {
        // A crew that outlived its keeper has come to us, and one that stands still ends nobody.
        strays::go_on();
    }
    line.wait_until_hung_up();
    if adopts {
        strays::end();
    }
    drop(watch);
    if let Some(signal) = status.terminating_signal() {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        try_to_say(format_args!("{BAD}bursar: the run's keeper was ended by {name}, and every worker with it{BAD:#}"));
    }
    Ok(exit_code(status.terminating_signal().map(|signal| 128 + signal).or(status.exit_status())))
}

/// Has whatever is left of keeper and crew, should both be killed, come to us. Not where this process has children already
/// (of a shell that it took the place of), since what these leave behind would come to us too; nor where it is the first of
/// its namespace, which has everybody's.
fn adopts_orphans() -> bool {
    let pid = getpid();
    !pid.is_init() && !strays::are_there() && set_child_subreaper(Some(pid)).is_ok()
}

/// Passes signals on until the keeper has ended, and stops when told to.
fn pass_on(signals: &Receiver<i32>, line: &Line, keeper: Pid) -> io::Result<WaitStatus> {
    loop {
        let mut heard = vec![signals.recv().unwrap_or(SIGCHLD)];
        heard.extend(signals.try_iter());
        if let Some(status) = ended(keeper)? {
            return Ok(status);
        }
        // However often it was told to, it stops once, and not if it was told to go on since: one SIGCONT continues it.
        let last = heard.iter().rfind(|signal| matches!(**signal, SIGTSTP | SIGCONT));
        if last == Some(&SIGTSTP) {
            line.send(SIGTSTP);
            let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
            line.send(SIGCONT);
        }
        heard
            .into_iter()
            .filter(|signal| !matches!(*signal, SIGCHLD | SIGTSTP | SIGCONT))
            .for_each(|signal| line.send(signal));
    }
}

/// How the keeper ended, if it has.
fn ended(keeper: Pid) -> io::Result<Option<WaitStatus>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
        match pid == keeper {
            // A keeper that stands still keeps nothing.
            true if status.stopped() => drop(kill_process(keeper, Signal::CONT)),
            true => return Ok(Some(status)),
            false => (),
        }
    }
    Ok(None)
}
