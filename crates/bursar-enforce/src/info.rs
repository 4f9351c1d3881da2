//! The driver's answers about memory: the program is told its share.
#![allow(unsafe_code)]

use crate::driver::{Device, read, write};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::share::Share;
use crate::{device, stores};
use std::ffi::c_uint;

/// Returns what is free and all there is of the share, where the driver has so much free.
fn of_share(share: &Share, free: u64) -> (u64, u64) {
    stores::settle_all(share);
    share.reclaim_dead();
    (share.undrawn().min(free), share.bytes())
}

/// Returns a size in 32 bits, or the largest.
fn short(bytes: u64) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

hook! {
    pass fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real, share| {
        let status = real(free, total);
        if status == SUCCESS && device::is_current(share) {
            let (left, whole) = of_share(share, read(free) as u64);
            write(free, left as usize);
            write(total, whole as usize);
        }
        status
    };
    pass fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) |real, share| {
        let status = real(free, total);
        if status == SUCCESS && device::is_current(share) {
            let (left, whole) = of_share(share, u64::from(read(free)));
            write(free, short(left));
            write(total, short(whole));
        }
        status
    };
    pass fn cuDeviceTotalMem_v2(total: *mut usize, device: Device) |real, share| {
        let status = real(total, device);
        if status == SUCCESS && device::is(share, device) {
            write(total, share.bytes() as usize);
        }
        status
    };
    pass fn cuDeviceTotalMem(total: *mut c_uint, device: Device) |real, share| {
        let status = real(total, device);
        if status == SUCCESS && device::is(share, device) {
            write(total, short(share.bytes()));
        }
        status
    };
}
