//! The reasons why a stream may not be used.

use crate::DeviceId;
use std::fmt;

/// The reason why a stream may not be used.
///
/// ```
/// use bursar::error::StreamMisuse;
///
/// assert!(StreamMisuse::PerThread.to_string().contains("CU_STREAM_PER_THREAD"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamMisuse {
    /// It belongs to another device.
    OtherDevice {
        /// The device it belongs to.
        device: DeviceId,
    },
    /// It was made by another context of the same device.
    OtherContext,
    /// It was adopted, and the adoption has ended.
    Ended,
    /// It is being captured into a graph.
    Capturing,
    /// It is not being captured into a graph of the memory that was asked.
    NotCaptured,
    /// It is the per-thread default stream, which is a different stream on each thread.
    PerThread,
}

impl fmt::Display for StreamMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherDevice { device } => write!(f, "it belongs to {device}"),
            Self::OtherContext => f.write_str("it was made by another context"),
            Self::Ended => f.write_str("its adoption has ended"),
            Self::Capturing => f.write_str("it is being captured into a graph"),
            Self::NotCaptured => f.write_str("it is not being captured into a graph of this memory"),
            Self::PerThread => f.write_str("CU_STREAM_PER_THREAD is a different stream on each thread"),
        }
    }
}
