//! The reasons for which a ledger refuses, and how often it did.

use crate::format::counter;
use std::fmt;

/// The reason for which a request was refused.
///
/// Its `Display` is a short name in lower case, as labels of metrics have it.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, RefusalReason};
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// assert!(ledger.reserve(Bytes::gib(2)).is_err());
/// let last = &ledger.reading()?.refusals[0];
/// assert_eq!((last.reason, last.requested), (RefusalReason::Limit, Bytes::gib(2)));
/// assert_eq!(last.reason.to_string(), "limit");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// All together would have had more than the limit of the ledger.
    Limit,
    /// Programs outside the ledger use so much of the device that less than its limit is left.
    Unmanaged,
    /// There was room, but less than the part that the request is to leave free.
    Headroom,
    /// The tenant would have had more than its ceiling.
    Tenant,
    /// Others wait for what is free.
    Queue,
    /// The reservation, or the share of one, that the request was to be charged to is used up.
    Share,
    /// The driver had no memory, although there was room in the ledger.
    Device,
    /// It waited, and its time ran out.
    Timeout,
}

impl RefusalReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; counter::REASONS] = [
        Self::Limit,
        Self::Unmanaged,
        Self::Headroom,
        Self::Tenant,
        Self::Queue,
        Self::Share,
        Self::Device,
        Self::Timeout,
    ];

    /// Returns the place of its counter.
    pub(crate) const fn place(self) -> usize {
        self as usize
    }

    /// Returns the reason whose counter is there.
    pub(crate) fn at(place: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u64 == place)
    }

    /// Returns its short name.
    ///
    /// ```
    /// use bursar::ledger::RefusalReason;
    ///
    /// assert_eq!(RefusalReason::ALL.map(RefusalReason::label)[..2], ["limit", "unmanaged"]);
    /// ```
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Unmanaged => "unmanaged",
            Self::Headroom => "headroom",
            Self::Tenant => "tenant",
            Self::Queue => "queue",
            Self::Share => "share",
            Self::Device => "device",
            Self::Timeout => "timeout",
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// The number of requests that a ledger has refused since it was made, by reason. None of them ever goes down, whoever dies.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, RefusalReason};
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// assert!(ledger.reserve(Bytes::gib(2)).is_err());
/// let refused = ledger.reading()?.refused;
/// assert_eq!((refused.of(RefusalReason::Limit), refused.total()), (1, 1));
/// assert!(refused.iter().all(|(reason, count)| (count == 1) == (reason == RefusalReason::Limit)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts([u64; counter::REASONS]);

impl RefusalCounts {
    pub(crate) const fn new(counts: [u64; counter::REASONS]) -> Self {
        Self(counts)
    }

    /// Returns the number for one reason.
    #[must_use]
    pub const fn of(&self, reason: RefusalReason) -> u64 {
        self.0[reason.place()]
    }

    /// Returns an iterator over all reasons and their numbers, those that never happened too.
    pub fn iter(&self) -> impl Iterator<Item = (RefusalReason, u64)> + '_ {
        RefusalReason::ALL.into_iter().map(|reason| (reason, self.of(reason)))
    }

    /// Returns the number of all refusals.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_and_a_name_of_its_own() {
        for (place, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!((reason.place(), RefusalReason::at(place as u64)), (place, Some(reason)));
            assert!(reason.label().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{reason}");
            assert_eq!(RefusalReason::ALL.iter().filter(|other| other.label() == reason.label()).count(), 1);
        }
        assert_eq!(RefusalReason::at(counter::REASONS as u64), None);
    }
}
