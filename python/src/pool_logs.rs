//! The logs of the pool: one lasting observer tells those that are open, because a device never forgets an observer.

use bursar::DeviceId;
use bursar::error::Holding;
use bursar::observe::{Actions, Logging, Observer, Record};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The logs of the pool.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Those that are told of what happens.
    open: RwLock<Vec<Logging>>,
    /// The logs that are not known to be written to their end.
    unwritten: Mutex<Vec<Unwritten>>,
}

/// A log that is not known to be written to its end.
#[derive(Debug)]
struct Unwritten {
    log: Logging,
    file: Option<FileId>,
    /// Set once it is told of nothing more. Whoever ended it need not have waited until it was written.
    has_ended: bool,
}

/// The longest wait for what a log has left to write that nobody else waits for.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The device and the number of a file.
type FileId = (u64, u64);

/// Returns what tells a file from every other; none for what is no file, or is not there.
fn file_id(path: &Path) -> Option<FileId> {
    let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

/// A file that a log is being written to.
#[derive(Debug)]
pub(crate) struct InUse;

/// Returns the logs of this process.
pub(crate) fn logs() -> &'static Arc<Logs> {
    static LOGS: LazyLock<Arc<Logs>> = LazyLock::new(Arc::default);
    &LOGS
}

impl Logs {
    /// Opens a log of a file, unless one is written to it already.
    pub(crate) fn open<E>(
        &self,
        path: &Path,
        open: impl FnOnce() -> Result<Logging, E>,
    ) -> Result<Result<Logging, E>, InUse> {
        let is_same = |of: &Unwritten| of.file.is_some() && of.file == file_id(path);
        let ended: Vec<_> =
            self.unwritten().iter().filter(|of| of.has_ended && is_same(of)).map(|of| of.log.clone()).collect();
        ended.iter().for_each(|log| self.give_up(log));
        let mut unwritten = self.unwritten();
        if unwritten.iter().any(is_same) {
            return Err(InUse);
        }
        let opened = open();
        let file = file_id(path);
        unwritten.extend(opened.iter().map(|log| Unwritten { log: log.clone(), file, has_ended: false }));
        Ok(opened)
    }

    /// Has a log told of what happens from now on.
    pub(crate) fn add(&self, log: Logging) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).push(log);
    }

    /// Returns whether a log is told of what happens.
    pub(crate) fn is_open(&self, log: &Logging) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().any(|other| other.identity() == log.identity())
    }

    /// Has a log told of nothing more, and waits until it is written, at most for `patience`. Then its file is anyone's. Returns how many
    /// records it has.
    pub(crate) fn close(&self, log: &Logging, patience: Duration) -> Option<u64> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).retain(|other| other.identity() != log.identity());
        let is_it = |of: &Unwritten| of.log.identity() == log.identity();
        self.unwritten().iter_mut().filter(|of| is_it(of)).for_each(|of| of.has_ended = true);
        let summary = log.close(patience).ok()?;
        self.unwritten().retain(|of| !is_it(of));
        Some(summary.written)
    }

    /// Returns whether all logs are written to their end.
    pub(crate) fn are_written(&self) -> bool {
        self.unwritten().is_empty()
    }

    /// Closes all logs that are not, each within `patience`.
    pub(crate) fn close_all(&self, patience: Duration) {
        let unwritten: Vec<_> = self.unwritten().iter().map(|of| of.log.clone()).collect();
        for log in unwritten {
            // One that is not written in time, or cannot be, is as long as it is.
            let _written = self.close(&log, patience);
        }
    }

    /// Ends a log that nobody waits for.
    pub(crate) fn give_up(&self, log: &Logging) {
        let _written = self.close(log, ENDS_WITHIN);
    }

    fn unwritten(&self) -> MutexGuard<'_, Vec<Unwritten>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
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
