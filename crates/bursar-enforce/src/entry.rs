//! An entry point of the driver: the wrapper that programs get, and the driver's own function behind it.
//!
//! Wrappers are written with the macro of `hook.rs`.
#![allow(unsafe_code)]

use crate::loader;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The status of a call that went well.
pub(crate) const SUCCESS: c_int = 0;
/// The driver's status for memory that there is not.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
/// The driver's status in a process that was forked from one that uses it.
pub(crate) const NOT_INITIALIZED: c_int = 3;
/// The driver's status for a symbol that it does not have.
pub(crate) const NOT_FOUND: c_int = 500;

/// The address of a function of this library.
#[derive(Debug)]
pub(crate) struct Wrapper(pub(crate) *const ());

// SAFETY: the address of a function is the same for every thread.
unsafe impl Sync for Wrapper {}

/// An entry point of the driver.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name that the driver exports it under.
    pub(crate) symbol: &'static CStr,
    wrapper: Wrapper,
    real: AtomicPtr<c_void>,
}

impl Entry {
    pub(crate) const fn new(symbol: &'static CStr, wrapper: *const ()) -> Self {
        Self { symbol, wrapper: Wrapper(wrapper), real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the wrapper as programs get it.
    pub(crate) fn wrapper(&self) -> *mut c_void {
        self.wrapper.0.cast::<c_void>().cast_mut()
    }

    /// Returns the driver's function, looked for if nobody has asked for it yet; null where the driver has none.
    #[inline]
    pub(crate) fn real(&self) -> *mut c_void {
        let known = self.real.load(Acquire);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let found = loader::driver_symbol(self.symbol);
        if !found.is_null() {
            let _ = self.real.compare_exchange(ptr::null_mut(), found, Release, Relaxed);
        }
        self.real.load(Acquire)
    }

    /// Takes `found` as the driver's function, and returns what the program gets for it: the wrapper, or `found` itself where
    /// another driver was loaded before and is still there.
    pub(crate) fn adopt(&self, found: *mut c_void) -> *mut c_void {
        // A driver whose own references are bound like everybody's returns the wrapper for its function.
        if loader::is_own(found) {
            return found;
        }
        loader::remember_driver(found);
        let known = match self.real.compare_exchange(ptr::null_mut(), found, Release, Acquire) {
            Ok(_) => return self.wrapper(),
            Err(known) => known,
        };
        if known == found {
            return self.wrapper();
        }
        match (loader::object_of(known), loader::object_of(found)) {
            (Some(one), Some(other)) if one != other => found,
            (None, Some(_)) => {
                // The driver that was there is gone.
                self.real.store(found, Release);
                self.wrapper()
            }
            _ => self.wrapper(),
        }
    }
}
