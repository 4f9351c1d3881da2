//! The memory of the pool that other processes put to sleep, as Python sees it.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_device::PoolDevice;
use bursar::error::ExternalError;
use bursar::ledger::{Ledger, RemoteListener, RemoteReport, RemoteRequest};
use bursar::memory::{SleepRequest, SleepState};
use bursar::{DeviceId, Error};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// The devices that are asked, each with what it is asked by.
static LISTENING: Mutex<Vec<(u32, Ledger, RemoteListener)>> = Mutex::new(Vec::new());

/// The work of the program, and the devices that it waits for.
static GATE: Gate = Gate {
    state: Mutex::new(GateState { working: Vec::new(), closed: BTreeSet::new(), moving: BTreeSet::new(), ends: false }),
    changed: Condvar::new(),
};

struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

/// The interval at which a request that waits for work looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(250);

struct GateState {
    /// The threads of the stretches of work under way, each as often as it has begun one.
    working: Vec<ThreadId>,
    /// The devices that sleep, or are about to.
    closed: BTreeSet<u32>,
    /// The devices that a request is being met for.
    moving: BTreeSet<u32>,
    /// Set once the program ends: what it did until then is over, and its memory goes as it is.
    ends: bool,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stretch of work on a thread, once it may; waits at most for `patience`. Returns whether it began.
    fn begin(&self, thread: ThreadId, patience: Duration) -> bool {
        let is_closed = |state: &mut GateState| match state.working.contains(&thread) {
            // A request waits for the thread's work already, which this is a part of.
            true => is_asleep(),
            false => is_closed(state),
        };
        let waited = self.changed.wait_timeout_while(self.state(), patience, is_closed);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let begins = !waited.timed_out();
        if begins {
            state.working.push(thread);
        }
        begins
    }

