//! The errors of driver calls.

use crate::DeviceId;

/// A failed driver call: which call, on which device, with which status.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{DriverError, Status};
///
/// let error = DriverError::new("cuMemAlloc", DeviceId(0), Status::OutOfMemory);
/// assert_eq!(error.to_string(), "cuMemAlloc failed on gpu0: CUDA_ERROR_OUT_OF_MEMORY (2)");
/// assert!(!error.is_sticky());
/// ```
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{call} failed on {device}: {} ({})", status.name(), status.code())]
#[non_exhaustive]
pub struct DriverError {
    /// The call, by the name its driver gives it.
    pub call: &'static str,
    /// The device it was made for.
    pub device: DeviceId,
    /// The status that the driver returned.
    pub status: Status,
    /// True if the failure is an earlier call's, reported by a later one.
    pub(crate) is_remembered: bool,
}

/// Two errors are equal if they are of the same failure, whenever it is reported.
impl PartialEq for DriverError {
    fn eq(&self, other: &Self) -> bool {
        (self.call, self.device, self.status) == (other.call, other.device, other.status)
    }
}

impl Eq for DriverError {}

impl DriverError {
    /// Makes the error of a failed `call` on `device`.
    pub const fn new(call: &'static str, device: DeviceId, status: Status) -> Self {
        Self { call, device, status, is_remembered: false }
    }

    /// Returns the failure as a later call reports it: a want of memory in it is not the later call's own.
    pub(crate) const fn remembered(self) -> Self {
        Self { is_remembered: matches!(self.status, Status::OutOfMemory), ..self }
    }

    /// Returns whether the device is lost to this process: every later call fails too.
    pub const fn is_sticky(&self) -> bool {
        self.status.is_sticky()
    }
}

/// The status of a driver call, in the vocabulary of the CUDA driver.
///
/// ```
/// use bursar::driver::Status;
///
/// assert_eq!(Status::OutOfMemory.code(), 2);
/// assert!(Status::IllegalAddress.is_sticky());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// An argument is out of range, or a handle is not the driver's.
    InvalidValue,
    /// The device has no memory left for the request.
    OutOfMemory,
    /// The driver is not ready, or is shutting down with the process.
    Unavailable,
    /// There is no such device.
    InvalidDevice,
    /// A handle is unknown to the driver, or dead.
    InvalidHandle,
    /// Host memory is registered already.
    AlreadyRegistered,
    /// Host memory was never registered.
    NotRegistered,
    /// The device or driver cannot do this.
    NotSupported,
    /// Not while a stream is being captured into a graph.
    Capturing,
    /// Device code touched memory it may not. The device is lost to this process.
    IllegalAddress,
    /// The device is permanently gone, as far as the driver can tell. CUDA has no status of its own for this.
    DeviceLost,
    /// Any other status.
    Other {
        /// The driver's own number for it.
        code: i32,
        /// The driver's own name for it.
        name: &'static str,
        /// True if every later call fails too.
        sticky: bool,
    },
}

impl Status {
    /// Returns the driver's number for it.
    pub const fn code(self) -> i32 {
        self.describe().0
    }

    /// Returns the driver's name for it.
    pub const fn name(self) -> &'static str {
        self.describe().1
    }

    /// Returns whether the device is lost to this process.
    pub const fn is_sticky(self) -> bool {
        match self {
            Self::IllegalAddress | Self::DeviceLost => true,
            Self::Other { sticky, .. } => sticky,
            _ => false,
        }
    }

    const fn describe(self) -> (i32, &'static str) {
        match self {
            Self::InvalidValue => (1, "CUDA_ERROR_INVALID_VALUE"),
            Self::OutOfMemory => (2, "CUDA_ERROR_OUT_OF_MEMORY"),
            Self::Unavailable => (4, "CUDA_ERROR_DEINITIALIZED"),
            Self::InvalidDevice => (101, "CUDA_ERROR_INVALID_DEVICE"),
            Self::InvalidHandle => (400, "CUDA_ERROR_INVALID_HANDLE"),
            Self::AlreadyRegistered => (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
            Self::NotRegistered => (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
            Self::NotSupported => (801, "CUDA_ERROR_NOT_SUPPORTED"),
            Self::Capturing => (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
            Self::IllegalAddress => (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
            Self::DeviceLost => (-1, "DEVICE_LOST"),
            Self::Other { code, name, .. } => (code, name),
        }
    }
}
