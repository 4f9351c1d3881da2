//! The statuses of the driver: their numbers, names and descriptions.

use bursar_core::{DriverError, Status};
use std::ffi::{CStr, c_int};

/// The status that an entry point returns.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUresult(pub c_int);

/// The result of a call before it becomes a status.
pub(crate) type CallResult<T = ()> = Result<T, CUresult>;

/// Declares the statuses, each with its number, and the description that `cuGetErrorString` returns.
macro_rules! statuses {
    ($($name:ident = $value:literal, $description:literal;)*) => {
        #[allow(dead_code, reason = "a program may ask for the name of any of them")]
        impl CUresult {
            $(pub(crate) const $name: Self = Self($value);)*

            /// Returns the name and the description, each ended by a zero.
            pub(crate) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
                const fn text(bytes: &'static [u8]) -> &'static CStr {
                    match CStr::from_bytes_with_nul(bytes) {
                        Ok(text) => text,
                        Err(_) => c"",
                    }
                }
                match self.0 {
                    $($value => Some((
                        const { text(concat!(stringify!($name), "\0").as_bytes()) },
                        const { text(concat!($description, "\0").as_bytes()) },
                    )),)*
                    _ => None,
                }
            }
        }

        #[test]
        fn k1_statuses_are_those_of_cudarc() {
            $(assert_eq!($value, cudarc::driver::sys::CUresult::$name as c_int, stringify!($name));)*
        }
    };
}

statuses! {
    CUDA_SUCCESS = 0, "no error";
    CUDA_ERROR_INVALID_VALUE = 1, "invalid argument";
    CUDA_ERROR_OUT_OF_MEMORY = 2, "out of memory";
    CUDA_ERROR_NOT_INITIALIZED = 3, "initialization error";
    CUDA_ERROR_DEINITIALIZED = 4, "driver shutting down";
    CUDA_ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    CUDA_ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    CUDA_ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
    CUDA_ERROR_INVALID_CONTEXT = 201, "invalid device context";
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215, "limit is not supported on this architecture";
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    CUDA_ERROR_OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    CUDA_ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    CUDA_ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    CUDA_ERROR_NOT_FOUND = 500, "named symbol not found";
    CUDA_ERROR_NOT_READY = 600, "device not ready";
    CUDA_ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    CUDA_ERROR_NOT_PERMITTED = 800, "operation not permitted";
    CUDA_ERROR_NOT_SUPPORTED = 801, "operation not supported";
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CUDA_ERROR_CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    CUDA_ERROR_UNKNOWN = 999, "unknown error";
}

impl From<DriverError> for CUresult {
    /// Returns the status of a call of the simulator. Statuses that are not CUDA's come from files that cannot be shared,
    /// or from a device that is lost.
    fn from(error: DriverError) -> Self {
        match error.status {
            Status::DeviceLost => Self::CUDA_ERROR_UNKNOWN,
            Status::Other { name, .. } if !name.starts_with("CUDA_") => {
                crate::message::once(name);
                Self::CUDA_ERROR_OPERATING_SYSTEM
            }
            status => Self(status.code()),
        }
    }
}
