//! Handing a reservation to child processes.

use super::{Ledger, Reservation};
use crate::LedgerError;
use crate::attachment::{self, Look};
use crate::book::LockedBook;
use crate::format::Words;
use crate::system::Process;
use bursar_core::{Bytes, Result};
use std::path::Path;
use std::sync::Arc;

/// The prefix of every token.
const SCHEME: &str = "bursar1";

/// A reservation that child processes draw on. It lasts while the giver keeps this or a child draws on it; what is
/// undrawn returns when both are gone.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::DeviceUuid;
/// use bursar::ledger::{Ledger, Reservation, Subject};
/// use bursar::memory::Account;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("bursar-delegation-{}", std::process::id()));
/// let gpu = Subject { uuid: DeviceUuid([9; 16]), name: "Simulated".into(), total: Bytes::gib(8) };
/// let ledger = Ledger::open_in(&folder, &gpu)?;
/// let delegation = ledger.reserve(Bytes::gib(2))?.delegate()?;
///
/// // In the child, `Reservation::from_environment` does this with `BURSAR_RESERVATION`.
/// let child = Reservation::from_token(&delegation.token())?;
/// child.charge(Bytes::gib(1))?;
/// assert_eq!(delegation.held(), Bytes::gib(1));
/// # child.release(Bytes::gib(1));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Delegation {
    reservation: Reservation,
    token: String,
}

/// Reads the bytes that are held of a reservation by all who draw on it, and those that nobody has drawn.
struct SumsBelow(usize);

impl Look for SumsBelow {
    type Figures = (u64, u64);

    fn look<W: Words>(&self, locked: &mut LockedBook<'_, W>) -> (u64, u64) {
        locked.settle_and_sum_subtree(self.0)
    }
}

impl Delegation {
    pub(crate) fn of(reservation: Reservation) -> Result<Self> {
        let attachment = &reservation.ledger().attachment;
        attachment.check_usable()?;
        let wrong = |why: &str| LedgerError::Token { token: String::new(), why: why.into() };
        let file = attachment.file().ok_or_else(|| wrong("no other process can open a private ledger"))?;
        let file = file.to_str().ok_or_else(|| wrong("the path of the ledger is no text"))?;
        let key = reservation.key();
        let token = format!("{SCHEME}:{}:{}:{file}", key.node, key.generation);
        Ok(Self { reservation, token })
    }

    /// Returns the token by which a child draws on the reservation.
    pub fn token(&self) -> String {
        self.token.clone()
    }

    /// Returns the size of the reservation.
    pub fn bytes(&self) -> Bytes {
        self.reservation.bytes()
    }

    /// Returns the bytes that nobody has drawn.
    pub fn undrawn(&self) -> Bytes {
        self.sums().1
    }

    /// Returns the bytes that are drawn and held, by the children and by the giver.
    pub fn held(&self) -> Bytes {
        self.sums().0
    }

    fn sums(&self) -> (Bytes, Bytes) {
        let node = self.reservation.key().node;
        let attachment = &self.reservation.ledger().attachment;
        let (held, undrawn) = attachment.look(&SumsBelow(node)).unwrap_or((0, 0));
        (Bytes(held), Bytes(undrawn))
    }

    /// Gives back all that nobody has drawn, as [`Reservation::give_back_undrawn`] does: children go on with what they drew.
    pub fn give_back_undrawn(&self) -> Result<Bytes> {
        self.reservation.give_back_undrawn()
    }

    /// Adds what another reservation has not drawn, as [`Reservation::merge`] does: children can draw on it.
    pub fn merge(&self, other: Reservation) -> Result<()> {
        self.reservation.merge(other)
    }

    /// Ends the delegation and returns the reservation; children that draw on it go on.
    pub fn end(self) -> Reservation {
        self.reservation
    }
}

/// Returns the file that a token names.
pub(crate) fn file_of(token: &str) -> Option<&Path> {
    let mut parts = token.splitn(4, ':');
    (parts.next() == Some(SCHEME)).then_some(())?;
    parts.nth(2).map(Path::new)
}

/// Returns a reservation that draws on the one that `token` names.
pub(crate) fn from_token(process: &Arc<Process>, token: &str) -> Result<Reservation, LedgerError> {
    let wrong = |why: &str| LedgerError::Token { token: token.to_owned(), why: why.into() };
    let mut parts = token.splitn(4, ':');
    let (scheme, node, generation, file) = (parts.next(), parts.next(), parts.next(), parts.next());
    if scheme != Some(SCHEME) {
        return Err(wrong("it is not a token of this version"));
    }
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u64>().ok());
    let (Some(node), Some(generation), Some(file)) = (number(node), number(generation), file) else {
        return Err(wrong("it is cut short or mistyped"));
    };
    let file = Path::new(file);
    if !file.is_absolute() || file.extension().is_none_or(|extension| extension != "ledger") {
        return Err(wrong("it names no ledger"));
    }
    let ledger = Ledger { attachment: attachment::open_existing(process, file)?, probe: None };
    let attachment = &ledger.attachment;
    attachment.check_usable()?;
    let drawn = attachment.draw_on(node, generation)?.ok_or_else(|| wrong("the reservation has ended"))?;
    Ok(Reservation::drawing(ledger, drawn))
}
