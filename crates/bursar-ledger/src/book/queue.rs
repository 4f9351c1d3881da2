//! The queue of requests that wait.
//!
//! Requests within their tenant's guarantee come first, then those of higher priority, then those that came earlier.
//! The first that does not fit into the device blocks every request behind it, and every request that would otherwise
//! take, without waiting, the memory that it waits for, unless that would come before it in the queue. A request that only its own tenant's ceiling holds up blocks its
//! own tenant alone. A request for more than the limit of the device blocks nobody.
//!
//! A request may ask that a part of the device stays free. That part is not what it waits for: those who ask for no such thing
//! may have it, as long as the bytes that the request asks for are left.

use super::{Book, BookError, LockedBook, NodeKey, RESERVATION, TENANT};
use crate::format::{Words, header, node, process, sealed, waiter};
use std::cmp::Reverse;

/// A row in the queue and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueEntry {
    /// The row.
    pub index: usize,
    state: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    /// The node of the tenant it is for.
    pub tenant: usize,
    /// The bytes it asks for.
    pub bytes: u64,
    /// Its priority; larger is served first.
    pub priority: u64,
    /// When it was made, in milliseconds since 1970.
    pub since: u64,
    /// The millionths of what all may have that must be free once it is granted.
    pub kept: u64,
}

/// Returns the generation in the state of an entry.
const fn generation_in(state: u64) -> u64 {
    state / (waiter::STATES + 1)
}

impl QueueEntry {
    /// Returns the generation of the entry.
    pub(super) const fn generation(self) -> u64 {
        generation_in(self.state)
    }
}

