//! The logs of the pool: one lasting observer tells those that are open, because a device never forgets an observer.

use bursar::DeviceId;
use bursar::error::Holding;
use bursar::observe::{Actions, Logging, Observer, Record};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

/// The logs that are open.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    open: RwLock<Vec<Logging>>,
    /// The files that logs are written to, by the identities of the logs.
    files: Mutex<Vec<(usize, FileId)>>,
}

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
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if file_id(path).is_some_and(|wanted| files.iter().any(|(_, file)| *file == wanted)) {
            return Err(InUse);
        }
        let opened = open();
        if let (Ok(log), Some(file)) = (&opened, file_id(path)) {
            files.push((log.identity(), file));
        }
        Ok(opened)
    }

    /// Lets others have the file of a log that is not written any more.
    pub(crate) fn forget_file(&self, log: &Logging) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| *of != log.identity());
    }

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
