//! The memory of each device that is held through the wrapper, and its limit.

use super::call::Call;
use bursar_core::{Bytes, DeviceId, DevicePtr, DriverError, DriverResult, MemoryInfo, RawPages, Status};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A piece of device memory, by the driver's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Piece {
    Memory(DevicePtr),
    Pages(RawPages),
}

impl From<DevicePtr> for Piece {
    fn from(ptr: DevicePtr) -> Self {
        Self::Memory(ptr)
    }
}

impl From<RawPages> for Piece {
    fn from(pages: RawPages) -> Self {
        Self::Pages(pages)
    }
}

#[derive(Debug, Default)]
struct State {
    limit: Option<u64>,
    held: HashMap<DeviceId, u64>,
    sizes: HashMap<(DeviceId, Piece), u64>,
}

impl State {
    fn held(&self, device: DeviceId) -> u64 {
        self.held.get(&device).copied().unwrap_or(0)
    }

    fn release(&mut self, device: DeviceId, bytes: u64) {
        self.held.entry(device).and_modify(|held| *held -= bytes);
    }
}

/// The memory held: charged before the driver is called, so that concurrent requests never exceed the limit together, and
/// released when the driver has it back. No lock is held while the driver is called.
#[derive(Debug, Default)]
pub(super) struct Holdings(Mutex<State>);

impl Holdings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_limit(&self, limit: Option<Bytes>) {
        self.state().limit = limit.map(Bytes::get);
    }

    pub(super) fn held(&self, device: DeviceId) -> Bytes {
        Bytes(self.state().held(device))
    }

    /// Returns the driver's figures with free memory capped by the limit.
    pub(super) fn cap(&self, device: DeviceId, info: MemoryInfo) -> MemoryInfo {
        let state = self.state();
        let left = state.limit.map(|limit| limit.saturating_sub(state.held(device)));
        MemoryInfo { free: info.free.min(left.map_or(Bytes::MAX, Bytes)), ..info }
    }

    /// Allocates, if the limit allows it.
    pub(super) fn take<P: Into<Piece> + Copy>(
        &self,
        call: Call,
        device: DeviceId,
        bytes: u64,
        allocate: impl FnOnce() -> DriverResult<P>,
    ) -> DriverResult<P> {
        self.charge(call, device, bytes)?;
        let result = allocate();
        let mut state = self.state();
        match result {
            Ok(piece) => drop(state.sizes.insert((device, piece.into()), bytes)),
            Err(_) => state.release(device, bytes),
        }
        result
    }

    fn charge(&self, call: Call, device: DeviceId, bytes: u64) -> DriverResult<()> {
        let mut state = self.state();
        let limit = state.limit.unwrap_or(u64::MAX);
        match state.held(device).checked_add(bytes) {
            Some(held) if held <= limit => {
                state.held.insert(device, held);
                Ok(())
            }
            _ => Err(DriverError::new(call.name(), device, Status::OutOfMemory)),
        }
    }

    /// Frees. The piece is forgotten first, since its name may be reused before the driver's result arrives here.
    pub(super) fn give(
        &self,
        device: DeviceId,
        piece: impl Into<Piece>,
        free: impl FnOnce() -> DriverResult<()>,
    ) -> DriverResult<()> {
        let key = (device, piece.into());
        let known = self.state().sizes.remove(&key);
        let result = free();
        if let Some(bytes) = known {
            let mut state = self.state();
            match result {
                Ok(()) => state.release(device, bytes),
                Err(_) => drop(state.sizes.insert(key, bytes)),
            }
        }
        result
    }
}