    /// Ends a stretch of work that began on a thread.
    fn end(&self, thread: ThreadId) {
        let mut state = self.state();
        if let Some(at) = state.working.iter().position(|working| *working == thread) {
            state.working.swap_remove(at);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn open(&self, device: u32) {
        self.state().closed.remove(&device);
        self.changed.notify_all();
    }

    /// Lets no more work begin, and waits for what is under way, for as long as whoever asked does.
    fn close(&self, device: u32, patience: Duration, is_withdrawn: impl Fn() -> bool) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let mut state = self.state();
            state.closed.insert(device);
            let left = patience.saturating_sub(began.elapsed());
            if !state.working.is_empty() && !left.is_zero() {
                let woken = self.changed.wait_timeout(state, left.min(LOOK_EVERY));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            let (working, ends) = (state.working.len(), state.ends);
            drop(state);
            let what = match working {
                _ if ends => "the program ends",
                _ if is_withdrawn() => "nobody waits for it any more",
                0 => return Ok(()),
                _ if began.elapsed() < patience => continue,
                _ => "a stretch of work (`bursar.awake`) goes on",
            };
            self.open(device);
            return Err(Error::External(ExternalError::new(StaysAwake(what), false)));
        }
    }
}

/// The reason why memory stays awake.
#[derive(Debug)]
struct StaysAwake(&'static str);

impl fmt::Display for StaysAwake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for StaysAwake {}

/// Has the memory of the pool on these devices sleep and wake when another process asks for it.
#[pyfunction]
pub(crate) fn sleep_when_asked(py: Python<'_>, devices: Vec<u32>) -> Result<(), Failure> {
    pool::check_not_forked()?;
    let pool = pool::current_or_default(|| Machine::get(py))?;
    py.detach(|| {
        for number in devices {
            let context = pool.device(DeviceId(number))?.context.clone();
            let ledger = Ledger::for_device(&context).map_err(Error::from)?;
            let asked = ledger.clone();
            let listener = ledger.on_request(move |request| meet(number, &asked, request));
            let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
            listening.retain(|(other, ..)| *other != number);
            listening.push((number, ledger, listener));
        }
        Ok(())
    })
}

/// The context manager of stretches of work. It begins and ends them in one step each, so that no signal comes between that and the
/// statement: Python runs handlers between its own instructions alone.
#[pyclass(frozen, subclass, module = "bursar._native")]
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The thread of the stretch that has begun and not ended.
    begun: Mutex<Option<ThreadId>>,
}

impl Work {
    fn begun(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Work {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Begins a stretch of work, once no device sleeps.
    fn __enter__(&self, py: Python<'_>) -> Result<(), Failure> {
        pool::check_not_forked()?;
        let thread = std::thread::current().id();
        if self.begun().is_some() {
            let what = "the block has begun already: bursar.awake() makes one for each";
            return Err(Failure::Raised(PyRuntimeError::new_err(what)));
        }
        while !py.detach(|| GATE.begin(thread, LOOK_EVERY)) {
            py.check_signals()?;
        }
        // Another thread may have begun the same one meanwhile.
        let before = self.begun().replace(thread);
        before.into_iter().for_each(|thread| GATE.end(thread));
        Ok(())
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        let thread = self.begun().take();
        thread.into_iter().for_each(|thread| GATE.end(thread));
    }
}

/// Has no memory fall asleep any more for those who ask, because the program ends.
#[pyfunction]
pub(crate) fn end_asked() {
    GATE.state().ends = true;
    GATE.changed.notify_all();
}

/// Returns whether no work may begin: memory of the pool sleeps, by whomever, or is about to.
fn is_closed(GateState { closed, moving, .. }: &mut GateState) -> bool {
    // The program itself may have woken it.
    let sleeps = |number| pool::opened(number).is_some_and(|device| state_of(device) != SleepState::Awake);
    closed.retain(|&number| moving.contains(&number) || sleeps(number));
    !closed.is_empty() || is_asleep()
}

/// Returns whether all memory of the pool on a device sleeps, or just moves.
fn is_asleep() -> bool {
    let sleeps = |device: &PoolDevice| matches!(state_of(device), SleepState::Asleep | SleepState::Moving);
    pool::current().into_iter().flat_map(pool::Pool::opened).any(sleeps)
}

fn state_of(device: &PoolDevice) -> SleepState {
    let states = device.context.sleepers().into_iter().map(|sleeper| sleeper.sleep_reading().state);
    states.max().unwrap_or_default()
}

/// Meets a request about a device, on a thread of the ledger.
fn meet(number: u32, ledger: &Ledger, request: RemoteRequest) -> Result<RemoteReport, Error> {
    let Some(device) = pool::opened(number) else {
        return Ok(RemoteReport { was_so: true, ..RemoteReport::default() });
    };
    GATE.state().moving.insert(number);
    let met = meet_with(device, number, ledger, request);
    GATE.state().moving.remove(&number);
    met
}

fn meet_with(device: &PoolDevice, number: u32, ledger: &Ledger, request: RemoteRequest) -> Result<RemoteReport, Error> {
    let is_so = |state: SleepState| state_of(device) == state;
    match request {
        RemoteRequest::Sleep { keep_place, patience } if is_so(SleepState::Asleep) => {
            if keep_place {
                device.sleep(&SleepRequest { keep_place, patience, ..SleepRequest::default() })?;
            }
            Ok(RemoteReport { was_so: true, ..RemoteReport::default() })
        }
        RemoteRequest::Sleep { keep_place, patience } => {
            let began = Instant::now();
            GATE.close(number, patience, || ledger.is_request_withdrawn())?;
            let asked = SleepRequest { keep_place, ..SleepRequest::default() };
            let left = || patience.saturating_sub(began.elapsed());
            let slept = synchronize_libraries(left())
                .and_then(|()| device.sleep(&SleepRequest { patience: left(), ..asked.clone() }));
            match slept {
                Ok(_) => device.context.enter_asked_sleep(asked.id),
                Err(_) => GATE.open(number),
            }
            slept.map(RemoteReport::from)
        }
        RemoteRequest::Wake { patience } => {
            let was_so = is_so(SleepState::Awake);
            let report = device.context.wake_asked(patience)?;
            GATE.open(number);
            Ok(RemoteReport { was_so, ..report.into() })
        }
    }
}

/// Waits for what libraries have launched, on streams that the pool need not know.
fn synchronize_libraries(patience: Duration) -> Result<(), Error> {
    let waits =
        |py: Python<'_>| py.import("bursar._sleep")?.call_method1("_synchronize", (patience.as_secs_f64(),)).map(drop);
    // An interpreter that ends launches nothing more.
    let waited = Python::try_attach(waits).unwrap_or(Ok(()));
    waited.map_err(|_| {
        Error::External(ExternalError::new(StaysAwake("what libraries have launched could not be waited for"), false))
    })
}
