//! Facts that a book keeps for those who watch: refusals, waits, and what processes say that they use.
//!
//! Counters are added to without the lock, by whoever refuses or has waited. The last refusals, and what a process uses, are
//! several words, and are written behind the lock. Nothing here is looked at when something is granted.

use super::{Book, LockedBook, NodeKey, Shortfall, TENANT};
use crate::format::{Words, counter, decode_name, node, process, refusal, sealed};
use crate::refusal::{RefusalCounts, RefusalReason};
use crate::waits::WaitHistogram;
use std::time::Duration;

/// A request that was refused, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEntry {
    /// When it was refused, in milliseconds since 1970.
    pub when: u64,
    /// The id of the process that asked.
    pub pid: u64,
    /// The name of that process.
    pub name: String,
    /// The name of the tenant.
    pub tenant: String,
    /// The reason.
    pub reason: RefusalReason,
    /// The bytes that were asked for.
    pub requested: u64,
    /// The bytes that would have been granted.
    pub available: u64,
    /// The bytes that could have been granted at most.
    pub limit: u64,
}

impl<W: Words> Book<W> {
    fn add_to_counter(&self, at: usize, value: u64) {
        self.words.fetch_add(at, sealed(value));
    }

    /// Returns the tenant that a node belongs to, read without the lock; `None` if the node is gone.
    pub fn peek_tenant(&self, key: NodeKey) -> Option<usize> {
        if self.peek(key.node, node::GENERATION) != key.generation {
            return None;
        }
        let mut at = key.node;
        for _ in 0..self.layout.nodes {
            if self.peek(at, node::KIND) == TENANT {
                return Some(at);
            }
            at = self.peek(at, node::PARENT) as usize;
        }
        None
    }

    /// Counts a refusal of this process, for the tenant that a node belongs to. Needs no lock.
    pub fn count_refusal(&self, of: NodeKey, reason: RefusalReason) {
        self.add_to_counter(self.layout.counters_at() + counter::REFUSED + reason.place(), 1);
        self.add_to_counter(self.layout.process_at(self.slot) + process::REFUSED, 1);
        if let Some(tenant) = self.peek_tenant(of) {
            self.add_to_counter(self.layout.node_at(tenant) + node::REFUSED, 1);
        }
    }

    /// Counts a request of this process for a tenant that has left the queue after so many milliseconds. Needs no lock.
    pub fn count_wait(&self, tenant: NodeKey, millis: u64) {
        let counters = self.layout.counters_at();
        self.add_to_counter(counters + counter::WAITS + WaitHistogram::bucket_of(millis), 1);
        self.add_to_counter(counters + counter::WAITED, millis);
        self.add_to_counter(self.layout.process_at(self.slot) + process::WAITED, millis);
        if let Some(tenant) = self.peek_tenant(tenant) {
            self.add_to_counter(self.layout.node_at(tenant) + node::WAITED, millis);
        }
    }
}

impl<W: Words> LockedBook<'_, W> {
    fn counter(&self, counter: usize) -> u64 {
        self.get(self.book.layout.counters_at() + counter)
    }

    /// Returns the number of refusals, by reason.
    pub fn refusal_counts(&self) -> RefusalCounts {
        RefusalCounts::new(std::array::from_fn(|reason| self.counter(counter::REFUSED + reason)))
    }

    /// Returns how long requests waited.
    pub fn wait_histogram(&self) -> WaitHistogram {
        let counts = std::array::from_fn(|bucket| self.counter(counter::WAITS + bucket));
        WaitHistogram::new(counts, Duration::from_millis(self.counter(counter::WAITED)))
    }

    /// Enters a refusal of this process among the last ones, in the place of the oldest: what was asked for, and what stood
    /// against it.
    pub fn enter_refusal(&mut self, of: NodeKey, when: u64, requested: u64, shortfall: Shortfall) {
        let layout = self.book.layout;
        let number = self.counter(counter::REFUSALS);
        let at = layout.refusal_at((number % layout.refusals as u64) as usize);
        let process = layout.process_at(self.book.slot);
        let fields = [
            (refusal::NUMBER, number + 1),
            (refusal::WHEN, when),
            (refusal::PID, self.get(process + process::PID)),
            (refusal::REASON, shortfall.reason.place() as u64),
            (refusal::REQUESTED, requested),
            (refusal::AVAILABLE, shortfall.remaining),
            (refusal::LIMIT, shortfall.limit),
        ];
        for (field, value) in fields {
            self.set(at + field, value);
        }
        for word in 0..process::NAME_WORDS {
            self.set(at + refusal::NAME + word, self.get(process + process::NAME + word));
        }
        let tenant = self.is_current(of).then(|| self.tenant_of(of.node));
        for word in 0..node::NAME_WORDS {
            let letters = tenant.map_or(0, |tenant| self.field(tenant, node::NAME + word));
            self.set(at + refusal::TENANT + word, letters);
        }
        self.set(layout.counters_at() + counter::REFUSALS, number + 1);
        self.finish();
    }

    /// Returns the last refusals, newest first.
    pub fn last_refusals(&self) -> Vec<RefusalEntry> {
        let (written, rows) = (self.counter(counter::REFUSALS), self.book.layout.refusals as u64);
        let numbers = (written.saturating_sub(rows)..written).rev();
        numbers.filter_map(|number| self.refusal_in((number % rows) as usize, number + 1)).collect()
    }

    fn refusal_in(&self, row: usize, number: u64) -> Option<RefusalEntry> {
        let at = self.book.layout.refusal_at(row);
        let text = |from: usize, words: usize| decode_name((0..words).map(|word| self.get(at + from + word)));
        let reason = RefusalReason::at(self.get(at + refusal::REASON))?;
        (self.get(at + refusal::NUMBER) == number).then(|| RefusalEntry {
            when: self.get(at + refusal::WHEN),
            pid: self.get(at + refusal::PID),
            name: text(refusal::NAME, process::NAME_WORDS),
            tenant: text(refusal::TENANT, node::NAME_WORDS),
            reason,
            requested: self.get(at + refusal::REQUESTED),
            available: self.get(at + refusal::AVAILABLE),
            limit: self.get(at + refusal::LIMIT),
        })
    }

    /// Returns a description of the first contradiction among these facts, if there is one.
    pub(super) fn inconsistency_in_telemetry(&self) -> Option<String> {
        let (written, rows) = (self.counter(counter::REFUSALS), self.book.layout.refusals);
        let is_there = |row: usize| {
            let at = self.book.layout.refusal_at(row);
            let number = self.get(at + refusal::NUMBER);
            let in_place = number == 0 && row as u64 >= written
                || number > 0
                    && number <= written
                    && number + rows as u64 > written
                    && (number - 1) % rows as u64 == row as u64;
            in_place && RefusalReason::at(self.get(at + refusal::REASON)).is_some()
        };
        let wrong = (0..rows).find(|&row| !is_there(row))?;
        Some(format!("refusal {wrong} is none of the last of {written}"))
    }

    /// Returns the requests of the process in a slot that were refused, and the milliseconds that its requests waited.
    pub fn refused_and_waited(&self, slot: usize) -> (u64, u64) {
        let at = self.book.layout.process_at(slot);
        (self.get(at + process::REFUSED), self.get(at + process::WAITED))
    }
}
