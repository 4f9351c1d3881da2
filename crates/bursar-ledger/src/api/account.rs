//! The account of a process for a tenant.

use super::reserve::FOREVER;
use super::{Ledger, ReserveOptions};
use crate::LedgerError;
use crate::attachment::{HeldBy, LockWait};
use crate::book::{ACCOUNT, BYTES_MAX, Book, BookError, CreditLimit, NodeKey, RESERVATION, Shortfall, TENANT};
use crate::format::node;
use crate::refusal::RefusalReason;
use crate::storage::MappedWords;
use crate::system::announce_account;
use bursar_core::{Account, Bytes, Claims, Error, Result, is_interrupted};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two tries to draw on a reservation that has too little left.
const SHARE_POLL: Duration = Duration::from_millis(1);

thread_local! {
    /// The account that refused this thread last where it may try again, and why.
    static LAST_SHORTFALL: Cell<Option<(NodeKey, Shortfall)>> = const { Cell::new(None) };
}

/// The account of a process for a tenant of a ledger. A clone is the same account, and so is one that is opened again.
///
/// Bytes that are still held when the last handle is dropped stay charged until the process ends: nobody is left to
/// release them.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
/// use bursar::memory::Account;
///
/// # fn main() -> bursar::Result<()> {
/// let account = Ledger::private(Bytes::mib(100)).account()?;
/// account.charge(Bytes::mib(60))?;
/// assert_eq!(account.held(), Bytes::mib(60));
/// account.release(Bytes::mib(60));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LedgerAccount {
    /// The book of the ledger, without the indirection through `ledger`.
    book: Arc<Book<MappedWords>>,
    pub(crate) key: NodeKey,
    /// The most credit that stays after a release.
    keep: CreditLimit,
    pub(crate) ledger: Ledger,
    /// The name of the tenant, if it has one.
    tenant: Option<Arc<str>>,
}

impl LedgerAccount {
    pub(crate) fn new(ledger: Ledger, key: NodeKey, keep: u64) -> Self {
        if ledger.file().is_some() {
            announce_account(&ledger.subject().uuid.0);
        }
        Self { book: Arc::clone(&ledger.attachment.book), key, keep: CreditLimit::new(keep), ledger, tenant: None }
    }

    /// Has refusals name the tenant.
    pub(crate) fn of_tenant(mut self, name: &str) -> Self {
        self.tenant = Some(name).filter(|name| !name.is_empty()).map(Arc::from);
        self
    }

    /// Returns the ledger of the account.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the bytes that are charged to the account; zero where the ledger cannot be read, or is damaged.
    pub fn held(&self) -> Bytes {
        Bytes(self.ledger.attachment.look(&HeldBy(self.key)).unwrap_or(0))
    }

    /// Reads a field of the account's node without the lock.
    pub(crate) fn field(&self, field: usize) -> u64 {
        self.ledger.attachment.book.peek(self.key.node, field)
    }

    /// Charges where one try without the lock did not do, and has a refusal counted.
    #[cold]
    fn charge_slow(&self, bytes: Bytes) -> Result<()> {
        self.decide(bytes)?.map_err(|refused| self.ledger.attachment.refuse(self.key, refused, "accounts", bytes))
    }

    /// Charges where one try without the lock did not do, and remembers why it was refused.
    #[cold]
    fn try_charge_slow(&self, bytes: Bytes) -> Result<()> {
        self.decide(bytes)?.map_err(|refused| {
            if let BookError::Shortfall(shortfall) = refused {
                LAST_SHORTFALL.set(Some((self.key, shortfall)));
            }
            self.ledger.attachment.error_for(refused, "accounts", bytes)
        })
    }

    /// Returns what stands against a charge that was refused with `remaining` bytes left: the reason is that of this thread's last
    /// refusal, if that was by this account.
    fn last_shortfall(&self, remaining: Bytes, limit: Bytes) -> Shortfall {
        let (remaining, limit) = (remaining.get(), limit.get());
        let of = |reason| Shortfall { remaining, limit, reason };
        match LAST_SHORTFALL.take().filter(|(key, _)| *key == self.key) {
            // The error says nothing of what is left for those who wait.
            Some((_, last @ Shortfall { reason: RefusalReason::Queue, .. })) => Shortfall { limit, ..last },
            Some((_, last)) => of(last.reason),
            None if self.field(node::KIND) == RESERVATION => of(RefusalReason::Share),
            None => of(RefusalReason::Limit),
        }
    }

