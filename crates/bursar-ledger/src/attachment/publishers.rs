//! The callbacks that say what this process uses, and when what they say is published.

use super::reclaimers::{CallbackSource, of_each_source};
use super::{Attachment, LockWait};
use crate::book::PublishedUsage;
use crate::system::now_ms;
use bursar_core::Bytes;
use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which a process says what it uses.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_secs(1);

/// The memory that a part of a program uses, which readings of the ledger show.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::ProcessUsage;
///
/// let usage = ProcessUsage { live: Some(Bytes::gib(2)), cached: Bytes::gib(1), ..ProcessUsage::default() };
/// assert!(usage.holders.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// The bytes that are used; `None` for all that the process holds in the ledger and does not cache.
    pub live: Option<Bytes>,
    /// The bytes that pools hold and nobody uses.
    pub cached: Bytes,
    /// The most bytes that were held at a time, as far as that is known.
    pub peak: Bytes,
    /// The bytes in use by tag, in any order; the largest four are shown, with the first 35 bytes of their tags.
    pub holders: Vec<(String, Bytes)>,
}

impl ProcessUsage {
    /// Adds what another part of the program uses.
    fn add(&mut self, other: Self) {
        // What one part does not know, nobody does.
        self.live = self.live.zip(other.live).map(|(one, other)| one.saturating_add(other));
        self.cached = self.cached.saturating_add(other.cached);
        self.peak = self.peak.saturating_add(other.peak);
        for (tag, bytes) in other.holders {
            match self.holders.iter_mut().find(|(known, _)| *known == tag) {
                Some((_, held)) => *held = held.saturating_add(bytes),
                None => self.holders.push((tag, bytes)),
            }
        }
    }
}

pub(crate) type UsageCallback = dyn Fn() -> ProcessUsage + Send + Sync;

/// The callbacks of this process.
#[derive(Default)]
pub(crate) struct Publishers {
    /// Locked for moments, with nothing else locked.
    state: Mutex<PublisherState>,
}

#[derive(Default)]
struct PublisherState {
    next: u64,
    callbacks: Vec<(u64, CallbackSource, Arc<UsageCallback>)>,
    /// The most that was ever said to be held.
    peak: Bytes,
}

impl Publishers {
    fn state(&self) -> MutexGuard<'_, PublisherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().callbacks.is_empty()
    }

    /// Registers a callback and returns its number.
    pub(crate) fn register(&self, source: CallbackSource, usage: Arc<UsageCallback>) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.callbacks.push((number, source, usage));
        number
    }

    /// Removes a callback. Returns whether none is left.
    fn unregister(&self, number: u64) -> bool {
        let mut state = self.state();
        state.callbacks.retain(|(other, ..)| *other != number);
        state.callbacks.is_empty()
    }

    /// Returns the most that was ever held, now that so much was; `None` where there are no callbacks any more.
    fn raise_peak(&self, held: Bytes) -> Option<Bytes> {
        let mut state = self.state();
        state.peak = state.peak.max(held);
        (!state.callbacks.is_empty()).then_some(state.peak)
    }
}

impl fmt::Debug for Publishers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publishers").finish_non_exhaustive()
    }
}

impl Attachment {
    /// Publishes what the callbacks say, if there are any and the lock is to be had. They are called with nothing locked.
    pub(crate) fn publish_usage(&self) {
        let mut callbacks = self.publishers.state().callbacks.clone();
        of_each_source(&mut callbacks, |(_, source, _)| *source);
        let mut usage = ProcessUsage { live: Some(Bytes::ZERO), ..ProcessUsage::default() };
        for (.., callback) in callbacks {
            if let Some(part) = self.reclaimers.catch_panic("a usage callback", || callback()) {
                usage.add(part);
            }
        }
        usage.holders.sort_by(|one, other| (Reverse(one.1), &one.0).cmp(&(Reverse(other.1), &other.0)));
        if self.is_forked() {
            return;
        }
        let held = usage.live.unwrap_or(Bytes::ZERO).saturating_add(usage.cached);
        let Some(peak) = self.publishers.raise_peak(usage.peak.max(held)) else { return };
        let published = PublishedUsage {
            when: now_ms(),
            live: usage.live.map(Bytes::get),
            cached: usage.cached.get(),
            peak: peak.get(),
            holders: usage.holders.into_iter().map(|(tag, bytes)| (tag, bytes.get())).collect(),
        };
        // If the lock is not available, the next time is soon enough.
        let _ = self.with_lock(LockWait::poll(self), |locked| locked.publish_usage(&published));
        // Whoever withdrew the last of them meanwhile may have been too early.
        if self.publishers.is_empty() {
            self.book.withdraw_usage();
        }
    }

    /// Removes a callback; with the last of them, what was published goes.
    pub(crate) fn withdraw_usage(&self, number: u64) {
        if self.publishers.unregister(number) && !self.is_forked() {
            self.book.withdraw_usage();
        }
    }
}
