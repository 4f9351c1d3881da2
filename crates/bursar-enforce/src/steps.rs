//! Steps of a call, which a test can watch: it ends the process at each of them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

type OnStep = extern "C" fn(*const c_char);

static ON_STEP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Has `watch` called at every step of every call, with the name of the step.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn bursar_enforce_on_step(watch: Option<OnStep>) {
    ON_STEP.store(watch.map_or(ptr::null_mut(), |watch| watch as *mut c_void), Release);
}

/// Notes that a call has come as far as `step`.
#[inline]
pub(crate) fn passed(step: &'static CStr) {
    let watch = ON_STEP.load(Acquire);
    if !watch.is_null() {
        // SAFETY: only functions of this type are stored there.
        let watch = unsafe { transmute::<*mut c_void, OnStep>(watch) };
        watch(step.as_ptr());
    }
}
