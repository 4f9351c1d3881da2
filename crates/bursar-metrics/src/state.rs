//! The state of a machine's devices at one moment, as data with stable names.

mod refusals;
mod unreadable;
mod usage;

pub use refusals::RefusalState;
pub use unreadable::{UnreadableLedger, UnreadableReason};
pub use usage::{HolderState, UsageState, WaitBucket, WaitState};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that the ledgers and the driver of a machine say at one moment.
///
/// As JSON it is what `/api/state` of `bursar serve` answers. Sizes are in bytes and moments in milliseconds since 1970;
/// no field disappears or changes its meaning without a new major version.
///
/// ```
/// use bursar::metrics::Sampler;
///
/// let state = Sampler::without_driver("this machine has none").sample();
/// assert_eq!(state.no_gpu.as_deref(), Some("this machine has none"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct State {
    /// The moment, in milliseconds since 1970.
    pub at_ms: u64,
    /// The folder of the ledger files.
    pub folder: String,
    /// The error of listing that folder; devices of the driver are listed all the same.
    pub folder_error: Option<String>,
    /// The driver whose devices are listed; none if there is no GPU.
    pub driver: Option<String>,
    /// True if its devices are simulated.
    pub simulated: bool,
    /// The reason that there is no GPU.
    pub no_gpu: Option<String>,
    /// The driver's devices in their order, then ledgers of devices that it does not have.
    pub devices: Vec<DeviceState>,
    /// The number of devices and ledgers beyond the first 64, which are left out.
    pub left_out: u64,
}

/// A device with its ledger, or the reason that the ledger cannot be read.
///
/// ```
/// use bursar::metrics::{DeviceState, UnreadableLedger, UnreadableReason};
///
/// let reason = UnreadableReason::Corrupt;
/// let unreadable = UnreadableLedger { uuid: "GPU-1".into(), reason, ..UnreadableLedger::default() };
/// let device = DeviceState::Unreadable(unreadable);
/// assert_eq!((device.uuid(), device.label()), ("GPU-1", "unknown".to_owned()));
/// assert!(device.ledger().is_none(), "nothing is known, and nothing is shown as zero");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum DeviceState {
    /// The ledger was read, or there is none yet and nobody holds anything.
    Readable(LedgerState),
    /// The ledger, or the device, cannot be read.
    Unreadable(UnreadableLedger),
}

impl DeviceState {
    /// Returns the UUID of the device, or `HOST`.
    pub fn uuid(&self) -> &str {
        match self {
            Self::Readable(ledger) => &ledger.uuid,
            Self::Unreadable(ledger) => &ledger.uuid,
        }
    }

    /// Returns the number of the device on the driver, if that has it.
    pub fn ordinal(&self) -> Option<u32> {
        match self {
            Self::Readable(ledger) => ledger.ordinal,
            Self::Unreadable(ledger) => ledger.ordinal,
        }
    }

    /// Returns the short name of the device: `gpu0`, `host`, or `unknown` where the driver does not have it.
    pub fn label(&self) -> String {
        match self.ordinal() {
            Some(ordinal) => format!("gpu{ordinal}"),
            None if self.uuid() == "HOST" => "host".to_owned(),
            None => "unknown".to_owned(),
        }
    }

    /// Returns the ledger, if it could be read.
    pub fn ledger(&self) -> Option<&LedgerState> {
        match self {
            Self::Readable(ledger) => Some(ledger),
            Self::Unreadable(_) => None,
        }
    }
}

