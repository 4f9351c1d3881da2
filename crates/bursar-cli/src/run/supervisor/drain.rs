//! The end of a run, when its workers have ended and the last of their output is still to be printed.

use super::events::{Event, StopRequests};
use crate::run::output::OutputThread;
use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The longest that a blocked reader of our output is waited for after the run was asked to end.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The interval of looking for requests to end while the last output is printed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until everything is printed, and returns the result of the output thread. If the run was or is asked to end, gives
/// up after `patience`, and at once if asked twice; returns none then.
pub(super) fn drain(
    output: &mut OutputThread,
    events: &Receiver<Event>,
    requests: &mut StopRequests,
    patience: Duration,
) -> Option<io::Result<()>> {
    let mut deadline = requests.signal.map(|_| Instant::now() + patience);
    output.close();
    loop {
        if let Some(written) = output.wait(POLL_INTERVAL) {
            return Some(written);
        }
        for event in events.try_iter().filter(|event| event.termination().is_some()) {
            requests.count(&event);
            let left = if requests.is_repeated() { Duration::ZERO } else { patience };
            let end = Instant::now() + left;
            deadline = Some(deadline.map_or(end, |deadline| deadline.min(end)));
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            output.abandon();
            return None;
        }
    }
}
