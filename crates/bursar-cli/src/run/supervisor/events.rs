//! The events that the supervisor handles: signals, and slots for more workers.

use crate::run::slots::Slot;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    /// A signal to this process.
    Signal(i32),
    /// A signal to `bursar run`, which forwarded it.
    Forwarded(i32),
    /// A slot for one more worker, or why there will be none.
    Slot(bursar::Result<Box<Slot>>),
    /// The end of the part of an order, by its number, that was to fall asleep or to wake; and what went wrong.
    Slept { number: u64, wakes: bool, failure: Option<String> },
}

impl Event {
    /// Returns the signal if it is one that asks the run to end.
    pub(super) fn termination(&self) -> Option<i32> {
        match self {
            Self::Signal(SIGCHLD | SIGTSTP | SIGCONT)
            | Self::Forwarded(SIGTSTP | SIGCONT)
            | Self::Slot(_)
            | Self::Slept { .. } => None,
            Self::Signal(signal) | Self::Forwarded(signal) => Some(*signal),
        }
    }
}

/// The number of signals that asked the run to end, sent to this process and to `bursar run`. They are counted apart, because
/// a service manager that signals all processes of a run at once has asked once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StopRequests {
    /// The first of them.
    pub(super) signal: Option<i32>,
    to_this_process: u32,
    to_bursar_run: u32,
}

impl StopRequests {
    /// Counts an event if it asks the run to end.
    pub(super) fn count(&mut self, event: &Event) {
        let Some(signal) = event.termination() else { return };
        self.signal.get_or_insert(signal);
        match event {
            Event::Signal(_) => self.to_this_process += 1,
            Event::Forwarded(_) => self.to_bursar_run += 1,
            Event::Slot(_) | Event::Slept { .. } => (),
        }
    }

    /// Returns whether somebody asked again, and so will not wait.
    pub(super) fn is_repeated(self) -> bool {
        self.to_this_process.max(self.to_bursar_run) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGINT, SIGTERM};

    #[test]
    fn a_signal_to_every_process_of_a_run_counts_once() {
        let mut requests = StopRequests::default();
        for event in
            [Event::Signal(SIGCHLD), Event::Forwarded(SIGCONT), Event::Signal(SIGTERM), Event::Forwarded(SIGINT)]
        {
            requests.count(&event);
        }
        assert_eq!((requests.signal, requests.is_repeated()), (Some(SIGTERM), false));
        requests.count(&Event::Forwarded(SIGINT));
        assert!(requests.is_repeated());
    }
}
