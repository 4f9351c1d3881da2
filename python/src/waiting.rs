//! A request for memory that waits for its turn.
//!
//! The request is the library's future, polled by whoever waits: [`Waiting::wait`] blocks the thread without the interpreter's
//! lock and looks for signals meanwhile; an event loop watches [`Waiting::fileno`], to which the waker writes. So neither
//! needs a thread, and the waker, which a thread of the ledger calls, needs no interpreter.
//!
//! No step waits for the ledger's lock for longer than a moment, the opening of the ledger included: a stopped process that has
//! the lock delays neither a deadline nor a signal nor an event loop.

use crate::failure::{Failure, HolderFields};
use crate::interruptible::SIGNALS_EVERY;
use crate::machine::Machine;
use crate::reservation::Reservation;
use crate::size::Size;
use bursar::device::DeviceContext;
use bursar::ledger::{self, Ledger, LedgerError, Priority, Reading, ReserveFuture, ReserveOptions};
use bursar::{Bytes, DeviceId, Error};
use pyo3::prelude::*;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

/// The longest that a poll waits for the lock of a ledger that has yet to be opened.
const OPENS_WITHIN: Duration = Duration::from_millis(5);
/// The longest that a request which ends now waits for it.
const ENDS_WITHIN: Duration = Duration::from_millis(100);
/// The time after which a ledger that cannot be opened because another process has its lock is an error.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// The time after which one that another process is making or moving is.
const IN_USE_AFTER: Duration = Duration::from_secs(1);

/// A request for memory. Dropping it, or closing it, leaves the queue and gives back what was granted.
#[pyclass(frozen, module = "bursar._native")]
#[derive(Debug)]
pub(crate) struct Waiting {
    request: Request,
    waits: Mutex<Option<Waits>>,
    wakeup: Arc<Wakeup>,
    started: Instant,
    owner: u32,
}

/// The bytes that are asked for, and where.
#[derive(Debug)]
struct Request {
    machine: Arc<Machine>,
    context: Arc<DeviceContext>,
    tenant: String,
    bytes: Bytes,
    options: ReserveOptions,
    /// The ledger, once it is open.
    ledger: OnceLock<Ledger>,
}

/// A request that waits for the ledger, or in its queue.
#[derive(Debug)]
struct Waits {
    /// None until the ledger is open.
    future: Option<Pin<Box<ReserveFuture>>>,
    /// True once the pools of this process were asked to give back what they only cache.
    has_trimmed: bool,
}

/// The flag that a waker sets, and the two ways to wait for it.
#[derive(Debug, Default)]
struct Wakeup {
    alarm: Mutex<Alarm>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Alarm {
    is_woken: bool,
    /// The pipe of an event loop, with one byte in it while the flag is set. There is none before one asks for its
    /// descriptor, nor once the queue is left.
    pipe: Option<(PipeReader, PipeWriter)>,
}

impl Alarm {
    fn set(&mut self) {
        if !std::mem::replace(&mut self.is_woken, true) {
            self.write();
        }
    }

    /// Writes the byte. The pipe holds one at most, so this does not block.
    fn write(&self) {
        if let Some((_, writer)) = &self.pipe {
            let _ = (&*writer).write(&[1]);
        }
    }
}

impl Wakeup {
    fn alarm(&self) -> MutexGuard<'_, Alarm> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor that can be read while the flag is set, and opens it if needed.
    fn descriptor(&self) -> std::io::Result<RawFd> {
        let mut alarm = self.alarm();
        if let Some((reader, _)) = &alarm.pipe {
            return Ok(reader.as_raw_fd());
        }
        let opened = pipe()?;
        let descriptor = opened.0.as_raw_fd();
        alarm.pipe = Some(opened);
        if alarm.is_woken {
            alarm.write();
        }
        Ok(descriptor)
    }

    /// Closes the descriptors.
    fn close(&self) {
        self.alarm().pipe = None;
    }

    /// Waits until the flag is set, at most so long.
    fn wait(&self, longest: Duration) {
        drop(self.changed.wait_timeout_while(self.alarm(), longest, |alarm| !alarm.is_woken));
    }

