//! `cuGetProcAddress`, by which programs look the driver's functions up under a name without its suffix, a version and flags.
//!
//! The driver is asked as the program asked. Then it is asked for the versions that are known here: what it returned is one of them
//! exactly if the addresses are the same. A newer one has another signature, and is handed on untouched.
#![allow(unsafe_code)]

use crate::driver::{read, write};
use crate::entry::{Entry, SUCCESS};

use crate::hook::hook;
use crate::table::{self, Row};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// The flag that asks for the per-thread default stream.
const PER_THREAD: u64 = 2;

/// The versions of `cuGetProcAddress` itself, newest first, with the version of CUDA that each came with.
static OWN: [(c_int, &Entry); 2] = [(12_000, &cuGetProcAddress_v2::ENTRY), (11_030, &cuGetProcAddress::ENTRY)];

/// Returns `cuGetProcAddress` under the name that a driver exports it by.
pub(crate) fn by_symbol(name: &CStr) -> Option<&'static Entry> {
    OWN.iter().map(|(_, entry)| *entry).find(|entry| entry.symbol == name)
}

/// Puts the wrapper in the place of a function that the driver has found, if it is one that is known here.
fn substitute(
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    ask: impl Fn(c_int) -> *mut c_void,
) {
    let address = read_pointer(found);
    if name.is_null() || address.is_null() {
        return;
    }
    // SAFETY: the driver has read this string, and found a function by it.
    let name = unsafe { CStr::from_ptr(name) };
    let known = if name == c"cuGetProcAddress" {
        OWN.iter().find(|(since, _)| *since <= version && ask(*since) == address).map(|(_, entry)| *entry)
    } else {
        by_version(name, version, flags & PER_THREAD != 0, |since| ask(since) == address)
    };
    if let Some(entry) = known {
        write(found, entry.adopt(address));
    }
}

/// Returns the newest entry of that name that is not newer than `version` and that `is_it` accepts by the version it came with.
fn by_version(name: &CStr, version: c_int, per_thread: bool, is_it: impl Fn(c_int) -> bool) -> Option<&'static Entry> {
    let named = || table::ROWS.iter().filter(|row| row.name == name && row.since <= version);
    let has_form = per_thread && named().any(|row| row.per_thread);
    let rows = named().filter(|row| row.per_thread == has_form);
    let newest_first = |row: &&Row| row.since;
    let mut rows: Vec<&Row> = rows.collect();
    rows.sort_by_key(newest_first);
    rows.into_iter().rev().find(|row| is_it(row.since)).map(|row| row.entry)
}

fn read_pointer(at: *mut *mut c_void) -> *mut c_void {
    read(at.cast::<crate::driver::Handle>()).0
}

hook! {
    pass fn cuGetProcAddress_v2(
        name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, outcome: *mut c_int
    ) |real, _share| {
        let status = real(name, found, version, flags, outcome);
        if status == SUCCESS {
            substitute(name, found, version, flags, |version| {
                let (mut address, mut ignored) = (ptr::null_mut(), 0);
                let asked = real(name, &raw mut address, version, flags, &raw mut ignored);
                if asked == SUCCESS { address } else { ptr::null_mut() }
            });
        }
        status
    };

    pass fn cuGetProcAddress(
        name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64
    ) |real, _share| {
        let status = real(name, found, version, flags);
        if status == SUCCESS {
            substitute(name, found, version, flags, |version| {
                let mut address = ptr::null_mut();
                let asked = real(name, &raw mut address, version, flags);
                if asked == SUCCESS { address } else { ptr::null_mut() }
            });
        }
        status
    };
}
