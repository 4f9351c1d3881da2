//! CuPy's allocator: a function of one argument that returns CuPy's own pointers to memory of the pool.
//!
//! The memory that a pointer keeps is an object of a class that is derived from CuPy's here. It says where the memory is
//! through the attributes that CuPy's class has for that, and gives it back when nobody has it any more. Everything is called
//! with the GIL. A request is made of as few calls of the interpreter as there can be, because those cost more than the pool.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_cupy_classes::{
    DEVICE, Fields, Ours, PTR, SIZE, bytes_of, derive, field, free, ours, places_of, probe, set_attributes,
    size_of_objects, slot,
};
use crate::pool_requests::allocate_other;
use bursar::Error;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// CuPy's function that returns the number of the thread's current device.
type CurrentDevice = unsafe extern "C" fn(c_int) -> c_int;
/// CuPy's function that returns the raw handle of the thread's current stream on a device.
type StreamOf = unsafe extern "C" fn(c_int) -> isize;
/// CuPy's function that returns the raw handle of the thread's current stream on its current device.
type CurrentStream = unsafe extern "C" fn() -> isize;

/// CuPy's classes and functions, and what was made of them. Such values are never dropped: CuPy may use them until the end.
struct Cupy {
    /// The class of memory, derived from CuPy's.
    memory: *mut ffi::PyTypeObject,
    new_memory: ffi::newfunc,
    /// The end of the part of an object that is of CuPy's class; `None` where that is nothing but its memory.
    end_memory: Option<ffi::destructor>,
    fields: Fields,
    /// CuPy's class of pointers.
    pointer: *mut ffi::PyTypeObject,
    new_pointer: ffi::newfunc,
    init_pointer: ffi::initproc,
    /// The places of a pointer's address, device and memory; `None` where its class may initialise more than these.
    pointer_places: Option<[usize; 3]>,
    no_arguments: *mut ffi::PyObject,
    zero: *mut ffi::PyObject,
    device: CurrentDevice,
    stream: Result<StreamOf, CurrentStream>,
    /// Makes the exception that CuPy's users expect of one of ours.
    refusal: Py<PyAny>,
}

/// An exception of Python that is set.
struct Raised;

/// Returns a reference that a function of the interpreter made, or that it failed.
fn made(object: *mut ffi::PyObject) -> Result<*mut ffi::PyObject, Raised> {
    if object.is_null() { Err(Raised) } else { Ok(object) }
}

impl Cupy {
    /// Returns a pointer to new memory, as CuPy has it.
    fn malloc(&self, size: *mut ffi::PyObject) -> Result<*mut ffi::PyObject, Raised> {
        // SAFETY: an object.
        if unsafe { ffi::PyLong_CheckExact(size) } != 0 {
            return self.malloc_of(size);
        }
        // SAFETY: an object; a number of another kind becomes an `int`.
        let size = made(unsafe { ffi::PyNumber_Index(size) })?;
        let pointer = self.malloc_of(size);
        // SAFETY: the reference made above.
        unsafe { ffi::Py_DECREF(size) };
        pointer
    }

    fn malloc_of(&self, size: *mut ffi::PyObject) -> Result<*mut ffi::PyObject, Raised> {
        // SAFETY: an `int`.
        let bytes = unsafe { ffi::PyLong_AsSize_t(size) };
        if bytes == usize::MAX && is_raised() {
            return Err(Raised);
        }
        let device = self.current_device()?;
        let ptr = if bytes == 0 { 0 } else { self.allocate(bytes as u64, device)? };
        let memory = self.new_memory(ptr, device, size)?;
        let pointer = match self.pointer_places {
            Some(places) => self.place_pointer(places, memory, ptr, device),
            None => self.init_pointer(memory),
        };
        // SAFETY: the reference made above; the pointer has its own.
        unsafe { ffi::Py_DECREF(memory) };
        pointer
    }

    fn current_device(&self) -> Result<c_int, Raised> {
        // SAFETY: CuPy's own function, with the GIL.
        let device = unsafe { (self.device)(0) };
        if device < 0 && is_raised() { Err(Raised) } else { Ok(device) }
    }

