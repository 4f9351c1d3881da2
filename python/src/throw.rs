//! PyTorch's own exceptions, thrown by a library that was built without PyTorch and without C++.
//!
//! What `throw` of a `c10::OutOfMemoryError` compiles to is done here by hand: memory for the exception is asked of the C++
//! runtime, `c10::Error`'s constructor is called on it, the table of virtual functions is made that of the derived class, and
//! the runtime throws it. Everything is looked up in the libraries of the process when PyTorch is given the pool, and if
//! anything is missing the pool is not given: there is no other way to refuse, since a null becomes a tensor at address 0.
//!
//! # What it relies on
//! - The Itanium C++ ABI: `__cxa_allocate_exception`, `__cxa_throw`; a table of virtual functions whose first entry, two words
//!   after its symbol, is the complete destructor; arguments of classes that are not trivial are passed by address, and
//!   destroyed by the caller.
//! - libstdc++'s `std::string` of the ABI with `__cxx11`: an address, a length, and sixteen bytes that are either the text or
//!   the capacity of the memory at the address, which is of `operator new`.
//! - `c10::Error(SourceLocation, std::string)`, with a location of two C strings and a line, and `c10::OutOfMemoryError` adding
//!   no members to it. The size of neither is known here; the memory is far larger than both.
//!
//! Rust's frames between the throw and PyTorch's are `extern "C-unwind"`, and nothing in them waits to be dropped.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// A string of libstdc++.
#[repr(C)]
struct CxxString {
    text: *mut u8,
    len: usize,
    /// The capacity, where the text is not here.
    local: [u64; 2],
}

/// A `c10::SourceLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

type AllocateException = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Destroy) -> !;
type Destroy = unsafe extern "C-unwind" fn(*mut c_void);
type New = unsafe extern "C-unwind" fn(usize) -> *mut u8;
type Delete = unsafe extern "C-unwind" fn(*mut u8);
type Construct = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CxxString);

/// One class of exceptions.
#[derive(Clone, Copy)]
struct Class {
    type_info: *const c_void,
    /// The virtual functions, the destructor first.
    functions: *const Destroy,
}

/// Everything that throwing needs.
struct Runtime {
    allocate: AllocateException,
    throw: Throw,
    new: New,
    delete: Delete,
    construct: Construct,
    out_of_memory: Class,
    error: Class,
}

// SAFETY: the addresses are of code and constants of libraries that are never unloaded.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The size of the memory for an exception, several times that of a `c10::Error`.
const EXCEPTION_BYTES: usize = 1024;

/// The kinds of exceptions that PyTorch is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `torch.cuda.OutOfMemoryError`.
    OutOfMemory,
    /// `RuntimeError`.
    Other,
}

/// Looks everything up that throwing needs; the error is the name of the first symbol that is missing.
pub(crate) fn prepare() -> Result<(), &'static str> {
    if RUNTIME.get().is_none() {
        let runtime = Runtime::find()?;
        let _first = RUNTIME.set(runtime);
    }
    Ok(())
}

/// Throws an exception of PyTorch's. It was [prepared](prepare) before PyTorch was given the pool.
pub(crate) fn throw(kind: Kind, message: String) -> ! {
    let Some(runtime) = RUNTIME.get() else { std::process::abort() };
    let exception = runtime.make(kind, &message);
    drop(message);
    let class = runtime.class(kind);
    // SAFETY: the first virtual function is the destructor of what was constructed.
    let destroy = unsafe { *class.functions };
    // SAFETY: the exception was made by the runtime's own allocation and is whole.
    unsafe { (runtime.throw)(exception, class.type_info, destroy) }
}

