//! The question whether a stream is being captured into one graph, as PyTorch hands it over: a `std::function`.
//!
//! It relies on libstdc++'s `std::function`: two words of what is called, a function that copies and destroys them, and one
//! that calls them with the addresses of the arguments.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

type Callee = [u64; 2];
type Manage = unsafe extern "C-unwind" fn(*mut Callee, *const Callee, c_int) -> bool;
type Invoke = unsafe extern "C-unwind" fn(*const Callee, *const *mut c_void) -> bool;

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// A `std::function<bool(cudaStream_t)>`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CaptureFilter {
    callee: Callee,
    manage: Option<Manage>,
    invoke: Option<Invoke>,
}

// SAFETY: PyTorch calls it on any thread, and what it refers to may be used there.
unsafe impl Send for CaptureFilter {}
// SAFETY: as above; calls change nothing.
unsafe impl Sync for CaptureFilter {}

impl CaptureFilter {
    /// Copies a function.
    ///
    /// # Safety
    /// `function` is a whole `std::function<bool(cudaStream_t)>` of libstdc++.
    pub(crate) unsafe fn copied(function: *const Self) -> Self {
        // SAFETY: the caller's own promise.
        let function = unsafe { &*function };
        let mut copy = Self { callee: [0; 2], manage: None, invoke: None };
        if let Some(manage) = function.manage {
            // SAFETY: this is how libstdc++ copies it, into memory that has nothing yet.
            unsafe { manage(&raw mut copy.callee, &raw const function.callee, CLONE) };
            (copy.manage, copy.invoke) = (function.manage, function.invoke);
        }
        copy
    }

    /// Returns whether a stream is being captured into its graph.
    pub(crate) fn applies_to(&self, raw: u64) -> bool {
        let stream = raw as *mut c_void;
        // SAFETY: this is how libstdc++ calls it.
        self.invoke.is_some_and(|invoke| unsafe { invoke(&raw const self.callee, &raw const stream) })
    }
}

impl Drop for CaptureFilter {
    fn drop(&mut self) {
        if let Some(manage) = self.manage {
            let callee = &raw mut self.callee;
            // SAFETY: this is how libstdc++ destroys it, once.
            unsafe { manage(callee, callee, DESTROY) };
        }
    }
}
