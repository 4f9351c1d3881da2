//! `bursar sleep` and `bursar wake`: other programs' memory, asked through the ledgers that they have open.

use crate::failure::Failure;
use crate::output::{Show, printable};
use bursar::Bytes;
use bursar::ledger::{Ledger, LedgerError, Reading, RemoteCall, RemoteError, RemoteReport, RemoteRequest};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const SLEEP_EXAMPLES: &str = "\
Examples:
  bursar sleep 4711                  its memory goes back to the devices, contents wait in host memory
  bursar sleep 4711 --keep-place     the same, and nobody else gets what it had

A program says that others may put it to sleep: in Rust by Ledgers::sleep_when_asked, in Python by
bursar.sleep_when_asked().
Exit status: 0 it sleeps, 1 it does not or did before, 2 wrong usage, 3 a ledger failed us, 128 and the signal's number where
a signal ended the wait.";

pub(crate) const WAKE_EXAMPLES: &str = "\
Examples:
  bursar wake 4711                   its memory is where it was, with what it held
  bursar wake 4711 --timeout 600     waits up to ten minutes in the queue for memory that others have

Exit status: 0 it is awake, 1 it is not or was before, 2 wrong usage, 3 a ledger failed us, 128 and the signal's number where
a signal ended the wait.";

/// The options of `bursar sleep`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SleepCommandArgs {
    /// The process, as its ledgers list it.
    pid: u32,

    /// Leave what sleeps charged, so that nobody else gets it and waking is not refused.
    #[arg(long)]
    keep_place: bool,

    /// The seconds to wait: for work that is under way, and for the program to answer.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::run::seconds)]
    timeout: Duration,
}

/// The options of `bursar wake`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WakeCommandArgs {
    /// The process, as its ledgers list it.
    pid: u32,

    /// The seconds to wait: in the queue for memory that others have, and for the program to answer.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::run::seconds)]
    timeout: Duration,
}

/// The memory of a process that sleeps or is awake now.
#[derive(Debug, Serialize)]
pub(crate) struct Asked {
    pid: u32,
    name: String,
    /// `asleep` or `awake`.
    state: &'static str,
    /// True if it was so before: then only its place was kept.
    #[serde(skip)]
    was_so: bool,
    devices: Vec<AskedDevice>,
    /// The time that the command waited.
    seconds: f64,
}

/// The memory of a process on one device.
#[derive(Debug, Serialize)]
struct AskedDevice {
    uuid: String,
    name: String,
    /// The device memory that went back, or was taken again.
    moved: u64,
    /// The contents that were copied to host memory, or back.
    copied: u64,
    discarded: u64,
    kept: u64,
    /// The time that the program took.
    seconds: f64,
}

/// A call to a process about one device.
struct DeviceCall {
    ledger: Ledger,
    call: RemoteCall,
}

/// Puts the memory of a process to sleep.
pub(crate) fn sleep(args: &SleepCommandArgs) -> Result<Asked, Failure> {
    let request = RemoteRequest::Sleep { keep_place: args.keep_place, patience: args.timeout };
    ask(args.pid, request, "asleep")
}

/// Wakes the memory of a process.
pub(crate) fn wake(args: &WakeCommandArgs) -> Result<Asked, Failure> {
    ask(args.pid, RemoteRequest::Wake { patience: args.timeout }, "awake")
}

fn ask(pid: u32, request: RemoteRequest, state: &'static str) -> Result<Asked, Failure> {
    let began = Instant::now();
    let until = began + request.patience() + ANSWER;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize).map_err(Failure::Output)?;
    }
    let interrupted = || match signal.load(Ordering::Relaxed) {
        0 => Ok(()),
        number => Err(number as u8),
    };
    let mut calls = Vec::new();
    for file in ledgers_of(pid)? {
        calls.push(begin(&file, pid, request, until, &interrupted)?);
    }
    let name = calls.first().map_or(String::new(), |called| called.call.name().to_owned());
    let (mut devices, mut was_so) = (Vec::new(), true);
    for DeviceCall { ledger, call } in calls {
        let report = finish(&ledger, call, pid, until, &interrupted)?;
        was_so &= report.was_so;
        devices.push(AskedDevice::new(&ledger, &report));
    }
    let keeps_place = matches!(request, RemoteRequest::Sleep { keep_place: true, .. });
    if was_so && !keeps_place {
        let message = format!("{} (pid {pid}) is {state} already: nothing was done", printable(&name));
        return Err(Failure::Process { message, hint: STATE_HINT, status: 1 });
    }
    Ok(Asked { pid, name, state, was_so, devices, seconds: began.elapsed().as_secs_f64() })
}

