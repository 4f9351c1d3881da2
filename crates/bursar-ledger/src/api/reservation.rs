//! Reservations: memory set aside before it is allocated.

use super::{Delegation, Ledger, LedgerAccount, delegation};
use crate::LedgerError;
use crate::attachment::{LockWait, OwnNode};
use crate::book::{BYTES_MAX, LockedBook, NodeKey};
use crate::format::node;
use crate::storage::MappedWords;
use crate::system::Process;
use bursar_core::{Account, Bytes, Claims, Error, Result};
use std::env::VarError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Memory that was set aside: an account whose charges are never refused up to its size.
///
/// Dropping it returns what is undrawn. Bytes that are still held then stay charged until the process ends. Those of a process
/// that draw on one reservation by its token are one account, which ends with the last of them.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
/// use bursar::memory::Account;
///
/// # fn main() -> bursar::Result<()> {
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
    /// Before the account, with which the ledger may end.
    _node: Arc<OwnNode>,
    account: LedgerAccount,
}

impl Reservation {
    /// The environment variable that hands a token to a child process.
    pub const VARIABLE: &str = "BURSAR_RESERVATION";

    pub(crate) fn new(ledger: Ledger, key: NodeKey) -> Self {
        let node = Arc::new(OwnNode::new(&ledger.attachment, key));
        Self { _node: node, account: LedgerAccount::new(ledger, key, BYTES_MAX) }
    }

    /// Makes a reservation that draws on what another process set aside, by this account.
    pub(crate) fn drawing(ledger: Ledger, node: Arc<OwnNode>) -> Self {
        let account = LedgerAccount::new(ledger.clone(), node.key(), ledger.attachment.credit);
        Self { _node: node, account }
    }

    pub(crate) fn key(&self) -> NodeKey {
        self.account.key
    }

    /// Returns the ledger of the reservation.
    pub const fn ledger(&self) -> &Ledger {
        self.account.ledger()
    }

    fn draws_on(&self) -> Option<usize> {
        let parent = self.account.field(node::PARENT) as usize;
        (self.account.field(node::KIND) == crate::book::ACCOUNT).then_some(parent)
    }

    /// Returns the size of the reservation, or of the one it draws on.
    pub fn bytes(&self) -> Bytes {
        let book = &self.ledger().attachment.book;
        Bytes(book.peek(self.draws_on().unwrap_or(self.key().node), node::TOTAL))
    }

