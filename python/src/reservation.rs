//! Memory that is set aside, as Python has it.

use crate::failure::Failure;
use crate::size::Size;
use bursar::ledger;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that is set aside for this process until it is released, or the object is gone.
#[pyclass(frozen, module = "bursar")]
#[derive(Debug)]
pub(crate) struct Reservation {
    /// None once it is released.
    reserved: Mutex<Option<Arc<ledger::Reservation>>>,
    /// The number of the device; none for the machine's memory, and for a device that this process did not open.
    device: Option<u32>,
    /// The process that made it.
    owner: u32,
}

impl Reservation {
    pub(crate) fn new(reserved: ledger::Reservation, device: Option<u32>) -> Self {
        Self { reserved: Mutex::new(Some(Arc::new(reserved))), device, owner: std::process::id() }
    }

    /// Returns the reservation, for a budget that draws on it.
    pub(crate) fn reserved(&self) -> Result<Arc<ledger::Reservation>, Failure> {
        self.check_owner()?;
        self.lock().clone().ok_or(Failure::Released)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<ledger::Reservation>>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_owner(&self) -> Result<(), Failure> {
        if std::process::id() == self.owner { Ok(()) } else { Err(Failure::Forked { opener: self.owner }) }
    }
}

#[pymethods]
impl Reservation {
    /// The number of bytes set aside.
    #[getter]
    fn bytes(&self) -> Result<u64, Failure> {
        Ok(self.reserved()?.bytes().get())
    }

    /// The bytes of it that this process holds.
    #[getter]
    fn held(&self) -> Result<u64, Failure> {
        Ok(self.reserved()?.held().get())
    }

    /// The bytes of it that nobody holds.
    #[getter]
    fn undrawn(&self) -> Result<u64, Failure> {
        Ok(self.reserved()?.undrawn().get())
    }

    /// The label by which `bursar ledger` shows it.
    #[getter]
    fn label(&self, py: Python<'_>) -> Result<String, Failure> {
        let reserved = self.reserved()?;
        Ok(py.detach(|| reserved.label()))
    }

    /// The UUID of the device that it is memory of.
    #[getter]
    fn uuid(&self) -> Result<String, Failure> {
        Ok(self.reserved()?.ledger().subject().uuid.to_string())
    }

    /// The number of the device.
    #[getter]
    const fn device(&self) -> Option<u32> {
        self.device
    }

    /// True once it was released.
    #[getter]
    fn released(&self) -> Result<bool, Failure> {
        self.check_owner()?;
        Ok(self.lock().is_none())
    }

    /// Gives back what is not held.
    fn release(&self, py: Python<'_>) -> Result<(), Failure> {
        self.check_owner()?;
        let reserved = self.lock().take();
        py.detach(|| drop(reserved));
        Ok(())
    }

    /// Gives back what it has beyond `to`.
    fn shrink(&self, py: Python<'_>, to: Size) -> Result<(), Failure> {
        let reserved = self.reserved()?;
        Ok(py.detach(|| reserved.shrink(to.0))?)
    }

    /// Makes a reservation of its own out of bytes that nobody holds.
    fn split(&self, py: Python<'_>, bytes: Size) -> Result<Self, Failure> {
        let reserved = self.reserved()?;
        let split = py.detach(|| reserved.split(bytes.0))?;
        Ok(Self::new(split, self.device))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> Result<(), Failure> {
        self.release(py)
    }

    fn __repr__(&self) -> String {
        let device = self.device.map_or(String::new(), |device| format!(" of gpu{device}"));
        match self.reserved() {
            Ok(reserved) => format!("<bursar.Reservation: {}{device}>", reserved.bytes()),
            Err(Failure::Forked { opener }) => format!("<bursar.Reservation{device} of process {opener}>"),
            Err(_) => format!("<bursar.Reservation{device}, released>"),
        }
    }
}
