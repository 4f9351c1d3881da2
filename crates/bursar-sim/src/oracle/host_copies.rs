//! The host memory of copies that have not run, which nobody else may write until then.
#![allow(unsafe_code)]

use super::clock::{Epoch, VectorClock};
use crate::Operation;
use crate::host_memory::{HostBlock, HostPtr, Pinned};
use crate::random::mix;
use std::sync::Arc;

/// A copy that has not run, with a checksum of its host memory.
#[derive(Debug)]
struct CopyWatch {
    op: Operation,
    clock: VectorClock,
    ptr: HostPtr,
    len: usize,
    sum: u64,
    /// Keeps the memory valid until the copy has run, even if its owner frees it.
    _keep: Option<Arc<HostBlock>>,
}

impl CopyWatch {
    fn overlaps(&self, start: u64, len: u64) -> bool {
        let mine = self.ptr.address();
        mine < start + len && start < mine + self.len as u64
    }

    fn sum_now(&self) -> u64 {
        // SAFETY: the memory is pinned, and either kept or valid until unregistered, which waits for the copy. That nobody
        // writes it before the copy has run is the promise that this checksum tests.
        checksum(unsafe { self.ptr.bytes(self.len) })
    }
}

/// The watches of all asynchronous copies that have not run.
#[derive(Debug, Default)]
pub(crate) struct CopyWatches {
    pending: Vec<CopyWatch>,
}

impl CopyWatches {
    pub(crate) fn begin(&mut self, op: Operation, clock: &VectorClock, ptr: HostPtr, len: usize, pinned: &Pinned) {
        let mut watch = CopyWatch { op, clock: clock.clone(), ptr, len, sum: 0, _keep: pinned.block.clone() };
        watch.sum = watch.sum_now();
        self.pending.push(watch);
    }

    /// Ends the watch of the copy made by `call`, which is about to run. Returns the copy if its host memory has changed.
    pub(crate) fn end(&mut self, call: u64) -> Option<(Operation, HostPtr, usize)> {
        let at = self.pending.iter().position(|watch| watch.op.call == call)?;
        let watch = self.pending.swap_remove(at);
        (watch.sum_now() != watch.sum).then_some((watch.op, watch.ptr, watch.len))
    }

    /// Updates the checksums of copies that overlap host memory which another copy has just written.
    pub(crate) fn written(&mut self, start: u64, len: u64) {
        for watch in self.pending.iter_mut().filter(|watch| watch.overlaps(start, len)) {
            watch.sum = watch.sum_now();
        }
    }

    /// Updates the checksums of copies ordered after host code that has just run, since it may have written their memory.
    pub(crate) fn host_function_ran(&mut self, epoch: Epoch) {
        for watch in self.pending.iter_mut().filter(|watch| watch.clock.covers(epoch)) {
            watch.sum = watch.sum_now();
        }
    }

    pub(crate) fn forget_device(&mut self, device: bursar_core::DeviceId) {
        self.pending.retain(|watch| watch.op.device != device);
    }
}

/// Returns a 64-bit checksum of `bytes`, which shows whether they changed.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = words.iter().fold(0, |sum, word| step(sum, u64::from_le_bytes(*word)));
    mix(rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte))) ^ bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_byte_changes_the_checksum() {
        for len in [1, 7, 8, 9, 100] {
            let mut bytes = vec![3u8; len];
            let before = checksum(&bytes);
            for at in 0..len {
                bytes[at] ^= 1;
                assert_ne!(checksum(&bytes), before, "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
        assert_ne!(checksum(&[]), checksum(&[0]));
    }
}
