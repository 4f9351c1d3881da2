//! One end a process and ledger, however often it is opened.

use super::Inner;
use crate::system::{Identity, Process};
use crate::{LedgerError, Subject, storage};
use bursar_core::{DeviceContext, DeviceUuid};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What a ledger is known by in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    File(Identity),
    /// A device that no other process can open: its driver's address and its identity.
    Private(usize, DeviceUuid),
}

/// The ledgers that are open in a process.
#[derive(Debug, Default)]
struct Registry(Mutex<Vec<(Known, Weak<Inner>)>>);

impl Registry {
    /// Those that are open; nobody else opens one meanwhile.
    fn open_ones(&self) -> MutexGuard<'_, Vec<(Known, Weak<Inner>)>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What a forked child finds here although nobody told it of the fork is its parent's.
        open.retain(|(_, inner)| inner.upgrade().is_some_and(|inner| !inner.is_forked()));
        open
    }
}

fn known(open: &[(Known, Weak<Inner>)], as_what: Known) -> Option<Arc<Inner>> {
    open.iter().find(|(known, _)| *known == as_what).and_then(|(_, inner)| inner.upgrade())
}

/// Returns the ledger of `subject` in `folder`, made if there is none.
pub(crate) fn shared(process: &Arc<Process>, folder: &Path, subject: &Subject) -> Result<Arc<Inner>, LedgerError> {
    let registry = process.local::<Registry>();
    let mut open = registry.open_ones();
    let opened = storage::open_or_make(process, folder, subject)?;
    joined(&mut open, opened, subject.clone())
}

/// Returns the ledger in a file that exists.
pub(crate) fn existing(process: &Arc<Process>, path: &Path) -> Result<Arc<Inner>, LedgerError> {
    let registry = process.local::<Registry>();
    let mut open = registry.open_ones();
    let (opened, subject) = storage::open(process, path)?;
    joined(&mut open, opened, subject)
}

fn joined(
    open: &mut Vec<(Known, Weak<Inner>)>,
    opened: storage::Opened,
    subject: Subject,
) -> Result<Arc<Inner>, LedgerError> {
    let as_what = Known::File(opened.identity);
    if let Some(inner) = known(open, as_what) {
        return Ok(inner);
    }
    let inner = Arc::new(Inner::join(opened, subject)?);
    open.push((as_what, Arc::downgrade(&inner)));
    Ok(inner)
}

/// Returns the ledger of a device that no other process can open: one a device of a driver.
pub(crate) fn private(context: &DeviceContext) -> Result<Arc<Inner>, LedgerError> {
    let registry = Process::this().local::<Registry>();
    let mut open = registry.open_ones();
    let driver = Arc::as_ptr(context.driver()).cast::<u8>().addr();
    let as_what = Known::Private(driver, context.facts().uuid);
    if let Some(inner) = known(&open, as_what) {
        return Ok(inner);
    }
    let inner = Inner::private(Subject::device(context.facts()));
    let inner = Arc::new(inner.map_err(|error| LedgerError::io(Path::new("private ledger"), "mmap", error))?);
    open.push((as_what, Arc::downgrade(&inner)));
    Ok(inner)
}
