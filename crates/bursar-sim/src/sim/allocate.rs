//! Allocating and freeing.

use super::active_call::ActiveCall;
use crate::Executor;
use crate::machine::{AllocationKind, MachineState, UNIT, Work};
use crate::operation::CallResult;
use crate::oracle::{Epoch, OrderedOp, VectorClock};
use bursar_core::{DevicePtr, RawStream, Status};

/// Returns the size of an allocation of `bytes`, rounded up.
pub(crate) fn rounded(bytes: u64) -> CallResult<u64> {
    match bytes {
        0 => Err(Status::InvalidValue),
        _ => bytes.checked_next_multiple_of(UNIT).ok_or(Status::OutOfMemory),
    }
}

impl ActiveCall<'_> {
    /// Allocates memory that is usable everywhere at once.
    pub(crate) fn allocate(&mut self, bytes: u64) -> CallResult<DevicePtr> {
        let bytes = rounded(bytes)?;
        let at = self.take(bytes, AllocationKind::Direct, None, None)?;
        let (device, op) = (self.device(), self.call.operation(Executor::Host));
        if let Some(oracle) = &mut self.oracle {
            let epoch = Epoch::HOST;
            oracle.record_allocation(device, at..at + bytes, OrderedOp { op, epoch });
        }
        Ok(DevicePtr(at))
    }

    /// Allocates memory that is usable by work ordered after this point of the stream.
    pub(crate) fn allocate_async(&mut self, stream: RawStream, bytes: u64, pool: Option<u64>) -> CallResult<DevicePtr> {
        let (device, call) = (self.device(), self.call);
        let stream = self.memory_stream(device, stream)?;
        let bytes = rounded(bytes)?;
        let at = self.take(bytes, AllocationKind::StreamOrdered, Some(stream), pool)?;
        self.pool_of.extend(pool.map(|pool| (at, pool)));
        let epoch = self.submit(call, stream, &[], &[], Work::Nothing);
        let op = call.operation(self.streams[stream].executor);
        if let Some(oracle) = &mut self.oracle {
            oracle.record_allocation(device, at..at + bytes, OrderedOp { op, epoch });
        }
        Ok(DevicePtr(at))
    }

    /// Finds an address and counts its memory as held. Where pending frees would make it fit, streams advance as far as they
    /// can without waiting, as the real driver waits for frees internally.
    fn take(&mut self, bytes: u64, kind: AllocationKind, stream: Option<usize>, pool: Option<u64>) -> CallResult<u64> {
        let device = self.device();
        if self.oracle.is_none() {
            return match pool {
                Some(_) if !self.charge_for(device, bytes, pool)? => Err(Status::OutOfMemory),
                Some(_) => self.take_charged(device, bytes, kind).ok_or_else(|| {
                    self.release_for(device, bytes, pool);
                    Status::OutOfMemory
                }),
                None => MachineState::take(self, device, bytes, kind),
            };
        }
        loop {
            let others = stream.map_or(Vec::new(), |stream| self.implicit_waits(stream));
            let clock = stream.zip(self.oracle.as_ref()).map(|(stream, oracle)| oracle.next_clock(stream, &others));
            if let Some(at) = self.take_now(bytes, kind, clock.as_ref(), pool)? {
                return Ok(at);
            }
            let later = self.devices[device].space.pending();
            let free = self.memory_info(device)?.free.get().saturating_add(self.spare_in_pool(pool));
            let is_possible = bytes <= free.saturating_add(later);
            if !is_possible || !self.step() {
                return Err(Status::OutOfMemory);
            }
        }
    }

    fn take_now(
        &mut self,
        bytes: u64,
        kind: AllocationKind,
        clock: Option<&VectorClock>,
        pool: Option<u64>,
    ) -> CallResult<Option<u64>> {
        let index = self.device();
        let has_room = self.charge_for(index, bytes, pool)?;
        let state = &mut **self;
        let taken = state.devices[index].space.take(bytes, kind, clock, has_room, pool, &mut state.random);
        if has_room && taken.is_none_or(|taken| taken.is_held) {
            state.release_for(index, bytes, pool);
        }
        Ok(taken.map(|taken| taken.ptr))
    }

    /// Ends an allocation and returns its size; its memory stays held.
    fn retire(&mut self, at: u64, kind: AllocationKind) -> CallResult<u64> {
        let device = &self.devices[self.device()];
        let bytes = match self.oracle {
            Some(_) => device.space.size_of(at, kind),
            None => device.heap().retire(at, kind),
        };
        bytes.ok_or(Status::InvalidValue)
    }

    /// Frees an allocation after waiting for everything on the device.
    pub(crate) fn free(&mut self, ptr: DevicePtr) -> CallResult<()> {
        let (device, call, at) = (self.device(), self.call, ptr.0);
        if self.oracle.is_some() && self.devices[device].space.size_of(at, AllocationKind::Direct).is_none() {
            return Err(Status::InvalidValue);
        }
        self.wait_for_device(device)?;
        let bytes = self.retire(at, AllocationKind::Direct)?;
        let ended = OrderedOp { op: call.operation(Executor::Host), epoch: Epoch::HOST };
        self.end_life(at, ended, None);
        self.release(call, at, bytes, None);
        Ok(())
    }

    /// Frees an allocation of a kind at this point of the stream.
    pub(crate) fn free_async(&mut self, stream: RawStream, ptr: DevicePtr, kind: AllocationKind) -> CallResult<()> {
        let (device, call, at) = (self.device(), self.call, ptr.0);
        let stream = self.memory_stream(device, stream)?;
        let bytes = self.retire(at, kind)?;
        let pool = self.pool_of.remove(&at);
        let epoch = self.submit(call, stream, &[], &[], Work::Release { at, bytes, pool });
        let op = call.operation(self.streams[stream].executor);
        self.end_life(at, OrderedOp { op, epoch }, pool);
        Ok(())
    }

    fn end_life(&mut self, at: u64, ended: OrderedOp, pool: Option<u64>) {
        let device = self.device();
        if let Some(oracle) = &mut self.oracle {
            oracle.record_free(device, at, ended);
            self.devices[device].space.retire(at, ended.op.call, ended.epoch, pool);
        }
    }
}
