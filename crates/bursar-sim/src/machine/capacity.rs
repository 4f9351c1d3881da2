//! How much of a device is free, and who counts it: the device's own heap and, where it has a name, what all processes hold.

use super::{AllocationKind, MachineState};
use crate::operation::CallResult;
use bursar_core::{Bytes, MemoryInfo, Status};
use std::io;

/// What a driver answers whose devices cannot be shared: the number and the words of the failure.
fn unshared(error: &io::Error) -> Status {
    let code = error.raw_os_error().unwrap_or(0);
    Status::Other { code, name: format!("cannot share a named device: {error}").leak(), sticky: false }
}

impl MachineState {
    /// Counts `bytes` as held, if there is room for them.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64) -> CallResult<bool> {
        let charged = self.charge_shared(device, bytes)?;
        if charged && !self.devices[device].heap().charge(bytes) {
            self.release_shared(device, bytes);
            return Ok(false);
        }
        Ok(charged)
    }

    /// Counts `bytes` as held no more.
    pub(crate) fn release_capacity(&mut self, device: usize, bytes: u64) {
        self.devices[device].heap().release(bytes);
        self.release_shared(device, bytes);
    }

    /// Takes an allocation of an immediate simulator.
    pub(crate) fn take(&mut self, device: usize, bytes: u64, kind: AllocationKind) -> CallResult<u64> {
        if !self.charge_shared(device, bytes)? {
            return Err(Status::OutOfMemory);
        }
        let taken = self.devices[device].heap().take(bytes, kind);
        taken.ok_or(Status::OutOfMemory).inspect_err(|_| self.release_shared(device, bytes))
    }

    /// Takes the memory of an allocation of an immediate simulator back.
    pub(crate) fn recycle(&mut self, device: usize, at: u64, bytes: u64) {
        self.devices[device].heap().recycle(at, bytes);
        self.release_shared(device, bytes);
    }

    /// How much is free, whoever holds the rest.
    pub(crate) fn memory_info(&self, device: usize) -> CallResult<MemoryInfo> {
        let heap = self.devices[device].heap();
        let held = match &self.share {
            Some(share) => share.held(device).map_err(|error| unshared(&error))?.max(heap.held),
            None => heap.held,
        };
        Ok(MemoryInfo { free: Bytes(heap.total.saturating_sub(held)), total: Bytes(heap.total) })
    }

    /// Has the other processes count `bytes` as held here, if they leave so much.
    pub(crate) fn charge_shared(&mut self, device: usize, bytes: u64) -> CallResult<bool> {
        let Some(share) = &mut self.share else { return Ok(true) };
        let total = self.devices[device].heap().total;
        share.charge(device, bytes, total).map_err(|error| unshared(&error))
    }

    /// Has the other processes count `bytes` as held here no more. What cannot be written goes with this simulator.
    pub(crate) fn release_shared(&mut self, device: usize, bytes: u64) {
        if let Some(share) = &mut self.share {
            let _ = share.release(device, bytes);
        }
    }
}
