//! The pool of this process as Python sees it: its terms, its counts and its log.

use crate::failure::{Failure, leaving};
use crate::interruptible::retry;
use crate::machine::Machine;
use crate::pinned;
use crate::pool::{self, Pool};
use crate::pool_device::Terms;
use crate::pool_logs::{InUse, logs};
use crate::pool_reserved::Reserved;
use crate::reservation::Reservation;
use crate::size::Size;
use crate::sleep;
use bursar::observe::{Counts, Logging, Observer};
use bursar::{Bytes, DeviceId, Statistics};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The seconds that the end of a block waits for what its log has yet to write.
const CLOSES_WITHIN: f64 = 10.0;

/// Makes the pool of this process.
#[pyfunction]
pub(crate) fn use_pool(
    py: Python<'_>,
    limit: Option<Size>,
    reservation: Option<&Reservation>,
    device: Option<u32>,
) -> Result<(), Failure> {
    let machine = Machine::get(py)?;
    let account = reservation.map(Reservation::drawn).transpose()?;
    let terms = Terms { limit: limit.map(|size| size.0), device: device.map(DeviceId), account };
    py.detach(|| pool::install(machine, terms).map(drop))
}

/// Returns the number of devices.
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> Result<u32, Failure> {
    Ok(Machine::get(py)?.device_count())
}

/// Gives back to the driver what nobody uses; returns the bytes.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> Result<u64, Failure> {
    pool::check_not_forked()?;
    Ok(py.detach(|| {
        let device = pool::current().map_or(Bytes::ZERO, Pool::trim);
        device.saturating_add(pinned::trim()).get() + sleep::trim_stores()
    }))
}

/// Returns what the driver could still hand out of a device, and all of its memory.
#[pyfunction]
pub(crate) fn memory_info(py: Python<'_>, device: u32) -> Result<(u64, u64), Failure> {
    let pool = pool::current_or_default(|| Machine::get(py))?;
    py.detach(|| {
        let context = &pool.device(DeviceId(device))?.context;
        let memory = context.driver().memory(context.device())?;
        Ok((memory.free.get(), memory.total.get()))
    })
}

/// A log of what happens to the memory of the pool. It goes on until it is closed, whether or not the program keeps its object. As a
/// context manager it begins and ends in one step each, so that no signal comes between that and the statement.
#[pyclass(frozen, subclass, module = "bursar")]
#[derive(Debug)]
pub(crate) struct Log {
    logging: Logging,
    /// True once the program has done anything with it.
    is_used: AtomicBool,
    /// True once its block was entered.
    is_entered: AtomicBool,
}

impl Log {
    fn logging(&self) -> &Logging {
        self.is_used.store(true, Ordering::Relaxed);
        &self.logging
    }
}

impl Drop for Log {
    /// Ends a log that an exception takes from the statement that began it, as that of a signal's handler does before the block is entered:
    /// the program has nothing to close it by, and did not mean it to go on.
    fn drop(&mut self) {
        if *self.is_used.get_mut() || pool::is_forked() {
            return;
        }
        // An interpreter that ends closes all logs.
        let _ = Python::try_attach(|py| {
            if let Some(passing) = PyErr::take(py) {
                py.detach(|| logs().give_up(&self.logging));
                passing.restore(py);
            }
        });
    }
}

#[pymethods]
impl Log {
    #[new]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        let path: PathBuf = py.import("os")?.call_method1("fsdecode", (path,))?.extract()?;
        let pool = pool::current_or_default(|| Machine::get(py))?;
        let logging = py.detach(|| {
            let _reader_stays = read_by_somebody(&path)?;
            let opened = logs().open(&path, || Logging::to_file(&path)).map_err(|InUse| {
                let what = format!("another log of this process is written to {}: close that first", path.display());
                Failure::Value { what }
            })?;
            let logging = opened.map_err(|error| unopened(&path, &error))?;
            let observer: Arc<dyn Observer> = logs().clone();
            pool.observe(observer).inspect_err(|_| logs().give_up(&logging))?;
            logs().add(logging.clone());
            Ok::<_, Failure>(logging)
        })?;
        Ok(Self { logging, is_used: AtomicBool::new(false), is_entered: AtomicBool::new(false) })
    }

    /// The number of events that were lost, because the disk was too slow or failed.
    #[getter]
    fn dropped(&self) -> u64 {
        self.logging().dropped()
    }

    /// Writes what was recorded so far; returns whether that was done in time, and nothing failed to be written.
    fn flush(&self, py: Python<'_>, timeout: f64) -> Result<bool, Failure> {
        pool::check_not_forked()?;
        let logging = self.logging();
        let flushed = retry(py, timeout, |longest| logging.flush(longest).then_some(()))?;
        Ok(flushed.is_some() && logging.last_error().is_none())
    }

    /// Ends the log; returns how many records it has.
    fn close(&self, py: Python<'_>, timeout: f64) -> Result<u64, Failure> {
        pool::check_not_forked()?;
        let logging = self.logging();
        match retry(py, timeout, |longest| logs().close(logging, longest))? {
            Some(written) => Ok(written),
            None => Err(PyTimeoutError::new_err(format!("the log could not be written within {timeout} s")).into()),
        }
    }

    fn __enter__(this: Bound<'_, Self>) -> Result<Bound<'_, Self>, Failure> {
        pool::check_not_forked()?;
        let log = this.get();
        let why = match logs().is_open(log.logging()) {
            false => "the log has ended: bursar.log() begins another",
            true if log.is_entered.swap(true, Ordering::Relaxed) => {
                "the block has begun already: bursar.log() begins a log for each"
            }
            true => return Ok(this),
        };
        Err(PyRuntimeError::new_err(why).into())
    }

    /// Ends the log as [`close`](Self::close) does. The exception of a signal's handler ends the wait for what is written, and the log too.
    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leaving(raised, self.close(py, CLOSES_WITHIN).map(drop))
    }
}

