//! Reserving: at once, or when one's turn comes.

use super::{Ledger, Reservation};
use crate::LedgerError;
use crate::attachment::{MEASURE_EVERY, Patience, Unqueued};
use crate::book::{BYTES_MAX, Desk, Entry, Key, Lack, Refused, Wanting};
use crate::format::{Words, node};
use crate::storage::Ground;
use crate::system::now_ms;
use bursar_core::{Bytes, Error, Result};
use std::time::{Duration, Instant};

/// How urgent a request is: the more urgent is served first, and among equals whoever came first.
///
/// ```
/// use bursar_ledger::Priority;
///
/// assert!(Priority::HIGH > Priority::default() && Priority::default() > Priority::LOW);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// After everyone else.
    pub const LOW: Self = Self(64);
    /// As most.
    pub const NORMAL: Self = Self(128);
    /// Before everyone else.
    pub const HIGH: Self = Self(192);
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// How often to look for the dead where the kernel does not tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Deadlines beyond this are none.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) tenant: Key,
    pub(crate) bytes: Bytes,
    pub(crate) priority: Priority,
}

/// Why a request was not served by its deadline.
struct Unserved {
    lack: Lack,
    /// There was room for the bytes, and none in the table.
    full: bool,
    /// Who has what its tenant may always have.
    borrowers: Vec<(usize, u64)>,
}

/// A place in the queue, which is left when this is dropped.
#[derive(Debug)]
struct Queued<'a> {
    ledger: &'a Ledger,
    entry: Option<Entry>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.ledger.cancel(entry);
        }
    }
}