    /// Charges behind the lock, or returns the reason why not.
    fn decide(&self, bytes: Bytes) -> Result<Result<(), BookError>> {
        let attachment = &self.ledger.attachment;
        // The first try may have failed only because another thread changed the account at the same time.
        if attachment.book.words().is_live() && attachment.book.charge_balance(self.key, bytes.get()) {
            return Ok(Ok(()));
        }
        attachment.check_usable()?;
        let (mut measured, mut reclaimed) = (false, false);
        loop {
            // No ledger has more than this, so a request for more is refused like one for all of it.
            let refused = match attachment.charge(self.key, bytes.get().min(BYTES_MAX))? {
                Ok(()) if bytes.get() <= BYTES_MAX => return Ok(Ok(())),
                Ok(()) => {
                    self.release(Bytes(BYTES_MAX));
                    let (remaining, limit, reason) = (BYTES_MAX, BYTES_MAX, RefusalReason::Limit);
                    BookError::Shortfall(Shortfall { remaining, limit, reason })
                }
                Err(refused) => refused,
            };
            if matches!(refused, BookError::Shortfall(_)) && !measured && self.ledger.probe.is_some() {
                self.ledger.measure(LockWait::Usual)?;
                measured = true;
            } else if matches!(refused, BookError::Shortfall(_))
                && !reclaimed
                && self.ledger.reclaim_for(self.key, bytes)?
            {
                reclaimed = true;
            } else {
                return Ok(Err(refused));
            }
        }
    }

    /// Returns the tenant whose account this is; `None` for a reservation, and for what draws on one.
    fn tenant_key(&self, wait: LockWait) -> Result<Option<NodeKey>, LedgerError> {
        self.ledger.attachment.with_lock(wait, |locked| {
            let is_of_tenant = locked.is_current(self.key) && self.field(node::KIND) == ACCOUNT;
            let parent = is_of_tenant.then(|| locked.parent(self.key.node));
            parent.filter(|&parent| locked.field(parent, node::KIND) == TENANT).map(|parent| locked.key(parent))
        })
    }

    /// Waits for bytes in the queue of the ledger, as a reservation that becomes a charge of this account.
    fn charge_in_turn(&self, tenant: NodeKey, bytes: Bytes, patience: Duration) -> Result<()> {
        let options = ReserveOptions::new();
        let reserved = self.ledger.reserve_with_deadline(|_| Ok(tenant), patience, bytes, &options)?;
        let attachment = &self.ledger.attachment;
        let absorbed = attachment.with_lock(LockWait::Usual, |locked| locked.absorb(self.key, reserved.key()))?;
        absorbed.map_err(|refused| attachment.refuse(self.key, refused, "accounts", bytes))
    }

    #[cold]
    fn release_slow(&self, bytes: Bytes) {
        let attachment = &self.ledger.attachment;
        if !attachment.is_forked() && !attachment.book.release_to_balance(self.key, bytes.get(), self.keep) {
            attachment.book.release(self.key, bytes.get(), self.keep.bytes() / 2);
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Account for LedgerAccount {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        let book = &*self.book;
        if book.words().is_live() && book.charge_once(self.key, bytes.0) {
            return Ok(());
        }
        self.charge_slow(bytes)
    }

    fn try_charge(&self, bytes: Bytes) -> Result<()> {
        let book = &*self.book;
        if book.words().is_live() && book.charge_once(self.key, bytes.0) {
            return Ok(());
        }
        self.try_charge_slow(bytes)
    }

    fn charge_within(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        let (began, patience) = (Instant::now(), patience.min(FOREVER));
        loop {
            let is_given_up = self.ledger.attachment.is_given_up() || is_interrupted();
            let left = if is_given_up { Duration::ZERO } else { patience.saturating_sub(began.elapsed()) };
            match self.try_charge(bytes) {
                Err(refused) if refused.is_capacity() && !left.is_zero() => {}
                charged => return charged,
            }
            match self.tenant_key(LockWait::deadline(Instant::now() + left))? {
                Some(tenant) => return self.charge_in_turn(tenant, bytes, left),
                // What a reservation has is its own: others queue for it nowhere.
                None => {
                    if self.ledger.attachment.is_serving() {
                        // Whoever asked for this may end meanwhile.
                        self.ledger.attachment.start_watcher();
                    }
                    std::thread::sleep(SHARE_POLL.min(left));
                }
            }
        }
    }

    fn release(&self, bytes: Bytes) {
        let book = &*self.book;
        if !(book.words().is_live() && book.release_once(self.key, bytes.0, self.keep)) {
            self.release_slow(bytes);
        }
    }

    #[cold]
    fn note_refusal(&self, error: &Error) {
        let (requested, shortfall) = match *error {
            Error::OutOfBudget { requested, remaining, limit, .. } => {
                (requested, self.last_shortfall(remaining, limit))
            }
            Error::OutOfMemory { requested, free, total, .. } => {
                (requested, Shortfall { remaining: free.get(), limit: total.get(), reason: RefusalReason::Device })
            }
            _ => return,
        };
        self.ledger.attachment.tell_refusal(self.key, requested, shortfall);
    }

    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        self.read_claims(bytes)
    }

    /// Returns the name of the tenant, or says that it is the ledger's default one.
    fn name(&self) -> Option<String> {
        Some(self.tenant.as_deref().unwrap_or("ledger").to_owned())
    }
}
