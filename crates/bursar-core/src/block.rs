//! The token that owns a range of device memory.
#![allow(unsafe_code)]

mod frame;
mod lent;

pub use frame::{Frame, FrameKind, RefusedFrame};
pub use lent::{LentBlocks, RawBlock};

use crate::{AllocTag, Bytes, DeviceId, DevicePtr, Error, Generation, MAX_ALIGN, MIN_ALIGN, Result, Stream, is_size};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The identity of the resource that made a block, and so the only one that may take it back.
///
/// ```
/// use bursar::memory::OwnerId;
///
/// assert_ne!(OwnerId::unique(), OwnerId::unique());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId(u32);

impl OwnerId {
    /// Returns an identity that nothing else in the process has.
    pub fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }

    /// Returns the number itself, which is not zero.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Exclusive ownership of one range of device memory: a linear token.
///
/// A block cannot be copied or, in safe code, forged, and freeing takes it by value; so no two live blocks overlap and
/// a double free does not compile. Dropping one without freeing it leaks its memory, which stays counted.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<()> {
/// let block = memory.allocate(1000, 256, stream, tag!("scratch"))?;
/// assert_eq!(block.requested(), Bytes(1000));
/// assert!(block.granted() >= block.requested());
/// memory.deallocate(block, stream).map_err(|refused| refused.error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a block leaks its memory: give it back with `deallocate`"]
pub struct DeviceBlock {
    ptr: DevicePtr,
    requested: u64,
    granted: u64,
    /// The number of its [`Generation`]. A number that is never zero would give `Result` a niche instead of a
    /// discriminant of its own, and `?` would copy a block twice to take it out.
    generation: u64,
    stream: Stream,
    tag: AllocTag,
    owner: OwnerId,
    offset: u32,
}

const _: () = assert!(size_of::<DeviceBlock>() == 64, "a block is one cache line");

/// The parts that a block is made of; see [`DeviceBlock::from_parts`].
///
/// ```
/// use bursar::memory::{AllocTag, BlockParts, DevicePtr, OwnerId};
///
/// let parts = BlockParts {
///     ptr: DevicePtr(0x1000),
///     requested: 100,
///     granted: 256,
///     tag: AllocTag::UNTAGGED,
///     owner: OwnerId::unique(),
///     offset: 0,
/// };
/// assert!(parts.requested <= parts.granted);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockParts {
    /// The address of the block, for its user.
    pub ptr: DevicePtr,
    /// The bytes that were requested.
    pub requested: u64,
    /// The bytes that the block costs, from `ptr - offset` on.
    pub granted: u64,
    /// The tag of the allocation.
    pub tag: AllocTag,
    /// The resource that made it.
    pub owner: OwnerId,
    /// The distance by which alignment moved `ptr` into the grant, in bytes.
    pub offset: u32,
}

impl BlockParts {
    /// Returns the parts of a block at the first aligned address in an allocation of `granted` bytes at `base`, as
    /// [`grant`] sized it.
    #[inline]
    pub const fn aligned(
        base: DevicePtr,
        requested: u64,
        granted: Bytes,
        align: u64,
        tag: AllocTag,
        owner: OwnerId,
    ) -> Self {
        let offset = base.0.wrapping_neg() & (align - 1);
        Self { ptr: base.offset(offset), requested, granted: granted.get(), tag, owner, offset: offset as u32 }
    }
}

impl DeviceBlock {
    /// Makes the token for a range, with a generation of its own.
    ///
    /// # Safety
    /// The granted range is device memory of `stream`'s device that no other live block or frame covers and that its
    /// maker hands out with this token alone.
    #[inline]
    pub unsafe fn from_parts(parts: BlockParts, stream: Stream) -> Self {
        let BlockParts { ptr, requested, granted, tag, owner, offset } = parts;
        Self { ptr, requested, granted, generation: Generation::next().get(), stream, tag, owner, offset }
    }

    /// Returns the address of its first byte.
    #[inline]
    pub const fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the address at which its grant begins: [`ptr`](Self::ptr), or before it where the alignment is larger
    /// than a leaf's.
    #[inline]
    pub const fn base(&self) -> DevicePtr {
        DevicePtr(self.ptr.0 - self.offset as u64)
    }

    /// Returns the bytes that were requested.
    #[inline]
    pub const fn requested(&self) -> Bytes {
        Bytes(self.requested)
    }

    /// Returns the bytes that it costs: budgets charge them, and they are free again once it is.
    #[inline]
    pub const fn granted(&self) -> Bytes {
        Bytes(self.granted)
    }

    /// Returns the device it is on.
    #[inline]
    pub const fn device(&self) -> DeviceId {
        self.stream.device()
    }

    /// Returns the stream it was allocated on.
    #[inline]
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the tag of the allocation.
    #[inline]
    pub const fn tag(&self) -> AllocTag {
        self.tag
    }

    /// Returns its generation, which tells it from every other block at the same address.
    #[inline]
    pub const fn generation(&self) -> Generation {
        Generation::numbered(self.generation)
    }

    /// Returns the identity of the resource that made it.
    #[inline]
    pub const fn owner(&self) -> OwnerId {
        self.owner
    }
}

/// A free that was refused before anything happened: the block comes back with the reason.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(memory: &dyn DeviceMemoryResource, other: &dyn DeviceMemoryResource, stream: Stream) -> Result<()> {
/// let block = memory.allocate(1000, 256, stream, tag!("scratch"))?;
/// let refused = other.deallocate(block, stream).unwrap_err();
/// assert!(matches!(refused.error, Error::ForeignBlock { .. }));
/// memory.deallocate(refused.block, stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the block was not freed: {error}")]
pub struct Refused {
    /// The block, as it was.
    pub block: DeviceBlock,
    /// The reason for the refusal.
    #[source]
    pub error: Error,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

/// Returns the bytes that a request costs where sizes are rounded to [`MIN_ALIGN`] and larger alignments are met by
/// over-allocating, as in every leaf.
///
/// ```
/// use bursar::Bytes;
/// use bursar::memory::grant;
///
/// assert_eq!(grant(1, 1)?, Bytes(256));
/// assert_eq!(grant(512, 4096)?, Bytes(512 + 4096 - 256));
/// assert!(grant(u64::MAX, 256).is_err());
/// # Ok::<(), bursar::Error>(())
/// ```
pub const fn grant(bytes: u64, align: u64) -> Result<Bytes> {
    if !align.is_power_of_two() || align > MAX_ALIGN {
        return Err(Error::InvalidAlignment { align });
    }
    if !is_size(bytes) {
        return Err(Error::InvalidSize { requested: bytes });
    }
    Ok(Bytes(bytes.next_multiple_of(MIN_ALIGN) + align.saturating_sub(MIN_ALIGN)))
}

/// The error of a range that does not lie in its block.
pub(crate) const OUTSIDE: Error = Error::InvalidValue { what: "the range does not lie in the block" };

/// Returns the address of `bytes` at `offset`, if they lie in what was requested with the block.
pub(crate) fn range(block: &DeviceBlock, offset: u64, bytes: u64) -> Result<DevicePtr> {
    match offset.checked_add(bytes) {
        Some(end) if end <= block.requested().get() => Ok(block.ptr().offset(offset)),
        _ => Err(OUTSIDE),
    }
}