    /// Returns the label of the reservation, or of the one it draws on; empty where it has none or the ledger is damaged.
    pub fn label(&self) -> String {
        let attachment = &self.ledger().attachment;
        let label = |locked: &mut LockedBook<'_, MappedWords>| match locked.is_current(self.key()) {
            true => locked.label(self.key().node),
            false => String::new(),
        };
        attachment.with_lock(LockWait::Usual, label).unwrap_or_default()
    }

    /// Returns the bytes that can still be charged. For a reservation that draws on another: what that one has left, with the credit
    /// of all who draw on it, which is called in before a charge is refused.
    pub fn undrawn(&self) -> Bytes {
        let book = &self.ledger().attachment.book;
        match self.draws_on() {
            Some(whole) => Bytes(book.peek_balance(whole) + book.peek_credit(whole)).min(self.bytes()),
            None => Bytes(book.peek_balance(self.key().node)),
        }
    }

    /// Returns bytes that can be charged at once, by one look: no more than are [undrawn](Self::undrawn), and without the credit of others
    /// who draw on the same.
    pub fn at_hand(&self) -> Bytes {
        let left = |node| self.ledger().attachment.book.peek_balance(node);
        Bytes(left(self.key().node) + self.draws_on().map_or(0, left))
    }

    /// Returns the bytes that are charged to the reservation by this process.
    pub fn held(&self) -> Bytes {
        self.account.held()
    }

    /// Makes a reservation of its own out of bytes that are undrawn.
    pub fn split(&self, bytes: Bytes) -> Result<Self> {
        let attachment = &self.ledger().attachment;
        attachment.check_usable()?;
        let split = attachment.with_lock(LockWait::Usual, |locked| locked.split(self.key(), bytes.get()))?;
        let key = split.map_err(|refused| attachment.refuse(self.key(), refused, "reservations", bytes))?;
        Ok(Self::new(self.ledger().clone(), key))
    }

    /// Shrinks the reservation and gives back what it had beyond `to`. Refused below what is drawn, and for a
    /// reservation that draws on another.
    pub fn shrink(&self, to: Bytes) -> Result<()> {
        let attachment = &self.ledger().attachment;
        attachment.check_usable()?;
        let shrunk = attachment.with_lock(LockWait::Usual, |locked| locked.shrink(self.key(), to.get()))?;
        let excess = self.bytes().saturating_sub(to);
        shrunk.map_err(|refused| attachment.error_for(refused, "reservations", excess))
    }

    /// Gives back all that is undrawn, and keeps what is drawn; returns how much that was. Nothing for a reservation that draws on
    /// another.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::Ledger;
    /// use bursar::memory::Account;
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let ledger = Ledger::private(Bytes::gib(8));
    /// let stage = ledger.reserve(Bytes::gib(6))?;
    /// stage.charge(Bytes::gib(1))?;
    /// assert_eq!(stage.give_back_undrawn()?, Bytes::gib(5));
    /// assert_eq!(ledger.available()?, Bytes::gib(7));
    ///
    /// stage.merge(ledger.reserve(Bytes::gib(5))?)?;
    /// assert_eq!((stage.bytes(), stage.undrawn()), (Bytes::gib(6), Bytes::gib(5)));
    /// # stage.release(Bytes::gib(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn give_back_undrawn(&self) -> Result<Bytes> {
        let attachment = &self.ledger().attachment;
        attachment.check_usable()?;
        if self.draws_on().is_some() {
            return Ok(Bytes::ZERO);
        }
        let given = attachment.with_lock(LockWait::Usual, |locked| locked.give_back_undrawn(self.key()))?;
        given.map(Bytes).map_err(|refused| attachment.error_for(refused, "reservations", Bytes::ZERO))
    }

    /// Adds all that another reservation of the same tenant has not drawn to this one. Refused where one of them draws on
    /// another, or the tenants are two.
    pub fn merge(&self, other: Self) -> Result<()> {
        let attachment = &self.ledger().attachment;
        attachment.check_usable()?;
        let is_same = Arc::ptr_eq(attachment, &other.ledger().attachment);
        let unlike = Error::InvalidValue { what: "reservations are merged within one tenant of one ledger" };
        let merge = |locked: &mut LockedBook<'_, MappedWords>| locked.merge(self.key(), other.key());
        let merged = if is_same { attachment.with_lock(LockWait::Usual, merge)? } else { Ok(false) };
        match merged.map_err(|refused| attachment.error_for(refused, "reservations", Bytes::ZERO))? {
            true => Ok(()),
            false => Err(unlike),
        }
    }

    /// Hands the reservation to child processes, which draw on it by its token.
    pub fn delegate(self) -> Result<Delegation> {
        Delegation::of(self)
    }

    /// Draws on what another process set aside, by the token of its [`Delegation`].
    pub fn from_token(token: &str) -> Result<Self> {
        Ok(delegation::from_token(Process::this(), token)?)
    }

    /// Draws on the reservation whose token is in `BURSAR_RESERVATION`, if there is one.
    pub fn from_environment() -> Result<Option<Self>> {
        match std::env::var(Self::VARIABLE) {
            Ok(token) if !token.is_empty() => Self::from_token(&token).map(Some),
            Ok(_) | Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(token)) => {
                let why = format!("{} is no text in UTF-8", Self::VARIABLE).into();
                Err(LedgerError::Token { token: token.to_string_lossy().into_owned(), why }.into())
            }
        }
    }

    /// Returns the file of the ledger that the token in `BURSAR_RESERVATION` is of, if there is one. Nothing is opened, so whether the
    /// reservation is still there is not known.
    pub fn file_from_environment() -> Option<PathBuf> {
        let token = std::env::var(Self::VARIABLE).ok()?;
        delegation::file_of(&token).map(Path::to_owned)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Account for Reservation {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        self.account.charge(bytes)
    }

    fn try_charge(&self, bytes: Bytes) -> Result<()> {
        self.account.try_charge(bytes)
    }

    fn charge_within(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        self.account.charge_within(bytes, patience)
    }

    fn release(&self, bytes: Bytes) {
        self.account.release(bytes);
    }

    fn note_refusal(&self, error: &Error) {
        self.account.note_refusal(error);
    }

    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        self.account.claims(bytes)
    }

    fn name(&self) -> Option<String> {
        Some("reservation".to_owned())
    }
}
