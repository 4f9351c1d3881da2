//! The driver and the devices of this process.
//!
//! They are opened when they are first needed, and never by importing. A forked child does not have them: the driver, and
//! whatever the parent's other threads were doing with it, are the parent's.
//!
//! Listing, planning and reserving only look at devices, and a context of CUDA takes half a gigabyte of one. So there are two
//! drivers: one that looks, [`Machine::observed`], and one that takes memory, [`Machine::context`]. Simulated devices have
//! one for both. So has a worker of `bursar run`: it has a context anyway, and a driver that only looks would have the whole
//! process pass the library that keeps it inside its share.

use crate::failure::Failure;
use bursar::device::DeviceContext;
use bursar::driver::{Choice, Driver, DriverChoiceError, OpenedDriver, SimDevices, cuda, observe, open};
use bursar::ledger::{Reservation, Subject};
use bursar::{Bytes, DeviceId};
use pyo3::prelude::*;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The driver of this process, and its devices.
#[derive(Debug)]
pub(crate) struct Machine {
    opened: OpenedDriver,
    /// True if its driver cannot take memory.
    only_looks: bool,
    has_warned: AtomicBool,
    observed: Vec<OnceLock<Arc<DeviceContext>>>,
    /// The contexts that take memory, where those that look cannot.
    taking: Vec<OnceLock<Arc<DeviceContext>>>,
}

/// The machine that calls use; none before the first of them.
static CURRENT: Mutex<Option<Arc<Machine>>> = Mutex::new(None);
/// The process that opened it, or zero: looked at before the lock, which another thread may have had during a fork.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