    /// Clears the flag, and the byte in the pipe that goes with it.
    fn clear(&self) {
        let mut alarm = self.alarm();
        if std::mem::take(&mut alarm.is_woken)
            && let Some((reader, _)) = &alarm.pipe
        {
            // The byte is there: it was written under the lock.
            let _ = (&*reader).read(&mut [0]);
        }
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.alarm().set();
        self.changed.notify_all();
    }
}

impl Request {
    /// Opens the ledger if needed, waiting so long for its lock.
    fn open(&self, patience: Duration) -> Result<&Ledger, LedgerError> {
        if let Some(ledger) = self.ledger.get() {
            return Ok(ledger);
        }
        let opened = Ledger::for_device_within(&self.context, patience)?;
        Ok(self.ledger.get_or_init(|| opened))
    }

    fn future(&self, ledger: &Ledger) -> ReserveFuture {
        ledger.reserve_async_for(&self.tenant, self.bytes, self.options.clone())
    }

    /// Polls the request: the pools of this process give back what they only cache before it waits.
    fn poll(
        &self,
        waits: &mut Waits,
        wakeup: &Arc<Wakeup>,
        started: Instant,
    ) -> Option<bursar::Result<ledger::Reservation>> {
        let future = match &mut waits.future {
            Some(future) => future,
            unopened @ None => match self.open(OPENS_WITHIN) {
                Ok(ledger) => unopened.insert(Box::pin(self.future(ledger))),
                Err(error) if patience_with(&error).is_some_and(|longest| started.elapsed() < longest) => return None,
                Err(error) => return Some(Err(error.into())),
            },
        };
        let waker = wakeup.clone().into();
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(reserved) => return Some(reserved),
                Poll::Pending if !waits.has_trimmed => {
                    waits.has_trimmed = true;
                    self.machine.trim(self.context.device());
                }
                Poll::Pending => return None,
            }
        }
    }

    /// Reserves at once, or refuses.
    fn reserve_now(&self) -> bursar::Result<ledger::Reservation> {
        let ledger = self.open(ENDS_WITHIN)?;
        self.future(ledger).now_with(|| self.machine.trim(self.context.device()) > Bytes::ZERO)
    }

    /// Ends a wait: the reservation if it can be had now, once the pools of this process gave back what they only cache.
    fn end(&self, waits: Option<Waits>) -> bursar::Result<ledger::Reservation> {
        match waits.and_then(|waits| waits.future) {
            // The request is in the queue meanwhile, so what is given back goes to it if it is its turn.
            Some(future) => {
                self.machine.trim(self.context.device());
                Pin::into_inner(future).now()
            }
            None => self.reserve_now(),
        }
    }

    /// Returns a refusal with those who hold what was asked for.
    fn refusal(&self, error: Error) -> Failure {
        if !error.is_capacity() {
            return error.into();
        }
        // A file is read without its lock, which may be another's for long.
        let read = |ledger: &Ledger| ledger.file().map_or_else(|| ledger.reading(), Ledger::inspect).ok();
        let reading = self.ledger.get().and_then(read);
        Failure::Refused { error, holders: reading.map_or_else(Vec::new, |reading| holders(&reading)) }
    }
}

/// Returns whether another process had the lock of a ledger for too long.
const fn is_lock_taken(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Stuck { .. } | LedgerError::Busy { .. })
}

/// Returns how long a ledger is tried again that could not be opened; none where that is of no use.
const fn patience_with(error: &LedgerError) -> Option<Duration> {
    match error {
        LedgerError::InUse { .. } => Some(IN_USE_AFTER),
        error if is_lock_taken(error) => Some(STUCK_AFTER),
        _ => None,
    }
}

