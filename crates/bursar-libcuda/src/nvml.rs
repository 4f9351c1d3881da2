//! The calls of NVML that report memory, so that one shared object serves as `libnvidia-ml.so.1` too.
//!
//! NVML knows every device of the machine, whatever `CUDA_VISIBLE_DEVICES` leaves to CUDA.

pub(crate) mod devices;
pub(crate) mod table;

use std::ffi::{CStr, c_int};

/// The status that a call of NVML returns.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmlReturn(pub c_int);

/// The result of a call before it becomes a status.
pub(crate) type NvmlResult<T = ()> = Result<T, NvmlReturn>;

impl NvmlReturn {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);

    /// Returns the description, ended by a zero.
    pub(crate) fn text(self) -> &'static CStr {
        match self {
            Self::SUCCESS => c"Success",
            Self::UNINITIALIZED => c"Uninitialized",
            Self::INVALID_ARGUMENT => c"Invalid Argument",
            Self::NOT_FOUND => c"Not Found",
            Self::INSUFFICIENT_SIZE => c"Insufficient Size",
            Self::DRIVER_NOT_LOADED => c"Driver Not Loaded",
            Self::ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
            _ => c"Unknown Error",
        }
    }
}
