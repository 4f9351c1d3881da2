//! The attachments of a process: one for each ledger, however often the ledger is opened.

use super::{Attachment, LockWait};
use crate::system::{FileId, Process};
use crate::{LedgerError, Subject, storage};
use bursar_core::{DeviceContext, DeviceUuid};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The identity of a ledger within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerId {
    File(FileId),
    /// A device that no other process can open: the address of its driver and its UUID.
    Private(usize, DeviceUuid),
}

/// The ledgers that are open in a process.
#[derive(Debug, Default)]
struct Registry(Mutex<Vec<(LedgerId, Weak<Attachment>)>>);

impl Registry {
    /// Locks the list of open ledgers, without those that were closed.
    fn open_ledgers(&self) -> MutexGuard<'_, Vec<(LedgerId, Weak<Attachment>)>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An attachment that a forked child finds here, because no fork handler ran, is its parent's.
        open.retain(|(_, attachment)| attachment.upgrade().is_some_and(|attachment| !attachment.is_forked()));
        open
    }
}

fn find(open: &[(LedgerId, Weak<Attachment>)], id: LedgerId) -> Option<Arc<Attachment>> {
    open.iter().find(|(known, _)| *known == id).and_then(|(_, attachment)| attachment.upgrade())
}

/// Attaches to the ledger of `subject` in `folder`, made if there is none.
pub(crate) fn open_shared(
    process: &Arc<Process>,
    folder: &Path,
    subject: &Subject,
    wait: LockWait,
) -> Result<Arc<Attachment>, LedgerError> {
    let registry = process.local::<Registry>();
    let mut open = registry.open_ledgers();
    let opened = storage::open_or_make(process, folder, subject, wait.patience())?;
    attach(&mut open, opened, subject.clone(), wait)
}

/// Attaches to the ledger in a file that exists.
pub(crate) fn open_existing(process: &Arc<Process>, path: &Path) -> Result<Arc<Attachment>, LedgerError> {
    let registry = process.local::<Registry>();
    let mut open = registry.open_ledgers();
    let (opened, subject) = storage::open(process, path)?;
    attach(&mut open, opened, subject, LockWait::Usual)
}

fn attach(
    open: &mut Vec<(LedgerId, Weak<Attachment>)>,
    opened: storage::LedgerFile,
    subject: Subject,
    wait: LockWait,
) -> Result<Arc<Attachment>, LedgerError> {
    let id = LedgerId::File(opened.file_id);
    if let Some(attachment) = find(open, id) {
        return Ok(attachment);
    }
    let attachment = Arc::new(Attachment::attach(opened, subject, wait)?);
    open.push((id, Arc::downgrade(&attachment)));
    Ok(attachment)
}

/// Attaches to the ledger of a device that no other process can open: one for each device of a driver.
pub(crate) fn open_private(context: &DeviceContext) -> Result<Arc<Attachment>, LedgerError> {
    let registry = Process::this().local::<Registry>();
    let mut open = registry.open_ledgers();
    let driver = Arc::as_ptr(context.driver()).cast::<u8>().addr();
    let id = LedgerId::Private(driver, context.facts().uuid);
    if let Some(attachment) = find(&open, id) {
        return Ok(attachment);
    }
    let attachment = Attachment::new_private(Subject::device(context.facts()));
    let attachment = Arc::new(attachment.map_err(|error| LedgerError::io(Path::new("private ledger"), "mmap", error))?);
    open.push((id, Arc::downgrade(&attachment)));
    Ok(attachment)
}
