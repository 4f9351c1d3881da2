//! The driver and the devices of this process.
//!
//! They are opened when they are first needed, and never by importing. A forked child does not have them: the driver, and
//! whatever the parent's other threads were doing with it, are the parent's.

use crate::failure::Failure;
use bursar::DeviceId;
use bursar::device::DeviceContext;
use bursar::driver::{Choice, DriverChoiceError, OpenedDriver, SimDevices, open};
use pyo3::prelude::*;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The driver of this process, and its devices.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) opened: OpenedDriver,
    contexts: Vec<OnceLock<Arc<DeviceContext>>>,
}

/// The machine that calls use; none before the first of them.
static CURRENT: Mutex<Option<Arc<Machine>>> = Mutex::new(None);
/// The process that opened it, or zero: looked at before the lock, which another thread may have had during a fork.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

fn current() -> MutexGuard<'static, Option<Arc<Machine>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Returns the machine of this process. Opens it if needed, and warns if its devices are simulated because there is no GPU.
    pub(crate) fn get(py: Python<'_>) -> Result<Arc<Self>, Failure> {
        let (machine, is_new) = py.detach(|| {
            check_not_forked()?;
            let mut current = current();
            match &*current {
                Some(machine) => Ok::<_, Failure>((machine.clone(), false)),
                None => Ok((current.insert(Self::open(Choice::from_environment()?, None)?).clone(), true)),
            }
        })?;
        if is_new {
            machine.warn_if_simulated(py)?;
        }
        Ok(machine)
    }

    fn open(choice: Choice, devices: Option<SimDevices>) -> Result<Arc<Self>, Failure> {
        let before = OPENED_BY.swap(std::process::id(), Ordering::Relaxed);
        let opened = Self::open_driver(choice, devices);
        if opened.is_err() {
            OPENED_BY.store(before, Ordering::Relaxed);
        }
        let opened = opened?;
        let contexts = (0..opened.driver.device_count()).map(|_| OnceLock::new()).collect();
        Ok(Arc::new(Self { opened, contexts }))
    }

    fn open_driver(choice: Choice, devices: Option<SimDevices>) -> Result<OpenedDriver, DriverChoiceError> {
        let devices = match devices {
            Some(devices) => devices,
            None => SimDevices::from_environment()?,
        };
        open(choice, &devices)
    }

    /// Returns a device, opened once.
    pub(crate) fn context(&self, device: DeviceId) -> Result<Arc<DeviceContext>, Failure> {
        let count = self.opened.driver.device_count();
        let invalid = || bursar::Error::InvalidDevice { device, count };
        let slot = self.contexts.get(device.0 as usize).ok_or_else(invalid)?;
        if let Some(context) = slot.get() {
            return Ok(context.clone());
        }
        let context = DeviceContext::open(self.opened.driver.clone(), device)?;
        Ok(slot.get_or_init(|| context).clone())
    }

    /// Returns these devices, or all that can be opened.
    pub(crate) fn contexts(&self, devices: Option<&[u32]>) -> Result<Vec<Arc<DeviceContext>>, Failure> {
        match devices {
            Some(devices) => devices.iter().map(|device| self.context(DeviceId(*device))).collect(),
            None => Ok(self.devices().filter_map(|device| self.context(device).ok()).collect()),
        }
    }

    /// Returns the devices, by their numbers.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.opened.driver.device_count()).map(DeviceId)
    }

    /// Returns the kind of its devices, as Python has it.
    pub(crate) const fn kind(&self) -> &'static str {
        if self.opened.is_simulated { "simulated" } else { "cuda" }
    }

    fn warn_if_simulated(&self, py: Python<'_>) -> PyResult<()> {
        let Some(why) = &self.opened.instead_of_cuda else { return Ok(()) };
        let category = py.import("bursar.errors")?.getattr("SimulatedWarning")?;
        let message = CString::new(format!("using simulated devices ({why})"))?;
        PyErr::warn(py, &category, &message, 2)
    }
}

/// Fails in a child that was forked from the process that opened the devices.
pub(crate) fn check_not_forked() -> Result<(), Failure> {
    match OPENED_BY.load(Ordering::Relaxed) {
        0 => Ok(()),
        opener if opener == std::process::id() => Ok(()),
        opener => Err(Failure::Forked { opener }),
    }
}

/// Returns the kind of driver that is used and its description, and opens it if needed.
#[pyfunction]
pub(crate) fn driver(py: Python<'_>) -> Result<(&'static str, String), Failure> {
    let machine = Machine::get(py)?;
    Ok((machine.kind(), machine.opened.driver.describe()))
}

/// Has later calls use this driver.
#[pyfunction]
pub(crate) fn use_driver(py: Python<'_>, name: &str, sim_devices: Option<&str>) -> Result<(), Failure> {
    let choice: Choice = name.parse()?;
    let devices: Option<SimDevices> = sim_devices.map(str::parse).transpose().map_err(DriverChoiceError::from)?;
    let machine = py.detach(|| {
        check_not_forked()?;
        let machine = Machine::open(choice, devices)?;
        *current() = Some(machine.clone());
        Ok::<_, Failure>(machine)
    })?;
    Ok(machine.warn_if_simulated(py)?)
}
