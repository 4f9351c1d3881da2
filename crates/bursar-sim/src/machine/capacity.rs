//! The free memory of a device, as its own heap counts it and, where the device has a name, as all processes hold it.

use super::{AllocationKind, MachineState};
use crate::operation::CallResult;
use bursar_core::{Bytes, MemoryInfo, Status};
use std::collections::BTreeMap;
use std::io;

/// Returns the status of a call on a device that cannot be shared: the number and the message of the failure.
fn unshared(error: &io::Error) -> Status {
    let code = error.raw_os_error().unwrap_or(0);
    Status::Other { code, name: format!("cannot share a named device: {error}").leak(), sticky: false }
}

impl MachineState {
    /// Counts `bytes` as held, if they fit. Returns whether they did.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64) -> CallResult<bool> {
        let charged = self.charge_shared(device, bytes)?;
        if charged && !self.devices[device].heap().charge(bytes) {
            self.release_shared(device, bytes);
            return Ok(false);
        }
        Ok(charged)
    }

    /// Counts `bytes` as no longer held.
    pub(crate) fn release_capacity(&mut self, device: usize, bytes: u64) {
        self.devices[device].heap().release(bytes);
        self.release_shared(device, bytes);
    }

    /// Allocates from the heap of an immediate simulator.
    pub(crate) fn take(&mut self, device: usize, bytes: u64, kind: AllocationKind) -> CallResult<u64> {
        if !self.charge_shared(device, bytes)? {
            return Err(Status::OutOfMemory);
        }
        let taken = self.devices[device].heap().take(bytes, kind);
        taken.ok_or(Status::OutOfMemory).inspect_err(|_| self.release_shared(device, bytes))
    }

    /// Returns the memory of a freed allocation to the heap of an immediate simulator.
    pub(crate) fn recycle(&mut self, device: usize, at: u64, bytes: u64) {
        self.devices[device].heap().recycle(at, bytes);
        self.release_shared(device, bytes);
    }

    /// Returns the free and the total memory of a device, whichever process holds the rest.
    pub(crate) fn memory_info(&self, device: usize) -> CallResult<MemoryInfo> {
        let heap = self.devices[device].heap();
        let held = match &self.share {
            Some(share) => share.held(device).map_err(|error| unshared(&error))?.max(heap.held),
            None => heap.held,
        };
        Ok(MemoryInfo { free: Bytes(heap.total.saturating_sub(held)), total: Bytes(heap.total) })
    }

    /// Returns the bytes that each process holds of a device, where it holds any.
    pub(crate) fn holders(&self, device: usize) -> CallResult<BTreeMap<u32, u64>> {
        if let Some(share) = &self.share {
            return share.holders(device).map_err(|error| unshared(&error));
        }
        let held = self.devices[device].heap().held;
        Ok((held > 0).then(|| (std::process::id(), held)).into_iter().collect())
    }

    /// Tells the other processes that `bytes` are held here, if they fit beside what those hold. Returns whether they did.
    pub(crate) fn charge_shared(&mut self, device: usize, bytes: u64) -> CallResult<bool> {
        let Some(share) = &mut self.share else { return Ok(true) };
        let total = self.devices[device].heap().total;
        share.charge(device, bytes, total).map_err(|error| unshared(&error))
    }

    /// Tells the other processes that `bytes` are no longer held here. If that cannot be written, it is corrected when this
    /// simulator ends.
    pub(crate) fn release_shared(&mut self, device: usize, bytes: u64) {
        if let Some(share) = &mut self.share {
            let _ = share.release(device, bytes);
        }
    }
}
