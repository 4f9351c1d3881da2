//! Reserving at once, or when a request's turn comes.

use super::{Ledger, Reservation, ReserveOptions, claims};
use crate::LedgerError;
use crate::attachment::{LockWait, MEASURE_EVERY, TryError};
use crate::book::{BYTES_MAX, BookError, LockedBook, NodeKey, QueueEntry, QueueRequest, Shortfall};
use crate::format::{Words, node};
use crate::refusal::RefusalReason;
use crate::storage::MappedWords;
use crate::system::now_ms;
use bursar_core::{Bytes, Error, Result, interrupt_interval, is_interrupted};
use std::time::{Duration, Instant};

/// The interval at which dead processes are looked for where the kernel does not report deaths, and withdrawals of a request that a
/// wait is for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest deadline; one beyond it is never reached anyway.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReserveRequest<'a> {
    pub(crate) tenant: NodeKey,
    pub(crate) bytes: Bytes,
    pub(crate) options: &'a ReserveOptions,
}

/// The reasons why a request was not granted by its deadline.
struct TimeoutReason {
    shortfall: Shortfall,
    /// There was room for the bytes, but no free row in a table.
    full: bool,
    /// The error of a request for which there was room, where others came first.
    out_of_turn: Option<Error>,
    /// The slots of the processes that borrow what the tenant is guaranteed, with the bytes they have.
    borrowers: Vec<(usize, u64)>,
}

/// A request in the queue, and since when it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) entry: QueueEntry,
    tenant: NodeKey,
    since: Instant,
}

/// A request in the queue, which is left when this is dropped.
#[derive(Debug)]
struct QueueGuard<'a> {
    ledger: &'a Ledger,
    queued: Option<QueuedRequest>,
}

impl QueueGuard<'_> {
    /// Ends the wait of a request that has left the queue.
    fn has_left(&mut self) {
        if let Some(queued) = self.queued.take() {
            self.ledger.count_wait(queued);
        }
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        if let Some(queued) = self.queued {
            self.ledger.cancel(queued);
        }
    }
}

