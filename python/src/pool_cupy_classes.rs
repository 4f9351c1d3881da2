//! CuPy's classes, as its allocator needs them: one that is derived from its class of memory, and where objects keep what.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::pool;
use crate::pool_requests::free_other;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// The attributes of CuPy's class of memory: the address, the size and the device.
pub(crate) enum Fields {
    /// Their places in an object, which were found by looking.
    At([usize; 3]),
    /// Their descriptors, where that was not found.
    By([Field; 3]),
}

/// An attribute of a class.
pub(crate) struct Field {
    pub(crate) descriptor: *mut ffi::PyObject,
    pub(crate) set: ffi::descrsetfunc,
}

/// The part of an object of memory that CuPy's class does not have.
pub(crate) struct Ours {
    pub(crate) ptr: u64,
    pub(crate) device: u32,
    /// The end of the part of an object that is of CuPy's class; `None` where that is nothing but its memory.
    pub(crate) end: Option<ffi::destructor>,
}

/// The place of [`Ours`] in an object of memory, behind whatever CuPy's class has.
const OURS_AT: usize = 64;

/// Frees memory of CuPy's.
pub(crate) fn free(ptr: u64, device: u32) {
    if ptr != 0 && !pool::is_forked() {
        let _freed = catch_unwind(AssertUnwindSafe(|| free_other(ptr, device)));
    }
}

/// Ends an object of memory, and gives the memory back.
unsafe extern "C" fn end_memory(memory: *mut ffi::PyObject) {
    // SAFETY: an object.
    let class = unsafe { ffi::Py_TYPE(memory) };
    // SAFETY: objects of the class have room for it there, which is zero where nobody wrote it.
    let ours = unsafe { &*ours(memory) };
    free(ours.ptr, ours.device);
    // SAFETY: a class.
    if unsafe { ffi::PyType_GetFlags(class) } & ffi::Py_TPFLAGS_HAVE_GC != 0 {
        // SAFETY: an object of a class that the collector knows of, which nobody has.
        unsafe { ffi::PyObject_GC_UnTrack(memory.cast()) };
    }
    match ours.end {
        // SAFETY: this is how a class ends the part of an object that is of the class it is derived from.
        Some(end) => unsafe { end(memory) },
        None => {
            // SAFETY: every class has such a function.
            let free = unsafe { ffi::PyType_GetSlot(class, ffi::Py_tp_free) };
            // SAFETY: the slot has a function of this type.
            let free = unsafe { std::mem::transmute::<*mut c_void, ffi::freefunc>(free) };
            // SAFETY: nobody has the object.
            unsafe { free(memory.cast()) };
        }
    }
    // SAFETY: an object of a class that was made at run time has a reference to it.
    unsafe { ffi::Py_DECREF(class.cast()) };
}

/// Returns the place of what is ours in an object of memory.
pub(crate) const fn ours(memory: *mut ffi::PyObject) -> *mut Ours {
    memory.wrapping_byte_add(OURS_AT).cast()
}

/// Returns the class of memory that is derived from CuPy's.
pub(crate) fn derive(base: &Bound<'_, PyType>) -> Result<*mut ffi::PyTypeObject, Failure> {
    let py = base.py();
    let has = |name: &str| Ok::<_, PyErr>(base.getattr(name)?.extract::<isize>()? != 0);
    // What such objects have beside their fields would have to be given back, too.
    if size_of_objects(base)? > OURS_AT || has("__dictoffset__")? || has("__weakrefoffset__")? {
        return Err(PyTypeError::new_err("CuPy's class of memory has an unknown layout").into());
    }
    let end: unsafe extern "C" fn(*mut ffi::PyObject) = end_memory;
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: end as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_doc, pfunc: c"Memory of the pool.".as_ptr().cast_mut().cast() },
        ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
    ];
    let mut specification = ffi::PyType_Spec {
        name: c"bursar.cupy.Memory".as_ptr(),
        basicsize: (OURS_AT + size_of::<Ours>()) as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [base])?;
    // SAFETY: a whole specification, and a class that is large enough for the one that it is derived from.
    let class = unsafe { ffi::PyType_FromSpecWithBases(&raw mut specification, bases.as_ptr()) };
    if class.is_null() { Err(PyErr::fetch(py).into()) } else { Ok(class.cast()) }
}

