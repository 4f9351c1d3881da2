//! The accounts by which a process draws on what others set aside: one for each reservation, however often its token is used.

use super::{Attachment, LockWait};
use crate::LedgerError;
use crate::book::{Book, NodeKey, RESERVATION};
use crate::format::node;
use crate::storage::{HandleState, MappedWords};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A node that this process made, closed with the last handle.
#[derive(Debug)]
pub(crate) struct OwnNode {
    book: Arc<Book<MappedWords>>,
    key: NodeKey,
}

impl OwnNode {
    pub(crate) fn new(attachment: &Attachment, key: NodeKey) -> Self {
        Self { book: Arc::clone(&attachment.book), key }
    }

    pub(crate) const fn key(&self) -> NodeKey {
        self.key
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        if self.book.words().state() != HandleState::Forked {
            self.book.close(self.key);
        }
    }
}

/// The accounts, by the row and the generation of the reservation that each draws on.
#[derive(Debug, Default)]
pub(super) struct DrawnAccounts(Mutex<HashMap<(u64, u64), Weak<OwnNode>>>);

impl Attachment {
    /// Returns this process's account that draws on a reservation, opened if there is none; none where the reservation has ended.
    pub(crate) fn draw_on(&self, row: u64, generation: u64) -> Result<Option<Arc<OwnNode>>, LedgerError> {
        let of = (row, generation);
        let mut drawn = self.drawn.0.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.retain(|_, account| account.strong_count() > 0);
        let known = drawn.get(&of).and_then(Weak::upgrade);
        let opened = self.with_lock(LockWait::Usual, |locked| {
            locked.reclaim_dead_processes();
            let at = usize::try_from(row).ok().filter(|&at| locked.exists(at))?;
            let is_meant =
                locked.field(at, node::GENERATION) == generation && locked.field(at, node::KIND) == RESERVATION;
            let known = known.as_ref().map(|account| account.key()).filter(|&key| locked.is_current(key));
            is_meant.then(|| known.map_or_else(|| locked.open_account(at), Ok))
        })?;
        let Some(opened) = opened else { return Ok(None) };
        let key = opened.map_err(|_| self.table_full("accounts"))?;
        if let Some(known) = known.filter(|known| known.key() == key) {
            return Ok(Some(known));
        }
        let account = Arc::new(OwnNode::new(self, key));
        drawn.insert(of, Arc::downgrade(&account));
        Ok(Some(account))
    }
}
