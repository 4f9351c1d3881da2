//! Findings that were not reported yet.

use bursar_core::{Action, DeviceContext, Error, Record, Result};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The findings of one device's guard. They are made by host functions on whatever thread the driver runs those; they
/// go to the event sink later, on the thread that reports them.
#[derive(Default)]
pub(super) struct Findings {
    any: AtomicBool,
    /// Each finding, and whether it went to the sink.
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

    /// Sends the findings to the sink that have not gone there.
    pub(super) fn emit(&self, context: &DeviceContext) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let take_unsent = |(error, sent): &mut (Error, bool)| (!std::mem::replace(sent, true)).then(|| error.clone());
        let unsent: Vec<_> = self.found().iter_mut().filter_map(take_unsent).collect();
        for error in &unsent {
            if let Error::OutOfBounds { ptr, generation, tag, .. } | Error::UseAfterFree { ptr, generation, tag } =
                *error
            {
                let generation = Some(generation);
                let record = Record::new(Action::Fail, context.device());
                context.sink().emit(&Record { tag, ptr, generation, error: Some(error), ..record });
            }
        }
    }

    /// Takes the oldest finding, if there is one, and returns it as the error.
    pub(super) fn report(&self, context: &DeviceContext) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        self.emit(context);
        let mut found = self.found();
        let oldest = found.pop_front();
        self.any.store(!found.is_empty(), Ordering::Release);
        oldest.map_or(Ok(()), |(error, _)| Err(error))
    }

    /// Takes every finding.
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