    fn allocate(&self, bytes: u64, device: c_int) -> Result<u64, Raised> {
        let raw = match self.stream {
            // SAFETY: CuPy's own function, with the GIL.
            Ok(of) => unsafe { of(device) },
            // SAFETY: as above.
            Err(current) => unsafe { current() },
        };
        if raw == -1 && is_raised() {
            return Err(Raised);
        }
        let act = || {
            pool::check_not_forked()?;
            allocate_other(bytes, device as u32, raw as u64)
        };
        let allocated = catch_unwind(AssertUnwindSafe(act));
        match allocated.unwrap_or(Err(Failure::Memory(Error::NoDevice))) {
            Ok(ptr) => Ok(ptr),
            Err(failure) => Err(self.refuse(failure)),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, failure: Failure) -> Raised {
        Python::attach(|py| {
            let error = PyErr::from(failure);
            let made = self.refusal.bind(py).call1((error.into_value(py),));
            made.map_or_else(|error| error, PyErr::from_value).restore(py);
        });
        Raised
    }

    /// Returns an object that has the memory at an address, which is given back with it.
    fn new_memory(&self, ptr: u64, device: c_int, size: *mut ffi::PyObject) -> Result<*mut ffi::PyObject, Raised> {
        // SAFETY: what makes objects of the class that ours is derived from makes those of ours.
        let memory = unsafe { (self.new_memory)(self.memory, self.no_arguments, ptr::null_mut()) };
        if memory.is_null() {
            free(ptr, device as u32);
            return Err(Raised);
        }
        // SAFETY: objects of the class have room for it there.
        unsafe { ours(memory).write(Ours { ptr, device: device as u32, end: self.end_memory }) };
        if self.set_fields(memory, ptr, device, size) {
            return Ok(memory);
        }
        // SAFETY: the reference made above.
        unsafe { ffi::Py_DECREF(memory) };
        Err(Raised)
    }

    /// Sets the attributes of an object of memory; returns whether that was done.
    #[inline]
    fn set_fields(&self, memory: *mut ffi::PyObject, address: u64, device: c_int, size: *mut ffi::PyObject) -> bool {
        let [ptr_at, size_at, device_at] = match &self.fields {
            Fields::At(places) => *places,
            Fields::By(fields) => return set_attributes(fields, memory, address, device, size),
        };
        // SAFETY: an `int`, which was converted before.
        let bytes = unsafe { ffi::PyLong_AsSize_t(size) };
        // SAFETY: objects of the class have eight bytes there.
        unsafe { memory.wrapping_byte_add(ptr_at).cast::<u64>().write(address) };
        // SAFETY: as above.
        unsafe { memory.wrapping_byte_add(size_at).cast::<usize>().write(bytes) };
        // SAFETY: objects of the class have four bytes there.
        unsafe { memory.wrapping_byte_add(device_at).cast::<c_int>().write(device) };
        true
    }

    /// Returns CuPy's pointer to memory, written as its class would.
    #[inline]
    fn place_pointer(
        &self,
        [ptr_at, device_at, memory_at]: [usize; 3],
        memory: *mut ffi::PyObject,
        address: u64,
        device: c_int,
    ) -> Result<*mut ffi::PyObject, Raised> {
        // SAFETY: what makes objects of the class.
        let pointer = made(unsafe { (self.new_pointer)(self.pointer, self.no_arguments, ptr::null_mut()) })?;
        // SAFETY: objects of the class have eight bytes there.
        unsafe { pointer.wrapping_byte_add(ptr_at).cast::<u64>().write(address) };
        // SAFETY: objects of the class have four bytes there.
        unsafe { pointer.wrapping_byte_add(device_at).cast::<c_int>().write(device) };
        // SAFETY: an object, of which the pointer has a reference from here on.
        unsafe { ffi::Py_INCREF(memory) };
        // SAFETY: objects of the class have a reference there, or null.
        let before = unsafe { pointer.wrapping_byte_add(memory_at).cast::<*mut ffi::PyObject>().replace(memory) };
        // SAFETY: the reference that the pointer had.
        unsafe { ffi::Py_XDECREF(before) };
        Ok(pointer)
    }

    /// Finds where pointers keep what they are made of, by looking at one that the class initialised. One that is written there
    /// has to be the same, byte for byte.
    fn find_pointer_places(&self, py: Python<'_>, probe: &Bound<'_, PyAny>, len: usize) -> Option<[usize; 3]> {
        let own = |made: Result<*mut ffi::PyObject, Raised>| {
            let made = made.map_or(ptr::null_mut(), |made| made);
            // SAFETY: a new reference, or null with an exception.
            unsafe { Bound::from_owned_ptr_or_err(py, made) }.ok()
        };
        let initialised = own(self.init_pointer(probe.as_ptr()))?;
        let memory = probe.as_ptr().addr() as u64;
        let values = [&PTR.to_ne_bytes()[..], &DEVICE.to_ne_bytes(), &memory.to_ne_bytes()];
        let places = places_of(bytes_of(&initialised, len), values)?;
        let placed = own(self.place_pointer(places, probe.as_ptr(), PTR, DEVICE as c_int))?;
        let header = size_of::<ffi::PyObject>();
        (bytes_of(&initialised, len)[header..] == bytes_of(&placed, len)[header..]).then_some(places)
    }

    /// Returns CuPy's pointer to memory, initialised by its class.
    fn init_pointer(&self, memory: *mut ffi::PyObject) -> Result<*mut ffi::PyObject, Raised> {
        // SAFETY: two objects.
        let arguments = made(unsafe { ffi::PyTuple_Pack(2, memory, self.zero) })?;
        // SAFETY: what makes objects of the class.
        let pointer = unsafe { (self.new_pointer)(self.pointer, self.no_arguments, ptr::null_mut()) };
        // SAFETY: what initialises objects of the class.
        let is_made = !pointer.is_null() && unsafe { (self.init_pointer)(pointer, arguments, ptr::null_mut()) } == 0;
        // SAFETY: the reference made above.
        unsafe { ffi::Py_DECREF(arguments) };
        if is_made {
            return Ok(pointer);
        }
        // SAFETY: null, or the reference made above.
        unsafe { ffi::Py_XDECREF(pointer) };
        Err(Raised)
    }
}

fn is_raised() -> bool {
    // SAFETY: with the GIL.
    !unsafe { ffi::PyErr_Occurred() }.is_null()
}

/// The function that CuPy calls.
unsafe extern "C" fn malloc(cupy: *mut ffi::PyObject, size: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the capsule that the function was made with.
    let cupy = unsafe { ffi::PyCapsule_GetPointer(cupy, ptr::null()) }.cast::<Cupy>();
    // SAFETY: what is in it, which is never dropped.
    let made = unsafe { &*cupy }.malloc(size);
    made.unwrap_or(ptr::null_mut())
}

/// Returns the function that CuPy is given as its allocator. `memory` and `pointer` are CuPy's classes; `device` is the address
/// of its function that returns the thread's current device, and `stream` that of the one that returns the current stream, of
/// a device that it is told where `has_device`. `refusal` makes the exception that is raised of one of the package.
///
/// # Safety
/// Safe to call from the package alone, which checks what the addresses are.
#[pyfunction]
pub(crate) fn cupy_allocator<'py>(
    memory: &Bound<'py, PyType>,
    pointer: &Bound<'py, PyType>,
    device: usize,
    stream: usize,
    has_device: bool,
    refusal: Py<PyAny>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let py = memory.py();
    pool::current_or_default(|| Machine::get(py))?;
    // SAFETY: a class.
    let is_made_at_run_time = unsafe { ffi::PyType_GetFlags(memory.as_type_ptr()) } & ffi::Py_TPFLAGS_HEAPTYPE != 0;
    let end = if is_made_at_run_time { None } else { Some(slot(memory, ffi::Py_tp_dealloc)?) };
    // SAFETY: the slot has a function of this type.
    let new_memory = unsafe { std::mem::transmute::<*mut c_void, ffi::newfunc>(slot(memory, ffi::Py_tp_new)?) };
    let class = derive(memory)?;
    let fields = [field(memory, "ptr")?, field(memory, "size")?, field(memory, "device_id")?];
    let probe = probe(py, class, new_memory, &fields)?;
    let values = [&PTR.to_ne_bytes()[..], &SIZE.to_ne_bytes(), &DEVICE.to_ne_bytes()];
    let fields = match places_of(bytes_of(&probe, size_of_objects(memory)?), values) {
        Some(places) => Fields::At(places),
        None => Fields::By(fields),
    };
    let mut cupy = Cupy {
        memory: class,
        new_memory,
        // SAFETY: as above.
        end_memory: end.map(|end| unsafe { std::mem::transmute::<*mut c_void, ffi::destructor>(end) }),
        fields,
        pointer: pointer.clone().into_ptr().cast(),
        // SAFETY: as above.
        new_pointer: unsafe { std::mem::transmute::<*mut c_void, ffi::newfunc>(slot(pointer, ffi::Py_tp_new)?) },
        // SAFETY: as above.
        init_pointer: unsafe { std::mem::transmute::<*mut c_void, ffi::initproc>(slot(pointer, ffi::Py_tp_init)?) },
        pointer_places: None,
        no_arguments: PyTuple::empty(py).into_ptr(),
        zero: 0_i32.into_pyobject(py).map_err(PyErr::from)?.into_ptr(),
        // SAFETY: the caller's own promise.
        device: unsafe { std::mem::transmute::<usize, CurrentDevice>(device) },
        stream: match has_device {
            // SAFETY: as above.
            true => Ok(unsafe { std::mem::transmute::<usize, StreamOf>(stream) }),
            // SAFETY: as above.
            false => Err(unsafe { std::mem::transmute::<usize, CurrentStream>(stream) }),
        },
        refusal,
    };
    cupy.pointer_places = cupy.find_pointer_places(py, &probe, size_of_objects(pointer)?);
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"malloc".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: malloc },
        ml_flags: ffi::METH_O,
        ml_doc: c"Returns a pointer to new memory of the pool.".as_ptr(),
    }));
    // SAFETY: an address that is not null.
    let capsule =
        unsafe { ffi::PyCapsule_New(ptr::from_ref(Box::leak(Box::new(cupy))).cast_mut().cast(), ptr::null(), None) };
    // SAFETY: a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?;
    // SAFETY: a definition that stays.
    let function = unsafe { ffi::PyCFunction_NewEx(definition, capsule.as_ptr(), ptr::null_mut()) };
    // SAFETY: a new reference, or null with an exception.
    Ok(unsafe { Bound::from_owned_ptr_or_err(py, function) }?)
}
