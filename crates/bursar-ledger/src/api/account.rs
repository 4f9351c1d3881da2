//! What a process holds for a tenant.

use super::Ledger;
use crate::attachment::Patience;
use crate::book::{BYTES_MAX, Book, Desk, Key, Lack, Most, Refused};
use crate::storage::Ground;
use bursar_core::{Account, Bytes, Result};
use std::sync::Arc;

/// What a process holds for a tenant, in a ledger. A clone is the same account, and so is one that is opened again.
///
/// What is still held when the last handle is gone stays charged until the process ends: nobody is left to say that it was
/// given back.
///
/// ```
/// use bursar_core::{Account, Bytes};
/// use bursar_ledger::Ledger;
///
/// # fn main() -> bursar_core::Result<()> {
/// let account = Ledger::private(Bytes::mib(100)).account()?;
/// account.charge(Bytes::mib(60))?;
/// assert_eq!(account.held(), Bytes::mib(60));
/// account.release(Bytes::mib(60));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LedgerAccount {
    /// Its ledger's book, within reach.
    book: Arc<Book<Ground>>,
    pub(crate) key: Key,
    /// The most that may stay in hand after a release.
    keep: Most,
    pub(crate) ledger: Ledger,
}

impl LedgerAccount {
    pub(crate) fn new(ledger: Ledger, key: Key, keep: u64) -> Self {
        Self { book: Arc::clone(&ledger.inner.book), key, keep: Most::new(keep), ledger }
    }

    /// The ledger it is in.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns what is charged to it; nothing where somebody keeps the ledger locked or it is damaged.
    pub fn held(&self) -> Bytes {
        let held = |desk: &mut Desk<'_, Ground>| if desk.is_current(self.key) { desk.held(self.key.node) } else { 0 };
        Bytes(self.ledger.inner.at_desk(Patience::Usual, held).unwrap_or(0))
    }

    /// What it has of what it is part of: held, and in hand.
    pub(crate) fn field(&self, field: usize) -> u64 {
        self.ledger.inner.book.peek(self.key.node, field)
    }

    #[cold]
    fn charge_slowly(&self, bytes: Bytes) -> Result<()> {
        let inner = &self.ledger.inner;
        // Threads that share the account may only have met on its word.
        if inner.book.words().is_live() && inner.book.charge_left(self.key, bytes.get()) {
            return Ok(());
        }
        inner.check()?;
        let (mut measured, mut reclaimed) = (false, false);
        loop {
            // Nobody has more than a ledger can speak of, so that a request for more is refused like one for all of it.
            let refused = match inner.charge(self.key, bytes.get().min(BYTES_MAX))? {
                Ok(()) if bytes.get() <= BYTES_MAX => return Ok(()),
                Ok(()) => {
                    self.release(Bytes(BYTES_MAX));
                    Refused::Lack(Lack { remaining: BYTES_MAX, limit: BYTES_MAX })
                }
                Err(refused) => refused,
            };
            if matches!(refused, Refused::Lack(_)) && !measured && self.ledger.probe.is_some() {
                self.ledger.measure(Patience::Usual)?;
                measured = true;
            } else if matches!(refused, Refused::Lack(_)) && !reclaimed && self.ledger.reclaim_for(self.key, bytes)? {
                reclaimed = true;
            } else {
                return Err(inner.refusal(refused, "accounts", bytes));
            }
        }
    }

    #[cold]
    fn release_slowly(&self, bytes: Bytes) {
        let inner = &self.ledger.inner;
        if !inner.is_forked() && !inner.book.release_left(self.key, bytes.get(), self.keep) {
            inner.book.release(self.key, bytes.get(), self.keep.bytes() / 2);
        }
    }
}

impl Account for LedgerAccount {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        let book = &*self.book;
        if book.words().is_live() && book.charge_once(self.key, bytes.0) {
            return Ok(());
        }
        self.charge_slowly(bytes)
    }

    fn release(&self, bytes: Bytes) {
        let book = &*self.book;
        if !(book.words().is_live() && book.release_once(self.key, bytes.0, self.keep)) {
            self.release_slowly(bytes);
        }
    }
}