fn current() -> MutexGuard<'static, Option<Arc<Machine>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Returns the machine of this process. Opens it if needed, and warns once if its devices are simulated because there is no
    /// GPU.
    pub(crate) fn get(py: Python<'_>) -> Result<Arc<Self>, Failure> {
        let machine = Self::get_silently(py)?;
        machine.warn_if_simulated(py)?;
        Ok(machine)
    }

    /// Returns the machine of this process to a caller who refuses to use simulated devices that nobody asked for.
    pub(crate) fn get_silently(py: Python<'_>) -> Result<Arc<Self>, Failure> {
        py.detach(|| {
            check_not_forked()?;
            let mut current = current();
            match &*current {
                Some(machine) => Ok(machine.clone()),
                None => Ok(current.insert(Self::open(Choice::from_environment()?, None)?).clone()),
            }
        })
    }

    fn open(choice: Choice, devices: Option<SimDevices>) -> Result<Arc<Self>, Failure> {
        let before = OPENED_BY.swap(std::process::id(), Ordering::Relaxed);
        let opened = Self::open_driver(choice, devices);
        if opened.is_err() {
            OPENED_BY.store(before, Ordering::Relaxed);
        }
        let (opened, looks) = opened?;
        let slots = || (0..opened.driver.device_count()).map(|_| OnceLock::new()).collect();
        let (observed, taking) = (slots(), slots());
        Ok(Arc::new(Self {
            only_looks: looks && !opened.is_simulated,
            has_warned: AtomicBool::new(false),
            observed,
            taking,
            opened,
        }))
    }

    /// Opens a driver. Returns whether it is one that looks.
    fn open_driver(choice: Choice, devices: Option<SimDevices>) -> Result<(OpenedDriver, bool), DriverChoiceError> {
        let devices = match devices {
            Some(devices) => devices,
            None => SimDevices::from_environment()?,
        };
        let is_in_share = std::env::var_os(Reservation::VARIABLE).is_some_and(|token| !token.is_empty());
        match is_in_share {
            true => Ok((open(choice, &devices)?, false)),
            false => Ok((observe(choice, &devices)?, true)),
        }
    }

    /// Returns a device to look at, opened once.
    pub(crate) fn observed(&self, device: DeviceId) -> Result<Arc<DeviceContext>, Failure> {
        self.open_once(&self.observed, device, || Ok(self.opened.driver.clone()))
    }

    /// Returns a device to take memory of, opened once.
    pub(crate) fn context(&self, device: DeviceId) -> Result<Arc<DeviceContext>, Failure> {
        match self.only_looks {
            true => self.open_once(&self.taking, device, cuda),
            false => self.observed(device),
        }
    }

    fn open_once(
        &self,
        slots: &[OnceLock<Arc<DeviceContext>>],
        device: DeviceId,
        driver: impl FnOnce() -> bursar::Result<Arc<dyn Driver>>,
    ) -> Result<Arc<DeviceContext>, Failure> {
        let invalid = || bursar::Error::InvalidDevice { device, count: self.device_count() };
        let slot = slots.get(device.0 as usize).ok_or_else(invalid)?;
        if let Some(context) = slot.get() {
            return Ok(context.clone());
        }
        let context = DeviceContext::open(driver()?, device)?;
        Ok(slot.get_or_init(|| context).clone())
    }

    /// Has the pools of this process give back what they only cache of a device. Returns how much that was.
    pub(crate) fn trim(&self, device: DeviceId) -> Bytes {
        self.opened_context(device).map_or(Bytes::ZERO, |context| context.trim())
    }

    /// Returns a device to take memory of, if it is open.
    pub(crate) fn opened_context(&self, device: DeviceId) -> Option<&Arc<DeviceContext>> {
        let slots = if self.only_looks { &self.taking } else { &self.observed };
        slots.get(device.0 as usize)?.get()
    }

    /// Returns these devices to look at, or all that can be opened.
    pub(crate) fn all_observed(&self, devices: Option<&[u32]>) -> Result<Vec<Arc<DeviceContext>>, Failure> {
        match devices {
            Some(devices) => devices.iter().map(|device| self.observed(DeviceId(*device))).collect(),
            None => Ok(self.devices().filter_map(|device| self.observed(device).ok()).collect()),
        }
    }

    /// Returns the reason that its devices are simulated, if nobody asked for that.
    pub(crate) fn instead_of_cuda(&self) -> Option<&str> {
        self.opened.instead_of_cuda.as_deref()
    }

    /// Returns how many devices there are.
    pub(crate) fn device_count(&self) -> u32 {
        self.opened.driver.device_count()
    }

    /// Returns the devices, by their numbers.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.device_count()).map(DeviceId)
    }

    /// Returns the device that is meant where none is named: that of this worker's share, or the first.
    pub(crate) fn default_device(&self) -> DeviceId {
        let of_share = Reservation::file_from_environment().filter(|_| self.device_count() > 1).and_then(|file| {
            let is_of_share =
                |context: &Arc<DeviceContext>| file.ends_with(Subject::device(context.facts()).file_name());
            self.devices().find(|device| self.observed(*device).is_ok_and(|context| is_of_share(&context)))
        });
        of_share.unwrap_or(DeviceId(0))
    }

    /// Returns the kind of its devices, as Python has it.
    pub(crate) const fn kind(&self) -> &'static str {
        if self.opened.is_simulated { "simulated" } else { "cuda" }
    }

    fn warn_if_simulated(&self, py: Python<'_>) -> PyResult<()> {
        let Some(why) = &self.opened.instead_of_cuda else { return Ok(()) };
        if self.has_warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let category = py.import("bursar.errors")?.getattr("SimulatedWarning")?;
        let message = CString::new(format!("using simulated devices ({why})"))?;
        PyErr::warn(py, &category, &message, caller_level(py)?)
    }
}

/// Returns how many frames above this call the program is that uses the package, as a warning's `stacklevel` has it.
fn caller_level(py: Python<'_>) -> PyResult<i32> {
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    let mut level = 1;
    while !frame.is_none() {
        let module: Option<String> = frame.getattr("f_globals")?.call_method1("get", ("__name__",))?.extract()?;
        if module.is_none_or(|name| name.split('.').next() != Some("bursar")) {
            break;
        }
        frame = frame.getattr("f_back")?;
        level += 1;
    }
    Ok(level)
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
    if name.trim().is_empty() {
        return Err(DriverChoiceError::Unknown { text: name.to_owned() }.into());
    }
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
