//! Pinned host memory, and the watch over what asynchronous copies have not done yet.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;

/// An address in host memory that may travel between threads: whoever made it promised that the memory stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPtr(pub(crate) *mut u8);

// SAFETY: it is an address; the promise that its memory is valid, made to the driver, holds on every thread.
unsafe impl Send for HostPtr {}
// SAFETY: as above.
unsafe impl Sync for HostPtr {}

impl HostPtr {
    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }

    /// The bytes at the address.
    ///
    /// # Safety
    /// The memory is valid for reads of `len` bytes and nobody writes it meanwhile.
    pub(crate) unsafe fn bytes<'a>(self, len: usize) -> &'a [u8] {
        // SAFETY: the call's promise.
        unsafe { std::slice::from_raw_parts(self.0, len) }
    }

    /// The bytes at the address, to be written.
    ///
    /// # Safety
    /// The memory is valid for reads and writes of `len` bytes and nobody else touches it meanwhile.
    pub(crate) unsafe fn bytes_mut<'a>(self, len: usize) -> &'a mut [u8] {
        // SAFETY: the call's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

/// Host memory of the simulator's own, zeroed and aligned to pages.
#[derive(Debug)]
pub(crate) struct HostBlock {
    base: HostPtr,
    layout: Layout,
    start: HostPtr,
}

impl HostBlock {
    pub(crate) fn new(bytes: usize) -> Option<Arc<Self>> {
        // Zeroed memory of small alignment is not touched before it is used; its pages are aligned by hand.
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
        // SAFETY: allocated with this layout in `new`, and freed here alone.
        unsafe { dealloc(self.base.0, self.layout) };
    }
}

/// A range of host memory that copies reach asynchronously.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) len: usize,
    /// The memory itself, where the simulator made it; registered memory is its owner's.
    pub(crate) block: Option<Arc<HostBlock>>,
}

/// Everything that is pinned, by address.
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

    /// The pinned range that holds all of `start .. start + len`.
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
