//! Refusals: how many there were, and the last of them with an explanation.

use bursar_core::Bytes;
use serde::{Deserialize, Serialize};

/// A number of refusals for one reason.
///
/// ```
/// use bursar::metrics::ReasonCount;
///
/// let refused = [ReasonCount::new("limit", 2), ReasonCount::new("ceiling", 1)];
/// assert_eq!(ReasonCount::sum(&refused), 3);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// The reason: a stable word in lower case.
    pub reason: String,
    /// The number of refusals.
    pub count: u64,
}

impl ReasonCount {
    /// Returns the count of one reason.
    pub fn new(reason: impl Into<String>, count: u64) -> Self {
        Self { reason: reason.into(), count }
    }

    /// Returns the number of refusals for all reasons together.
    pub fn sum(refused: &[Self]) -> u64 {
        refused.iter().fold(0, |sum, one| sum.saturating_add(one.count))
    }
}

/// One refusal, with its explanation.
///
/// ```
/// use bursar::metrics::RefusalState;
///
/// let refusal = RefusalState { reason: "limit".into(), requested: 2 << 30, available: 1 << 30, limit: 16 << 30,
///     ..RefusalState::default() };
/// assert_eq!(refusal.explain(), "2 GiB requested, 1 GiB of 16 GiB left");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalState {
    /// When it was refused, in milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the process that asked, in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The name of the tenant that it asked for.
    pub tenant: String,
    /// The reason: a stable word in lower case.
    pub reason: String,
    /// The bytes that were asked for.
    pub requested: u64,
    /// The bytes that were left.
    pub available: u64,
    /// The limit that refused.
    pub limit: u64,
    /// The refusal in words: see [`explain`](Self::explain).
    pub explanation: String,
}

impl RefusalState {
    /// Returns the refusal in words.
    pub fn explain(&self) -> String {
        let [requested, available, limit] = [self.requested, self.available, self.limit].map(Bytes);
        format!("{requested} requested, {available} of {limit} left")
    }
}
