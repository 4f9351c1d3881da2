//! Blocks inside a larger block, with a margin on either side.
#![allow(unsafe_code)]

use crate::{AllocTag, BlockParts, Bytes, DeviceBlock, DevicePtr, Generation, OwnerId, Stream};

/// A block out of which another was cut for a user. Whoever cut it owns the margins on both sides; the rest belongs to
/// the user until the user's block comes back.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::{FencedBlock, OwnerId};
/// # use bursar::prelude::*;
/// # fn show(memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<()> {
/// let whole = memory.allocate(256 + 1000 + 256, 256, stream, tag!("fenced"))?;
/// let (fenced, block) = FencedBlock::cut(whole, 256, 1000, OwnerId::unique());
/// assert_eq!((block.requested(), block.generation()), (Bytes(1000), fenced.generation()));
/// memory.deallocate(fenced.open(block), stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedBlock {
    whole: DeviceBlock,
    front: u64,
    bytes: u64,
    generation: Generation,
}

impl FencedBlock {
    /// Cuts `bytes` out of `whole`, `front` bytes from its start, for `owner` to hand out. The block is charged and
    /// described as the whole is, with a generation of its own.
    ///
    /// # Panics
    /// If they do not lie in what was requested with `whole`.
    pub fn cut(whole: DeviceBlock, front: u64, bytes: u64, owner: OwnerId) -> (Self, DeviceBlock) {
        let end = front.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= whole.requested().get()), "the part lies in the block");
        let ptr = whole.ptr().offset(front);
        let parts = BlockParts {
            ptr,
            requested: bytes,
            granted: whole.granted().get(),
            tag: whole.tag(),
            owner,
            offset: u32::try_from(ptr.0 - whole.base().0).expect("a margin is no larger than an alignment"),
        };
        // SAFETY: the range lies in a block that nobody else has, and whose own token stays inside `FencedBlock` for as
        // long as this one is out.
        let block = unsafe { DeviceBlock::from_parts(parts, whole.stream()) };
        (Self { front, bytes, generation: block.generation(), whole }, block)
    }

    /// Takes the user's block back and returns the whole block.
    ///
    /// # Panics
    /// If it is another block than the one that was cut out.
    pub fn open(self, block: DeviceBlock) -> DeviceBlock {
        assert_eq!(block.generation(), self.generation, "the block that was cut out");
        self.whole
    }

    /// Returns the address of the user's block.
    pub const fn ptr(&self) -> DevicePtr {
        DevicePtr(self.whole.ptr().0 + self.front)
    }

    /// Returns the bytes that the user requested.
    pub const fn requested(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Returns the generation of the user's block.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the tag of the allocation.
    pub const fn tag(&self) -> AllocTag {
        self.whole.tag()
    }

    /// Returns the stream it was allocated on.
    pub const fn stream(&self) -> Stream {
        self.whole.stream()
    }

    /// Returns the margins before and after the user's block, each at most `width` wide, nearest to it, as addresses
    /// and lengths.
    pub(crate) fn margins(&self, width: u64) -> [(DevicePtr, u64); 2] {
        let before = self.front.min(width);
        let after = (self.whole.requested().get() - self.front - self.bytes).min(width);
        [(DevicePtr(self.ptr().0 - before), before), (self.ptr().offset(self.bytes), after)]
    }
}
