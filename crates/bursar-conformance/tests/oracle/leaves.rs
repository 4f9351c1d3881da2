//! Leaves that can be broken on purpose, each in a way that real allocators have been broken.
#![allow(unsafe_code)]

mod caching;
mod mapping;
mod returning;

pub(crate) use caching::{CachingLeaf, Waits};
pub(crate) use mapping::MappingLeaf;
pub(crate) use returning::ReturningLeaf;

use bursar_core::{
    AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DevicePtr, Note, OwnerId, RawStream, Stream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A leaf with or without its bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Broken,
    Repaired,
}

/// Notes to the driver of which ranges are blocks, which pools must send and leaves may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notes {
    Sent,
    Omitted,
}

/// The parts that the leaves have in common: the owner of the blocks, and the bytes granted and released.
#[derive(Debug)]
struct BlockAccounting {
    context: Arc<DeviceContext>,
    owner: OwnerId,
    notes: Notes,
    granted: AtomicU64,
    released: AtomicU64,
}

impl BlockAccounting {
    fn new(context: &Arc<DeviceContext>, notes: Notes) -> Self {
        Self {
            context: context.clone(),
            owner: OwnerId::unique(),
            notes,
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Creates the block at `ptr`, which belongs to the leaf.
    ///
    /// # Safety
    /// As for [`DeviceBlock::from_parts`].
    unsafe fn grant(&self, ptr: DevicePtr, requested: u64, granted: u64, stream: Stream, tag: AllocTag) -> DeviceBlock {
        self.granted.fetch_add(granted, Relaxed);
        if let (Notes::Sent, Ok(raw)) = (self.notes, self.context.resolve(stream)) {
            let note = Note::Granted { ptr, bytes: requested, stream: raw, tag };
            // SAFETY: the caller owns the range.
            unsafe { self.context.note(note) };
        }
        let owner = self.owner;
        let parts = BlockParts { ptr, requested, granted, tag, owner, offset: 0 };
        // SAFETY: the caller's own promise.
        unsafe { DeviceBlock::from_parts(parts, stream) }
    }

    /// Takes a block back at a point of a stream, and returns its address.
    fn take_back(&self, block: DeviceBlock, raw: RawStream) -> DevicePtr {
        self.take_back_after(block, raw, raw)
    }

    /// Takes a block back at a point of a stream and of its own stream, and returns its address.
    fn take_back_after(&self, block: DeviceBlock, raw: RawStream, home: RawStream) -> DevicePtr {
        assert_eq!(block.owner(), self.owner, "programs free blocks where they got them");
        let ptr = block.ptr();
        if self.notes == Notes::Sent {
            // SAFETY: the block is consumed here.
            unsafe { self.context.note(Note::Freed { ptr, stream: raw, home }) };
        }
        ptr
    }

    fn release(&self, bytes: u64) {
        self.released.fetch_add(bytes, Relaxed);
    }

    fn outstanding(&self) -> Bytes {
        Bytes(self.granted.load(Relaxed) - self.released.load(Relaxed))
    }
}

/// Defines the methods of [`Holder`](bursar_core::Holder) that [`BlockAccounting`] implements.
macro_rules! accounted_holder {
    () => {
        fn context(&self) -> &Arc<DeviceContext> {
            &self.accounting.context
        }
        fn bytes_outstanding(&self) -> Bytes {
            self.accounting.outstanding()
        }
        fn released_total(&self) -> u64 {
            self.accounting.released.load(std::sync::atomic::Ordering::Relaxed)
        }
    };
}
use accounted_holder;