impl Ledger {
    /// Reserves at once, or refuses once `make_room` has made none.
    pub(crate) fn reserve_now(
        &self,
        request: ReserveRequest<'_>,
        wait: LockWait,
        make_room: impl FnOnce() -> bool,
    ) -> Result<Reservation> {
        let ReserveRequest { tenant, bytes, options } = request;
        self.attachment.check_usable()?;
        self.measure(wait)?;
        let (mut reclaimed, mut make_room) = (false, Some(make_room));
        loop {
            let wanted = bytes.get().min(BYTES_MAX + 1);
            let reserve = |locked: &mut LockedBook<'_, MappedWords>| {
                if !locked.is_current(tenant) {
                    return Err((BookError::Cleared, None));
                }
                let reserved = locked.reserve_leaving(tenant.node, wanted, options.kept, options.priority.0.into());
                let key = reserved.map_err(|refused| (refused, self.turn_of_others(locked, refused, request)))?;
                locked.set_label(key, &options.label);
                Ok(key)
            };
            match self.attachment.with_lock(wait, reserve)? {
                Ok(key) => return Ok(Reservation::new(self.clone(), key)),
                Err((BookError::Shortfall(_), _))
                    if !reclaimed && self.reclaim_in_process(tenant.node, bytes, wait)? =>
                {
                    reclaimed = true;
                }
                Err((BookError::Shortfall(_), _)) if make_room.take().is_some_and(|make_room| make_room()) => {}
                Err((refused, out_of_turn)) => {
                    let refused = self.attachment.refuse(tenant, refused, "reservations", bytes);
                    return Err(out_of_turn.unwrap_or(refused));
                }
            }
        }
    }

    /// Returns the error of a request that was refused because others wait for what is free.
    fn turn_of_others(
        &self,
        locked: &LockedBook<'_, MappedWords>,
        refused: BookError,
        request: ReserveRequest<'_>,
    ) -> Option<Error> {
        let BookError::Shortfall(Shortfall { remaining, limit, reason: RefusalReason::Queue }) = refused else {
            return None;
        };
        self.out_of_turn(locked, request.bytes, (remaining, limit), 0)
    }

    /// Returns the error of a request for which there is room, and others come first; so many in the queue are the request itself.
    fn out_of_turn(
        &self,
        locked: &LockedBook<'_, MappedWords>,
        requested: Bytes,
        (remaining, limit): (u64, u64),
        own: usize,
    ) -> Option<Error> {
        let mut waiting = claims::waiting(&self.attachment, locked);
        let behind = waiting.len().checked_sub(1 + own)?;
        let first = Box::new(waiting.swap_remove(0));
        Some(Error::OutOfTurn { requested, remaining: Bytes(remaining), limit: Bytes(limit), first, behind })
    }

    /// Reserves for the tenant that `find` returns, waiting for its turn until the deadline has passed. The lock is not
    /// waited for any longer.
    pub(crate) fn reserve_with_deadline(
        &self,
        find: impl FnOnce(LockWait) -> Result<NodeKey, LedgerError>,
        deadline: Duration,
        bytes: Bytes,
        options: &ReserveOptions,
    ) -> Result<Reservation> {
        let ends = Instant::now() + deadline.min(FOREVER);
        let wait = LockWait::deadline(ends);
        let request = ReserveRequest { tenant: find(wait)?, bytes, options };
        let sees_deaths = self.attachment.start_watcher();
        let queued = self.join_queue(request, wait)?;
        let (entry, mut guard) = (queued.entry, QueueGuard { ledger: self, queued: Some(queued) });
        let book = &self.attachment.book;
        loop {
            if book.has_left_queue(entry) {
                let reserved = self.take_grant(entry, &options.label, wait)?;
                guard.has_left();
                return Ok(reserved);
            }
            let left = ends.saturating_duration_since(Instant::now());
            let is_given_up = self.attachment.is_given_up() || is_interrupted();
            if left.is_zero() || is_given_up {
                return self.give_up(&mut guard, entry, request, wait, is_given_up);
            }
            // Whoever withdraws the request that this thread meets wakes it once, which may be just before it waits.
            let looks = !sees_deaths || self.attachment.is_serving();
            let (measure, look) = (self.probe.is_some().then_some(MEASURE_EVERY), looks.then_some(LOOK_EVERY));
            let timeouts = [measure, look, interrupt_interval(), Some(left)];
            book.words().wait(book.state_at(entry), book.waiting_state(entry), timeouts.into_iter().flatten().min());
            if book.has_left_queue(entry) {
                continue;
            }
            self.attachment.check_usable()?;
            self.measure(wait)?;
            if !sees_deaths {
                self.attachment.with_lock(wait, |locked| locked.reclaim_dead_processes())?;
            }
        }
    }

    /// Joins the queue. A request within its tenant's guarantee asks back what others borrow.
    pub(crate) fn join_queue(&self, request: ReserveRequest<'_>, wait: LockWait) -> Result<QueuedRequest, TryError> {
        let ReserveRequest { tenant: key, bytes, options: ReserveOptions { priority, kept, .. } } = request;
        let tenant = key.node;
        self.attachment.check_usable()?;
        self.measure(wait)?;
        let (priority, since) = (priority.0.into(), now_ms());
        let queued = QueueRequest { tenant, bytes: bytes.get(), priority, since, kept: *kept };
        let (entry, within_guarantee) = self.attachment.with_lock(wait, |locked| {
            if !locked.is_current(key) {
                return (Err(BookError::Cleared), false);
            }
            let limit = locked.most_leaving(tenant, *kept);
            if bytes.get() > limit {
                let within_ceiling = bytes.get() <= locked.field(tenant, node::CEILING);
                let reason = if within_ceiling { RefusalReason::Limit } else { RefusalReason::Tenant };
                let remaining = locked.available_leaving(*kept).min(locked.available_to_tenant(tenant));
                return (Err(Shortfall { remaining, limit, reason }.into()), false);
            }
            (locked.enqueue(queued), locked.is_within_guarantee(tenant, bytes.get()))
        })?;
        let entry = entry.map_err(|refused| {
            let what = if matches!(refused, BookError::TableFull) { "waiting requests" } else { "reservations" };
            self.attachment.refuse(key, refused, what, bytes)
        })?;
        let queued = QueuedRequest { entry, tenant: key, since: Instant::now() };
        if within_guarantee && !self.attachment.book.has_left_queue(entry) {
            let mut guard = QueueGuard { ledger: self, queued: Some(queued) };
            self.request_returns(entry, request, wait)?;
            guard.queued = None;
        }
        Ok(queued)
    }

    /// Asks for what an owner lacks: first the callbacks of this process, then other processes that borrow, by their
    /// event words.
    fn request_returns(
        &self,
        entry: QueueEntry,
        request: ReserveRequest<'_>,
        wait: LockWait,
    ) -> Result<(), LedgerError> {
        self.reclaim_in_process(request.tenant.node, request.bytes, wait)?;
        if !self.attachment.book.has_left_queue(entry) {
            self.attachment.with_lock(wait, |locked| {
                let lacking = request.bytes.get().saturating_sub(locked.available());
                locked.request_return(lacking);
            })?;
        }
        Ok(())
    }

    /// Leaves the queue with the reservation that was granted, and labels it.
    pub(crate) fn take_grant(
        &self,
        entry: QueueEntry,
        label: &str,
        wait: LockWait,
    ) -> Result<Reservation, LedgerError> {
        let key: Option<NodeKey> = self.attachment.with_lock(wait, |locked| {
            let key = locked.take_grant(entry)?;
            locked.set_label(key, label);
            Some(key)
        })?;
        let cleared = || LedgerError::Cleared { file: self.attachment.path() };
        Ok(Reservation::new(self.clone(), key.ok_or_else(cleared)?))
    }

    /// Leaves the queue when the time of a request that waited is over: with a reservation if it can be had now.
    pub(crate) fn end_wait(
        &self,
        queued: QueuedRequest,
        bytes: Bytes,
        options: &ReserveOptions,
        wait: LockWait,
    ) -> Result<Reservation> {
        let QueuedRequest { entry, tenant, .. } = queued;
        let mut guard = QueueGuard { ledger: self, queued: Some(queued) };
        self.measure(wait)?;
        self.attachment.with_lock(wait, |locked| locked.reclaim_dead_processes())?;
        if self.attachment.book.has_left_queue(entry) {
            let reserved = self.take_grant(entry, &options.label, wait)?;
            guard.has_left();
            return Ok(reserved);
        }
        self.give_up(&mut guard, entry, ReserveRequest { tenant, bytes, options }, wait, false)
    }

    /// Counts the wait of a request that has left the queue.
    pub(crate) fn count_wait(&self, queued: QueuedRequest) {
        self.attachment.count_wait(queued.tenant, queued.since.elapsed());
    }

    /// Leaves the queue without waiting for the lock, giving back what was granted.
    pub(crate) fn cancel(&self, queued: QueuedRequest) {
        if !self.attachment.is_forked() {
            self.attachment.book.cancel(queued.entry);
            self.count_wait(queued);
        }
    }

    /// Leaves the queue at the deadline, or where nobody waits any more: with a reservation if it was granted at the last
    /// moment, otherwise with an error. Only one whose time ran out counts as refused.
    fn give_up(
        &self,
        guard: &mut QueueGuard<'_>,
        entry: QueueEntry,
        request: ReserveRequest<'_>,
        wait: LockWait,
        is_given_up: bool,
    ) -> Result<Reservation> {
        let (tenant, bytes, options) = (request.tenant.node, request.bytes, request.options);
        let left = self.attachment.with_lock(wait, |locked| {
            if let Some(key) = locked.take_grant(entry) {
                locked.set_label(key, &options.label);
                return Ok(key);
            }
            let remaining = locked.available_leaving(options.kept).min(locked.available_to_tenant(tenant));
            let limit = locked.most_leaving(tenant, options.kept);
            let (fits, full) = (remaining >= bytes.get(), !locked.has_free_node());
            let why = TimeoutReason {
                shortfall: Shortfall { remaining, limit, reason: RefusalReason::Timeout },
                full: fits && full,
                out_of_turn: if fits { self.out_of_turn(locked, bytes, (remaining, limit), 1) } else { None },
                borrowers: if locked.is_within_guarantee(tenant, bytes.get()) {
                    locked.borrowers()
                } else {
                    Vec::new()
                },
            };
            locked.cancel(entry);
            Err(why)
        })?;
        guard.has_left();
        let TimeoutReason { shortfall, full, out_of_turn, borrowers } = match left {
            Ok(key) => return Ok(Reservation::new(self.clone(), key)),
            Err(why) => why,
        };
        if full {
            return Err(self.attachment.table_full("reservations").into());
        }
        let refused = match is_given_up {
            true => self.attachment.error_for(shortfall.into(), "reservations", bytes),
            false => self.attachment.refuse(request.tenant, shortfall.into(), "reservations", bytes),
        };
        if borrowers.is_empty() {
            return Err(out_of_turn.unwrap_or(refused));
        }
        let name = |(slot, bytes): (usize, u64)| {
            let (pid, name) = self.attachment.name_of(slot);
            format!("{name} (pid {pid}): {}", Bytes(bytes))
        };
        let by: Vec<String> = borrowers.into_iter().map(name).collect();
        Err(Error::Withheld { requested: bytes, remaining: Bytes(shortfall.remaining), by: by.join(", ").into() })
    }
}
