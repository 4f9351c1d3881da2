//! The paths on which an immediate simulator allocates and frees without the lock of the whole machine.

use super::Sim;
use super::allocate::rounded;
use crate::machine::{AllocationKind, Heap};
use bursar_core::{DeviceId, DevicePtr, DriverError, DriverResult, Status};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn locked(heap: &Mutex<Heap>) -> MutexGuard<'_, Heap> {
    heap.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// Returns whether an immediate simulator may skip the lock: nothing is queued, no stream is captured, no device is lost
    /// and none has a name.
    #[inline]
    pub(super) fn can_shortcut(&self) -> bool {
        self.seed.is_none() && self.shortcut_blockers.load(Ordering::Acquire) == 0
    }

    /// Returns the heap of a device, if an immediate simulator may use it directly.
    #[inline]
    pub(super) fn shortcut_heap(&self, device: DeviceId) -> Option<&Mutex<Heap>> {
        self.can_shortcut().then(|| self.heaps.get(device.0 as usize)).flatten().map(|heap| &**heap)
    }

    /// Allocates without the lock of the machine.
    #[inline]
    pub(super) fn allocate_directly(
        &self,
        heap: &Mutex<Heap>,
        call: &'static str,
        device: DeviceId,
        bytes: u64,
        kind: AllocationKind,
    ) -> DriverResult<DevicePtr> {
        let taken = rounded(bytes).and_then(|bytes| locked(heap).take(bytes, kind).ok_or(Status::OutOfMemory));
        taken.map(DevicePtr).map_err(|status| DriverError::new(call, device, status))
    }

    /// Frees without the lock of the machine, unless there are contents to discard.
    #[inline]
    pub(super) fn free_directly(
        &self,
        heap: &Mutex<Heap>,
        call: &'static str,
        device: DeviceId,
        ptr: DevicePtr,
        kind: AllocationKind,
    ) -> DriverResult<()> {
        let mut heap = locked(heap);
        let retired = heap.retire(ptr.0, kind);
        let bytes = retired.ok_or(DriverError::new(call, device, Status::InvalidValue))?;
        if heap.is_touched {
            drop(heap);
            let mut state = self.lock();
            let device = &mut state.devices[device.0 as usize];
            device.store.discard(ptr.0, bytes);
            device.heap().recycle(ptr.0, bytes);
        } else {
            heap.recycle(ptr.0, bytes);
        }
        Ok(())
    }
}
