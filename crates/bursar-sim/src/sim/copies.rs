//! Copies, fills and pinned host memory.
#![allow(unsafe_code)]

use super::active_call::ActiveCall;
use crate::Executor;
use crate::host_memory::{HostBlock, HostPtr, Pinned};
use crate::machine::{Source, Word, Work};
use crate::operation::CallResult;
use crate::oracle::{Epoch, RangeAccess};
use bursar_core::{Access, DevicePtr, Pattern, PeerPtr, RawStream, Status};
use std::ops::Range;

/// Returns the addresses `at .. at + bytes`.
fn range(at: u64, bytes: u64) -> CallResult<Range<u64>> {
    Ok(at..at.checked_add(bytes).ok_or(Status::InvalidValue)?)
}

fn touch(at: u64, bytes: u64, access: Access) -> CallResult<RangeAccess> {
    range(at, bytes).map(|range| RangeAccess { range, access })
}

/// Returns the four bytes that a pattern repeats, at an address that is a multiple of its width.
fn word(pattern: Pattern) -> Word {
    let bytes = pattern.bytes();
    let bytes: &[u8] = bytes.as_ref();
    std::array::from_fn(|at| bytes[at % bytes.len()])
}

impl ActiveCall<'_> {
    /// Refuses accesses beyond memory, as CUDA does. Memory that was freed or unmapped is left to the oracle of a seeded
    /// simulator: whether the free comes first is a question of order, which a status cannot express.
    fn check(&mut self, stream: usize, touches: &[RangeAccess]) -> CallResult<()> {
        let outside: Vec<&RangeAccess> = touches.iter().filter(|touch| !self.is_within_reach(touch)).collect();
        if outside.is_empty() {
            return Ok(());
        }
        let op = self.call.operation(self.streams[stream].executor);
        for touch in outside {
            let device = self.device_of(touch.range.start).unwrap_or(self.call.device);
            if let Some(oracle) = &mut self.oracle {
                oracle.report_refused(device, touch, op, stream);
            }
        }
        Err(Status::InvalidValue)
    }

    fn is_within_reach(&self, touch: &RangeAccess) -> bool {
        let at = touch.range.start;
        let was_memory = || {
            let judged = self.oracle.as_ref().zip(self.device_of(at));
            judged.is_some_and(|(oracle, device)| oracle.was_memory(device, at))
        };
        touch.range.is_empty() || self.is_memory(&touch.range) || was_memory()
    }

    /// Submits work to a stream, or adds it to the capture of the stream.
    fn run_or_capture(&mut self, stream: usize, touches: &[RangeAccess], work: Work) -> CallResult<()> {
        let call = self.call;
        if let Some(work) = self.capture_work(call, stream, touches, &[], work)? {
            self.submit(call, stream, &[], touches, work);
        }
        Ok(())
    }

    pub(crate) fn fill_on(
        &mut self,
        stream: RawStream,
        dst: DevicePtr,
        pattern: Pattern,
        count: u64,
    ) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        let bytes = count.checked_mul(pattern.width()).ok_or(Status::InvalidValue)?;
        if !dst.0.is_multiple_of(pattern.width()) {
            return Err(Status::InvalidValue);
        }
        let touches = [touch(dst.0, bytes, Access::Write)?];
        self.check(stream, &touches)?;
        let (dst, word) = (dst.0, word(pattern));
        self.run_or_capture(stream, &touches, Work::Fill { dst, bytes, word })
    }

    pub(crate) fn copy_on(&mut self, stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        let touches = [touch(src.0, bytes, Access::Read)?, touch(dst.0, bytes, Access::Write)?];
        self.check(stream, &touches)?;
        let (dst, src) = (dst.0, src.0);
        self.run_or_capture(stream, &touches, Work::Copy { dst, src, bytes })
    }

    /// Copies between devices that are linked, each address in the memory of its device.
    pub(crate) fn copy_peer_on(&mut self, stream: RawStream, dst: PeerPtr, src: PeerPtr, bytes: u64) -> CallResult<()> {
        for end in [dst, src] {
            let device = end.device.0 as usize;
            if self.devices.get(device).ok_or(Status::InvalidDevice)?.is_lost {
                return Err(Status::DeviceLost);
            }
            if bytes > 0 && self.device_of(end.ptr.0).is_some_and(|owner| owner != device) {
                return Err(Status::InvalidValue);
            }
        }
        self.copy_on(stream, dst.ptr, src.ptr, bytes)
    }

    /// Copies host memory to the device. Pinned memory is read when the copy runs, other memory now.
    ///
    /// # Safety
    /// As for [`Driver::copy_to_device`](bursar_core::Driver::copy_to_device).
    pub(crate) unsafe fn copy_to_device_on(
        &mut self,
        stream: RawStream,
        dst: DevicePtr,
        src: HostPtr,
        bytes: u64,
    ) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        let touches = [touch(dst.0, bytes, Access::Write)?];
        let host = touch(src.address(), bytes, Access::Read)?;
        if src.0.is_null() {
            return Err(Status::InvalidValue);
        }
        self.check(stream, &touches)?;
        let pinned = self.pinned.around(src.address(), bytes).cloned();
        let is_free = self.active.is_empty() && !self.is_capturing(stream);
        let runs_now = self.oracle.is_none() && is_free && self.streams[stream].is_idle();
        let source = if pinned.is_some() || runs_now || bytes == 0 {
            let _keep = pinned.as_ref().and_then(|pinned| pinned.block.clone());
            Source::Direct { ptr: src, bytes, _keep }
        } else {
            // SAFETY: the source is valid until the copy has run, so it is now.
            Source::Staged(unsafe { src.bytes(bytes as usize) }.to_vec())
        };
        let work = Work::Upload { dst: dst.0, source };
        let Some(work) = self.capture_work(call, stream, &touches, std::slice::from_ref(&host), work)? else {
            return Ok(());
        };
        let epoch = self.submit(call, stream, &[], &touches, work);
        self.watch(epoch, src, &host, pinned.as_ref());
        Ok(())
    }

    /// Copies device memory to the host. Pageable memory must not be touched after this returns, so it waits for the copy.
    ///
    /// # Safety
    /// As for [`Driver::copy_to_host`](bursar_core::Driver::copy_to_host).
    pub(crate) unsafe fn copy_to_host_on(
        &mut self,
        stream: RawStream,
        dst: HostPtr,
        src: DevicePtr,
        bytes: u64,
    ) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        let touches = [touch(src.0, bytes, Access::Read)?];
        let host = touch(dst.address(), bytes, Access::Write)?;
        if dst.0.is_null() {
            return Err(Status::InvalidValue);
        }
        self.check(stream, &touches)?;
        let pinned = self.pinned.around(dst.address(), bytes).cloned();
        let work =
            Work::Download { dst, src: src.0, bytes, _keep: pinned.as_ref().and_then(|pinned| pinned.block.clone()) };
        if pinned.is_none() && bytes > 0 && self.is_capturing(stream) {
            // It would wait for the stream.
            self.spoil_capture(stream);
            return Err(Status::Capturing);
        }
        let Some(work) = self.capture_work(call, stream, &touches, std::slice::from_ref(&host), work)? else {
            return Ok(());
        };
        let epoch = self.submit(call, stream, &[], &touches, work);
        self.watch(epoch, dst, &host, pinned.as_ref());
        match pinned {
            None if bytes > 0 => self.wait_for_stream(stream),
            _ => Ok(()),
        }
    }

    /// Checks the access of the copy just submitted to pinned memory, and watches that memory until the copy has run.
    fn watch(&mut self, epoch: Epoch, ptr: HostPtr, host: &RangeAccess, pinned: Option<&Pinned>) {
        let op = host.by(self.call.operation(self.streams[epoch.stream].executor));
        if let (Some(oracle), Some(pinned)) = (&mut self.oracle, pinned) {
            oracle.check_host_access(host, op, epoch);
            oracle.watch(op, epoch, ptr, pinned, host);
        }
    }

    pub(crate) fn host_allocate(&mut self, bytes: usize) -> CallResult<*mut u8> {
        if bytes == 0 {
            return Err(Status::InvalidValue);
        }
        let block = HostBlock::new(bytes).ok_or(Status::OutOfMemory)?;
        let start = block.start();
        let pinned = Pinned { len: bytes, block: Some(block) };
        self.pinned.insert(start.address(), pinned);
        Ok(start.0)
    }

    /// Frees pinned memory. A copy that has not run keeps it valid until then.
    pub(crate) fn host_free(&mut self, ptr: HostPtr) -> CallResult<()> {
        let at = ptr.address();
        let pinned = self.pinned.get(at).filter(|pinned| pinned.block.is_some());
        let bytes = pinned.ok_or(Status::InvalidValue)?.len as u64;
        self.report_pending_copies(at, bytes);
        self.pinned.remove(at);
        self.forget_host_memory(at..at + bytes);
        Ok(())
    }

    /// Reports copies from or to a range of host memory that the host does not know to have run.
    fn report_pending_copies(&mut self, at: u64, bytes: u64) {
        let touch = RangeAccess { range: at..at + bytes, access: Access::Write };
        let op = touch.by(self.call.operation(Executor::Host));
        if let Some(oracle) = &mut self.oracle {
            oracle.check_host_touch(&touch, op);
        }
    }

    fn forget_host_memory(&mut self, range: Range<u64>) {
        if let Some(oracle) = &mut self.oracle {
            oracle.forget_host_memory(range);
        }
    }

    pub(crate) fn host_register(&mut self, ptr: HostPtr, bytes: usize) -> CallResult<()> {
        let at = ptr.address();
        if ptr.0.is_null() || bytes == 0 || at.checked_add(bytes as u64).is_none() {
            return Err(Status::InvalidValue);
        }
        if self.pinned.overlaps(at, bytes as u64) {
            return Err(Status::AlreadyRegistered);
        }
        let pinned = Pinned { len: bytes, block: None };
        self.pinned.insert(at, pinned);
        Ok(())
    }

    /// Unpins registered memory after waiting for the device, and for all others that still copy from or to it: the memory
    /// belongs to its owner, who may free it next.
    pub(crate) fn host_unregister(&mut self, ptr: HostPtr) -> CallResult<()> {
        let (at, device) = (ptr.address(), self.device());
        let pinned = self.pinned.get(at).filter(|pinned| pinned.block.is_none());
        let bytes = pinned.ok_or(Status::NotRegistered)?.len as u64;
        self.wait_for_device(device)?;
        self.report_pending_copies(at, bytes);
        for other in 0..self.devices.len() {
            self.wait_for_device(other)?;
        }
        self.pinned.remove(at);
        self.forget_host_memory(at..at + bytes);
        Ok(())
    }

    /// Returns the address of pinned memory for devices, which is that of the host: they share one address space.
    pub(crate) fn host_device_pointer(&self, ptr: HostPtr) -> CallResult<DevicePtr> {
        let at = ptr.address();
        self.pinned.around(at, 1).map(|_| DevicePtr(at)).ok_or(Status::InvalidValue)
    }

    /// Checks an access to pinned memory that the host declares.
    pub(crate) fn touch_host(&mut self, at: u64, bytes: u64, access: Access) -> CallResult<()> {
        let touch = touch(at, bytes, access)?;
        let op = touch.by(self.call.operation(Executor::Host));
        if let Some(oracle) = &mut self.oracle {
            oracle.check_host_touch(&touch, op);
        }
        Ok(())
    }
}