/// A device and its ledger at one moment.
///
/// ```
/// use bursar::metrics::LedgerState;
///
/// let device = LedgerState { total: 100, held: 30, undrawn: 20, unmanaged: 10, ..LedgerState::default() };
/// assert_eq!(device.free(), 40);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerState {
    /// The UUID of the device, or `HOST`.
    pub uuid: String,
    /// The number of the device on the driver, if that has it.
    pub ordinal: Option<u32>,
    /// The name of the device.
    pub name: String,
    /// All of its memory.
    pub total: u64,
    /// The limit of what all may hold together.
    pub limit: u64,
    /// The bytes that are held.
    pub held: u64,
    /// The bytes that were set aside and are not held.
    pub undrawn: u64,
    /// Of what is held, the bytes that pools hold and nobody uses, of those processes that publish it; none if none does.
    pub cached: Option<u64>,
    /// The bytes used outside the ledger.
    pub unmanaged: u64,
    /// The bytes that nobody holds, has set aside or uses: see [`free`](Self::free).
    pub free: u64,
    /// The bytes that the driver could still allocate, where it was asked.
    pub driver_free: Option<u64>,
    /// The processes that have the ledger open.
    pub processes: Vec<ProcessState>,
    /// The tenants.
    pub tenants: Vec<TenantState>,
    /// The requests that wait, in the order of service.
    pub waiting: Vec<QueuedState>,
    /// The refusals of the ledger since it was made, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The last refusals, the latest first: at most 32.
    pub refusals: Vec<RefusalState>,
    /// The times for which requests waited since the ledger was made.
    pub waits: WaitState,
}

impl LedgerState {
    /// Returns the number of refusals for all reasons together.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns `total` less what is held, set aside and unmanaged, or zero if that is more.
    pub const fn free(&self) -> u64 {
        self.total.saturating_sub(self.held).saturating_sub(self.undrawn).saturating_sub(self.unmanaged)
    }
}

/// The share of one process.
///
/// ```
/// use bursar::metrics::ProcessState;
///
/// let json = serde_json::json!({ "pid": 7, "name": "train", "labels": [], "held": 1, "undrawn": 0, "since_ms": 0,
///     "usage": null, "refused": 0, "waited_ms": 0 });
/// let process: ProcessState = serde_json::from_value(json)?;
/// assert_eq!((process.pid, process.usage), (7, None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The process id in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The labels of what it has set aside or draws on, each once.
    pub labels: Vec<String>,
    /// The bytes it holds.
    pub held: u64,
    /// The bytes it has set aside and does not hold.
    pub undrawn: u64,
    /// When it opened the ledger, in milliseconds since 1970.
    pub since_ms: u64,
    /// The use of what it holds, if it publishes that.
    pub usage: Option<UsageState>,
    /// The number of its requests that were refused.
    pub refused: u64,
    /// The time for which its requests waited, in milliseconds; those that still wait are not counted.
    pub waited_ms: u64,
}

/// The share of one tenant.
///
/// ```
/// use bursar::metrics::TenantState;
///
/// let tenant = TenantState { name: "batch".into(), ceiling: 2 << 30, ..TenantState::default() };
/// assert_eq!(tenant.charged, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantState {
    /// The name of the tenant; empty for those who named none.
    pub name: String,
    /// The bytes it may always have.
    pub guarantee: u64,
    /// The bytes it may have at most.
    pub ceiling: u64,
    /// The bytes it has: held, set aside, and kept as credit by its accounts.
    pub charged: u64,
    /// The number of its requests that were refused.
    pub refused: u64,
    /// The time for which its requests waited, in milliseconds; those that still wait are not counted.
    pub waited_ms: u64,
}

/// A request that waits in the queue of a ledger.
///
/// ```
/// use bursar::metrics::QueuedState;
///
/// let waiting = QueuedState { pid: 7, bytes: 1 << 30, ..QueuedState::default() };
/// assert_eq!(serde_json::to_value(&waiting)?["bytes"], 1 << 30);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedState {
    /// The id of the process that asks, in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The name of the tenant it asks for.
    pub tenant: String,
    /// The bytes it waits for.
    pub bytes: u64,
    /// The priority of the request: higher ones are served first.
    pub priority: u8,
    /// When the request was made, in milliseconds since 1970.
    pub since_ms: u64,
}
