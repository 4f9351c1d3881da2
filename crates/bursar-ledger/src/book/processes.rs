//! Processes that come, go and die.

use super::{FREE, LockedBook, RESERVATION};
use crate::format::{Words, encode_name, header, node, process, waiter};

impl<W: Words> LockedBook<'_, W> {
    /// Gives back everything that belongs to dead processes. Returns whether there were any.
    pub fn reclaim_dead_processes(&mut self) -> bool {
        // Nobody may be refused for what somebody has already given up.
        self.apply_pending_notes();
        let mut any = false;
        for slot in self.slots() {
            let taken = self.get(self.book.layout.process_at(slot) + process::STATE) & process::OCCUPIED != 0;
            if taken && slot != self.book.slot && !self.book.words.alive(slot) {
                self.reclaim_process(slot);
                any = true;
            }
        }
        if any {
            self.grant_waiting();
        }
        any
    }

    /// Returns the slots that may be in use.
    pub(super) fn slots(&self) -> std::ops::Range<usize> {
        0..(self.get(header::PROCESSES_HIGH) as usize).min(self.book.layout.processes)
    }

    /// Gives back everything that belongs to a slot and frees it, in small steps: a process that dies while doing so
    /// leaves less to the next.
    pub(super) fn reclaim_process(&mut self, slot: usize) {
        let owner = slot as u64 + 1;
        self.remove_entries_of(owner);
        self.end_requests_of(slot);
        // A reservation that is drawn on is left without an owner, so each round leaves fewer nodes of this one.
        for node in self.nodes().rev() {
            if self.field(node, node::KIND) != FREE && self.field(node, node::OWNER) == owner {
                self.remove_or_orphan(node);
            }
        }
        let at = self.book.layout.process_at(slot);
        let generation = self.get(at + process::STATE) & !process::OCCUPIED;
        self.set(at + process::STATE, generation);
        self.finish();
    }

    /// Removes the queue entries of an owner. Called before its nodes are removed, since a granted entry names one of
    /// them.
    fn remove_entries_of(&mut self, owner: u64) {
        for entry in 0..self.book.layout.waiters {
            let at = self.book.layout.waiter_at(entry);
            if self.get(at + waiter::STATE) & waiter::STATES != waiter::FREE && self.get(at + waiter::OWNER) == owner {
                self.remove_entry(entry);
            }
        }
    }

    /// Occupies the slot whose liveness byte this process has locked, after giving back what a dead predecessor left
    /// there.
    pub fn register_process(&mut self, pid: u64, name: &str, since: u64) {
        let slot = self.book.slot;
        let at = self.book.layout.process_at(slot);
        if self.get(at + process::STATE) & process::OCCUPIED != 0 {
            self.reclaim_process(slot);
            self.grant_waiting();
        }
        let generation = self.get(at + process::STATE).wrapping_add(1) & !process::OCCUPIED;
        let fields = [
            (process::PID, pid),
            (process::SINCE, since),
            (process::RETURN_REQUESTED, 0),
            (process::REFUSED, 0),
            (process::WAITED, 0),
            (process::PUBLISHED, 0),
            (process::LISTENS, 0),
            (process::STATE, generation | process::OCCUPIED),
        ];
        for (at_word, word) in encode_name::<{ process::NAME_WORDS }>(name).into_iter().enumerate() {
            self.set(at + process::NAME + at_word, word);
        }
        for (field, value) in fields {
            self.set(at + field, value);
        }
        if slot >= self.get(header::PROCESSES_HIGH) as usize {
            self.set(header::PROCESSES_HIGH, slot as u64 + 1);
        }
        self.finish();
    }

    /// Closes every node of this process. Returns whether nothing was held, so that the slot is free.
    pub fn unregister_process(&mut self) -> bool {
        let everything = self.unregister_slot(self.book.slot);
        self.grant_waiting();
        // In a damaged ledger nobody knows what is held, so the slot is kept.
        everything && !self.is_damaged()
    }

    /// Closes every node of a slot, and frees the slot if nothing is held. Returns whether it did.
    pub(super) fn unregister_slot(&mut self, slot: usize) -> bool {
        let owner = slot as u64 + 1;
        self.remove_entries_of(owner);
        let mine = |locked: &Self, node: usize| locked.exists(node) && locked.field(node, node::OWNER) == owner;
        let nodes: Vec<usize> = self.nodes().filter(|&node| mine(self, node)).collect();
        let holding = nodes.iter().any(|&node| self.settle_held(node) > 0);
        if !holding {
            self.reclaim_process(slot);
            return true;
        }
        self.set(self.book.layout.process_at(slot) + process::PUBLISHED, 0);
        self.finish();
        self.end_requests_of(slot);
        for node in nodes {
            // Closing one node may have removed others.
            if mine(self, node) {
                self.close_node(node);
            }
        }
        false
    }

    /// Returns whether another living process has the ledger open.
    pub fn is_open_elsewhere(&self) -> bool {
        let processes = (self.get(header::PROCESSES_HIGH) as usize).min(self.book.layout.processes);
        (0..processes).any(|slot| {
            let state = self.get(self.book.layout.process_at(slot) + process::STATE);
            slot != self.book.slot && state & process::OCCUPIED != 0 && self.book.words.alive(slot)
        })
    }

    /// Removes every account, reservation, tenant and waiting request, and sets the limit. Their keys are not current
    /// any more.
    pub fn clear(&mut self, limit: u64) {
        for entry in 0..self.book.layout.waiters {
            let state = self.get(self.book.layout.waiter_at(entry) + waiter::STATE) & waiter::STATES;
            if state != waiter::FREE {
                self.free_entry(entry);
                self.wake_waiter(entry);
            }
        }
        // Children first, so that the figures agree after each step.
        while let Some(leaf) =
            self.nodes().skip(1).find(|&node| self.exists(node) && self.children(node).next().is_none())
        {
            self.settle_path(leaf);
            let (parent, total) = (self.parent(leaf), self.field(leaf, node::TOTAL));
            self.return_to(parent, total);
            self.remove_node(leaf);
            self.finish();
            if self.is_damaged() {
                return;
            }
        }
        self.set_field(0, node::TOTAL, 0);
        self.set_limit(limit);
    }

    /// Returns the bytes that each process holds and the bytes that it has set aside and not drawn, by slot, in one look at the
    /// table. Nothing is settled: what was returned without the lock is counted where it will be.
    pub fn sums_by_process(&self) -> Vec<(u64, u64)> {
        self.sums_by_process_below(0)
    }

    /// Returns the sums of [`Self::sums_by_process`] for what lies below a node, the node included.
    pub fn sums_by_process_below(&self, top: usize) -> Vec<(u64, u64)> {
        let mut sums = vec![(0u64, 0u64); self.book.layout.processes];
        let children = self.totals_of_children();
        for node in self.nodes() {
            let (kind, owner) = (self.field(node, node::KIND), self.field(node, node::OWNER) as usize);
            let Some((held, undrawn)) = owner.checked_sub(1).and_then(|slot| sums.get_mut(slot)) else { continue };
            if kind == FREE || !self.is_below(node, top) {
                continue;
            }
            let own = self.field(node, node::TOTAL).saturating_sub(children[node]);
            let balance = self.peek_balance(node).saturating_add(self.returned(node)).min(own);
            *held = held.saturating_add(own - balance);
            if kind == RESERVATION || self.field(self.parent(node), node::KIND) == RESERVATION {
                *undrawn = undrawn.saturating_add(balance);
            }
        }
        sums
    }
}