/// The time that a program has to answer beyond what it may wait.
const ANSWER: Duration = Duration::from_secs(2);

/// The interval of looking for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const STATE_HINT: &str = "`bursar ledger` shows what each program holds";
const LISTEN_HINT: &str =
    "a program listens that called Ledgers::sleep_when_asked, or bursar.sleep_when_asked() in Python";

/// Returns the ledgers that a process has open and listens on.
fn ledgers_of(pid: u32) -> Result<Vec<PathBuf>, Failure> {
    let (mut listening, mut silent, mut unreadable) = (Vec::new(), None, None);
    for file in Ledger::list()? {
        match Ledger::inspect(&file) {
            Ok(reading) => match listens(&reading, pid) {
                Some((true, _)) => listening.push(file),
                Some((false, name)) => silent = Some(name),
                None => {}
            },
            Err(error) => unreadable = Some(error),
        }
    }
    match (listening.is_empty(), silent) {
        (false, _) => Ok(listening),
        (true, Some(name)) => {
            let name = printable(&name);
            let message = format!("{name} (pid {pid}) does not let others put its memory to sleep");
            Err(Failure::Process { message, hint: LISTEN_HINT, status: 1 })
        }
        (true, None) => Err(unreadable.map_or_else(|| absent(pid), Failure::Ledger)),
    }
}

/// Returns whether a process listens, and its name, if it has the ledger open.
fn listens(reading: &Reading, pid: u32) -> Option<(bool, String)> {
    let of: Vec<_> = reading.processes.iter().filter(|process| process.pid == pid).collect();
    of.first().map(|first| (of.iter().any(|process| process.listens), first.name.clone()))
}

/// Returns the failure for a process that no ledger of this user lists.
fn absent(pid: u32) -> Failure {
    let (message, hint) = match std::fs::metadata(format!("/proc/{pid}")) {
        Err(_) => (format!("there is no process {pid}"), STATE_HINT),
        Ok(found) if found.uid() != rustix::process::getuid().as_raw() => (
            format!("process {pid} belongs to user {}, and ledgers are each user's own", found.uid()),
            "run the command as that user",
        ),
        Ok(_) => (
            format!("process {pid} has no ledger open: it holds nothing through Bursar"),
            "programs of other containers, and those with another BURSAR_LEDGER_DIR, are asked from there",
        ),
    };
    Failure::Process { message, hint, status: 1 }
}

fn begin(
    file: &std::path::Path,
    pid: u32,
    request: RemoteRequest,
    until: Instant,
    interrupted: &dyn Fn() -> Result<(), u8>,
) -> Result<DeviceCall, Failure> {
    let ledger = Ledger::open_file(file)?;
    loop {
        match ledger.ask(pid, request) {
            Ok(call) => return Ok(DeviceCall { ledger, call }),
            Err(RemoteError::Busy { .. }) if Instant::now() < until => {
                interrupted().map_err(|signal| Failure::AlreadyReported { status: 128 + signal })?;
                std::thread::sleep(LOOK_EVERY);
            }
            Err(error) => return Err(failure(error, &ledger)),
        }
    }
}

