//! Memory over time, in bounded memory.
//!
//! A device's samples are kept in rings of growing steps: [`Thinning`] says how many and how far apart. Of each step the
//! sample is kept at which the device was fullest, whole: nothing is averaged, so that every point of a history is what the
//! ledger said at one moment, and peaks survive. A moment at which the ledger could not be read is kept as such.
//!
//! [`HistoryFile`] keeps it across restarts, and [`view`](History::view) returns a part of it as columns.
//!
//! A sample keeps the [`PARTIES_MAX`] largest processes and tenants; the rest is the difference to what is held.

mod file;
mod record;
mod ring;
mod sample;
mod view;

pub use file::{HistoryFile, HistoryFileError};
pub use ring::Thinning;
pub use sample::{DeviceSample, Figures, Party, PartyKind, Share};
pub use view::{DeviceView, HistoryQuery, HistoryView, PartyView};

use crate::state::State;
use ring::Rings;
use sample::Parties;
use std::sync::Arc;

/// The most processes, and the most tenants, that a sample keeps.
const PARTIES_MAX: usize = 16;

/// The most devices that a history keeps; one that was not seen for longest goes first.
const DEVICES_MAX: usize = 64;

/// The memory of each device over time: a bounded ring of samples, thinned with age.
///
/// ```
/// use bursar::metrics::{DeviceState, History, LedgerState, State};
///
/// let mut history = History::default();
/// for (at_ms, held) in [(1_000, 5), (2_000, 9), (3_000, 2)] {
///     let mut state = State::default();
///     state.at_ms = at_ms;
///     state.devices.push(DeviceState::Readable(LedgerState { uuid: "GPU-1".into(), held, ..LedgerState::default() }));
///     history.record(&state);
/// }
/// let samples: Vec<_> = history.devices()[0].samples().collect();
/// assert_eq!(samples.iter().map(|sample| sample.at_ms).collect::<Vec<_>>(), [1_000, 2_000, 3_000]);
/// assert_eq!(samples[1].figures.map(|figures| figures.held), Some(9));
/// ```
#[derive(Clone, Debug, Default)]
pub struct History {
    thinning: Thinning,
    devices: Vec<DeviceHistory>,
    parties: Parties,
}

/// The history of one device.
///
/// ```
/// # use bursar::metrics::{DeviceState, History, LedgerState, State};
/// let mut state = State::default();
/// state.devices.push(DeviceState::Readable(LedgerState { uuid: "HOST".into(), ..LedgerState::default() }));
/// let mut history = History::default();
/// history.record(&state);
/// assert_eq!((history.devices()[0].uuid(), history.devices()[0].label()), ("HOST", "host"));
/// ```
#[derive(Clone, Debug)]
pub struct DeviceHistory {
    uuid: String,
    label: String,
    name: String,
    rings: Rings,
}

impl History {
    /// Returns an empty history that thins in this way.
    pub fn new(thinning: Thinning) -> Self {
        Self { thinning, ..Self::default() }
    }

    /// Records a state. What was recorded of later moments goes: the clock was set back.
    pub fn record(&mut self, state: &State) {
        self.record_and(state, |_, _, _, _| {});
    }

    /// Records a state and shows each sample with the UUID, the label and the name of its device.
    fn record_and(&mut self, state: &State, mut show: impl FnMut(&str, &str, &str, &DeviceSample)) {
        for device in &state.devices {
            let sample = DeviceSample::of(state.at_ms, device, &mut self.parties);
            let (label, name) = (device.label(), device.ledger().map_or("", |ledger| &ledger.name));
            show(device.uuid(), &label, name, &sample);
            self.insert(device.uuid(), &label, name, sample);
        }
        self.parties.forget_unused();
    }

    const fn parties(&mut self) -> &mut Parties {
        &mut self.parties
    }

    /// Inserts a sample of a device.
    fn insert(&mut self, uuid: &str, label: &str, name: &str, sample: DeviceSample) {
        let at = self.devices.iter().position(|device| device.uuid == uuid).unwrap_or_else(|| self.add(uuid));
        let device = &mut self.devices[at];
        device.rings.push(Arc::new(sample));
        if device.label != label {
            label.clone_into(&mut device.label);
        }
        if device.name != name && !name.is_empty() {
            name.clone_into(&mut device.name);
        }
    }

    fn add(&mut self, uuid: &str) -> usize {
        if self.devices.len() == DEVICES_MAX {
            let oldest = self.devices.iter().enumerate().min_by_key(|(_, device)| device.last().map(|last| last.at_ms));
            let oldest = oldest.map_or(0, |(at, _)| at);
            self.devices.remove(oldest);
        }
        let rings = Rings::new(&self.thinning);
        self.devices.push(DeviceHistory { uuid: uuid.to_owned(), label: String::new(), name: String::new(), rings });
        self.devices.len() - 1
    }

    /// Returns the devices, in the order in which they appeared.
    pub fn devices(&self) -> &[DeviceHistory] {
        &self.devices
    }

    /// Returns the history of one device.
    pub fn device(&self, uuid: &str) -> Option<&DeviceHistory> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }

    /// Returns the way in which it thins.
    pub fn thinning(&self) -> &Thinning {
        &self.thinning
    }
}

impl DeviceHistory {
    /// Returns the UUID of the device, or `HOST`.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Returns the short name that the device had last: `gpu0`, `host` or `unknown`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the name of the device; empty where it was never readable.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the samples in the order of time, each moment once and at the finest step that is kept of it.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &DeviceSample> {
        self.rings.samples().map(|sample| &**sample)
    }

    /// Returns the latest sample.
    pub fn last(&self) -> Option<&DeviceSample> {
        self.samples().next_back()
    }
}
