//! Reservations: memory set aside before it is allocated.

use super::{Delegation, Ledger, LedgerAccount, delegation};
use crate::attachment::Patience;
use crate::book::{BYTES_MAX, Key};
use crate::format::node;
use crate::system::Process;
use bursar_core::{Account, Bytes, Result};

/// Memory that was set aside: an account whose charges cannot be refused up to its size, by anybody.
///
/// What is left of it returns when it is dropped. What is still held then stays charged until the process ends.
///
/// ```
/// use bursar_core::{Account, Bytes};
/// use bursar_ledger::Ledger;
///
/// # fn main() -> bursar_core::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// let stage = ledger.reserve(Bytes::mib(800))?;
/// let worker = stage.split(Bytes::mib(300))?;
/// worker.charge(Bytes::mib(300))?;
/// assert!(worker.charge(Bytes(1)).unwrap_err().is_capacity());
/// stage.shrink(Bytes::mib(100))?;
/// assert_eq!(ledger.available()?, Bytes::mib(624));
/// # worker.release(Bytes::mib(300));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reservation {
    account: LedgerAccount,
}

impl Reservation {
    /// The variable that hands a token to a child process.
    pub const VARIABLE: &str = "BURSAR_RESERVATION";

    pub(crate) fn new(ledger: Ledger, key: Key) -> Self {
        Self { account: LedgerAccount::new(ledger, key, BYTES_MAX) }
    }

    /// One that draws on what another process set aside.
    pub(crate) fn drawing(ledger: Ledger, key: Key) -> Self {
        let keep = ledger.inner.credit;
        Self { account: LedgerAccount::new(ledger, key, keep) }
    }

    pub(crate) fn key(&self) -> Key {
        self.account.key
    }

    /// The ledger it is in.
    pub const fn ledger(&self) -> &Ledger {
        self.account.ledger()
    }

    fn draws_on(&self) -> Option<usize> {
        let parent = self.account.field(node::PARENT) as usize;
        (self.account.field(node::KIND) == crate::book::ACCOUNT).then_some(parent)
    }

    /// Its size. Of one that draws on another: the size of that one.
    pub fn bytes(&self) -> Bytes {
        let book = &self.ledger().inner.book;
        Bytes(book.peek(self.draws_on().unwrap_or(self.key().node), node::TOTAL))
    }

    /// What can still be charged. Of one that draws on another: what that one has left, and what this one has in hand.
    pub fn undrawn(&self) -> Bytes {
        let left = |node| self.ledger().inner.book.peek_left(node);
        Bytes(left(self.key().node) + self.draws_on().map_or(0, left))
    }

    /// What is charged to it, by this process.
    pub fn held(&self) -> Bytes {
        self.account.held()
    }

    /// Makes a part of what is undrawn a reservation of its own.
    pub fn split(&self, bytes: Bytes) -> Result<Self> {
        let inner = &self.ledger().inner;
        inner.check()?;
        let split = inner.at_desk(Patience::Usual, |desk| desk.split(self.key(), bytes.get()))?;
        let key = split.map_err(|refused| inner.refusal(refused, "reservations", bytes))?;
        Ok(Self::new(self.ledger().clone(), key))
    }

    /// Makes it smaller, and gives back what it had beyond `to`. Refused below what is drawn, and for one that draws on
    /// another.
    pub fn shrink(&self, to: Bytes) -> Result<()> {
        let inner = &self.ledger().inner;
        inner.check()?;
        let shrunk = inner.at_desk(Patience::Usual, |desk| desk.shrink(self.key(), to.get()))?;
        let excess = self.bytes().saturating_sub(to);
        shrunk.map_err(|refused| inner.refusal(refused, "reservations", excess))
    }

    /// Sets it aside for child processes, which draw on it by its token.
    pub fn delegate(self) -> Result<Delegation> {
        Delegation::of(self)
    }

    /// Draws on what another process set aside: the token is that of a [`Delegation`].
    pub fn from_token(token: &str) -> Result<Self> {
        Ok(delegation::drawn_by(Process::this(), token)?)
    }

    /// Draws on the reservation whose token is in `BURSAR_RESERVATION`, if there is one.
    pub fn from_environment() -> Result<Option<Self>> {
        match std::env::var(Self::VARIABLE) {
            Ok(token) if !token.is_empty() => Self::from_token(&token).map(Some),
            _ => Ok(None),
        }
    }
}

impl Account for Reservation {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        self.account.charge(bytes)
    }

    fn release(&self, bytes: Bytes) {
        self.account.release(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let inner = &self.ledger().inner;
        if !inner.is_forked() {
            inner.book.close(self.key());
        }
    }
}
