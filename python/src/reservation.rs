//! Memory that is set aside, as Python has it.

use crate::failure::{Failure, GivenBack, leaving};
use crate::size::Size;
use bursar::error::{Claims, ExternalError};
use bursar::ledger::{self, LedgerAccount};
use bursar::memory::Account;
use bursar::{Bytes, DeviceId, Error};
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Returns the error of a charge to a reservation that was given back.
fn given_back() -> Error {
    Error::External(ExternalError::new(GivenBack, false))
}

/// A reservation as its object and the pool that draws on it share it. It lasts until it is released, or neither has it; what is
/// held then goes back as the pool gives it back.
#[derive(Debug)]
pub(crate) struct Drawn {
    /// The UUID of the device.
    uuid: String,
    ledger: ledger::Ledger,
    state: RwLock<State>,
    /// This process's account with the ledger, which memory is charged to that slept when the reservation was released, and wakes.
    account: OnceLock<LedgerAccount>,
}

#[derive(Debug)]
struct State {
    /// None once it is released and nothing of it is held.
    reserved: Option<Arc<ledger::Reservation>>,
    is_released: bool,
    /// The bytes that are charged to the process's account instead.
    elsewhere: Bytes,
    /// Those who have it: its object, and pools.
    users: u32,
}

impl Drawn {
    /// Makes it for the first who has it.
    pub(crate) fn new(reserved: ledger::Reservation) -> Self {
        let ledger = reserved.ledger().clone();
        let (uuid, reserved) = (ledger.subject().uuid.to_string(), Some(Arc::new(reserved)));
        let state = State { reserved, is_released: false, elsewhere: Bytes::ZERO, users: 1 };
        Self { uuid, ledger, state: RwLock::new(state), account: OnceLock::new() }
    }

    /// Makes an object that has it too, for a device that this process need not have opened.
    pub(crate) fn object(self: Arc<Self>) -> Reservation {
        self.join();
        Reservation::of(self, None)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails where it is not memory of the device that has this ledger.
    pub(crate) fn check_is_of(&self, ledger: &ledger::Ledger, device: DeviceId) -> Result<(), Failure> {
        match self.open()?.ledger().is_same(ledger) {
            true => Ok(()),
            false => Err(Failure::Value {
                what: format!("the reservation is of {}, and {device} is another device", self.uuid),
            }),
        }
    }

    pub(crate) fn is_released(&self) -> bool {
        self.read().is_released
    }

    /// Counts one more who has it.
    pub(crate) fn join(&self) {
        self.write().users += 1;
    }

    /// Counts one less who has it. It is released when nobody has.
    pub(crate) fn leave(&self) {
        let mut state = self.write();
        state.users = state.users.saturating_sub(1);
        if state.users == 0 {
            state.release();
        }
    }

    fn release_all(&self) {
        self.write().release();
    }

    fn open(&self) -> Result<Arc<ledger::Reservation>, Failure> {
        let state = self.read();
        state.reserved.clone().filter(|_| !state.is_released).ok_or(Failure::Released)
    }

    /// Charges while it is not released. No lock is held meanwhile, so a charge that a release overtook is taken back.
    fn charge_by(
        &self,
        bytes: Bytes,
        charge: impl FnOnce(&ledger::Reservation) -> bursar::Result<()>,
    ) -> bursar::Result<()> {
        let reserved = self.open().map_err(|_| given_back())?;
        charge(&reserved)?;
        if self.is_released() {
            reserved.release(bytes);
            self.write().settle();
            return Err(given_back());
        }
        Ok(())
    }

    /// Returns this process's account with the ledger.
    fn account(&self) -> bursar::Result<&LedgerAccount> {
        match self.account.get() {
            Some(account) => Ok(account),
            None => {
                let account = self.ledger.account()?;
                Ok(self.account.get_or_init(|| account))
            }
        }
    }

    /// Takes the reservation out for those who draw on it by a token, unless something here uses it.
    fn take(&self) -> Result<ledger::Reservation, Failure> {
        let mut state = self.write();
        if state.users > 1 {
            return Err(Failure::Value {
                what: "a pool draws on the reservation, which it cannot share by a token".into(),
            });
        }
        if state.reserved.as_ref().is_some_and(|reserved| reserved.ledger().file().is_none()) {
            let what = "the device is of this process alone: no other can draw on memory of it";
            return Err(Failure::Value { what: what.into() });
        }
        let reserved = state.reserved.take().filter(|_| !state.is_released).ok_or(Failure::Released)?;
        match Arc::try_unwrap(reserved) {
            Ok(reserved) => {
                state.is_released = true;
                Ok(reserved)
            }
            Err(used) => {
                state.reserved = Some(used);
                Err(Failure::Value { what: "another thread is using the reservation".into() })
            }
        }
    }

    /// Returns the reservation while something of it may be held.
    fn reserved(&self) -> Option<Arc<ledger::Reservation>> {
        self.read().reserved.clone()
    }
}

impl State {
    fn release(&mut self) {
        self.is_released = true;
        self.settle();
    }

