//! Streams, and the one table that makes them.

mod clocks;
mod table;

pub(crate) use clocks::Clocks;
pub use table::Held;
pub(crate) use table::StreamTable;

use crate::{DeviceId, StreamNumber};
use std::fmt;

/// How many streams one [`DeviceContext`](crate::DeviceContext) can know at a time, its own and adopted ones together.
pub const STREAM_SLOTS: usize = 1024;

/// A stream of one device: a small token that only a [`DeviceContext`](crate::DeviceContext) makes. It names the
/// stream; the context keeps it alive.
///
/// ```
/// # use bursar_core::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let stream = context.create_stream(0)?;
/// assert_eq!(stream.device(), context.device());
/// assert!(context.default_stream().is_default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Its context and, in the upper half, its place there, marked if it is adopted.
    name: u64,
    /// Which occupant of that place it is and, in the upper half, its device.
    life: u64,
}

/// Marks streams that somebody else made, in their epochs and in their names.
const ADOPTED: u32 = 1 << 31;

impl Stream {
    /// In two words and not in four halves: two are passed in registers.
    const fn new(context: u32, slot: u32, epoch: u32, device: DeviceId) -> Self {
        let place = slot | epoch & ADOPTED;
        Self { name: context as u64 | (place as u64) << 32, life: epoch as u64 | (device.0 as u64) << 32 }
    }

    #[inline]
    const fn context(self) -> u32 {
        self.name as u32
    }

    #[inline]
    const fn epoch(self) -> u32 {
        self.life as u32
    }

    /// A number that tells it from every other stream of the process, if a context made it. Adopted streams that follow
    /// each other in one place share theirs, which no stream that a context made has.
    #[inline]
    pub const fn name(self) -> u64 {
        self.name
    }

    /// The device it belongs to.
    #[inline]
    pub const fn device(self) -> DeviceId {
        DeviceId((self.life >> 32) as u32)
    }

    /// Its place in the context's table, below [`STREAM_SLOTS`]: to index per-stream state by. An adopted stream's place
    /// is given to another once its adoption has ended.
    #[inline]
    pub const fn slot(self) -> usize {
        (self.name >> 32) as usize % STREAM_SLOTS
    }

    /// Whether it is the legacy default stream.
    #[inline]
    pub const fn is_default(self) -> bool {
        self.slot() == 0
    }

    /// Whether somebody else made it, so that it may end while the context lives.
    #[inline]
    pub(crate) const fn is_adopted(self) -> bool {
        (self.name >> 32) as u32 & ADOPTED != 0
    }

    /// Whether it is `other`, a stream of the same context.
    #[inline]
    pub(crate) const fn is_at(self, other: Self) -> bool {
        self.slot() == other.slot() && self.epoch() == other.epoch()
    }

    /// Whether both are of one context.
    #[inline]
    pub(crate) const fn is_beside(self, other: Self) -> bool {
        self.context() == other.context()
    }

    /// Its number, as messages name it.
    pub const fn number(self) -> StreamNumber {
        StreamNumber(self.slot() as u32)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} of {}", self.number(), self.device()))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}:{})", self.device(), self.slot())
    }
}
