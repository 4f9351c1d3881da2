//! The host memory that a program copies from and to.
#![allow(unsafe_code)]

use super::op::Place;
use super::{Host, Program};
use bursar_core::{DeviceId, Driver, HostFlags};
use std::cell::UnsafeCell;

/// Both kinds of host memory of one program. The device may write to it at any time, so that it is reached by pointer.
pub(super) struct HostMemory<'a> {
    driver: &'a dyn Driver,
    device: DeviceId,
    pageable: Box<[UnsafeCell<u8>]>,
    pinned: *mut u8,
}

impl<'a> HostMemory<'a> {
    pub(super) fn new(program: &Program, driver: &'a dyn Driver, device: DeviceId) -> Self {
        let contents = program.host_bytes(Host::Pinned);
        let pinned =
            driver.host_allocate(device, contents.len().max(1), HostFlags::default()).expect("there is host memory");
        // SAFETY: pinned memory of that size, which nobody else knows of yet.
        unsafe { pinned.copy_from_nonoverlapping(contents.as_ptr(), contents.len()) };
        let pageable = program.host_bytes(Host::Pageable).into_iter().map(UnsafeCell::new);
        Self { driver, device, pageable: pageable.collect(), pinned }
    }

    /// Where a place is. It stays there for as long as this lives.
    pub(super) fn at(&self, place: Place) -> *mut u8 {
        let base = match place.host {
            Host::Pageable => UnsafeCell::raw_get(self.pageable.as_ptr()),
            Host::Pinned => self.pinned,
        };
        base.wrapping_add(place.at)
    }

    /// What is in a place.
    ///
    /// # Safety
    /// No copy to it is in flight, and it is `bytes` long.
    pub(super) unsafe fn read(&self, place: Place, bytes: usize) -> Vec<u8> {
        // SAFETY: places lie in this memory, and nobody writes to this one.
        unsafe { std::slice::from_raw_parts(self.at(place), bytes) }.to_vec()
    }
}

impl Drop for HostMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and whoever copies from or to it has been waited for.
        let freed = unsafe { self.driver.host_free(self.device, self.pinned) };
        if !std::thread::panicking() {
            freed.expect("the device works");
        }
    }
}
