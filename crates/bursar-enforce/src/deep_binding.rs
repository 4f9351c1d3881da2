//! Libraries that are loaded with `RTLD_DEEPBIND`.
//!
//! They find the symbols of the libraries that they need before those that everybody searches: the driver's own functions, and the C
//! library's `dlsym`. So what such a load brings in has its references to them rebound, once, when it has been loaded.
#![allow(unsafe_code)]

use crate::elf::{self, Object};
use crate::loader;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Loads a library and has the references of what that brings in lead to wrappers, where there are any for their symbols. Returns its
/// handle; null where it cannot be loaded.
pub(crate) fn load(
    path: *const c_char,
    flags: c_int,
    wrapper_for: impl Fn(&CStr) -> Option<*mut c_void>,
) -> *mut c_void {
    let before = bases();
    // SAFETY: the program's own arguments.
    let handle = unsafe { loader::real_dlopen()(path, flags) };
    if handle.is_null() {
        return handle;
    }
    elf::each_object(&mut |object| {
        if before.contains(&object.base()) {
            return;
        }
        object.each_slot(&mut |slot| match wrapper_for(slot.symbol) {
            // A driver's references to its own functions stay.
            Some(wrapper) if !slot.is_defined_within => slot.set(wrapper),
            _ => {}
        });
    });
    handle
}

/// Returns where the objects that are loaded begin.
fn bases() -> Vec<usize> {
    let mut bases = Vec::new();
    elf::each_object(&mut |object: &Object| bases.push(object.base()));
    bases
}