impl Runtime {
    fn find() -> Result<Self, &'static str> {
        let libraries = [c"libc10.so", c"libc10_cuda.so", c"libstdc++.so.6"].map(loaded);
        let find = |name: &'static CStr| {
            let found = libraries.iter().map(|&library| symbol(library, name)).find(|found| !found.is_null());
            found.ok_or_else(|| name.to_str().unwrap_or("a symbol"))
        };
        let class = |type_info, functions| {
            let functions = find(functions)?.cast::<*const c_void>();
            Ok(Class { type_info: find(type_info)?, functions: functions.wrapping_add(2).cast() })
        };
        let construct = c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        // SAFETY: a function of the C++ ABI, which fixes its parameters.
        let allocate =
            unsafe { std::mem::transmute::<*const c_void, AllocateException>(find(c"__cxa_allocate_exception")?) };
        // SAFETY: a function of the C++ ABI, which fixes its parameters.
        let throw = unsafe { std::mem::transmute::<*const c_void, Throw>(find(c"__cxa_throw")?) };
        // SAFETY: `operator new(unsigned long)`, whose parameters are part of its name.
        let new = unsafe { std::mem::transmute::<*const c_void, New>(find(c"_Znwm")?) };
        // SAFETY: `operator delete(void*)`, whose parameters are part of its name.
        let delete = unsafe { std::mem::transmute::<*const c_void, Delete>(find(c"_ZdlPv")?) };
        // SAFETY: the constructor's parameters are part of its name.
        let construct = unsafe { std::mem::transmute::<*const c_void, Construct>(find(construct)?) };
        Ok(Self {
            allocate,
            throw,
            new,
            delete,
            construct,
            out_of_memory: class(c"_ZTIN3c1016OutOfMemoryErrorE", c"_ZTVN3c1016OutOfMemoryErrorE")?,
            error: class(c"_ZTIN3c105ErrorE", c"_ZTVN3c105ErrorE")?,
        })
    }

    const fn class(&self, kind: Kind) -> Class {
        match kind {
            Kind::OutOfMemory => self.out_of_memory,
            Kind::Other => self.error,
        }
    }

    /// Makes an exception that is ready to be thrown.
    fn make(&self, kind: Kind, message: &str) -> *mut c_void {
        // SAFETY: any size may be asked for; it ends the process rather than fail.
        let exception = unsafe { (self.allocate)(EXCEPTION_BYTES) };
        let mut text = MaybeUninit::<CxxString>::uninit();
        let text = text.as_mut_ptr();
        self.write_string(text, message);
        let location = SourceLocation { function: c"allocate".as_ptr(), file: c"bursar".as_ptr(), line: 0 };
        // SAFETY: the memory is large enough, and the string whole; the constructor takes what the string has.
        unsafe { (self.construct)(exception, location, text) };
        self.destroy_string(text);
        // SAFETY: an object of a class with virtual functions begins with their address.
        unsafe { *exception.cast::<*const Destroy>() = self.class(kind).functions };
        exception
    }

    /// Makes a string at an address; its text is memory of `operator new`, however short it is.
    fn write_string(&self, at: *mut CxxString, text: &str) {
        // SAFETY: any size may be asked for; it throws `std::bad_alloc` rather than return nothing.
        let memory = unsafe { (self.new)(text.len() + 1) };
        // SAFETY: the memory was just made, one byte longer than the text.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len()) };
        let end = memory.wrapping_add(text.len());
        // SAFETY: the byte behind the text.
        unsafe { *end = 0 };
        // SAFETY: the caller's memory for a string.
        unsafe { at.write(CxxString { text: memory, len: text.len(), local: [text.len() as u64, 0] }) };
    }

    /// Destroys a string, of which a constructor may have taken the text.
    fn destroy_string(&self, at: *mut CxxString) {
        // SAFETY: the string is whole, also where its text was taken.
        let string = unsafe { &mut *at };
        let (text, local) = (string.text, string.local.as_mut_ptr().cast::<u8>());
        if !text.is_null() && text != local {
            // SAFETY: text that is not in the string itself is memory of `operator new`.
            unsafe { (self.delete)(text) };
        }
    }
}

/// Returns the handle of a library that the process has loaded, or of the whole process.
pub(crate) fn loaded(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; a library that is not there is not loaded.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW as c_int) }
}

/// Returns the address of a symbol; null where it is not there.
pub(crate) fn symbol(library: *mut c_void, name: &CStr) -> *const c_void {
    if library.is_null() {
        return std::ptr::null();
    }
    // SAFETY: the library was opened and stays, and the name ends with a zero.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}
