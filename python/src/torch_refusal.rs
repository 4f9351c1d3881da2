//! A refusal as PyTorch tells it: the words that programs look for, and those who want to hear of it.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::pool;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Functions that are called at each refusal.
static OBSERVERS: Mutex<Vec<Py<PyAny>>> = Mutex::new(Vec::new());

/// Has a function called at each refusal, with the device, the bytes that were asked for, all bytes of the device, and those
/// that the driver could still hand out.
#[pyfunction]
pub(crate) fn torch_observe_refusals(observer: Py<PyAny>) {
    observers().push(observer);
}

fn observers() -> MutexGuard<'static, Vec<Py<PyAny>>> {
    OBSERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the message of a refusal, in PyTorch's words and then in ours, after those who want to were told of it.
pub(crate) fn describe(device: u32, bytes: u64, failure: &Failure) -> String {
    let (free, total) = memory_of(device).unwrap_or_default();
    tell_observers(device, bytes, total, free);
    format!(
        "CUDA out of memory. Tried to allocate {}. GPU {device} has a total capacity of {} of which {} is free. {}",
        format_size(bytes),
        format_size(total),
        format_size(free),
        failure.explanation()
    )
}

/// Returns what the driver could still hand out of a device, and all of its memory.
fn memory_of(device: u32) -> Option<(u64, u64)> {
    let context = &pool::opened(device)?.context;
    let memory = context.driver().memory(context.device()).ok()?;
    Some((memory.free.get(), memory.total.get()))
}

fn tell_observers(device: u32, bytes: u64, total: u64, free: u64) {
    // SAFETY: it may be asked at any time.
    if observers().is_empty() || unsafe { ffi::Py_IsInitialized() } == 0 {
        return;
    }
    // PyO3 does not see PyTorch let go of the GIL, and takes a thread on which an observer runs to have it.
    // SAFETY: the interpreter runs.
    let state = unsafe { ffi::PyGILState_Ensure() };
    Python::attach(|py| {
        // Nothing is locked while they run: one that is refused memory itself comes here again.
        let told: Vec<_> = observers().iter().map(|observer| observer.clone_ref(py)).collect();
        for observer in told {
            if let Err(error) = observer.call1(py, (device, bytes, total, free)) {
                error.write_unraisable(py, Some(observer.bind(py)));
            }
        }
    });
    // SAFETY: as it was before.
    unsafe { ffi::PyGILState_Release(state) };
}

/// Formats a size as PyTorch does.
fn format_size(bytes: u64) -> String {
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        1025..=0x10_0000 => format!("{:.2} KiB", bytes as f64 / 1024.0),
        0x10_0001..=0x4000_0000 => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
