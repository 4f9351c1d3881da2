//! The ends of libraries' streams, and memory for those that name no stream, such as Numba: it is for all of them.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_book::Held;
use crate::pool_requests;
use crate::pool_streams::Life;
use crate::tags;
use bursar::{DeviceId, Error};
use pyo3::prelude::*;

/// Ends the use of a stream that is about to be destroyed.
#[pyfunction]
pub(crate) fn stream_ends(py: Python<'_>, handle: u64) {
    if !pool::is_forked() {
        py.detach(|| pool_requests::stream_ends(handle));
    }
}

/// Remembers that others than CuPy made a stream that it uses.
#[pyfunction]
pub(crate) fn cupy_uses_stream(handle: u64) {
    Life::Ending.note(handle, true);
}

/// Allocates memory that any stream may use, and returns its address.
#[pyfunction]
pub(crate) fn allocate_anywhere(py: Python<'_>, bytes: u64, device: u32) -> Result<u64, Failure> {
    pool::current_or_default(|| Machine::get(py))?;
    tags::refresh();
    let attempt = || {
        let device = pool::current().ok_or(Error::NoDevice)?.device(DeviceId(device))?;
        let block = device.allocate_anywhere(bytes)?;
        device.enter(&device.others, Held { block, requested: bytes, raw: 0, arena: 0, is_shared: false })
    };
    py.detach(|| pool::retrying(attempt))
}

/// Frees such memory.
#[pyfunction]
pub(crate) fn free_anywhere(py: Python<'_>, ptr: u64, device: u32) {
    let Some(device) = pool::opened(device).filter(|_| !pool::is_forked()) else { return };
    py.detach(|| {
        let held = device.others.lock().take(ptr);
        held.into_iter().for_each(|held| device.free_anywhere(held.block));
    });
}
