//! One worker: its process group, from its first process to its last.

use super::seat::Seat;
use bursar::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group, test_kill_process, test_kill_process_group};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// A worker, whether it runs or not.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) number: u64,
    /// What it was given, until it is over.
    pub(crate) seat: Option<Seat>,
    pub(crate) state: State,
    pub(crate) restarts: u32,
    /// When its patience is over and it is killed.
    pub(crate) kill_at: Option<Instant>,
    /// Whether it was we who ended it.
    pub(crate) stopped: bool,
    told: Told,
}

/// How far a worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its first process is to be started.
    Seated,
    /// Its first process runs, and leads its group.
    Running { group: Pid },
    /// Its first process has ended, and others of its group have not.
    Lingering { group: Pid, ending: Ending },
    /// Nothing of it is left.
    Over { ending: Ending },
}

/// How a worker's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exit(i32),
    Signal(i32),
    /// It never began.
    Unstarted,
}

impl Ending {
    pub(crate) fn of(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Exit(status.exit_status().unwrap_or_default()),
        }
    }

    pub(crate) fn is_well(self) -> bool {
        self == Self::Exit(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(0) => f.write_str("ended well"),
            Self::Exit(status) => write!(f, "ended with status {status}"),
            Self::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "was ended by {name}"),
                None => write!(f, "was ended by signal {signal}"),
            },
            Self::Unstarted => f.write_str("was not started"),
        }
    }
}

/// What is known of a seat when it has been given back.
#[derive(Clone, Copy, Debug)]
struct Told {
    device: Option<u32>,
    numa_node: Option<u32>,
    limit: Option<u64>,
}

/// What a program is told of a worker that is over.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) worker: u64,
    pub(crate) device: Option<u32>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) limit: Option<u64>,
    /// `ended`, `failed`, `killed`, `stopped` or `unstarted`.
    pub(crate) status: &'static str,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) restarts: u32,
    #[serde(skip)]
    pub(crate) ending: Ending,
}

impl Report {
    /// Whether it failed by itself.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.status, "failed" | "killed")
    }
}

impl Worker {
    pub(crate) fn new(number: u64, seat: Seat) -> Self {
        let device = seat.device.map(|device| device.0);
        let told = Told { device, numa_node: seat.numa_node.index(), limit: seat.limit.map(Bytes::get) };
        let (state, seat) = (State::Seated, Some(seat));
        Self { number, seat, state, restarts: 0, kill_at: None, stopped: false, told }
    }

    /// The group of those of its processes that are left.
    pub(crate) fn group(&self) -> Option<Pid> {
        match self.state {
            State::Running { group } | State::Lingering { group, .. } => Some(group),
            State::Seated | State::Over { .. } => None,
        }
    }

    /// Whether its group has gone, and its number to somebody else. While a group has processes no new one gets its number.
    fn is_replaced(&self) -> bool {
        matches!(self.state, State::Lingering { group, .. } if test_kill_process(group) != Err(Errno::SRCH))
    }

    /// Sends a signal to every process of its group.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group().filter(|_| !self.is_replaced()) {
            // A group that has just ended needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Asks every process of it to end, and says when it will be made to.
    pub(crate) fn ask_to_end(&mut self, signal: Signal, kill_at: Instant) {
        self.kill_at = Some(kill_at);
        self.signal(signal);
        // One that was stopped would not hear.
        self.signal(Signal::CONT);
    }

    /// Ends every process of it.
    pub(crate) fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    /// Whether its group has gone with its first process, or since; what only other users may end counts as gone when its time
    /// is over.
    pub(crate) fn has_gone(&self) -> bool {
        match self.group().map(test_kill_process_group) {
            None | Some(Err(Errno::SRCH)) => true,
            Some(Err(Errno::PERM)) => self.kill_at.is_none(),
            Some(_) => self.is_replaced(),
        }
    }

    /// What is known of it when it is over.
    pub(crate) fn report(&self) -> Report {
        let ending = match self.state {
            State::Over { ending } | State::Lingering { ending, .. } => ending,
            State::Seated | State::Running { .. } => Ending::Unstarted,
        };
        let status = match ending {
            Ending::Unstarted => "unstarted",
            _ if self.stopped => "stopped",
            Ending::Exit(0) => "ended",
            Ending::Exit(_) => "failed",
            Ending::Signal(_) => "killed",
        };
        let (exit_code, signal) = match ending {
            Ending::Exit(code) => (Some(code), None),
            Ending::Signal(signal) => (None, Some(signal)),
            Ending::Unstarted => (None, None),
        };
        let (Told { device, numa_node, limit }, restarts) = (self.told, self.restarts);
        Report { worker: self.number, device, numa_node, limit, status, exit_code, signal, restarts, ending }
    }
}
