//! The memory of a device that sleeps because others asked for it.

use super::{DeviceContext, SleepRequestId, SleepState, WakeReport, WakeRequest};
use crate::Result;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

impl DeviceContext {
    /// Enters a request by which memory of the device sleeps because somebody else asked for it, until it is
    /// [woken for one who asks](Self::wake_asked).
    pub fn enter_asked_sleep(&self, id: SleepRequestId) {
        self.asked().push(id);
    }

    /// Wakes what sleeps because others asked for it, and leaves asleep what the program itself put to sleep before or since. Where
    /// nothing was entered, or a pool of the device still sleeps as a whole, everything wakes.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::memory::{HostStore, SleepRequest};
    /// # use bursar::prelude::*;
    /// # use std::time::Duration;
    /// fn sleep_and_wake_for_others(context: &DeviceContext, store: &dyn HostStore) -> Result<()> {
    ///     let request = SleepRequest::default();
    ///     context.sleep(store, &request)?;
    ///     context.enter_asked_sleep(request.id);
    ///     context.wake_asked(Duration::from_secs(10))?;
    ///     Ok(())
    /// }
    /// ```
    pub fn wake_asked(&self, patience: Duration) -> Result<WakeReport> {
        let began = Instant::now();
        let wake = |slept_by| {
            let patience = patience.saturating_sub(began.elapsed());
            self.wake(&WakeRequest { slept_by, patience, ..WakeRequest::default() })
        };
        let last = || self.asked().last().copied();
        let (is_asked, mut report) = (last().is_some(), WakeReport::default());
        // The last comes first: a tag does not wake while everything sleeps.
        while let Some(id) = last() {
            report = report.and(wake(Some(id))?);
            self.asked().retain(|&asked| asked != id);
        }
        let is_whole = || self.sleepers().iter().any(|sleeper| sleeper.sleep_reading().state == SleepState::Asleep);
        if !is_asked || is_whole() {
            report = report.and(wake(None)?);
        }
        Ok(report)
    }

    fn asked(&self) -> MutexGuard<'_, Vec<SleepRequestId>> {
        self.sleepers.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