impl<W: Words> LockedBook<'_, W> {
    fn waiter_field(&self, entry: usize, field: usize) -> u64 {
        self.get(self.book.layout.waiter_at(entry) + field)
    }

    fn set_waiter_field(&mut self, entry: usize, field: usize, value: u64) {
        self.set(self.book.layout.waiter_at(entry) + field, value);
    }

    fn set_waiter_state(&mut self, entry: usize, state: u64) {
        let generation = self.waiter_field(entry, waiter::STATE) & !waiter::STATES;
        // Each use of a row has a generation of its own, so that a late look at an earlier one is recognised.
        let generation =
            if state == waiter::WAITING { generation.wrapping_add(waiter::STATES + 1) } else { generation };
        self.set_waiter_field(entry, waiter::STATE, generation | state);
    }

    pub(super) fn wake_waiter(&mut self, entry: usize) {
        self.wake_on_unlock(self.book.layout.waiter_at(entry) + waiter::STATE);
        let slot = (self.waiter_field(entry, waiter::OWNER) as usize).wrapping_sub(1);
        self.notify_process(slot);
    }

    pub(super) fn notify_process(&mut self, slot: usize) {
        if slot < self.book.layout.processes {
            let at = self.book.layout.process_at(slot) + process::EVENTS;
            self.book.words.fetch_add(at, 1);
            self.wake_on_unlock(at);
        }
    }

    /// Joins the queue, and grants the request at once if it may be.
    pub fn enqueue(&mut self, request: QueueRequest) -> Result<QueueEntry, BookError> {
        if self.field(request.tenant, node::KIND) != TENANT {
            return Err(BookError::Cleared);
        }
        let free = |&entry: &usize| self.waiter_field(entry, waiter::STATE) & waiter::STATES == waiter::FREE;
        let index = (0..self.book.layout.waiters).find(free).ok_or(BookError::TableFull)?;
        let ticket = self.get(header::TICKET);
        let fields = [
            (waiter::OWNER, self.owner_id()),
            (waiter::TENANT, request.tenant as u64),
            (waiter::BYTES, request.bytes),
            (waiter::PRIORITY, request.priority),
            (waiter::TICKET, ticket),
            (waiter::SINCE, request.since),
            (waiter::KEPT, request.kept),
        ];
        for (field, value) in fields {
            self.set_waiter_field(index, field, value);
        }
        self.set_waiter_state(index, waiter::WAITING);
        self.set(header::TICKET, ticket.saturating_add(1));
        self.set(header::WAITING, self.get(header::WAITING).saturating_add(1));
        self.finish();
        let state = self.waiter_field(index, waiter::STATE);
        self.reclaim_dead_processes();
        self.recall_credit(request.tenant);
        self.grant_waiting();
        Ok(QueueEntry { index, state })
    }

    /// Leaves the queue, giving back what was granted meanwhile.
    pub fn cancel(&mut self, entry: QueueEntry) {
        if self.state_of(entry).is_some() {
            self.remove_entry(entry.index);
            self.grant_waiting();
        }
    }

    /// Removes an entry and gives back what it was granted, in one step: nobody but the entry knows of that node, and
    /// nobody has a handle to charge it.
    pub(super) fn remove_entry(&mut self, entry: usize) {
        let granted = self.waiter_field(entry, waiter::STATE) & waiter::STATES == waiter::GRANTED;
        let node = self.waiter_field(entry, waiter::NODE) as usize;
        if granted && self.exists(node) {
            self.settle_path(node);
            self.return_to(self.parent(node), self.field(node, node::TOTAL));
            self.remove_node(node);
        }
        self.free_entry(entry);
    }

    /// Returns whether a note says that nobody waits for the entry any more.
    pub(super) fn is_abandoned(&self, entry: usize) -> bool {
        let state = self.waiter_field(entry, waiter::STATE);
        state & waiter::STATES != waiter::FREE && self.waiter_field(entry, waiter::ABANDONED) == generation_in(state)
    }

    /// Leaves the queue with the reservation that was granted. Returns `None`, and stays in the queue, if none was.
    pub fn take_grant(&mut self, entry: QueueEntry) -> Option<NodeKey> {
        if self.state_of(entry)? != waiter::GRANTED {
            return None;
        }
        let key = self.key(self.waiter_field(entry.index, waiter::NODE) as usize);
        self.free_entry(entry.index);
        Some(key)
    }

    fn state_of(&self, entry: QueueEntry) -> Option<u64> {
        let state = self.waiter_field(entry.index, waiter::STATE);
        (state & !waiter::STATES == entry.state & !waiter::STATES).then_some(state & waiter::STATES)
    }

    /// Frees the row of an entry and finishes the step.
    pub(super) fn free_entry(&mut self, entry: usize) {
        if self.waiter_field(entry, waiter::STATE) & waiter::STATES == waiter::WAITING {
            self.set(header::WAITING, self.get(header::WAITING).saturating_sub(1));
        }
        self.set_waiter_state(entry, waiter::FREE);
        self.finish();
    }

    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let nobody = self.get(header::WAITING) == 0;
        let entries = if nobody { 0 } else { self.book.layout.waiters };
        (0..entries).filter(|&entry| self.waiter_field(entry, waiter::STATE) & waiter::STATES == waiter::WAITING)
    }

    fn request(&self, entry: usize) -> QueueRequest {
        QueueRequest {
            tenant: self.waiter_field(entry, waiter::TENANT) as usize,
            bytes: self.waiter_field(entry, waiter::BYTES),
            priority: self.waiter_field(entry, waiter::PRIORITY),
            since: self.waiter_field(entry, waiter::SINCE),
            kept: self.waiter_field(entry, waiter::KEPT),
        }
    }

    /// Returns the requests in the order of service, each with the slot of its process.
    pub fn queue(&self) -> Vec<(QueueRequest, usize)> {
        let owner = |entry| (self.waiter_field(entry, waiter::OWNER) as usize).wrapping_sub(1);
        self.in_service_order().into_iter().map(|entry| (self.request(entry), owner(entry))).collect()
    }

    fn in_service_order(&self) -> Vec<usize> {
        let mut entries: Vec<usize> = self.waiting().collect();
        entries.sort_by_key(|&entry| {
            let QueueRequest { tenant, bytes, priority, .. } = self.request(entry);
            (
                Reverse(self.is_within_guarantee(tenant, bytes)),
                Reverse(priority),
                self.waiter_field(entry, waiter::TICKET),
            )
        });
        entries
    }

    /// Grants every request whose turn it is.
    pub fn grant_waiting(&mut self) {
        if self.get(header::WAITING) == 0 {
            return;
        }
        while let Some(entry) = self.next_grantable() {
            if !self.grant(entry) || self.is_damaged() {
                return;
            }
        }
    }

    fn next_grantable(&self) -> Option<usize> {
        let mut full: Vec<usize> = Vec::new();
        // The bytes of requests that only what they keep free holds up.
        let mut held_up = 0u64;
        for entry in self.in_service_order() {
            let QueueRequest { tenant, bytes, kept, .. } = self.request(entry);
            if full.contains(&tenant) || bytes > self.usable(kept) {
                continue;
            }
            if self.available_to_tenant(tenant) < bytes {
                full.push(tenant);
                continue;
            }
            if self.available() < bytes.saturating_add(held_up) {
                return None;
            }
            if kept == 0 || held_up == 0 && self.available_leaving(kept) >= bytes {
                return Some(entry);
            }
            held_up = held_up.saturating_add(bytes);
        }
        None
    }

    fn grant(&mut self, entry: usize) -> bool {
        let QueueRequest { tenant, bytes, .. } = self.request(entry);
        self.add_to_tenant(tenant, bytes);
        let Some(key) = self.add_node(RESERVATION, tenant, self.waiter_field(entry, waiter::OWNER), bytes, bytes)
        else {
            self.undo();
            return false;
        };
        self.set_waiter_field(entry, waiter::NODE, key.node as u64);
        self.set_waiter_state(entry, waiter::GRANTED);
        self.set(header::WAITING, self.get(header::WAITING).saturating_sub(1));
        self.finish();
        self.wake_waiter(entry);
        true
    }

    /// Returns whether some request would have to wait longer if `tenant` grew by `bytes`, of a request that leaves `kept`
    /// millionths free. Those that would come after a request of this priority, had it joined the queue, would have to in any case.
    pub(super) fn would_delay(&self, tenant: usize, bytes: u64, kept: u64, priority: u64) -> bool {
        self.waiting().any(|entry| {
            let request = self.request(entry);
            if priority > request.priority && !self.is_within_guarantee(request.tenant, request.bytes) {
                return false;
            }
            let is_same = request.tenant == tenant;
            let (is_delayed, room) = match (kept, request.kept) {
                // The part that it would leave free is not what it waits for.
                (0, 1..) if is_same => (false, self.available().min(self.available_to_tenant(tenant))),
                (0, 1..) => (false, self.available()),
                _ => (is_same, self.available_leaving(request.kept)),
            };
            request.bytes <= self.usable(request.kept) && (is_delayed || room.saturating_sub(bytes) < request.bytes)
        })
    }

    /// Asks every other process that borrows to give `bytes` back. Returns how many were asked.
    pub fn request_return(&mut self, bytes: u64) -> usize {
        let mut borrowers = self.borrowers();
        borrowers.retain(|(slot, _)| *slot != self.book.slot);
        for &(slot, _) in &borrowers {
            let at = self.book.layout.process_at(slot) + process::RETURN_REQUESTED;
            self.set(at, bytes);
            self.finish();
            self.notify_process(slot);
        }
        borrowers.len()
    }

    /// Returns the bytes this process was asked to give back, and clears the request.
    pub fn take_return_request(&mut self) -> u64 {
        let at = self.book.layout.process_at(self.book.slot) + process::RETURN_REQUESTED;
        let wanted = self.get(at);
        if wanted > 0 {
            self.set(at, 0);
            self.finish();
        }
        wanted
    }

    /// Returns the slots of the processes that have something for a tenant above its guarantee, with the bytes they
    /// have.
    pub fn borrowers(&self) -> Vec<(usize, u64)> {
        let mut borrowers: Vec<(usize, u64)> = Vec::new();
        for node in self.nodes() {
            let (kind, owner) = (self.field(node, node::KIND), self.field(node, node::OWNER) as usize);
            if owner == 0 || !matches!(kind, super::ACCOUNT | RESERVATION) {
                continue;
            }
            let tenant = self.tenant_of(node);
            let total = self.field(node, node::TOTAL);
            if total > 0 && self.field(tenant, node::TOTAL) > self.field(tenant, node::GUARANTEE) {
                match borrowers.iter_mut().find(|(slot, _)| *slot == owner - 1) {
                    Some((_, bytes)) => *bytes = bytes.saturating_add(total),
                    None => borrowers.push((owner - 1, total)),
                }
            }
        }
        borrowers
    }
}

impl<W: Words> Book<W> {
    /// Returns whether an entry no longer waits, read without the lock.
    pub fn has_left_queue(&self, entry: QueueEntry) -> bool {
        self.words.load(self.state_at(entry)) != self.waiting_state(entry)
    }

    /// Wakes every thread of this process that sleeps in the queue, to check its state.
    pub fn wake_own_waiters(&self) {
        for entry in 0..self.layout.waiters {
            let at = self.layout.waiter_at(entry);
            if self.words.load(at + waiter::OWNER) == sealed(self.slot as u64 + 1) {
                self.words.wake(at + waiter::STATE, u32::MAX);
            }
        }
    }

    /// Returns the word that the owner of an entry sleeps on while it reads [`Self::waiting_state`].
    pub const fn state_at(&self, entry: QueueEntry) -> usize {
        self.layout.waiter_at(entry.index) + waiter::STATE
    }

    /// Returns the contents of that word while the entry waits.
    pub const fn waiting_state(&self, entry: QueueEntry) -> u64 {
        sealed(entry.state)
    }
}
