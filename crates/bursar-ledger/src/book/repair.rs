//! What the dead left behind, and who comes and goes.

use super::{Desk, FREE, RESERVATION};
use crate::format::{Words, header, node, process, spelled, waiter};

impl<W: Words> Desk<'_, W> {
    /// Gives back what belongs to processes that no longer live. Answers whether there were any.
    pub fn bury_the_dead(&mut self) -> bool {
        // Whoever is refused after this must not be refused for what somebody has already given up.
        self.digest_notes();
        let mut any = false;
        for place in self.places() {
            let taken = self.get(self.book.layout.process_at(place) + process::STATE) & process::TAKEN != 0;
            if taken && place != self.book.place && !self.book.words.alive(place) {
                self.bury(place);
                any = true;
            }
        }
        if any {
            self.serve();
        }
        any
    }

    /// The places that may be in use.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        0..(self.get(header::PLACES_HIGH) as usize).min(self.book.layout.places)
    }

    /// Gives back everything at a place, in small steps: whoever dies at it leaves less for the next.
    pub(super) fn bury(&mut self, place: usize) {
        let owner = place as u64 + 1;
        self.drop_entries_of(owner);
        // A reservation that is drawn on goes to nobody, so each round leaves fewer nodes of this owner.
        for node in self.nodes().rev() {
            if self.of(node, node::KIND) != FREE && self.of(node, node::OWNER) == owner {
                self.leave(node);
            }
        }
        let at = self.book.layout.process_at(place);
        let life = self.get(at + process::STATE) & !process::TAKEN;
        self.set(at + process::STATE, life);
        self.finish();
    }

    /// Before the nodes of an owner are given back: an entry that was granted names one of them.
    fn drop_entries_of(&mut self, owner: u64) {
        for entry in 0..self.book.layout.waiters {
            let at = self.book.layout.waiter_at(entry);
            if self.get(at + waiter::STATE) & waiter::STATES != waiter::FREE && self.get(at + waiter::OWNER) == owner {
                self.drop_entry(entry);
            }
        }
    }

    /// Takes the place this process has the lock of, after giving back what a dead predecessor left there.
    pub fn arrive(&mut self, pid: u64, name: &str, since: u64) {
        let place = self.book.place;
        let at = self.book.layout.process_at(place);
        if self.get(at + process::STATE) & process::TAKEN != 0 {
            self.bury(place);
            self.serve();
        }
        let life = self.get(at + process::STATE).wrapping_add(1) & !process::TAKEN;
        let fields = [
            (process::PID, pid),
            (process::SINCE, since),
            (process::WANTED, 0),
            (process::STATE, life | process::TAKEN),
        ];
        for (at_word, word) in spelled::<{ process::NAME_WORDS }>(name).into_iter().enumerate() {
            self.set(at + process::NAME + at_word, word);
        }
        for (field, value) in fields {
            self.set(at + field, value);
        }
        if place >= self.get(header::PLACES_HIGH) as usize {
            self.set(header::PLACES_HIGH, place as u64 + 1);
        }
        self.finish();
    }

    /// Leaves: gives back what nothing is held of. Answers whether that was everything, so that the place is free.
    pub fn depart(&mut self) -> bool {
        let everything = self.depart_from(self.book.place);
        self.serve();
        // In a damaged ledger nobody knows what is held: the place is kept.
        everything && !self.is_damaged()
    }

    /// Gives back what nothing is held of at a place. Returns whether that was everything.
    pub(super) fn depart_from(&mut self, place: usize) -> bool {
        let owner = place as u64 + 1;
        self.drop_entries_of(owner);
        let mine = |desk: &Self, node: usize| desk.exists(node) && desk.of(node, node::OWNER) == owner;
        let nodes: Vec<usize> = self.nodes().filter(|&node| mine(self, node)).collect();
        let holding = nodes.iter().any(|&node| self.held(node) > 0);
        if !holding {
            self.bury(place);
            return true;
        }
        for node in nodes {
            // Closing one may have taken others along.
            if mine(self, node) {
                self.close_node(node);
            }
        }
        false
    }

    /// Returns whether another process that lives has the ledger open.
    pub fn has_company(&self) -> bool {
        let places = (self.get(header::PLACES_HIGH) as usize).min(self.book.layout.places);
        (0..places).any(|place| {
            let state = self.get(self.book.layout.process_at(place) + process::STATE);
            place != self.book.place && state & process::TAKEN != 0 && self.book.words.alive(place)
        })
    }

    /// Forgets everything: every account, reservation, tenant and waiting request. Keys of them mean nothing from here on.
    pub fn clear(&mut self, limit: u64) {
        for entry in 0..self.book.layout.waiters {
            let state = self.get(self.book.layout.waiter_at(entry) + waiter::STATE) & waiter::STATES;
            if state != waiter::FREE {
                self.forget(entry);
                self.ring_waiter(entry);
            }
        }
        // Parts first, so that each step leaves a tree whose figures agree.
        while let Some(leaf) = self.nodes().skip(1).find(|&node| self.exists(node) && self.parts(node).next().is_none())
        {
            self.settle_path(leaf);
            let (parent, total) = (self.parent(leaf), self.of(leaf, node::TOTAL));
            self.give(parent, total);
            self.uproot(leaf);
            self.finish();
            if self.is_damaged() {
                return;
            }
        }
        self.put(0, node::TOTAL, 0);
        self.set_limit(limit);
    }

    /// What a process holds and what it has set aside and not drawn.
    pub fn holding_of(&mut self, place: usize) -> (u64, u64) {
        let (mut held, mut undrawn) = (0u64, 0u64);
        let mine = |desk: &Self, node: usize| {
            desk.of(node, node::KIND) != FREE && desk.of(node, node::OWNER) == place as u64 + 1
        };
        let nodes: Vec<usize> = self.nodes().filter(|&node| mine(self, node)).collect();
        for node in nodes {
            held = held.saturating_add(self.held(node));
            let parent_kind = self.of(self.parent(node), node::KIND);
            if self.of(node, node::KIND) == RESERVATION || parent_kind == RESERVATION {
                undrawn = undrawn.saturating_add(self.left(node));
            }
        }
        (held, undrawn)
    }
}