    /// Gives back what is not held.
    fn settle(&mut self) {
        let Some(reserved) = &self.reserved else { return };
        match reserved.held() {
            Bytes::ZERO => self.reserved = None,
            // One that draws on another's cannot be shrunk: but for its credit, what it does not hold is the other's already.
            held => drop(reserved.shrink(held)),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Account for Drawn {
    fn charge(&self, bytes: Bytes) -> bursar::Result<()> {
        self.charge_by(bytes, |reserved| reserved.charge(bytes))
    }

    fn try_charge(&self, bytes: Bytes) -> bursar::Result<()> {
        self.charge_by(bytes, |reserved| reserved.try_charge(bytes))
    }

    fn charge_within(&self, bytes: Bytes, patience: Duration) -> bursar::Result<()> {
        match self.charge_by(bytes, |reserved| reserved.charge_within(bytes, patience)) {
            Err(_) if self.is_released() => {
                self.account()?.charge_within(bytes, patience)?;
                self.write().elsewhere += bytes;
                Ok(())
            }
            charged => charged,
        }
    }

    fn release(&self, bytes: Bytes) {
        if !self.is_released() {
            return self.reserved().into_iter().for_each(|reserved| reserved.release(bytes));
        }
        let mut state = self.write();
        let elsewhere = bytes.min(state.elsewhere);
        state.elsewhere -= elsewhere;
        self.account.get().into_iter().for_each(|account| account.release(elsewhere));
        state.reserved.iter().for_each(|reserved| reserved.release(bytes.saturating_sub(elsewhere)));
        state.settle();
    }

    fn note_refusal(&self, error: &Error) {
        match (self.reserved(), self.account.get()) {
            (Some(reserved), _) => reserved.note_refusal(error),
            (None, account) => account.into_iter().for_each(|account| account.note_refusal(error)),
        }
    }

    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        match self.reserved() {
            Some(reserved) => reserved.claims(bytes),
            None => self.account.get().and_then(|account| account.claims(bytes)),
        }
    }

    fn name(&self) -> Option<String> {
        self.reserved().and_then(|reserved| reserved.name())
    }
}

/// Memory that is set aside for this process until it is released, or the object is gone.
#[pyclass(frozen, module = "bursar")]
#[derive(Debug)]
pub(crate) struct Reservation {
    drawn: Arc<Drawn>,
    /// The number of the device; none for the machine's memory, and for a device that this process did not open.
    device: Option<u32>,
    /// The process that made it.
    owner: u32,
    /// True once its block was entered.
    is_entered: AtomicBool,
}

impl Reservation {
    pub(crate) fn new(reserved: ledger::Reservation, device: Option<u32>) -> Self {
        Self::of(Arc::new(Drawn::new(reserved)), device)
    }

    fn of(drawn: Arc<Drawn>, device: Option<u32>) -> Self {
        Self { drawn, device, owner: std::process::id(), is_entered: AtomicBool::new(false) }
    }

    /// Returns the account for a pool that draws on it, unless it is released.
    pub(crate) fn drawn(&self) -> Result<Arc<Drawn>, Failure> {
        self.reserved().map(|_| self.drawn.clone())
    }

    fn reserved(&self) -> Result<Arc<ledger::Reservation>, Failure> {
        self.check_owner()?;
        self.drawn.open()
    }

    fn check_owner(&self) -> Result<(), Failure> {
        if std::process::id() == self.owner { Ok(()) } else { Err(Failure::Forked { opener: self.owner }) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.check_owner().is_ok() {
            self.drawn.leave();
        }
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
    fn uuid(&self) -> &str {
        &self.drawn.uuid
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
        Ok(self.drawn.is_released())
    }

    /// Gives back what is not held, at once, and the rest as the pool gives it back.
    fn release(&self, py: Python<'_>) -> Result<(), Failure> {
        self.check_owner()?;
        py.detach(|| self.drawn.release_all());
        Ok(())
    }

    /// Gives back what it has beyond `to`.
    fn shrink(&self, py: Python<'_>, to: Size) -> Result<(), Failure> {
        let reserved = self.reserved()?;
        if self.device.is_none() {
            return Err(Failure::value(
                "a share is not shrunk by a worker that draws on it: whoever started the worker has set it aside",
            ));
        }
        Ok(py.detach(|| reserved.shrink(to.0))?)
    }

    /// Makes a reservation of its own out of bytes that nobody holds.
    fn split(&self, py: Python<'_>, bytes: Size) -> Result<Self, Failure> {
        let reserved = self.reserved()?;
        let split = py.detach(|| reserved.split(bytes.0))?;
        Ok(Self::new(split, self.device))
    }

    /// Hands it on to processes that draw on it by a token. It counts as released here.
    fn delegate(&self, py: Python<'_>) -> Result<Delegation, Failure> {
        self.check_owner()?;
        let delegation = py.detach(|| Ok::<_, Failure>(self.drawn.take()?.delegate()?))?;
        Ok(Delegation { given: Mutex::new(Some(delegation)), owner: self.owner })
    }

    /// Enters its one block, unless it was released.
    fn __enter__(this: Bound<'_, Self>) -> Result<Bound<'_, Self>, Failure> {
        this.get().reserved()?;
        if this.get().is_entered.swap(true, Ordering::Relaxed) {
            let why = "the block has begun already: a reservation has one, and is released at its end";
            return Err(PyRuntimeError::new_err(why).into());
        }
        Ok(this)
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leaving(raised, self.release(py))
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

/// A block of Python that has a reservation, and releases it at its end. That is native, so that no signal's handler comes
/// between the end of the block and the release.
#[pyclass(frozen, subclass, module = "bursar._native")]
#[derive(Debug)]
pub(crate) struct ReservationBlock {
    reservation: Mutex<Option<Py<Reservation>>>,
    /// The request in words.
    text: String,
    /// Set once it asks.
    has_asked: AtomicBool,
}

impl Drop for ReservationBlock {
    /// Warns of a request that never asked. The usual end runs nothing of Python's, where the exception of a signal's handler would be
    /// lost.
    fn drop(&mut self) {
        if *self.has_asked.get_mut() {
            return;
        }
        let text = CString::new(format!("{} was never entered, awaited or waited for", self.text)).unwrap_or_default();
        // An interpreter that ends warns of nothing. An exception may be on its way past here.
        let _ = Python::try_attach(|py| {
            let passing = PyErr::take(py);
            if let Err(raised) = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1) {
                raised.write_unraisable(py, None);
            }
            if let Some(passing) = passing {
                passing.restore(py);
            }
        });
    }
}

#[pymethods]
impl ReservationBlock {
    #[new]
    #[pyo3(signature = (size, device, *_arguments))]
    fn new(size: u64, device: &Bound<'_, PyAny>, _arguments: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let named = if device.is_none() { String::new() } else { format!(", device={}", device.repr()?) };
        let text = format!("<bursar.reserve({size}{named})>");
        Ok(Self { reservation: Mutex::new(None), text, has_asked: AtomicBool::new(false) })
    }

    fn __repr__(&self) -> &str {
        &self.text
    }

    /// Says that it asks now; returns whether it is the first time.
    fn ask(&self) -> bool {
        !self.has_asked.swap(true, Ordering::AcqRel)
    }

    /// Keeps a reservation until the end of the block, and returns it.
    fn keep(&self, py: Python<'_>, reservation: Py<Reservation>) -> Py<Reservation> {
        *self.reservation.lock().unwrap_or_else(PoisonError::into_inner) = Some(reservation.clone_ref(py));
        reservation
    }

    /// Releases the reservation, if there is one.
    fn release(&self, py: Python<'_>) -> Result<(), Failure> {
        let kept = self.reservation.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or(Ok(()), |kept| kept.get().release(py))
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leaving(raised, self.release(py))
    }
}

/// Memory that was set aside here and that other processes draw on. It lasts while this or one of them does.
#[pyclass(frozen, module = "bursar")]
#[derive(Debug)]
pub(crate) struct Delegation {
    /// None once it was released.
    given: Mutex<Option<ledger::Delegation>>,
    /// The process that made it.
    owner: u32,
}

impl Delegation {
    fn lock(&self) -> Result<MutexGuard<'_, Option<ledger::Delegation>>, Failure> {
        if std::process::id() != self.owner {
            return Err(Failure::Forked { opener: self.owner });
        }
        Ok(self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn read<T: Send>(&self, py: Python<'_>, read: impl FnOnce(&ledger::Delegation) -> T + Send) -> Result<T, Failure> {
        py.detach(|| Ok(read(self.lock()?.as_ref().ok_or(Failure::Released)?)))
    }
}

#[pymethods]
impl Delegation {
    /// The text by which other processes draw on it.
    #[getter]
    fn token(&self, py: Python<'_>) -> Result<String, Failure> {
        self.read(py, ledger::Delegation::token)
    }

    /// The number of bytes set aside.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.read(py, |given| given.bytes().get())
    }

    /// The bytes that those who draw on it hold.
    #[getter]
    fn held(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.read(py, |given| given.held().get())
    }

    /// Gives back what nobody draws on, and the rest when they end. Does nothing the second time.
    fn release(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| {
            self.lock()?.take();
            Ok(())
        })
    }
}
