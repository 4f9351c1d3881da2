//! What the crew is told: signals, by whichever way, and room.

use super::seat::Seat;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A signal to this process.
    Signal(i32),
    /// One to `bursar run`, passed on.
    Order(i32),
    Room(bursar::Result<Box<Seat>>),
}

impl Event {
    /// The signal that tells the run to end, if it is one.
    pub(crate) fn ends(&self) -> Option<i32> {
        match self {
            Self::Signal(SIGCHLD | SIGTSTP | SIGCONT) | Self::Order(SIGTSTP | SIGCONT) | Self::Room(_) => None,
            Self::Signal(signal) | Self::Order(signal) => Some(*signal),
        }
    }
}

/// How often the run was told to end: this process, and `bursar run`. Whoever signals all processes of a run at once, as a
/// service manager does, has asked once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// The first signal that did.
    pub(crate) signal: Option<i32>,
    here: u32,
    there: u32,
}

impl Told {
    /// Counts what tells the run to end.
    pub(crate) fn count(&mut self, event: &Event) {
        let Some(signal) = event.ends() else { return };
        self.signal.get_or_insert(signal);
        match event {
            Event::Signal(_) => self.here += 1,
            Event::Order(_) => self.there += 1,
            Event::Room(_) => (),
        }
    }

    /// Whether somebody asked again, and so will not wait.
    pub(crate) fn is_impatient(self) -> bool {
        self.here.max(self.there) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGINT, SIGTERM};

    #[test]
    fn who_signals_every_process_once_is_not_impatient() {
        let mut told = Told::default();
        for event in [Event::Signal(SIGCHLD), Event::Order(SIGCONT), Event::Signal(SIGTERM), Event::Order(SIGINT)] {
            told.count(&event);
        }
        assert_eq!((told.signal, told.is_impatient()), (Some(SIGTERM), false));
        told.count(&Event::Order(SIGINT));
        assert!(told.is_impatient());
    }
}
