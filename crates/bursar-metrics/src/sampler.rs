//! Reading every ledger and asking the driver, at one moment.

mod reading;

use crate::state::{DeviceState, LedgerState, State, UnreadableLedger, UnreadableReason};
use bursar_core::{DeviceFacts, DeviceId, Driver};
use bursar_ledger::{Ledger, RefusalCounts, Subject, WaitHistogram};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The most devices in a state. More ledgers than that in one folder are not of one machine.
const DEVICES_MAX: usize = 64;

/// A way to sample the state of a machine: its driver, and the folder of ledgers.
///
/// Sampling opens no ledger, changes nothing and never fails: what cannot be read is in the state as such.
///
/// ```
/// use bursar::metrics::Sampler;
/// use bursar::sim::Sim;
///
/// let devices = Sim::builder().immediate().device(bursar::Bytes::gib(8)).named("sampled").build();
/// let state = Sampler::new(devices).sample();
/// let device = state.devices[0].ledger().expect("nothing is wrong with it");
/// assert_eq!((device.ordinal, device.total, device.held), (Some(0), 8 << 30, 0));
/// ```
#[derive(Clone)]
pub struct Sampler {
    folder: Result<PathBuf, String>,
    devices: Result<DriverDevices, String>,
}

/// The driver, with the facts about its devices that cannot change.
#[derive(Clone)]
struct DriverDevices {
    driver: Arc<dyn Driver>,
    name: String,
    facts: Vec<Option<DeviceFacts>>,
}

impl Sampler {
    /// Returns a sampler of the driver's devices and of all ledgers.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let facts = (0..driver.device_count()).map(|ordinal| driver.facts(DeviceId(ordinal)).ok()).collect();
        let name = driver.describe();
        Self { folder: default_folder(), devices: Ok(DriverDevices { driver, name, facts }) }
    }

    /// Returns a sampler of all ledgers, and the reason that there is no driver to ask.
    pub fn without_driver(why: impl Into<String>) -> Self {
        Self { folder: default_folder(), devices: Err(why.into()) }
    }

    /// Returns the same sampler with the ledgers of another folder than the one that `BURSAR_LEDGER_DIR` names.
    #[must_use]
    pub fn in_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Ok(folder.into()), ..self }
    }

    /// Reads every ledger and asks the driver.
    #[must_use]
    pub fn sample(&self) -> State {
        let mut state = State { at_ms: milliseconds(SystemTime::now()), ..State::default() };
        let mut known = HashSet::new();
        let folder = match &self.folder {
            Ok(folder) => folder.as_path(),
            Err(error) => {
                state.folder_error = Some(error.clone());
                return state;
            }
        };
        state.folder = folder.display().to_string();
        match &self.devices {
            Ok(devices) => {
                state.driver = Some(devices.name.clone());
                state.simulated = devices.driver.simulates();
                devices.sample_into(folder, &mut state.devices, &mut known);
                state.left_out = devices.facts.len().saturating_sub(DEVICES_MAX) as u64;
            }
            Err(why) => state.no_gpu = Some(why.clone()),
        }
        match Ledger::list_in(folder) {
            Ok(files) => {
                let others: Vec<&PathBuf> = files.iter().filter(|file| !known.contains(&name_of(file))).collect();
                let room = DEVICES_MAX.saturating_sub(state.devices.len()).min(others.len());
                state.devices.extend(others[..room].iter().filter_map(|file| of_file(file)));
                state.left_out += (others.len() - room) as u64;
            }
            Err(error) => state.folder_error = Some(error.to_string()),
        }
        state
    }
}

impl DriverDevices {
    /// Samples the driver's devices that processes share, and records the names of their ledgers' files.
    fn sample_into(&self, folder: &Path, states: &mut Vec<DeviceState>, known: &mut HashSet<String>) {
        for (ordinal, facts) in (0..).map(DeviceId).zip(&self.facts).take(DEVICES_MAX) {
            let facts = match facts {
                Some(facts) => Ok(facts.clone()),
                None => self.driver.facts(ordinal),
            };
            match facts {
                Ok(facts) if facts.shared => {
                    let file = Subject::device(&facts).file_name();
                    states.push(of_device(&*self.driver, ordinal, &facts, folder));
                    known.insert(file);
                }
                Ok(_) => {}
                Err(error) => states.push(DeviceState::Unreadable(UnreadableLedger {
                    uuid: format!("unknown-{}", ordinal.0),
                    ordinal: Some(ordinal.0),
                    name: None,
                    total: None,
                    reason: UnreadableReason::Driver,
                    error: error.to_string(),
                })),
            }
        }
    }
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn default_folder() -> Result<PathBuf, String> {
    Ledger::folder().map_err(|error| error.to_string())
}

/// Samples a device that the driver has. Memory used outside the ledger is measured, not taken from the file.
fn of_device(driver: &dyn Driver, ordinal: DeviceId, facts: &DeviceFacts, folder: &Path) -> DeviceState {
    let uuid = facts.uuid.to_string();
    let unreadable = |reason: UnreadableReason, error: &dyn fmt::Display| {
        DeviceState::Unreadable(UnreadableLedger {
            uuid: uuid.clone(),
            ordinal: Some(ordinal.0),
            name: Some(facts.name.clone()),
            total: Some(facts.total.get()),
            reason,
            error: error.to_string(),
        })
    };
    let reading = match Ledger::inspect_in(folder, &Subject::device(facts)) {
        Ok(reading) => reading,
        Err(error) => return unreadable(UnreadableReason::of(&error), &error),
    };
    let memory = match driver.memory(ordinal) {
        Ok(memory) => memory,
        Err(error) => return unreadable(UnreadableReason::Driver, &error),
    };
    let mut ledger = match &reading {
        Some(reading) => LedgerState { ordinal: Some(ordinal.0), ..reading::state_of(uuid, reading) },
        None => LedgerState {
            uuid,
            ordinal: Some(ordinal.0),
            name: facts.name.clone(),
            total: facts.total.get(),
            limit: facts.total.get(),
            refused: reading::refused(RefusalCounts::default()),
            waits: reading::waits(&WaitHistogram::default()),
            ..LedgerState::default()
        },
    };
    ledger.unmanaged = memory.used().get().saturating_sub(ledger.held);
    ledger.driver_free = Some(memory.free.get());
    ledger.free = ledger.free();
    DeviceState::Readable(ledger)
}

/// Samples a ledger whose device the driver does not have. Returns none if it is gone since it was listed.
fn of_file(file: &Path) -> Option<DeviceState> {
    let uuid = name_of(file).trim_end_matches(".ledger").to_owned();
    Some(match Ledger::inspect(file) {
        Ok(reading) => DeviceState::Readable(reading::state_of(uuid, &reading)),
        Err(_) if file.symlink_metadata().is_err() => return None,
        Err(error) => DeviceState::Unreadable(UnreadableLedger {
            uuid,
            ordinal: None,
            name: None,
            total: None,
            reason: UnreadableReason::of(&error),
            error: error.to_string(),
        }),
    })
}

fn milliseconds(moment: SystemTime) -> u64 {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.devices.as_ref().map(|devices| &devices.name);
        f.debug_struct("Sampler").field("driver", &driver).finish_non_exhaustive()
    }
}
