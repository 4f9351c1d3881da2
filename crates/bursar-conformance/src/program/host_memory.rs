//! The host memory that a program copies from and to.
#![allow(unsafe_code)]

use super::op::HostOffset;
use super::{DriverProgram, HostKind};
use bursar_core::{DeviceId, Driver, HostFlags};
use std::cell::UnsafeCell;

/// Both kinds of host memory of one program. The device may write to it at any time, so it is accessed by pointer.
pub(super) struct HostMemory<'a> {
    driver: &'a dyn Driver,
    device: DeviceId,
    pageable: Box<[UnsafeCell<u8>]>,
    pinned: *mut u8,
}

impl<'a> HostMemory<'a> {
    pub(super) fn new(program: &DriverProgram, driver: &'a dyn Driver, device: DeviceId) -> Self {
        let contents = program.host_bytes(HostKind::Pinned);
        let pinned =
            driver.host_allocate(device, contents.len().max(1), HostFlags::default()).expect("there is host memory");
        // SAFETY: pinned memory of that size, which nobody else knows of yet.
        unsafe { pinned.copy_from_nonoverlapping(contents.as_ptr(), contents.len()) };
        let pageable = program.host_bytes(HostKind::Pageable).into_iter().map(UnsafeCell::new);
        Self { driver, device, pageable: pageable.collect(), pinned }
    }

    /// Returns the address of an offset, which is valid while this value lives.
    pub(super) fn at(&self, offset: HostOffset) -> *mut u8 {
        let base = match offset.host {
            HostKind::Pageable => UnsafeCell::raw_get(self.pageable.as_ptr()),
            HostKind::Pinned => self.pinned,
        };
        base.wrapping_add(offset.at)
    }

    /// Returns the `bytes` bytes at an offset.
    ///
    /// # Safety
    /// No copy to them is in flight, and they were given out as one piece.
    pub(super) unsafe fn read(&self, offset: HostOffset, bytes: usize) -> Vec<u8> {
        // SAFETY: the bytes lie in this memory, and nobody writes to them.
        unsafe { std::slice::from_raw_parts(self.at(offset), bytes) }.to_vec()
    }
}

impl Drop for HostMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and every copy from or to it has been waited for.
        let freed = unsafe { self.driver.host_free(self.device, self.pinned) };
        if !std::thread::panicking() {
            freed.expect("the device works");
        }
    }
}
