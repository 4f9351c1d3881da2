//! DLPack: memory handed to another library in a capsule, with a function that it calls when it is done.
#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::Arc;

/// The kind of a CUDA device.
pub(crate) const CUDA: i32 = 2;
/// The kind of a device that no library knows.
pub(crate) const EXTENSION: i32 = 12;

/// The version of the layout with a version.
const VERSION: (u32, u32) = (1, 0);

/// A `DLTensor` of bytes.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    dimensions: i32,
    /// Unsigned numbers of eight bits, one by one.
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A `DLManagedTensor`.
#[repr(C)]
struct Plain {
    tensor: Tensor,
    owner: *mut c_void,
    delete: unsafe extern "C" fn(*mut Plain),
}

/// A `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: (u32, u32),
    owner: *mut c_void,
    delete: unsafe extern "C" fn(*mut Versioned),
    flags: u64,
    tensor: Tensor,
}

/// The memory that a capsule keeps, and the numbers that its tensor points to.
struct Owner {
    _memory: Arc<dyn Any + Send + Sync>,
    shape: [i64; 1],
    strides: [i64; 1],
}

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Makes a capsule of the bytes at these addresses of a device, which keeps `memory` until whoever takes it is done.
pub(crate) fn capsule(
    py: Python<'_>,
    memory: Arc<dyn Any + Send + Sync>,
    addresses: Range<u64>,
    device: u32,
    is_versioned: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let (data, len) = (addresses.start as *mut c_void, (addresses.end - addresses.start) as i64);
    let owner = Box::new(Owner { _memory: memory, shape: [len], strides: [1] });
    let (shape, strides) = (owner.shape.as_ptr(), owner.strides.as_ptr());
    let device = (CUDA, device as i32);
    let tensor = Tensor { data, device, dimensions: 1, code: 1, bits: 8, lanes: 1, shape, strides, byte_offset: 0 };
    let owner = Box::into_raw(owner).cast::<c_void>();
    let (managed, name) = match is_versioned {
        true => {
            let managed = Versioned { version: VERSION, owner, delete: delete_versioned, flags: 0, tensor };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), VERSIONED)
        }
        false => (Box::into_raw(Box::new(Plain { tensor, owner, delete: delete_plain })).cast(), PLAIN),
    };
    // SAFETY: the pointer is not null, and the name lasts.
    let made = unsafe { ffi::PyCapsule_New(managed, name.as_ptr(), Some(drop_capsule)) };
    // SAFETY: a new reference, or null with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) };
    made.inspect_err(|_| {
        // SAFETY: nobody else has it.
        unsafe { delete(managed, is_versioned) };
    })
}

/// # Safety
/// `managed` is what [`capsule`] made, and nobody uses it any more.
unsafe fn delete(managed: *mut c_void, is_versioned: bool) {
    match is_versioned {
        // SAFETY: the caller's own promise.
        true => unsafe { delete_versioned(managed.cast()) },
        // SAFETY: the caller's own promise.
        false => unsafe { delete_plain(managed.cast()) },
    }
}

unsafe extern "C" fn delete_plain(managed: *mut Plain) {
    // SAFETY: made by `capsule`, and deleted once, by whoever took it.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.owner.cast::<Owner>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: made by `capsule`, and deleted once, by whoever took it.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.owner.cast::<Owner>()) });
}

/// Deletes what is in a capsule, unless somebody took it, who then renamed the capsule.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    for (name, is_versioned) in [(PLAIN, false), (VERSIONED, true)] {
        // SAFETY: a capsule that is being dropped, with the GIL.
        if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 1 {
            // SAFETY: valid under that name.
            let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
            // SAFETY: nobody took it.
            unsafe { delete(managed, is_versioned) };
        }
    }
}
