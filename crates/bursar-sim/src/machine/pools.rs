//! Pools of stream-ordered memory: each reserves memory of its device in large pieces, and keeps what is freed for itself.

use super::{AllocationKind, MachineState};
use crate::operation::CallResult;
use bursar_core::Status;

/// The multiple in which a pool reserves memory, as the CUDA driver does.
const PIECE: u64 = 32 << 20;
/// The multiple in which it reserves memory where the device has no whole piece left.
const PAGE: u64 = 2 << 20;

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// The bytes that it holds of the device.
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    /// The bytes of them that are in allocations, or in allocations whose frees have not run.
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// The bytes that it keeps when somebody synchronises.
    pub(crate) threshold: u64,
    /// The most that it reserves.
    pub(crate) limit: u64,
    /// True once it was destroyed: it ends with its last allocation.
    pub(crate) is_destroyed: bool,
}

impl MachineState {
    pub(crate) fn create_pool(&mut self, device: usize) -> u64 {
        let raw = self.next_pool;
        self.next_pool += 1;
        let pool = Pool {
            device,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            threshold: 0,
            limit: u64::MAX,
            is_destroyed: false,
        };
        self.pools.insert(raw, pool);
        // The shortcuts of an immediate simulator know no pools.
        self.block_shortcuts();
        raw
    }

    /// Returns a pool that was not destroyed.
    pub(crate) fn pool(&mut self, raw: u64) -> CallResult<&mut Pool> {
        self.pools.get_mut(&raw).filter(|pool| !pool.is_destroyed).ok_or(Status::InvalidValue)
    }

    /// Returns the bytes that a pool has reserved and not used.
    pub(crate) fn spare_in_pool(&self, raw: Option<u64>) -> u64 {
        raw.and_then(|raw| self.pools.get(&raw)).map_or(0, |pool| pool.reserved - pool.used)
    }

    /// Counts `bytes` as used of a pool, which reserves more where it needs to, or as held of the device where there is no
    /// pool. Returns whether they fit.
    pub(crate) fn charge_for(&mut self, device: usize, bytes: u64, pool: Option<u64>) -> CallResult<bool> {
        let Some(raw) = pool else { return self.charge(device, bytes) };
        let lacking = bytes.saturating_sub(self.spare_in_pool(pool));
        let room = self.pools.get(&raw).map_or(0, |pool| pool.limit.saturating_sub(pool.reserved));
        let Some(reserve) = self.reserve(device, lacking, room)? else { return Ok(false) };
        let pool = self.pools.get_mut(&raw).ok_or(Status::InvalidValue)?;
        pool.reserved += reserve;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        pool.used += bytes;
        pool.used_high = pool.used_high.max(pool.used);
        Ok(true)
    }

    /// Takes at least `lacking` bytes of the device for a pool, and no more than `room`. Returns how many, or `None` where
    /// they do not fit.
    fn reserve(&mut self, device: usize, lacking: u64, room: u64) -> CallResult<Option<u64>> {
        for multiple in [PIECE, PAGE] {
            let Some(bytes) = lacking.checked_next_multiple_of(multiple) else { return Ok(None) };
            if bytes == 0 || (bytes <= room && self.charge(device, bytes)?) {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Counts `bytes` as no longer used of a pool, or as no longer held of the device where there is no pool.
    pub(crate) fn release_for(&mut self, device: usize, bytes: u64, pool: Option<u64>) {
        let Some(raw) = pool else { return self.release_capacity(device, bytes) };
        if let Some(pool) = self.pools.get_mut(&raw) {
            pool.used -= bytes;
            self.end_pool_if_unused(raw);
        }
    }

    /// Finds an address in an immediate simulator for `bytes` that are charged to a pool.
    pub(crate) fn take_charged(&mut self, device: usize, bytes: u64, kind: AllocationKind) -> Option<u64> {
        let mut heap = self.devices[device].heap();
        heap.release(bytes);
        let taken = heap.take(bytes, kind);
        if taken.is_none() {
            heap.charge(bytes);
        }
        taken
    }

    /// Gives back the address of an allocation of an immediate simulator, whose memory the pool keeps.
    pub(crate) fn recycle_into_pool(&mut self, device: usize, at: u64, bytes: u64, pool: u64) {
        {
            let mut heap = self.devices[device].heap();
            heap.recycle(at, bytes);
            heap.charge(bytes);
        }
        self.release_for(device, bytes, Some(pool));
    }

    /// Gives back what a pool has reserved and not used, but for `keep` bytes, in whole pieces.
    pub(crate) fn trim_pool(&mut self, raw: u64, keep: u64) {
        let Some(pool) = self.pools.get_mut(&raw) else { return };
        let kept = pool.used.max(keep).checked_next_multiple_of(PIECE).unwrap_or(u64::MAX).min(pool.reserved);
        let (device, freed) = (pool.device, pool.reserved - kept);
        pool.reserved = kept;
        if freed > 0 {
            self.release_capacity(device, freed);
        }
    }

    /// Trims every pool of a device to what it keeps when somebody synchronises.
    pub(crate) fn trim_pools(&mut self, device: usize) {
        let of_device = |(raw, pool): (&u64, &Pool)| (pool.device == device).then_some((*raw, pool.threshold));
        let pools: Vec<(u64, u64)> = self.pools.iter().filter_map(of_device).collect();
        for (raw, threshold) in pools {
            self.trim_pool(raw, threshold);
        }
    }

    pub(crate) fn end_pool_if_unused(&mut self, raw: u64) {
        if self.pools.get(&raw).is_some_and(|pool| pool.is_destroyed && pool.used == 0) {
            self.trim_pool(raw, 0);
            self.pools.remove(&raw);
            self.unblock_shortcuts();
        }
    }
}