fn finish(
    ledger: &Ledger,
    call: RemoteCall,
    pid: u32,
    until: Instant,
    interrupted: &dyn Fn() -> Result<(), u8>,
) -> Result<RemoteReport, Failure> {
    loop {
        if let Some(ended) = call.wait(LOOK_EVERY) {
            return ended.map_err(|error| failure(error, ledger));
        }
        let signal = interrupted().err();
        if signal.is_none() && Instant::now() < answers_until(until, is_stopped(pid)) {
            continue;
        }
        let name = printable(call.name());
        let mut has_begun = !call.withdraw()?;
        // One that only waits gives up as soon as it sees that nobody wants it any more.
        match if has_begun && !is_stopped(pid) { call.wait(ANSWER) } else { None } {
            Some(Err(RemoteError::Withdrawn { .. })) => has_begun = false,
            Some(ended) if signal.is_none() => return ended.map_err(|error| failure(error, ledger)),
            _ => {}
        }
        let message = match (has_begun, is_stopped(pid)) {
            (true, true) => {
                format!("{name} (pid {pid}) has begun and is stopped: it finishes what it moves once it is continued")
            }
            (true, false) => {
                format!("{name} (pid {pid}) has begun and was told that nobody waits: it finishes what it moves")
            }
            (false, true) => format!("{name} (pid {pid}) is stopped, and was not put to sleep or woken"),
            (false, false) if signal.is_some() => format!("{name} (pid {pid}) had not begun, and is as it was"),
            (false, false) => format!("{name} (pid {pid}) did not answer in time, and is as it was"),
        };
        let hint = match is_stopped(pid) {
            true => "`kill -CONT PID` continues it",
            false if signal.is_some() => STATE_HINT,
            false => "--timeout SECONDS gives it longer",
        };
        let status = signal.map_or(1, |signal| 128 + signal);
        return Err(Failure::Process { message, hint, status });
    }
}

/// Returns the end of the wait for an answer: one that is stopped has no need of the time to give it.
fn answers_until(until: Instant, is_stopped: bool) -> Instant {
    if is_stopped { until.checked_sub(ANSWER).unwrap_or(until) } else { until }
}

/// Returns whether a process is stopped, as by Ctrl-Z.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in brackets and may contain anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

/// Returns the failure for an error of the process that was asked. One that has to do without memory names its holders.
fn failure(error: RemoteError, ledger: &Ledger) -> Failure {
    match error {
        RemoteError::Ledger(error) => Failure::Ledger(error),
        RemoteError::Refused { pid, .. } => {
            let holders = holders(ledger, pid).unwrap_or_default();
            let message = if holders.is_empty() { error.to_string() } else { format!("{error}\n{holders}") };
            Failure::Process {
                message,
                hint: "put them to sleep, or wait for longer with --timeout SECONDS",
                status: 1,
            }
        }
        RemoteError::NotListening { .. } => {
            Failure::Process { message: error.to_string(), hint: LISTEN_HINT, status: 1 }
        }
        error => Failure::Process { message: error.to_string(), hint: STATE_HINT, status: 1 },
    }
}

/// Returns who holds memory beside a process, a line each.
fn holders(ledger: &Ledger, pid: u32) -> Result<String, LedgerError> {
    let reading = ledger.reading()?;
    let others =
        reading.processes.iter().filter(|other| other.pid != pid && other.held.max(other.undrawn) > Bytes::ZERO);
    let lines: Vec<String> = others.map(|other| format!("  {}", printable(&other.to_string()))).collect();
    Ok(lines.join("\n"))
}

impl AskedDevice {
    fn new(ledger: &Ledger, report: &RemoteReport) -> Self {
        let subject = ledger.subject();
        Self {
            uuid: subject.uuid.to_string(),
            name: subject.name.clone(),
            moved: report.moved.get(),
            copied: report.copied.get(),
            discarded: report.discarded.get(),
            kept: report.kept.get(),
            seconds: report.elapsed.as_secs_f64(),
        }
    }
}

impl Show for Asked {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let is_asleep = self.state == "asleep";
        let name = printable(&self.name);
        if self.was_so {
            return writeln!(out, "{name} (pid {}) is {} already, and its place is kept", self.pid, self.state);
        }
        writeln!(out, "{name} (pid {}) is {}", self.pid, self.state)?;
        for device in &self.devices {
            let (moved, copied) = (Bytes(device.moved), Bytes(device.copied));
            let name = printable(&device.name);
            match is_asleep {
                true => write!(out, "  {moved} went back to {name}, {copied} of contents to host memory")?,
                false => write!(out, "  {moved} were taken of {name}, {copied} of contents came back")?,
            }
            if device.discarded > 0 {
                write!(out, ", {} were given up", Bytes(device.discarded))?;
            }
            if device.kept > 0 {
                write!(out, ", {} stay", Bytes(device.kept))?;
            }
            writeln!(out, ", in {:.2} s", device.seconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z10_a_stopped_program_is_given_no_time_to_answer() {
        let (began, patience) = (Instant::now(), Duration::from_secs(7));
        let until = began + patience + ANSWER;
        assert_eq!((answers_until(until, true), answers_until(until, false)), (began + patience, until));
    }
}
