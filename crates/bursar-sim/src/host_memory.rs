//! Pinned host memory, allocated here or registered by its owner.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;

/// An address in host memory that may be sent between threads: its creator promised that the memory stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPtr(pub(crate) *mut u8);

// SAFETY: it is only an address; the promise that its memory is valid was made to the driver and holds on every thread.
unsafe impl Send for HostPtr {}
// SAFETY: as above.
unsafe impl Sync for HostPtr {}

impl HostPtr {
    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }

    /// Returns the bytes at the address.
    ///
    /// # Safety
    /// The memory is valid for reads of `len` bytes and nobody writes it meanwhile.
    pub(crate) unsafe fn bytes<'a>(self, len: usize) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0, len) }
    }

    /// Returns the bytes at the address for writing.
    ///
    /// # Safety
    /// The memory is valid for reads and writes of `len` bytes and nobody else touches it meanwhile.
    pub(crate) unsafe fn bytes_mut<'a>(self, len: usize) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

/// Zeroed, page-aligned host memory that the simulator allocated.
#[derive(Debug)]
pub(crate) struct HostBlock {
    base: HostPtr,
    layout: Layout,
    start: HostPtr,
}

impl HostBlock {
    pub(crate) fn new(bytes: usize) -> Option<Arc<Self>> {
        // Zeroed memory of small alignment has no pages before it is used, so pages are aligned by hand.
        let layout = Layout::from_size_align(bytes.checked_add(PAGE)?, 16).ok()?;
        // SAFETY: the layout is larger than zero.
        let base = unsafe { alloc_zeroed(layout) };
        (!base.is_null()).then(|| {
            let start = base.wrapping_add(base.align_offset(PAGE));
            Arc::new(Self { base: HostPtr(base), layout, start: HostPtr(start) })
        })
    }

    pub(crate) fn start(&self) -> HostPtr {
        self.start
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and freed only here.
        unsafe { dealloc(self.base.0, self.layout) };
    }
}

/// A range of pinned host memory, which copies access asynchronously.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) len: usize,
    /// The memory, where the simulator allocated it; registered memory belongs to its owner.
    pub(crate) block: Option<Arc<HostBlock>>,
}

/// All pinned ranges by address.
#[derive(Debug, Default)]
pub(crate) struct PinnedMap {
    ranges: BTreeMap<u64, Pinned>,
}

impl PinnedMap {
    pub(crate) fn insert(&mut self, start: u64, pinned: Pinned) {
        self.ranges.insert(start, pinned);
    }

    pub(crate) fn get(&self, start: u64) -> Option<&Pinned> {
        self.ranges.get(&start)
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Pinned> {
        self.ranges.remove(&start)
    }

    /// Returns the pinned range that contains all of `start .. start + len`.
    pub(crate) fn around(&self, start: u64, len: u64) -> Option<&Pinned> {
        let (at, pinned) = self.ranges.range(..=start).next_back()?;
        (start + len <= at + pinned.len as u64).then_some(pinned)
    }

    pub(crate) fn overlaps(&self, start: u64, len: u64) -> bool {
        let before = self.ranges.range(..start + len).next_back();
        before.is_some_and(|(at, pinned)| at + pinned.len as u64 > start)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pinned> {
        self.ranges.values()
    }
}
