//! The running totals of a leaf whose frees take effect at once.

use crate::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that a leaf has granted and the bytes that are free again, each modulo 2⁶⁴.
#[derive(Debug, Default)]
pub(super) struct Totals {
    granted: AtomicU64,
    released: AtomicU64,
}

impl Totals {
    /// Counts memory that was granted.
    pub(super) fn grant(&self, bytes: Bytes) {
        self.granted.fetch_add(bytes.get(), Ordering::Release);
    }

    /// Counts memory that is free again.
    pub(super) fn release(&self, bytes: Bytes) {
        self.released.fetch_add(bytes.get(), Ordering::Release);
    }

    /// Returns everything that is free again.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Returns what is granted and not free again. The released total is read first, so that it never exceeds the
    /// granted one.
    pub(super) fn outstanding(&self) -> Bytes {
        let released = self.released();
        Bytes(self.granted.load(Ordering::Acquire).wrapping_sub(released))
    }
}