/// Returns the bytes that an object of a class has.
pub(crate) fn size_of_objects(class: &Bound<'_, PyType>) -> PyResult<usize> {
    class.getattr("__basicsize__")?.extract()
}

/// Returns a function in a slot of a class, which has it.
pub(crate) fn slot(class: &Bound<'_, PyType>, number: c_int) -> Result<*mut c_void, Failure> {
    // SAFETY: a class.
    let found = unsafe { ffi::PyType_GetSlot(class.as_type_ptr(), number) };
    if found.is_null() { Err(PyTypeError::new_err("a class of CuPy has an unknown layout").into()) } else { Ok(found) }
}

/// Returns what sets an attribute of the objects of a class.
pub(crate) fn field(class: &Bound<'_, PyType>, name: &str) -> Result<Field, Failure> {
    let descriptor = class.getattr(name)?;
    let set = slot(&descriptor.get_type(), ffi::Py_tp_descr_set)?;
    // SAFETY: the slot has a function of this type.
    let set = unsafe { std::mem::transmute::<*mut c_void, ffi::descrsetfunc>(set) };
    Ok(Field { descriptor: descriptor.into_ptr(), set })
}

/// Sets the attributes of an object of memory by their descriptors; returns whether that was done.
pub(crate) fn set_attributes(
    fields: &[Field; 3],
    memory: *mut ffi::PyObject,
    address: u64,
    device: c_int,
    size: *mut ffi::PyObject,
) -> bool {
    // SAFETY: with the GIL.
    let address = unsafe { ffi::PyLong_FromUnsignedLongLong(address) };
    // SAFETY: as above.
    let number = unsafe { ffi::PyLong_FromLong(device.into()) };
    let mut is_set = true;
    for (field, value) in fields.iter().zip([address, size, number]) {
        // SAFETY: a descriptor of the class that ours is derived from, and the function that sets such.
        is_set = is_set && !value.is_null() && unsafe { (field.set)(field.descriptor, memory, value) } == 0;
    }
    // SAFETY: null, or a reference made above.
    unsafe { ffi::Py_XDECREF(address) };
    // SAFETY: as above.
    unsafe { ffi::Py_XDECREF(number) };
    is_set
}

/// Values that stand nowhere else in an object.
pub(crate) const PTR: u64 = 0x1357_9bdf_0246_8ace;
pub(crate) const SIZE: u64 = 0x2468_ace0_1357_9bdf;
pub(crate) const DEVICE: u32 = 0x1234_5678;

/// Makes an object of memory whose attributes are those values, to look where they are.
pub(crate) fn probe<'py>(
    py: Python<'py>,
    class: *mut ffi::PyTypeObject,
    new: ffi::newfunc,
    fields: &[Field; 3],
) -> PyResult<Bound<'py, PyAny>> {
    let no_arguments = PyTuple::empty(py);
    // SAFETY: what makes objects of the class that ours is derived from makes those of ours.
    let memory = unsafe { new(class, no_arguments.as_ptr(), ptr::null_mut()) };
    // SAFETY: a new reference, or null with an exception.
    let memory = unsafe { Bound::from_owned_ptr_or_err(py, memory) }?;
    let size = SIZE.into_pyobject(py)?;
    if set_attributes(fields, memory.as_ptr(), PTR, DEVICE as c_int, size.as_ptr()) {
        Ok(memory)
    } else {
        Err(PyErr::fetch(py))
    }
}

/// Returns the first bytes of an object.
pub(crate) fn bytes_of<'object>(object: &'object Bound<'_, PyAny>, len: usize) -> &'object [u8] {
    // SAFETY: an object has as many bytes as its class says, all of which were written when it was made.
    unsafe { std::slice::from_raw_parts(object.as_ptr().cast(), len) }
}

/// Finds the places of values; `None` if one is at no place or at several.
pub(crate) fn places_of(bytes: &[u8], values: [&[u8]; 3]) -> Option<[usize; 3]> {
    let place_of = |value: &[u8]| {
        let mut places = (0..bytes.len()).step_by(value.len()).filter(|&at| bytes[at..].starts_with(value));
        places.next().filter(|_| places.next().is_none())
    };
    let [first, second, third] = values;
    Some([place_of(first)?, place_of(second)?, place_of(third)?])
}
