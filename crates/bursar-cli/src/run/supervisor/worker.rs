//! A worker: a process group, from its first process to its last.

use crate::run::slots::Slot;
use bursar::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group, test_kill_process, test_kill_process_group};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// A worker, in any state.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) number: u64,
    /// Its slot, until it has ended.
    pub(super) slot: Option<Slot>,
    pub(super) state: WorkerState,
    pub(super) restarts: u32,
    /// The moment at which it is killed, if it was asked to end.
    pub(super) kill_at: Option<Instant>,
    /// True if the run ended it.
    pub(super) stopped: bool,
    /// Its state between being stopped and being continued, where workers sleep meanwhile.
    pub(super) pause: PauseState,
    summary: SlotSummary,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Its first process is still to be started.
    Pending,
    /// Its first process runs, and leads its group.
    Running { group: Pid },
    /// Its first process has ended, and others of its group may not have.
    Lingering { group: Pid, ending: Ending },
    /// None of its processes is left.
    Ended { ending: Ending },
}

/// The state of a worker that sleeps while it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseState {
    /// Not stopped.
    Running,
    /// To be stopped once it sleeps, by the order of this number.
    Falling(u64),
    /// Continued, and to wake, by the order of this number.
    Waking(u64),
    /// Stopped, and asleep if it could.
    Stopped,
}

/// The way that a worker's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exit(i32),
    Signal(i32),
    /// It was not started.
    Unstarted,
}

impl Ending {
    pub(super) fn of(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Exit(status.exit_status().unwrap_or_default()),
        }
    }

    /// Returns whether the worker exited with status 0.
    pub(super) fn is_success(self) -> bool {
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

/// The facts about a slot that are reported after it was given back.
#[derive(Clone, Copy, Debug)]
struct SlotSummary {
    device: Option<u32>,
    numa_node: Option<u32>,
    limit: Option<u64>,
}

/// The JSON object of a worker that has ended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WorkerReport {
    pub(super) worker: u64,
    pub(super) device: Option<u32>,
    /// The driver of the device; none for the machine's memory.
    pub(super) driver: Option<String>,
    /// True if the device is simulated.
    pub(super) simulated: bool,
    pub(super) numa_node: Option<u32>,
    pub(super) limit: Option<u64>,
    /// `ended`, `failed`, `killed`, `stopped` or `unstarted`.
    pub(super) status: &'static str,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) restarts: u32,
    #[serde(skip)]
    pub(super) ending: Ending,
}

impl WorkerReport {
    /// Returns whether it failed by itself.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self.status, "failed" | "killed")
    }
}

impl Worker {
    pub(super) fn new(number: u64, slot: Slot) -> Self {
        let device = slot.device.map(|device| device.0);
        let summary = SlotSummary { device, numa_node: slot.numa_node.index(), limit: slot.limit.map(Bytes::get) };
        let (state, slot) = (WorkerState::Pending, Some(slot));
        Self { number, slot, state, restarts: 0, kill_at: None, stopped: false, pause: PauseState::Running, summary }
    }

    /// Returns its process group, while processes of it may be left.
    pub(super) fn group(&self) -> Option<Pid> {
        match self.state {
            WorkerState::Running { group } | WorkerState::Lingering { group, .. } => Some(group),
            WorkerState::Pending | WorkerState::Ended { .. } => None,
        }
    }

    /// Returns whether its group has gone and its number was reused. While a group has processes, no new process gets its
    /// number.
    fn is_replaced(&self) -> bool {
        matches!(self.state, WorkerState::Lingering { group, .. } if test_kill_process(group) != Err(Errno::SRCH))
    }

    /// Sends a signal to every process of its group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group().filter(|_| !self.is_replaced()) {
            // Fails for a group that has just ended, which needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Asks every process of it to end, and sets when those left are killed.
    pub(super) fn ask_to_end(&mut self, signal: Signal, kill_at: Instant) {
        self.kill_at = Some(kill_at);
        self.signal(signal);
        // A stopped process would not handle the signal.
        self.signal(Signal::CONT);
    }

    /// Kills every process of it.
    pub(super) fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    /// Returns whether its group has gone. A group with only processes of other users, which cannot be killed, counts as gone
    /// when its time is over.
    pub(super) fn has_gone(&self) -> bool {
        match self.group().map(test_kill_process_group) {
            None | Some(Err(Errno::SRCH)) => true,
            Some(Err(Errno::PERM)) => self.kill_at.is_none(),
            Some(_) => self.is_replaced(),
        }
    }

    /// Returns the report of its end. `driver` is that of the run's devices, and `simulated` says that these are.
    pub(super) fn report(&self, driver: Option<String>, simulated: bool) -> WorkerReport {
        let ending = match self.state {
            WorkerState::Ended { ending } | WorkerState::Lingering { ending, .. } => ending,
            WorkerState::Pending | WorkerState::Running { .. } => Ending::Unstarted,
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
        let (SlotSummary { device, numa_node, limit }, restarts) = (self.summary, self.restarts);
        let worker = self.number;
        WorkerReport {
            worker,
            device,
            driver,
            simulated,
            numa_node,
            limit,
            status,
            exit_code,
            signal,
            restarts,
            ending,
        }
    }
}
