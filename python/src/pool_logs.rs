//! The logs of the pool: one lasting observer tells those that are open, because a device never forgets an observer.

use bursar::DeviceId;
use bursar::error::Holding;
use bursar::observe::{Actions, Logging, Observer, Record};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// The logs that are open.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    open: RwLock<Vec<Logging>>,
}

/// Returns the logs of this process.
pub(crate) fn logs() -> &'static Arc<Logs> {
    static LOGS: LazyLock<Arc<Logs>> = LazyLock::new(Arc::default);
    &LOGS
}

impl Logs {
    /// Has a log told of what happens from now on.
    pub(crate) fn add(&self, log: Logging) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).push(log);
    }

    /// Has a log told of nothing more.
    pub(crate) fn remove(&self, log: &Logging) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.identity() != log.identity());
    }
}

impl Observer for Logs {
    fn interest(&self) -> Actions {
        Actions::ALL
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn record(&self, record: &Record<'_>) {
        self.open.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|log| log.record(record));
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}
