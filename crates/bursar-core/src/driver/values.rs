//! Handles and plain values that are passed to a driver and returned by it.

use crate::{AllocTag, DeviceId, DevicePtr};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    )* };
}

handles! {
    /// A driver's handle of a stream.
    ///
    /// ```
    /// assert_ne!(bursar::driver::RawStream::LEGACY, bursar::driver::RawStream::PER_THREAD);
    /// ```
    RawStream,
    /// A driver's handle of an event.
    ///
    /// ```
    /// assert_eq!(bursar::driver::RawEvent(7).0, 7);
    /// ```
    RawEvent,
    /// A driver's handle of physical memory that can be mapped.
    ///
    /// ```
    /// assert_eq!(bursar::driver::RawPages(7).0, 7);
    /// ```
    RawPages,
    /// A driver's handle of a graph that was captured.
    ///
    /// ```
    /// assert_eq!(bursar::driver::RawGraph(7).0, 7);
    /// ```
    RawGraph,
    /// A driver's handle of a graph that can be launched.
    ///
    /// ```
    /// assert_eq!(bursar::driver::RawGraphExec(7).0, 7);
    /// ```
    RawGraphExec,
    /// A driver's handle of a device's primary context, for other libraries in the process.
    ///
    /// ```
    /// assert_eq!(bursar::driver::RawContext(7).0, 7);
    /// ```
    RawContext,
}

impl RawStream {
    /// The legacy default stream of a device.
    pub const LEGACY: Self = Self(1);
    /// The per-thread default stream, which nothing here accepts: it is a different stream on each thread.
    pub const PER_THREAD: Self = Self(2);
}

/// An address with the device whose memory it is in.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::PeerPtr;
/// use bursar::memory::DevicePtr;
///
/// let there = PeerPtr { device: DeviceId(1), ptr: DevicePtr(0x1000) };
/// assert_ne!(there.device, DeviceId(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPtr {
    /// The device.
    pub device: DeviceId,
    /// The address.
    pub ptr: DevicePtr,
}

/// The progress of submitted work.
///
/// ```
/// use bursar::driver::Progress;
///
/// assert!(Progress::Complete.is_complete());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything asked about has run.
    Complete,
    /// Something has not run yet.
    Pending,
}

impl Progress {
    /// Returns whether everything asked about has run.
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Complete)
    }
}

/// The kinds of host memory a driver can make, or make of existing memory.
///
/// ```
/// use bursar::driver::HostFlags;
///
/// assert!(!HostFlags::default().write_combined);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFlags {
    /// Fast for the device to read across the bus, very slow for the CPU to read.
    pub write_combined: bool,
}

/// The pattern that a fill repeats.
///
/// ```
/// use bursar::driver::Pattern;
///
/// assert_eq!(Pattern::U32(1).width(), 4);
/// assert_eq!(Pattern::U16(0xff01).bytes().as_ref(), 0xff01u16.to_ne_bytes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    U8(u8),
    /// Two bytes, at an even address.
    U16(u16),
    /// Four bytes, at an address divisible by four.
    U32(u32),
}

impl Pattern {
    /// Returns its width in bytes.
    pub const fn width(self) -> u64 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }

    /// Returns its bytes in memory order.
    pub fn bytes(self) -> impl AsRef<[u8]> {
        struct Of([u8; 4], usize);
        impl AsRef<[u8]> for Of {
            fn as_ref(&self) -> &[u8] {
                &self.0[..self.1]
            }
        }
        let mut bytes = [0; 4];
        let width = self.width() as usize;
        match self {
            Self::U8(value) => bytes[0] = value,
            Self::U16(value) => bytes[..2].copy_from_slice(&value.to_ne_bytes()),
            Self::U32(value) => bytes.copy_from_slice(&value.to_ne_bytes()),
        }
        Of(bytes, width)
    }
}

/// A note to a driver that listens ([`Driver::listens`](crate::Driver::listens)) about which part of its memory is one
/// block now. A checker needs this to judge pools, whose blocks the driver never sees allocated; hardware ignores it,
/// so a pool has no checker inside and a note costs one branch there.
///
/// ```
/// use bursar::driver::{Note, RawStream};
/// use bursar::memory::{AllocTag, DevicePtr};
///
/// let note = Note::Granted {
///     ptr: DevicePtr(0x1000),
///     bytes: 512,
///     stream: RawStream::LEGACY,
///     tag: AllocTag::UNTAGGED,
/// };
/// assert!(matches!(note, Note::Granted { bytes: 512, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// From this point of `stream` on, this range is one block.
    Granted {
        /// The first address of the block.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
        /// The stream whose order the grant follows.
        stream: RawStream,
        /// The tag of the allocation.
        tag: AllocTag,
    },
    /// From this point of both `stream` and `home` on, the block that began at `ptr` belongs to nobody.
    Freed {
        /// The first address of the block.
        ptr: DevicePtr,
        /// The stream whose order the free follows.
        stream: RawStream,
        /// The block's own stream, where its order comes before the free too; the same stream where `stream` comes after
        /// it anyhow.
        home: RawStream,
    },
    /// From this point of `stream` on, this part of a block is room for other blocks: its holder divides it.
    Divided {
        /// The first address of the part.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
        /// The stream whose order the division follows.
        stream: RawStream,
    },
    /// From this point of `stream` on, what was divided at `ptr` is part of its block again, with no other block in it.
    Rejoined {
        /// The first address of the part.
        ptr: DevicePtr,
        /// The stream whose order this follows.
        stream: RawStream,
    },
    /// From now on the blocks in this range sleep: pages are taken from under them, and given to them again.
    Asleep {
        /// The first address.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
    },
    /// The contents of this range, which sleeps, are to be there again when it wakes.
    Saved {
        /// The first address.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
    },
    /// From now on a range is awake that slept: its pages are mapped, and its contents as they were.
    Awake {
        /// The first address.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
    },
    /// A range that slept does not wake: every block in it was freed meanwhile, and other memory may be mapped there.
    Abandoned {
        /// The first address.
        ptr: DevicePtr,
        /// The length in bytes.
        bytes: u64,
    },
}
