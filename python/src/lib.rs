//! The native module `bursar._native`, below the Python package.
//!
//! Functions here convert and call the library; the classes that users see, their documentation and their defaults are in
//! Python. A function that can fail returns `Result<_, Failure>`: `?` turns every error of the library into a [`Failure`],
//! and that into the exception of its kind, which `bursar/errors.py` defines. A function that opens a device, waits or
//! reads files does so in [`Python::detach`](pyo3::Python::detach), where other threads run.
//!
//! - `failure`: errors, each as the exception of its kind.
//! - `interruptible`: waits that a signal's handler ends.
//! - `size`: sizes, given as a number or as text.
//! - `machine`: the driver and the devices of this process, opened when they are first needed.
//! - `devices`: the devices, listed; `ledger`: who holds what of each; `fit`: how many workers fit.
//! - `command`: the command `bursar`, run by the interpreter.
//! - `tags`: the names of what is allocated.
//! - `reservation`: memory that is set aside; `waiting`: a request for it; `share`: that of a worker of `bursar run`.

mod asked;
mod buffer;
mod command;
mod devices;
mod dlpack;
mod failure;
mod fit;
mod interruptible;
mod ledger;
mod machine;
mod pinned;
mod pool;
mod pool_book;
mod pool_counts;
mod pool_cupy;
mod pool_cupy_classes;
mod pool_device;
mod pool_libraries;
mod pool_logs;
mod pool_requests;
mod pool_reserved;
mod pool_share;
mod pool_streams;
mod reservation;
mod share;
mod size;
mod sleep;
mod statistics;
mod tags;
mod throw;
mod torch;
mod torch_capture;
mod torch_filter;
mod torch_refusal;
mod torch_workspace;
mod waiting;

use pyo3::pymodule;

/// The functions and classes that the Python package is made of.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::asked::{Work, end_asked, sleep_when_asked};
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::command::{command, version};
    #[pymodule_export]
    use super::devices::devices;
    #[pymodule_export]
    use super::fit::{fit, fit_cards};
    #[pymodule_export]
    use super::ledger::ledger;
    #[pymodule_export]
    use super::machine::{driver, use_driver};
    #[pymodule_export]
    use super::pinned::{PinnedMemory, pinned_statistics};
    #[pymodule_export]
    use super::pool_cupy::cupy_allocator;
    #[pymodule_export]
    use super::pool_libraries::{allocate_anywhere, cupy_uses_stream, free_anywhere, stream_ends};
    #[pymodule_export]
    use super::reservation::{Delegation, Reservation, ReservationBlock};
    #[pymodule_export]
    use super::share::{default_device, draw, index_of};
    #[pymodule_export]
    use super::size::parse_size;
    #[pymodule_export]
    use super::sleep::{sleep, sleep_state, wake};
    #[pymodule_export]
    use super::statistics::{Log, close_logs, device_count, memory_info, pool_statistics, trim, use_pool};
    #[pymodule_export]
    use super::tags::Tag;
    #[pymodule_export]
    use super::torch::{
        torch_blocks, torch_check_awake, torch_check_captures, torch_counts, torch_fraction, torch_functions,
        torch_launched_of, torch_launches, torch_ranges, torch_reset_peaks, torch_reset_totals, torch_uses_stream,
    };
    #[pymodule_export]
    use super::torch_refusal::torch_observe_refusals;
    #[pymodule_export]
    use super::torch_workspace::torch_answer_workspaces;
    #[pymodule_export]
    use super::waiting::Waiting;
}
