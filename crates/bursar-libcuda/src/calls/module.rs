//! Device code, which cannot run here: every call that loads or launches it is refused, and the reason is written once.

use crate::message;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use std::ffi::c_void;

fn refuse() -> CallResult {
    message::once(
        "device code cannot be loaded or launched: memory, streams and copies are simulated, kernels are not",
    );
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// Refuses a call whose first argument is a place or a handle, whatever it is.
macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => { $(
        #[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
        pub(crate) fn $name(_: &Process $(, _: $argument)*) -> CallResult {
            refuse()
        }
    )* };
}

/// A pointer that is never followed.
type Pointer = *mut c_void;

refused! {
    load(Pointer, Pointer);
    load_with_options(Pointer, Pointer, u32, Pointer, Pointer);
    load_library(Pointer, Pointer, Pointer, Pointer, u32, Pointer, Pointer, u32);
}

#[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
pub(crate) fn launch(
    process: &Process,
    _: DefaultStream,
    _: Pointer,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Pointer,
    _: Pointer,
    _: Pointer,
) -> CallResult {
    process.current()?;
    refuse()
}

pub(crate) fn launch_with_config(
    process: &Process,
    _: DefaultStream,
    _: Pointer,
    _: Pointer,
    _: Pointer,
    _: Pointer,
) -> CallResult {
    process.current()?;
    refuse()
}
