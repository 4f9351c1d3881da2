//! Programs that are kept inside a share by a preloaded library, which charges them for what they take of the driver.
//!
//! A program that uses Bursar may charge itself, and measures devices for its ledger. So that library, where it is there, is asked which
//! functions stand for the driver's in Bursar's own calls: the driver's answers about memory, and doors for the allocating calls that
//! charge nothing while the program does it itself.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

/// The type of the library's function: an address that was found, and the symbol it was found by.
type OwnFunction = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the function to call for the one that was found under `symbol`, which ends with a zero: the same where no library keeps this
/// program inside a share.
pub(super) fn own_function(found: *mut c_void, symbol: &'static [u8]) -> *mut c_void {
    debug_assert_eq!(symbol.last(), Some(&0));
    match library_function() {
        // SAFETY: the symbol ends with a zero, and the library returns `found` or a function of the same type.
        Some(own) => unsafe { own(found, symbol.as_ptr().cast()) },
        None => found,
    }
}

/// Tells the library, where it is there, that this program takes nothing.
pub(crate) fn observe_only() {
    // SAFETY: nobody else exports such a name, and the library's function has this type.
    if let Some(observe) = unsafe { exported::<unsafe extern "C" fn()>(c"bursar_enforce_observe") } {
        // SAFETY: the function has no conditions.
        unsafe { observe() };
    }
}

fn library_function() -> Option<OwnFunction> {
    // SAFETY: nobody else exports such a name, and the library's function has this type.
    unsafe { exported(c"bursar_enforce_function") }
}

/// Returns a function of the objects that everybody searches.
///
/// # Safety
/// Whoever exports the name has to export a function of type `T` under it.
#[cfg(unix)]
unsafe fn exported<T: Copy>(name: &std::ffi::CStr) -> Option<T> {
    let everywhere = libloading::os::unix::Library::this();
    // SAFETY: the caller's own promise.
    let found = unsafe { everywhere.get::<T>(name) };
    found.ok().map(|function| *function)
}

#[cfg(not(unix))]
unsafe fn exported<T: Copy>(_: &std::ffi::CStr) -> Option<T> {
    None
}