/// Ends the logs that the program has left open, because the interpreter ends: a compressed one has its last part only then.
#[pyfunction]
pub(crate) fn close_logs(py: Python<'_>) {
    // A child that was forked has none of its own, and what cannot be written in a few seconds is given up. Where there is nothing to
    // write, the interpreter is kept: a subinterpreter that ends with its process never gets it back.
    if !pool::is_forked() && !logs().are_written() {
        py.detach(|| logs().close_all(Duration::from_secs(5)));
    }
}

/// Opens a pipe for as long as it takes to open it again: that fails where nobody reads it, and does not wait for somebody who
/// does.
fn read_by_somebody(path: &Path) -> Result<Option<File>, Failure> {
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Ok(None);
    }
    let opened = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.map(Some).map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => system_error(path, libc::EPIPE, "nobody reads the pipe yet"),
        _ => unopened(path, &error),
    })
}

/// Returns the failure to open a log: that of the system, with its number and the file's name, or of the name itself.
fn unopened(path: &Path, error: &std::io::Error) -> Failure {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            system_error(path, number, text.split(" (os error").next().unwrap_or(&text))
        }
        None => Failure::value(error),
    }
}

/// Returns an `OSError` of the class that goes with its number.
fn system_error(path: &Path, number: i32, text: &str) -> Failure {
    let raised = Python::attach(|py| {
        let made = py.get_type::<PyOSError>().call1((number, text, path.as_os_str()));
        made.map_or_else(|error| error, PyErr::from_value)
    });
    Failure::Raised(raised)
}

/// Returns the counts of every device that was used.
#[pyfunction]
pub(crate) fn pool_statistics(py: Python<'_>) -> Result<Bound<'_, PyList>, Failure> {
    pool::check_not_forked()?;
    let list = PyList::empty(py);
    let Some(pool) = pool::current() else { return Ok(list) };
    for device in pool.devices() {
        if let Some((statistics, reserved)) = pool.counts(device) {
            list.append(describe(py, pool, device, &statistics, &reserved)?)?;
        }
    }
    Ok(list)
}

/// Describes a device that was used: by the pool, or by one before it, whose counts go on.
fn describe<'py>(
    py: Python<'py>,
    pool: &Pool,
    device: DeviceId,
    statistics: &Statistics,
    reserved: &Reserved,
) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let reading = pool.used(device).and_then(|used| used.pages.readings().into_iter().next()).unwrap_or_default();
    let Counts { current, peak, total } = statistics.counts();
    fields.set_item("device", device.0)?;
    fields.set_item("limit", pool.limit_of(device).map(Bytes::get))?;
    fields.set_item("held", reading.held.get())?;
    fields.set_item("held_peak", reserved.highest())?;
    fields.set_item("cached", reading.cached.get())?;
    fields.set_item("pending", reading.pending.get())?;
    fields.set_item("live", current.bytes.get())?;
    fields.set_item("live_peak", peak.bytes.get())?;
    fields.set_item("blocks", current.count)?;
    fields.set_item("allocations", total.count)?;
    fields.set_item("refused", statistics.refused())?;
    fields.set_item("is_simulated", pool.is_simulated())?;
    let tags = PyDict::new(py);
    for (tag, counts) in statistics.tags() {
        let Counts { current, peak, .. } = counts;
        tags.set_item(tag.name(), (current.bytes.get(), peak.bytes.get(), current.count))?;
    }
    fields.set_item("tags", tags)?;
    Ok(fields)
}
