//! Waiting: who is served next, and who may not overtake.
//!
//! Those who ask for what their tenant may always have come first, then the more urgent, then those who came earlier. The
//! first who does not fit for want of room holds up everyone behind, and everyone who would take without waiting what it
//! waits for; one that only its own tenant's ceiling holds up, or that is larger than all there could be, holds up its own
//! tenant or nobody.

use super::{Book, Desk, Key, RESERVATION, Refused, TENANT};
use crate::format::{Words, header, node, process, sealed, waiter};
use std::cmp::Reverse;

/// A place in the queue, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its number.
    pub index: usize,
    state: u64,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanting {
    /// For which tenant.
    pub tenant: usize,
    /// How much.
    pub bytes: u64,
    /// How urgently.
    pub priority: u64,
    /// Since when, in milliseconds since 1970.
    pub since: u64,
}

/// Which life of an entry a state is of.
const fn lives(state: u64) -> u64 {
    state / (waiter::STATES + 1)
}

impl Entry {
    /// Which life of its place it is.
    pub(super) const fn life(self) -> u64 {
        lives(self.state)
    }
}

impl<W: Words> Desk<'_, W> {
    fn waiter(&self, entry: usize, field: usize) -> u64 {
        self.get(self.book.layout.waiter_at(entry) + field)
    }

    fn put_waiter(&mut self, entry: usize, field: usize, value: u64) {
        self.set(self.book.layout.waiter_at(entry) + field, value);
    }

    fn put_state(&mut self, entry: usize, state: u64) {
        let lives = self.waiter(entry, waiter::STATE) & !waiter::STATES;
        // Each life has its own number, so that a late look at an earlier one is recognised.
        let lives = if state == waiter::WAITING { lives.wrapping_add(waiter::STATES + 1) } else { lives };
        self.put_waiter(entry, waiter::STATE, lives | state);
    }

    pub(super) fn ring_waiter(&mut self, entry: usize) {
        self.ring(self.book.layout.waiter_at(entry) + waiter::STATE);
        let place = (self.waiter(entry, waiter::OWNER) as usize).wrapping_sub(1);
        self.ring_bell(place);
    }

    pub(super) fn ring_bell(&mut self, place: usize) {
        if place < self.book.layout.places {
            let at = self.book.layout.process_at(place) + process::BELL;
            self.book.words.fetch_add(at, 1);
            self.ring(at);
        }
    }

    /// Joins the queue, and is served at once if it may be.
    pub fn enqueue(&mut self, wanting: Wanting) -> Result<Entry, Refused> {
        if self.of(wanting.tenant, node::KIND) != TENANT {
            return Err(Refused::Cleared);
        }
        let free = |&entry: &usize| self.waiter(entry, waiter::STATE) & waiter::STATES == waiter::FREE;
        let index = (0..self.book.layout.waiters).find(free).ok_or(Refused::Full)?;
        let ticket = self.get(header::TICKET);
        let fields = [
            (waiter::OWNER, self.me()),
            (waiter::TENANT, wanting.tenant as u64),
            (waiter::BYTES, wanting.bytes),
            (waiter::PRIORITY, wanting.priority),
            (waiter::TICKET, ticket),
            (waiter::SINCE, wanting.since),
        ];
        for (field, value) in fields {
            self.put_waiter(index, field, value);
        }
        self.put_state(index, waiter::WAITING);
        self.set(header::TICKET, ticket.saturating_add(1));
        self.set(header::WAITING, self.get(header::WAITING).saturating_add(1));
        self.finish();
        let state = self.waiter(index, waiter::STATE);
        self.bury_the_dead();
        self.gather(wanting.tenant);
        self.serve();
        Ok(Entry { index, state })
    }

    /// Leaves the queue, giving back what was granted meanwhile.
    pub fn cancel(&mut self, entry: Entry) {
        if self.state_of(entry).is_some() {
            self.drop_entry(entry.index);
            self.serve();
        }
    }

    /// Takes an entry out of the queue and gives back what it was granted, in one step: nobody but the entry knows of that
    /// node, and nobody has a handle to hold something of it.
    pub(super) fn drop_entry(&mut self, entry: usize) {
        let granted = self.waiter(entry, waiter::STATE) & waiter::STATES == waiter::GRANTED;
        let node = self.waiter(entry, waiter::NODE) as usize;
        if granted && self.exists(node) {
            self.settle_path(node);
            self.give(self.parent(node), self.of(node, node::TOTAL));
            self.uproot(node);
        }
        self.forget(entry);
    }

    /// Whether the entry was left by a note.
    pub(super) fn is_abandoned(&self, entry: usize) -> bool {
        let state = self.waiter(entry, waiter::STATE);
        state & waiter::STATES != waiter::FREE && self.waiter(entry, waiter::ABANDONED) == lives(state)
    }

    /// Leaves the queue with what was granted, if something was.
    pub fn collect(&mut self, entry: Entry) -> Option<Key> {
        if self.state_of(entry)? != waiter::GRANTED {
            return None;
        }
        let key = self.key(self.waiter(entry.index, waiter::NODE) as usize);
        self.forget(entry.index);
        Some(key)
    }

    fn state_of(&self, entry: Entry) -> Option<u64> {
        let state = self.waiter(entry.index, waiter::STATE);
        (state & !waiter::STATES == entry.state & !waiter::STATES).then_some(state & waiter::STATES)
    }

    /// Takes an entry out of the queue.
    pub(super) fn forget(&mut self, entry: usize) {
        if self.waiter(entry, waiter::STATE) & waiter::STATES == waiter::WAITING {
            self.set(header::WAITING, self.get(header::WAITING).saturating_sub(1));
        }
        self.put_state(entry, waiter::FREE);
        self.finish();
    }

    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let nobody = self.get(header::WAITING) == 0;
        let entries = if nobody { 0 } else { self.book.layout.waiters };
        (0..entries).filter(|&entry| self.waiter(entry, waiter::STATE) & waiter::STATES == waiter::WAITING)
    }

    fn wanting(&self, entry: usize) -> Wanting {
        Wanting {
            tenant: self.waiter(entry, waiter::TENANT) as usize,
            bytes: self.waiter(entry, waiter::BYTES),
            priority: self.waiter(entry, waiter::PRIORITY),
            since: self.waiter(entry, waiter::SINCE),
        }
    }

    /// The queue in the order of service, with who asks.
    pub fn queue(&self) -> Vec<(Wanting, usize)> {
        let owner = |entry| (self.waiter(entry, waiter::OWNER) as usize).wrapping_sub(1);
        self.in_order().into_iter().map(|entry| (self.wanting(entry), owner(entry))).collect()
    }

    fn in_order(&self) -> Vec<usize> {
        let mut entries: Vec<usize> = self.waiting().collect();
        entries.sort_by_key(|&entry| {
            let Wanting { tenant, bytes, priority, .. } = self.wanting(entry);
            (Reverse(self.is_owed(tenant, bytes)), Reverse(priority), self.waiter(entry, waiter::TICKET))
        });
        entries
    }

    /// Serves everyone whose turn it is.
    pub fn serve(&mut self) {
        if self.get(header::WAITING) == 0 {
            return;
        }
        while let Some(entry) = self.next_in_turn() {
            if !self.grant(entry) || self.is_damaged() {
                return;
            }
        }
    }

    fn next_in_turn(&self) -> Option<usize> {
        let mut full: Vec<usize> = Vec::new();
        for entry in self.in_order() {
            let Wanting { tenant, bytes, .. } = self.wanting(entry);
            if full.contains(&tenant) || bytes > self.cap() {
                continue;
            }
            if self.room_of_tenant(tenant) < bytes {
                full.push(tenant);
                continue;
            }
            return (self.room() >= bytes).then_some(entry);
        }
        None
    }

    fn grant(&mut self, entry: usize) -> bool {
        let Wanting { tenant, bytes, .. } = self.wanting(entry);
        self.add_to(tenant, bytes);
        let Some(key) = self.plant(RESERVATION, tenant, self.waiter(entry, waiter::OWNER), bytes, bytes) else {
            self.undo();
            return false;
        };
        self.put_waiter(entry, waiter::NODE, key.node as u64);
        self.put_state(entry, waiter::GRANTED);
        self.set(header::WAITING, self.get(header::WAITING).saturating_sub(1));
        self.finish();
        self.ring_waiter(entry);
        true
    }

    /// Whether somebody who waits would have to wait longer if `tenant` grew by so much.
    pub(super) fn would_delay(&self, tenant: usize, bytes: u64) -> bool {
        let room_after = self.room().saturating_sub(bytes);
        self.waiting().any(|entry| {
            let wanting = self.wanting(entry);
            wanting.bytes <= self.cap() && (wanting.tenant == tenant || room_after < wanting.bytes)
        })
    }

    /// Asks every other process that borrows to give so much back. Answers how many were asked.
    pub fn ask_back(&mut self, bytes: u64) -> usize {
        let mut borrowers = self.borrowers();
        borrowers.retain(|(place, _)| *place != self.book.place);
        for &(place, _) in &borrowers {
            let at = self.book.layout.process_at(place) + process::WANTED;
            self.set(at, bytes);
            self.finish();
            self.ring_bell(place);
        }
        borrowers.len()
    }

    /// What this process was asked to give back; it is asked once.
    pub fn take_wanted(&mut self) -> u64 {
        let at = self.book.layout.process_at(self.book.place) + process::WANTED;
        let wanted = self.get(at);
        if wanted > 0 {
            self.set(at, 0);
            self.finish();
        }
        wanted
    }

    /// Who has something for a tenant that has more than it may always have, and how much.
    pub fn borrowers(&self) -> Vec<(usize, u64)> {
        let mut found: Vec<(usize, u64)> = Vec::new();
        for node in self.nodes() {
            let (kind, owner) = (self.of(node, node::KIND), self.of(node, node::OWNER) as usize);
            if owner == 0 || !matches!(kind, super::ACCOUNT | RESERVATION) {
                continue;
            }
            let tenant = self.tenant_of(node);
            let total = self.of(node, node::TOTAL);
            if total > 0 && self.of(tenant, node::TOTAL) > self.of(tenant, node::GUARANTEE) {
                match found.iter_mut().find(|(place, _)| *place == owner - 1) {
                    Some((_, bytes)) => *bytes = bytes.saturating_add(total),
                    None => found.push((owner - 1, total)),
                }
            }
        }
        found
    }
}

impl<W: Words> Book<W> {
    /// Whether the entry is no longer in the queue, seen without the lock.
    pub fn has_left_the_queue(&self, entry: Entry) -> bool {
        self.words.load(self.state_at(entry)) != self.waiting_state(entry)
    }

    /// Wakes everyone of this process who sleeps in the queue, to look around.
    pub fn wake_own_waiters(&self) {
        for entry in 0..self.layout.waiters {
            let at = self.layout.waiter_at(entry);
            if self.words.load(at + waiter::OWNER) == sealed(self.place as u64 + 1) {
                self.words.wake(at + waiter::STATE, u32::MAX);
            }
        }
    }

    /// The word an entry's owner sleeps on while it reads [`Self::waiting_state`].
    pub const fn state_at(&self, entry: Entry) -> usize {
        self.layout.waiter_at(entry.index) + waiter::STATE
    }

    /// What that word reads while the entry waits.
    pub const fn waiting_state(&self, entry: Entry) -> u64 {
        sealed(entry.state)
    }
}
