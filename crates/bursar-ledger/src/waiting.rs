//! Reserving: at once, or when one's turn comes.

use crate::book::{BYTES_MAX, Entry, Key, Lack, Refused, Wanting};
use crate::file::now_ms;
use crate::layout::node;
use crate::words::Words;
use crate::{Ledger, LedgerError, Reservation};
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

/// How often those who wait ask the driver what others gave back: nobody says so.
pub(crate) const MEASURE_EVERY: Duration = Duration::from_millis(250);
/// How often to look for the dead where the kernel does not tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) tenant: usize,
    pub(crate) bytes: Bytes,
    pub(crate) priority: Priority,
}

impl Ledger {
    pub(crate) fn reserve_now(&self, tenant: usize, bytes: Bytes) -> Result<Reservation> {
        self.inner.check()?;
        self.measure()?;
        let mut reclaimed = false;
        loop {
            let reserved = self.inner.desk()?.reserve(tenant, bytes.get().min(BYTES_MAX + 1));
            match reserved {
                Ok(key) => return Ok(Reservation::new(self.clone(), key)),
                Err(Refused::Lack(_)) if !reclaimed && self.reclaim_here(tenant, bytes)? => reclaimed = true,
                Err(refused) => return Err(self.inner.refusal(refused, "reservations", bytes)),
            }
        }
    }

    pub(crate) fn reserve_waiting(
        &self,
        tenant: usize,
        bytes: Bytes,
        deadline: Duration,
        priority: Priority,
    ) -> Result<Reservation> {
        let request = Request { tenant, bytes, priority };
        let ends = Instant::now().checked_add(deadline);
        let told_of_deaths = self.inner.watch();
        let entry = self.join_queue(request)?;
        let book = &self.inner.book;
        loop {
            if book.has_left_the_queue(entry) {
                return self.collect(entry);
            }
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.leave_queue(entry, request);
            }
            let nap = [self.probe.is_some().then_some(MEASURE_EVERY), (!told_of_deaths).then_some(LOOK_EVERY), left];
            book.words().wait(book.state_at(entry), book.waiting_state(entry), nap.into_iter().flatten().min());
            if book.has_left_the_queue(entry) {
                continue;
            }
            self.inner.check().inspect_err(|_| self.cancel(entry))?;
            self.measure().inspect_err(|_| self.cancel(entry))?;
            if !told_of_deaths {
                self.inner.desk()?.bury_the_dead();
            }
        }
    }

    /// Joins the queue, and asks back what others borrow if it is owed.
    pub(crate) fn join_queue(&self, request: Request) -> Result<Entry> {
        let Request { tenant, bytes, priority } = request;
        self.inner.check()?;
        self.measure()?;
        let mut desk = self.inner.desk()?;
        let limit = desk.of(0, node::CEILING).min(desk.of(tenant, node::CEILING));
        if bytes.get() > limit {
            let remaining = desk.room();
            return Err(self.inner.refusal(Lack { remaining, limit }.into(), "reservations", bytes));
        }
        let wanting = Wanting { tenant, bytes: bytes.get(), priority: priority.0.into(), since: now_ms() };
        let entry = desk.enqueue(wanting);
        let entry = entry.map_err(|refused| self.inner.refusal(refused, "waiting requests", bytes))?;
        let owed = desk.is_owed(tenant, bytes.get());
        drop(desk);
        if owed && !self.inner.book.has_left_the_queue(entry) {
            self.ask_back_for(entry, request).inspect_err(|_| self.cancel(entry))?;
        }
        Ok(entry)
    }

    /// Has those who borrow asked to give back what an owner lacks: here at once, elsewhere by their bells.
    fn ask_back_for(&self, entry: Entry, request: Request) -> Result<(), LedgerError> {
        self.reclaim_here(request.tenant, request.bytes)?;
        if !self.inner.book.has_left_the_queue(entry) {
            let mut desk = self.inner.desk()?;
            let lacking = request.bytes.get().saturating_sub(desk.room());
            desk.ask_back(lacking);
        }
        Ok(())
    }

    /// Leaves the queue with what was granted.
    pub(crate) fn collect(&self, entry: Entry) -> Result<Reservation> {
        let key: Option<Key> = self.inner.desk()?.collect(entry);
        let cleared = || LedgerError::Cleared { file: self.inner.path() };
        Ok(Reservation::new(self.clone(), key.ok_or_else(cleared)?))
    }

    pub(crate) fn cancel(&self, entry: Entry) {
        // A lock that cannot be had leaves the entry to the end of the process.
        if let Ok(mut desk) = self.inner.desk() {
            desk.cancel(entry);
        }
    }

    /// Leaves the queue without, unless something was granted at the last moment.
    fn leave_queue(&self, entry: Entry, request: Request) -> Result<Reservation> {
        let Request { tenant, bytes, .. } = request;
        let mut desk = self.inner.desk()?;
        if let Some(key) = desk.collect(entry) {
            return Ok(Reservation::new(self.clone(), key));
        }
        let remaining = desk.room().min(desk.of(tenant, node::CEILING).saturating_sub(desk.of(tenant, node::TOTAL)));
        let limit = desk.of(0, node::CEILING).min(desk.of(tenant, node::CEILING));
        let owed = desk.is_owed(tenant, bytes.get());
        let borrowers = desk.borrowers();
        let full = remaining >= bytes.get() && !desk.has_room_for_a_node();
        desk.cancel(entry);
        drop(desk);
        if full {
            return Err(self.inner.full("reservations").into());
        }
        if !owed || borrowers.is_empty() {
            return Err(self.inner.refusal(Lack { remaining, limit }.into(), "reservations", bytes));
        }
        let name = |(place, bytes): (usize, u64)| {
            let (pid, name) = self.inner.name_of(place);
            format!("{name} (pid {pid}): {}", Bytes(bytes))
        };
        let by: Vec<String> = borrowers.into_iter().map(name).collect();
        Err(Error::Withheld { requested: bytes, remaining: Bytes(remaining), by: by.join(", ").into() })
    }
}
