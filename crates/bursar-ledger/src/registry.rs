//! One end a process and ledger, however often it is opened.

use crate::inner::Inner;
use crate::{LedgerError, Subject, file, folder};
use bursar_core::{DeviceContext, DeviceUuid};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What a ledger is known by in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A file: its device and number.
    File(u64, u64),
    /// A device that no other process can open: its driver's address and its identity.
    Private(usize, DeviceUuid),
}

static OPEN: Mutex<Vec<(Known, Weak<Inner>)>> = Mutex::new(Vec::new());

fn open_ones() -> MutexGuard<'static, Vec<(Known, Weak<Inner>)>> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, inner)| inner.upgrade().is_some_and(|inner| !inner.is_forked()));
    open
}

fn known(open: &[(Known, Weak<Inner>)], as_what: Known) -> Option<Arc<Inner>> {
    open.iter().find(|(known, _)| *known == as_what).and_then(|(_, inner)| inner.upgrade())
}

/// The ledger of `subject` in `folder`, made if there is none.
pub(crate) fn shared(folder: &Path, subject: &Subject) -> Result<Arc<Inner>, LedgerError> {
    folder::prepared(folder)?;
    let mut open = open_ones();
    let opened = file::open_or_make(folder, subject)?;
    joined(&mut open, opened, subject.clone())
}

/// The ledger in a file that exists.
pub(crate) fn existing(path: &Path) -> Result<Arc<Inner>, LedgerError> {
    let mut open = open_ones();
    let opened = file::open(path)?;
    let (subject, _) = file::look_at(path)?;
    joined(&mut open, opened, subject)
}

fn joined(
    open: &mut Vec<(Known, Weak<Inner>)>,
    opened: file::Opened,
    subject: Subject,
) -> Result<Arc<Inner>, LedgerError> {
    let facts = opened.mapped.metadata().map_err(|error| LedgerError::io(&opened.path, "stat", error))?;
    let as_what = Known::File(facts.dev(), facts.ino());
    if let Some(inner) = known(open, as_what) {
        return Ok(inner);
    }
    let inner = Arc::new(Inner::join(opened, subject)?);
    open.push((as_what, Arc::downgrade(&inner)));
    Ok(inner)
}

/// The ledger of a device that no other process can open: one a device of a driver.
pub(crate) fn private(context: &DeviceContext) -> Result<Arc<Inner>, LedgerError> {
    let mut open = open_ones();
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
