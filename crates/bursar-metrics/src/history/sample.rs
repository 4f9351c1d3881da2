//! One device at one moment, as history keeps it.

use super::PARTIES_MAX;
use crate::state::{DeviceState, LedgerState};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::Arc;

/// One device at one moment.
///
/// ```
/// # use bursar::metrics::{DeviceState, History, ProcessState, LedgerState, State};
/// # let processes = vec![ProcessState { pid: 7, name: "train".into(), held: 5, ..ProcessState::default() }];
/// # let device = LedgerState { uuid: "GPU-1".into(), held: 5, processes, ..LedgerState::default() };
/// # let mut state = State::default();
/// # state.devices.push(DeviceState::Readable(device));
/// # let mut history = History::default();
/// # history.record(&state);
/// let sample = history.devices()[0].last().expect("one was recorded");
/// assert_eq!((sample.processes[0].party.name.as_str(), sample.processes[0].bytes), ("train", 5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSample {
    /// The moment, in milliseconds since 1970.
    pub at_ms: u64,
    /// The figures of the device; none where it could not be read.
    pub figures: Option<Figures>,
    /// The bytes that the largest processes held, the largest first.
    pub processes: Box<[Share]>,
    /// The bytes that the largest tenants had, the largest first.
    pub tenants: Box<[Share]>,
}

/// The figures of a device at one moment.
///
/// ```
/// let figures = bursar::metrics::Figures { held: 3, undrawn: 2, unmanaged: 1, ..Default::default() };
/// assert_eq!(figures.taken(), 6);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// All of the device's memory.
    pub total: u64,
    /// The limit of what all may hold together.
    pub limit: u64,
    /// The bytes that are held.
    pub held: u64,
    /// The bytes that were set aside and are not held.
    pub undrawn: u64,
    /// Of what is held, the bytes that pools cache; none if no process publishes that.
    pub cached: Option<u64>,
    /// The bytes used outside the ledger.
    pub unmanaged: u64,
    /// The number of requests that wait.
    pub waiting: u32,
    /// The number of refusals since the ledger was made.
    pub refused: u64,
}

impl Figures {
    /// Returns what is held, set aside or unmanaged.
    pub const fn taken(&self) -> u64 {
        self.held.saturating_add(self.undrawn).saturating_add(self.unmanaged)
    }

    fn of(ledger: &LedgerState) -> Self {
        Self {
            total: ledger.total,
            limit: ledger.limit,
            held: ledger.held,
            undrawn: ledger.undrawn,
            cached: ledger.cached,
            unmanaged: ledger.unmanaged,
            waiting: u32::try_from(ledger.waiting.len()).unwrap_or(u32::MAX),
            refused: ledger.refused_in_all(),
        }
    }
}

/// The bytes of one party in a sample.
///
/// ```
/// use bursar::metrics::{Party, PartyKind, Share};
///
/// let party = Party { kind: PartyKind::Tenant, pid: 0, name: "batch".into() };
/// assert_eq!(Share { party: party.into(), bytes: 7 }.bytes, 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The process or tenant.
    pub party: Arc<Party>,
    /// The bytes that a process held, or that a tenant had.
    pub bytes: u64,
}

/// A process or a tenant.
///
/// ```
/// use bursar::metrics::{Party, PartyKind};
///
/// let party = Party { kind: PartyKind::Process, pid: 7, name: "train".into() };
/// assert_eq!(party.to_string(), "train (pid 7)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Party {
    /// Its kind.
    pub kind: PartyKind,
    /// The process id in its own namespace; 0 for a tenant.
    pub pid: u32,
    /// Its name; a tenant's may be empty, for those who named none.
    pub name: String,
}

/// The kind of a [`Party`].
///
/// ```
/// assert_ne!(bursar::metrics::PartyKind::Process, bursar::metrics::PartyKind::Tenant);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartyKind {
    /// A process.
    Process,
    /// A tenant.
    Tenant,
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            PartyKind::Process => write!(f, "{} (pid {})", self.name, self.pid),
            PartyKind::Tenant => f.write_str(&self.name),
        }
    }
}

impl DeviceSample {
    /// Reduces a device's state to a sample.
    pub(super) fn of(at_ms: u64, device: &DeviceState, parties: &mut Parties) -> Self {
        let Some(ledger) = device.ledger() else {
            return Self { at_ms, figures: None, processes: Box::default(), tenants: Box::default() };
        };
        let processes = ledger.processes.iter().map(|process| (process.pid, &process.name, process.held));
        let tenants = ledger.tenants.iter().map(|tenant| (0, &tenant.name, tenant.charged));
        Self {
            at_ms,
            figures: Some(Figures::of(ledger)),
            processes: parties.largest(PartyKind::Process, processes.collect()),
            tenants: parties.largest(PartyKind::Tenant, tenants.collect()),
        }
    }

    /// Returns whether it says more than `other` of the same step: it could be read, and more was taken.
    pub(super) fn is_fuller_than(&self, other: &Self) -> bool {
        let taken = |sample: &Self| sample.figures.as_ref().map(Figures::taken);
        taken(self) > taken(other)
    }
}

/// The parties that samples name, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Parties {
    known: HashSet<Arc<Party>>,
    /// The number of parties at which those that no sample names are forgotten.
    forget_at: usize,
}

impl Parties {
    const FEW: usize = 1024;

    /// Returns the one copy of a party.
    pub(super) fn intern(&mut self, party: Party) -> Arc<Party> {
        if let Some(known) = self.known.get(&party) {
            return known.clone();
        }
        let party = Arc::new(party);
        self.known.insert(party.clone());
        party
    }

    /// Returns the largest of those that have anything, the largest first.
    fn largest(&mut self, kind: PartyKind, mut all: Vec<(u32, &String, u64)>) -> Box<[Share]> {
        all.retain(|&(.., bytes)| bytes > 0);
        all.sort_by_key(|&(pid, name, bytes)| (std::cmp::Reverse(bytes), pid, name));
        all.truncate(PARTIES_MAX);
        let share = |(pid, name, bytes): (u32, &String, u64)| Share {
            party: self.intern(Party { kind, pid, name: name.clone() }),
            bytes,
        };
        all.into_iter().map(share).collect()
    }

    /// Forgets the parties that no sample names, once there are twice as many as after the last time.
    pub(super) fn forget_unused(&mut self) {
        if self.known.len() >= self.forget_at.max(Self::FEW) {
            self.known.retain(|party| Arc::strong_count(party) > 1);
            self.forget_at = 2 * self.known.len();
        }
    }
}
