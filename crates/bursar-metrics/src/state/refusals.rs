//! The last refusals, each with an explanation.

use bursar_core::Bytes;
use serde::{Deserialize, Serialize};

/// One refusal, with its explanation.
///
/// ```
/// use bursar::metrics::RefusalState;
///
/// let refusal = RefusalState { reason: "limit".into(), requested: 2 << 30, available: 1 << 30, limit: 16 << 30,
///     ..RefusalState::default() };
/// assert_eq!(refusal.explain(), "2 GiB requested, 1 GiB of 16 GiB left under the limit of the ledger");
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
    /// The reason: the label of a [`RefusalReason`](bursar_ledger::RefusalReason).
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
        let why = match self.reason.as_str() {
            "limit" => " under the limit of the ledger",
            "unmanaged" => " beside what programs outside the ledger use",
            "headroom" => " beside the part that is to stay free",
            "tenant" => " under the ceiling of the tenant",
            "queue" => ", and others wait for what is free",
            "share" => " in the reservation that it draws on",
            "device" => " in the ledger, but the driver had no memory",
            "timeout" => " when its time ran out",
            _ => "",
        };
        format!("{requested} requested, {available} of {limit} left{why}")
    }
}
