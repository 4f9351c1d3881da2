//! Facts that a book keeps for those who watch: refusals, waits, and what processes say that they use.
//!
//! Counters are added to without the lock, by whoever refuses or has waited. The last refusals, and what a process uses, are
//! several words, and are written behind the lock. Nothing here is looked at when something is granted.

use super::{BYTES_MAX, Book, LockedBook, NodeKey, Shortfall, TENANT};
use crate::format::{Words, counter, decode_name, encode_name, node, process, refusal, sealed};
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
    /// The bytes that were left, where the reason is the queue for those who wait.
    pub available: u64,
    /// The bytes that could have been granted at most.
    pub limit: u64,
}

/// The memory that a process uses, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedUsage {
    /// When the process said so, in milliseconds since 1970.
    pub when: u64,
    /// The bytes that it uses; `None` where that is all it holds and does not cache.
    pub live: Option<u64>,
    /// The bytes that its pools hold and nobody uses.
    pub cached: u64,
    /// The most bytes that it held at a time.
    pub peak: u64,
    /// The tags that hold most, the largest first.
    pub holders: Vec<(String, u64)>,
}

/// The number of bytes that stands for all that a process holds and does not cache.
const ALL_HELD: u64 = BYTES_MAX + 1;

impl<W: Words> Book<W> {
    /// Withdraws what this process said that it uses. Needs no lock, since only its process writes the word while it is alive.
    pub fn withdraw_usage(&self) {
        self.words.store(self.layout.process_at(self.slot) + process::PUBLISHED, 0);
    }

    /// Publishes the most that this process ever held. Needs no lock, as above.
    pub fn publish_peak(&self, bytes: u64) {
        self.words.store(self.layout.process_at(self.slot) + process::PEAK, sealed(bytes.min(BYTES_MAX)));
    }

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

    /// Publishes what this process uses.
    pub fn publish_usage(&mut self, usage: &PublishedUsage) {
        let at = self.book.layout.process_at(self.book.slot);
        let nobody = (String::new(), 0);
        for row in 0..process::HOLDERS_MAX {
            let (tag, bytes) = usage.holders.get(row).unwrap_or(&nobody);
            let holder = at + holder_at(row);
            self.set_if_changed(holder, (*bytes).min(BYTES_MAX));
            for (word, letters) in encode_name::<{ process::TAG_WORDS }>(tag).into_iter().enumerate() {
                self.set_if_changed(holder + 1 + word, letters);
            }
            self.finish();
        }
        let figures = [
            (process::LIVE, usage.live.map_or(ALL_HELD, |live| live.min(BYTES_MAX))),
            (process::CACHED, usage.cached.min(BYTES_MAX)),
            (process::PEAK, usage.peak.min(BYTES_MAX)),
            (process::PUBLISHED, usage.when),
        ];
        for (field, value) in figures {
            self.set_if_changed(at + field, value);
        }
        self.finish();
    }

    fn set_if_changed(&mut self, at: usize, value: u64) {
        if self.get(at) != value {
            self.set(at, value);
        }
    }

    /// Returns what the process in a slot said that it uses, if it did.
    pub fn published_usage(&self, slot: usize) -> Option<PublishedUsage> {
        let at = self.book.layout.process_at(slot);
        let when = Some(self.get(at + process::PUBLISHED)).filter(|when| *when > 0)?;
        let holder = |row: usize| {
            let tag = (0..process::TAG_WORDS).map(|word| self.get(at + holder_at(row) + 1 + word));
            (decode_name(tag), self.get(at + holder_at(row)))
        };
        Some(PublishedUsage {
            when,
            live: Some(self.get(at + process::LIVE)).filter(|live| *live != ALL_HELD),
            cached: self.get(at + process::CACHED),
            peak: self.get(at + process::PEAK),
            holders: (0..process::HOLDERS_MAX).map(holder).filter(|(_, bytes)| *bytes > 0).collect(),
        })
    }

    /// Returns the requests of the process in a slot that were refused, and the milliseconds that its requests waited.
    pub fn refused_and_waited(&self, slot: usize) -> (u64, u64) {
        let at = self.book.layout.process_at(slot);
        (self.get(at + process::REFUSED), self.get(at + process::WAITED))
    }
}

/// Returns where the words of a holder begin in the row of a process.
const fn holder_at(row: usize) -> usize {
    process::HOLDERS + row * (1 + process::TAG_WORDS)
}
