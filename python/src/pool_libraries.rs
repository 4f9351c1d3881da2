//! The functions that CuPy and Numba call where this process's pool is their allocator.
//!
//! CuPy is given them by address, and calls them with the GIL; it does not look at what comes back, so a refusal is kept for
//! the thread, and the Python side asks for it. Numba names no stream, so its memory is for all of them.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_book::Held;
use crate::pool_requests::{self, allocate_other, free_other};
use bursar::{DeviceId, Error};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// CuPy's function that returns the raw handle of the thread's current stream.
type CurrentStream = unsafe extern "C" fn() -> isize;

thread_local! {
    static REFUSED: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Allocates for CuPy on the thread's current stream, which the parameter is the function for; null where that is refused.
extern "C" fn cupy_allocate(parameter: *mut c_void, bytes: usize, device: c_int) -> *mut c_void {
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the parameter is what `cupy_functions` was given, which CuPy says is this function.
    let current = unsafe { std::mem::transmute::<*mut c_void, CurrentStream>(parameter) };
    // SAFETY: it has no conditions but the GIL, which CuPy has here.
    let raw = unsafe { current() } as u64;
    let act = || {
        pool::check_not_forked()?;
        allocate_other(bytes as u64, device as u32, raw)
    };
    match catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Failure::Memory(Error::NoDevice))) {
        Ok(ptr) => ptr as *mut c_void,
        Err(failure) => {
            REFUSED.set(Some(failure));
            std::ptr::null_mut()
        }
    }
}

/// Frees what CuPy allocated.
extern "C" fn cupy_free(_: *mut c_void, ptr: *mut c_void, device: c_int) {
    if !ptr.is_null() && !pool::is_forked() {
        let _freed = catch_unwind(AssertUnwindSafe(|| free_other(ptr.addr() as u64, device as u32)));
    }
}

/// Returns the addresses of the functions that CuPy calls to allocate and to free.
#[pyfunction]
pub(crate) fn cupy_functions(py: Python<'_>) -> Result<(usize, usize), Failure> {
    pool::current_or_default(|| Machine::get(py))?;
    Ok((cupy_allocate as *const () as usize, cupy_free as *const () as usize))
}

/// Raises the refusal of the last allocation of this thread, if there was one.
#[pyfunction]
pub(crate) fn raise_refusal() -> Result<(), Failure> {
    REFUSED.take().map_or(Ok(()), Err)
}

/// Ends the use of a stream that is about to be destroyed.
#[pyfunction]
pub(crate) fn stream_ends(py: Python<'_>, handle: u64) {
    if !pool::is_forked() {
        py.detach(|| pool_requests::stream_ends(handle));
    }
}

/// Allocates memory that any stream may use, and returns its address.
#[pyfunction]
pub(crate) fn allocate_anywhere(py: Python<'_>, bytes: u64, device: u32) -> Result<u64, Failure> {
    let pool = pool::current_or_default(|| Machine::get(py))?;
    py.detach(|| {
        let device = pool.device(DeviceId(device))?;
        let block = device.allocate_anywhere(bytes)?;
        let ptr = block.ptr().0;
        device.others.lock().enter(Held { block, requested: bytes, raw: 0, arena: 0, is_shared: false });
        Ok(ptr)
    })
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