/// Returns the processes that have something, the one with the most first.
fn holders(reading: &Reading) -> Vec<HolderFields> {
    let mut processes: Vec<_> =
        reading.processes.iter().map(|process| (process.held + process.undrawn, process)).collect();
    processes.retain(|(bytes, _)| *bytes > Bytes::ZERO);
    processes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let fields = |(bytes, process): (Bytes, &ledger::ProcessReading)| {
        let labels = match process.labels.join(", ") {
            labels if labels.is_empty() => labels,
            labels => format!(" [{labels}]"),
        };
        (format!("{} (pid {}){labels}", process.name, process.pid), bytes.get(), None)
    };
    processes.into_iter().map(fields).collect()
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_owner(&self) -> Result<(), Failure> {
        if std::process::id() == self.owner { Ok(()) } else { Err(Failure::Forked { opener: self.owner }) }
    }

    /// Returns the reservation if it was granted, and none while it is not.
    fn poll_once(&self) -> Result<Option<Reservation>, Failure> {
        self.check_owner()?;
        self.wakeup.clear();
        let mut waits = self.lock();
        let polled = self.request.poll(waits.as_mut().ok_or(Failure::Released)?, &self.wakeup, self.started);
        match polled {
            None => Ok(None),
            Some(reserved) => {
                *waits = None;
                drop(waits);
                reserved.map(|reserved| Some(self.granted(reserved))).map_err(|error| self.request.refusal(error))
            }
        }
    }

    fn granted(&self, reserved: ledger::Reservation) -> Reservation {
        Reservation::new(reserved, Some(self.request.context.device().0))
    }

    fn timeout(&self, error: Error) -> Failure {
        Failure::Timeout { error, waited: self.started.elapsed().as_secs_f64() }
    }

    /// Ends the request with what `end` makes of it.
    fn end(
        &self,
        py: Python<'_>,
        end: impl FnOnce(Option<Waits>) -> bursar::Result<ledger::Reservation> + Send,
    ) -> Result<Reservation, Failure> {
        self.check_owner()?;
        py.detach(|| {
            let waits = self.lock().take();
            self.wakeup.close();
            end(waits).map(|reserved| self.granted(reserved)).map_err(|error| self.request.refusal(error))
        })
    }

    fn leave(&self) {
        drop(self.lock().take());
        self.wakeup.close();
    }
}

#[pymethods]
impl Waiting {
    /// Prepares a request. It joins the queue when it is first polled.
    #[new]
    fn new(py: Python<'_>, bytes: Size, device: u32, tenant: &str, priority: u8, label: &str) -> Result<Self, Failure> {
        let machine = Machine::get(py)?;
        let options = ReserveOptions::new().priority(Priority(priority)).label(label);
        py.detach(|| {
            let context = machine.observed(DeviceId(device))?;
            let (tenant, ledger) = (tenant.to_owned(), OnceLock::new());
            Ok(Self {
                request: Request { machine, context, tenant, bytes: bytes.0, options, ledger },
                waits: Mutex::new(Some(Waits { future: None, has_trimmed: false })),
                wakeup: Arc::default(),
                started: Instant::now(),
                owner: std::process::id(),
            })
        })
    }

    /// Returns the descriptor that can be read when it is worth polling again.
    fn fileno(&self) -> Result<RawFd, Failure> {
        self.check_owner()?;
        Ok(self.wakeup.descriptor().map_err(PyErr::from)?)
    }

    /// Returns how many seconds to watch the descriptor before polling again, with so many left: nobody wakes a request for whose
    /// ledger's lock it waits yet.
    fn pause(&self, left: Option<f64>) -> Option<f64> {
        match self.request.ledger.get() {
            Some(_) => left,
            None => Some(left.unwrap_or(f64::INFINITY).min(SIGNALS_EVERY.as_secs_f64())),
        }
    }

    /// Returns the reservation if it was granted, and none while it is not.
    fn poll(&self, py: Python<'_>) -> Result<Option<Reservation>, Failure> {
        py.detach(|| self.poll_once())
    }

    /// Waits for the reservation, at most so many seconds. Ends with the exception of a signal's handler.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Reservation, Failure> {
        // More seconds than a duration has are as good as no end.
        let longest = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let ends = longest.and_then(|longest| Instant::now().checked_add(longest));
        loop {
            if let Some(reserved) = self.poll(py)? {
                return Ok(reserved);
            }
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.give_up(py);
            }
            py.detach(|| self.wakeup.wait(left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY))));
            if let Err(raised) = py.check_signals() {
                py.detach(|| self.leave());
                return Err(raised.into());
            }
        }
    }

    /// Returns the reservation if it can be had at once, and refuses otherwise.
    fn now(&self, py: Python<'_>) -> Result<Reservation, Failure> {
        self.end(py, |_| self.request.reserve_now())
    }

    /// Leaves the queue at the end of the time: with the reservation if it can be had now, with a refusal otherwise.
    fn give_up(&self, py: Python<'_>) -> Result<Reservation, Failure> {
        match self.end(py, |waits| self.request.end(waits)) {
            Err(Failure::Refused { error, .. }) => Err(self.timeout(error)),
            Err(Failure::Memory(Error::External(error)))
                if error.downcast_ref::<LedgerError>().is_some_and(is_lock_taken) =>
            {
                Err(self.timeout(Error::External(error)))
            }
            other => other,
        }
    }

    /// Leaves the queue, giving back what was granted.
    fn close(&self, py: Python<'_>) {
        if self.check_owner().is_ok() {
            py.detach(|| self.leave());
        }
    }
}
