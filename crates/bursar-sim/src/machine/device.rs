//! A device: its addresses, its allocations and the pages mapped into it.

use super::eager_space::EagerAddressSpace;
use super::heap::Heap;
use super::sparse::SparseBytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of addresses of each device; the upper half is for reservations.
pub(super) const SPAN: u64 = 1 << 46;
/// The number of addresses of a device for allocations, and the number for reservations.
pub(crate) const ADDRESSES: u64 = SPAN / 2;
/// Returns the addresses of a device: those of allocations, and those of reservations.
pub(crate) fn addresses(device: usize) -> (Range<u64>, Range<u64>) {
    let base = (device as u64 + 1) * SPAN;
    (base..base + ADDRESSES, base + ADDRESSES..base + SPAN)
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
    pub(crate) is_allowed: bool,
}

/// Physical memory that can be mapped.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) store: SparseBytes,
    pub(crate) mappings: u32,
    pub(crate) is_released: bool,
    /// False for memory of another process, which is counted there.
    pub(crate) is_counted: bool,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) heap: Arc<Mutex<Heap>>,
    pub(crate) space: EagerAddressSpace,
    pub(crate) store: SparseBytes,
    /// The allocations whose bytes other processes share: their size, and the file that has them.
    pub(crate) shared: BTreeMap<u64, (u64, SparseBytes)>,
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) spare_reservations: Vec<(u64, u64)>,
    pub(crate) next_reservation: u64,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) opened: u32,
    pub(crate) is_lost: bool,
    pub(super) is_touched: bool,
}

impl Device {
    pub(crate) fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mapping that contains an address, with its start.
    pub(crate) fn mapping_at(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at < start + mapping.bytes).then_some((*start, mapping))
    }
}
