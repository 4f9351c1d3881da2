//! Streams, the one table that makes them, and the clocks of what is submitted to them.

mod clocks;
mod hold;
mod table;

pub(crate) use clocks::Clocks;
pub use hold::StreamHold;
pub(crate) use table::StreamTable;

use crate::{DeviceId, StreamNumber};
use std::fmt;

/// The number of streams that one [`DeviceContext`](crate::DeviceContext) can have at a time, its own and adopted ones
/// together.
pub const STREAM_SLOTS: usize = 1024;

/// A stream of one device: a small token that only a [`DeviceContext`](crate::DeviceContext) makes. It names the
/// stream; the context keeps it alive.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let stream = context.create_stream(0)?;
/// assert_eq!(stream.device(), context.device());
/// assert!(context.default_stream().is_default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Its context and, in the upper half, its slot there, marked if it is adopted.
    key: u64,
    /// Its epoch, which tells the occupants of that slot apart, and, in the upper half, its device and its number.
    epoch_device_and_number: u64,
}

/// Marks streams that somebody else made, in their epochs and in their keys.
const ADOPTED: u32 = 1 << 31;

impl Stream {
    /// Packs the token into two words and not into four halves: two are passed in registers.
    const fn new(context: u32, slot: u32, epoch: u32, device: u16, number: u16) -> Self {
        let place = slot | epoch & ADOPTED;
        let (key, named) = (context as u64 | (place as u64) << 32, device as u64 | (number as u64) << 16);
        Self { key, epoch_device_and_number: epoch as u64 | named << 32 }
    }

    #[inline]
    const fn context(self) -> u32 {
        self.key as u32
    }

    #[inline]
    const fn epoch(self) -> u32 {
        self.epoch_device_and_number as u32
    }

    /// Returns a number that tells it from every other stream of the process, if a context made it. Adopted streams
    /// that follow each other in one slot share theirs, which no stream that a context made has.
    #[inline]
    pub const fn key(self) -> u64 {
        self.key
    }

    /// Returns the device it belongs to.
    #[inline]
    pub const fn device(self) -> DeviceId {
        DeviceId((self.epoch_device_and_number >> 32) as u16 as u32)
    }

    /// Returns its slot in the context's table, below [`STREAM_SLOTS`], to index per-stream state by. An adopted
    /// stream's slot is given to another once its adoption has ended.
    #[inline]
    pub const fn slot(self) -> usize {
        (self.key >> 32) as usize % STREAM_SLOTS
    }

    /// Returns whether it is the legacy default stream.
    #[inline]
    pub const fn is_default(self) -> bool {
        self.slot() == 0
    }

    /// Returns whether somebody else made it, so that it may end while the context lives.
    #[inline]
    pub(crate) const fn is_adopted(self) -> bool {
        (self.key >> 32) as u32 & ADOPTED != 0
    }

    /// Returns whether it is `other`, where both are known to be streams of one context.
    #[inline]
    pub(crate) const fn is_same_stream(self, other: Self) -> bool {
        self.slot() == other.slot() && self.epoch() == other.epoch()
    }

    /// Returns whether both are streams of one context.
    #[inline]
    pub(crate) const fn is_same_context(self, other: Self) -> bool {
        self.context() == other.context()
    }

    /// Returns the number that messages, records and reports name it by: 0 is the default stream.
    ///
    /// It is the driver's, where the driver has one, as the simulated one does: then no other stream of the device ever
    /// has it. Elsewhere the context numbers its streams from 1 on, and the number of an adopted stream is given to
    /// another once its adoption has ended.
    #[inline]
    pub const fn number(self) -> StreamNumber {
        StreamNumber((self.epoch_device_and_number >> 48) as u32)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} of {}", self.number(), self.device()))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}:{})", self.device(), self.number().0)
    }
}
