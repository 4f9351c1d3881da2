//! The end of a run, when its workers have gone and what they wrote is still to be read.

use super::pump::Pump;
use super::told::{Event, Told};
use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long whoever reads our output has, where the run is told to end.
pub(crate) const READING_MAX: Duration = Duration::from_secs(2);

/// How often is looked whether somebody tells us to end while the last output is written.
const LOOK: Duration = Duration::from_millis(20);

/// Shows what is left to be shown; none where nobody reads it and the run is to end all the same: after `patience`, and at once
/// for somebody who asks twice.
pub(crate) fn finish(
    pump: &mut Pump,
    events: &Receiver<Event>,
    told: &mut Told,
    patience: Duration,
) -> Option<io::Result<()>> {
    let mut until = told.signal.map(|_| Instant::now() + patience);
    pump.close();
    loop {
        if let Some(written) = pump.wait(LOOK) {
            return Some(written);
        }
        for event in events.try_iter().filter(|event| event.ends().is_some()) {
            told.count(&event);
            let left = if told.is_impatient() { Duration::ZERO } else { patience };
            let end = Instant::now() + left;
            until = Some(until.map_or(end, |until| until.min(end)));
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            pump.give_up();
            return None;
        }
    }
}
