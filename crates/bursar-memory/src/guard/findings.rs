//! What was found and not reported yet.

use bursar_core::{Action, DeviceContext, Error, Record, Result};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Findings of one device's memory. They are made by host functions on whatever thread the driver runs those; the event
/// sink is told later, by the thread that comes to report them.
#[derive(Default)]
pub(super) struct Findings {
    any: AtomicBool,
    /// Of each, whether the sink was told.
    found: Mutex<VecDeque<(Error, bool)>>,
}

impl Findings {
    fn found(&self) -> MutexGuard<'_, VecDeque<(Error, bool)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a finding.
    pub(super) fn add(&self, error: Error) {
        self.found().push_back((error, false));
        self.any.store(true, Ordering::Release);
    }

    /// Tells the sink what it has not been told.
    pub(super) fn tell(&self, context: &DeviceContext) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let untold = |(error, told): &mut (Error, bool)| (!std::mem::replace(told, true)).then(|| error.clone());
        let news: Vec<_> = self.found().iter_mut().filter_map(untold).collect();
        for error in &news {
            if let Error::OutOfBounds { ptr, generation, tag, .. } | Error::UseAfterFree { ptr, generation, tag } =
                *error
            {
                let generation = Some(generation);
                let record = Record::new(Action::Fail, context.device());
                context.sink().emit(&Record { tag, ptr, generation, error: Some(error), ..record });
            }
        }
    }

    /// Reports the oldest finding, if there is one.
    pub(super) fn report(&self, context: &DeviceContext) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        self.tell(context);
        let mut found = self.found();
        let oldest = found.pop_front();
        self.any.store(!found.is_empty(), Ordering::Release);
        oldest.map_or(Ok(()), |(error, _)| Err(error))
    }

    /// Reports everything.
    pub(super) fn take_all(&self) -> Vec<Error> {
        let mut found = self.found();
        self.any.store(false, Ordering::Release);
        found.drain(..).map(|(error, _)| error).collect()
    }
}

impl fmt::Debug for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Findings").field("count", &self.found().len()).finish_non_exhaustive()
    }
}