impl Ledger {
    pub(crate) fn reserve_now(&self, tenant: Key, bytes: Bytes) -> Result<Reservation> {
        self.inner.check()?;
        self.measure(Patience::Usual)?;
        let mut reclaimed = false;
        loop {
            let wanted = bytes.get().min(BYTES_MAX + 1);
            let reserve = |desk: &mut Desk<'_, Ground>| {
                if desk.is_current(tenant) { desk.reserve(tenant.node, wanted) } else { Err(Refused::Cleared) }
            };
            match self.inner.at_desk(Patience::Usual, reserve)? {
                Ok(key) => return Ok(Reservation::new(self.clone(), key)),
                Err(Refused::Lack(_)) if !reclaimed && self.reclaim_here(tenant.node, bytes, Patience::Usual)? => {
                    reclaimed = true;
                }
                Err(refused) => return Err(self.inner.refusal(refused, "reservations", bytes)),
            }
        }
    }

    /// Reserves for the tenant that `find` finds, waiting for its turn. The lock is waited for no longer than for the turn.
    pub(crate) fn reserve_waiting(
        &self,
        find: impl FnOnce(Patience) -> Result<Key, LedgerError>,
        (bytes, deadline, priority): (Bytes, Duration, Priority),
    ) -> Result<Reservation> {
        let ends = Instant::now() + deadline.min(FOREVER);
        let patience = Patience::deadline(ends);
        let request = Request { tenant: find(patience)?, bytes, priority };
        let told_of_deaths = self.inner.watch();
        let entry = self.join_queue(request, patience)?;
        let mut queued = Queued { ledger: self, entry: Some(entry) };
        let book = &self.inner.book;
        loop {
            if book.has_left_the_queue(entry) {
                let reserved = self.collect(entry, patience)?;
                queued.entry = None;
                return Ok(reserved);
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.leave_queue(&mut queued, entry, request, patience);
            }
            let nap =
                [self.probe.is_some().then_some(MEASURE_EVERY), (!told_of_deaths).then_some(LOOK_EVERY), Some(left)];
            book.words().wait(book.state_at(entry), book.waiting_state(entry), nap.into_iter().flatten().min());
            if book.has_left_the_queue(entry) {
                continue;
            }
            self.inner.check()?;
            self.measure(patience)?;
            if !told_of_deaths {
                self.inner.at_desk(patience, |desk| desk.bury_the_dead())?;
            }
        }
    }

    /// Joins the queue, and asks back what others borrow if it is owed.
    pub(crate) fn join_queue(&self, request: Request, patience: Patience) -> Result<Entry, Unqueued> {
        let Request { tenant: key, bytes, priority } = request;
        let tenant = key.node;
        self.inner.check()?;
        self.measure(patience)?;
        let wanting = Wanting { tenant, bytes: bytes.get(), priority: priority.0.into(), since: now_ms() };
        let (entry, owed) = self.inner.at_desk(patience, |desk| {
            if !desk.is_current(key) {
                return (Err(Refused::Cleared), false);
            }
            let limit = desk.of(0, node::CEILING).min(desk.of(tenant, node::CEILING));
            if bytes.get() > limit {
                return (Err(Lack { remaining: desk.room(), limit }.into()), false);
            }
            (desk.enqueue(wanting), desk.is_owed(tenant, bytes.get()))
        })?;
        let entry = entry.map_err(|refused| {
            let what = if matches!(refused, Refused::Full) { "waiting requests" } else { "reservations" };
            self.inner.refusal(refused, what, bytes)
        })?;
        if owed && !self.inner.book.has_left_the_queue(entry) {
            let mut queued = Queued { ledger: self, entry: Some(entry) };
            self.ask_back_for(entry, request, patience)?;
            queued.entry = None;
        }
        Ok(entry)
    }

    /// Has those who borrow asked to give back what an owner lacks: here at once, elsewhere by their bells.
    fn ask_back_for(&self, entry: Entry, request: Request, patience: Patience) -> Result<(), LedgerError> {
        self.reclaim_here(request.tenant.node, request.bytes, patience)?;
        if !self.inner.book.has_left_the_queue(entry) {
            self.inner.at_desk(patience, |desk| {
                let lacking = request.bytes.get().saturating_sub(desk.room());
                desk.ask_back(lacking);
            })?;
        }
        Ok(())
    }

    /// Leaves the queue with what was granted.
    pub(crate) fn collect(&self, entry: Entry, patience: Patience) -> Result<Reservation, LedgerError> {
        let key: Option<Key> = self.inner.at_desk(patience, |desk| desk.collect(entry))?;
        let cleared = || LedgerError::Cleared { file: self.inner.path() };
        Ok(Reservation::new(self.clone(), key.ok_or_else(cleared)?))
    }

    /// Leaves the queue without waiting for anybody, giving back what was granted.
    pub(crate) fn cancel(&self, entry: Entry) {
        if !self.inner.is_forked() {
            self.inner.book.cancel(entry);
        }
    }

    /// Leaves the queue without, unless something was granted at the last moment.
    fn leave_queue(
        &self,
        queued: &mut Queued<'_>,
        entry: Entry,
        request: Request,
        patience: Patience,
    ) -> Result<Reservation> {
        let (tenant, bytes) = (request.tenant.node, request.bytes);
        let left = self.inner.at_desk(patience, |desk| {
            if let Some(key) = desk.collect(entry) {
                return Ok(key);
            }
            let (ceiling, total) = (desk.of(tenant, node::CEILING), desk.of(tenant, node::TOTAL));
            let remaining = desk.room().min(ceiling.saturating_sub(total));
            let why = Unserved {
                lack: Lack { remaining, limit: desk.of(0, node::CEILING).min(ceiling) },
                full: remaining >= bytes.get() && !desk.has_room_for_a_node(),
                borrowers: if desk.is_owed(tenant, bytes.get()) { desk.borrowers() } else { Vec::new() },
            };
            desk.cancel(entry);
            Err(why)
        })?;
        queued.entry = None;
        let Unserved { lack, full, borrowers } = match left {
            Ok(key) => return Ok(Reservation::new(self.clone(), key)),
            Err(why) => why,
        };
        if full {
            return Err(self.inner.full("reservations").into());
        }
        if borrowers.is_empty() {
            return Err(self.inner.refusal(lack.into(), "reservations", bytes));
        }
        let name = |(place, bytes): (usize, u64)| {
            let (pid, name) = self.inner.name_of(place);
            format!("{name} (pid {pid}): {}", Bytes(bytes))
        };
        let by: Vec<String> = borrowers.into_iter().map(name).collect();
        Err(Error::Withheld { requested: bytes, remaining: Bytes(lack.remaining), by: by.join(", ").into() })
    }
}
