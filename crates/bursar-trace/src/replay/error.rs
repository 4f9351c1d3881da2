//! Errors of replays.

use crate::TraceError;

/// The reason why a replay stopped: the memory failed, or the trace could not be read on.
///
/// ```
/// use bursar::trace::ReplayError;
///
/// let error = ReplayError::from(bursar::Error::NoDevice);
/// assert_eq!(error.to_string(), "there is no device");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The memory failed for another reason than a lack of room.
    #[error(transparent)]
    Memory(#[from] bursar_core::Error),
    /// The trace could not be read to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl From<bursar_core::DriverError> for ReplayError {
    fn from(error: bursar_core::DriverError) -> Self {
        Self::Memory(error.into())
    }
}
