//! The loader's own functions, found without their help, and the driver found by them.
#![allow(unsafe_code)]

use crate::elf;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

pub(crate) fn look_up(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    if version.is_null() {
        return real_lookup(handle, name);
    }
    // SAFETY: the program's own arguments.
    unsafe { real_dlvsym()(handle, name.as_ptr(), version) }
}

pub(crate) fn real_lookup(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of the loader, or one of its special values, and a string.
    unsafe { real_dlsym()(handle, name.as_ptr()) }
}

/// Returns the C library's `dlsym`.
pub(crate) fn real_dlsym() -> Dlsym {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: the C library's function has this signature.
    unsafe { transmute::<*mut c_void, Dlsym>(loader_function(&FOUND, c"dlsym")) }
}

/// Returns the C library's `dlvsym`.
pub(crate) fn real_dlvsym() -> Dlvsym {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: the C library's function has this signature.
    unsafe { transmute::<*mut c_void, Dlvsym>(loader_function(&FOUND, c"dlvsym")) }
}

/// Returns the C library's `dlopen`.
pub(crate) fn real_dlopen() -> Dlopen {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: the C library's function has this signature.
    unsafe { transmute::<*mut c_void, Dlopen>(loader_function(&FOUND, c"dlopen")) }
}

fn loader_function(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Acquire);
    if !known.is_null() {
        return known;
    }
    let next = elf::next_definition(name, own_address());
    if next.is_null() {
        // A process without the loader's functions cannot have loaded this library.
        std::process::abort();
    }
    found.store(next, Release);
    next
}

fn own_address() -> usize {
    own_address as *const () as usize
}

/// Returns whether an address lies in this library.
pub(crate) fn is_own(address: *mut c_void) -> bool {
    !address.is_null() && object_of(address) == object_of(ptr::with_exposed_provenance_mut(own_address()))
}

fn address_info(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the loader fills in the structure, whatever the address is.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    (found != 0).then_some(info)
}

/// Returns the start of the loaded object that an address lies in.
pub(crate) fn object_of(address: *mut c_void) -> Option<*mut c_void> {
    address_info(address).map(|info| info.dli_fbase)
}

/// Returns a symbol of the driver as code at `caller` would find it without a handle: in the objects that everybody searches, or
/// in the caller's own and those that it needs.
pub(crate) fn global_symbol(name: &CStr, caller: *const c_void) -> *mut c_void {
    let local = || {
        let info = address_info(caller)?;
        symbol_in_loaded(info.dli_fname, name).filter(|found| !is_own(*found))
    };
    let found = real_lookup(libc::RTLD_NEXT, name);
    if !found.is_null() {
        return found;
    }
    // The failing look-up comes last, so that `dlerror` has its message.
    local().unwrap_or_else(|| real_lookup(libc::RTLD_NEXT, name))
}

/// Returns whether the object that `address` lies in has a symbol of this name itself.
pub(crate) fn defines(address: *const c_void, name: &CStr) -> bool {
    let found = address_info(address).and_then(|info| symbol_in_loaded(info.dli_fname, name));
    found.is_some_and(|found| object_of(found) == object_of(address.cast_mut()))
}

/// Returns a symbol of a library that is loaded; none where it is not, or has no such symbol.
fn symbol_in_loaded(library: *const c_char, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name of a library, as a string; nothing is loaded.
    let handle = unsafe { real_dlopen()(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    let found = real_lookup(handle, name);
    // SAFETY: the handle of the line above, given back once.
    unsafe { libc::dlclose(handle) };
    (!found.is_null()).then_some(found)
}

/// An address in the driver that this process uses.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Remembers the first library that functions of the driver were found in.
pub(crate) fn remember_driver(function: *mut c_void) {
    if DRIVER.load(Acquire).is_null() && !is_nvml(function) {
        DRIVER.store(function, Release);
    }
}

fn is_nvml(function: *mut c_void) -> bool {
    let Some(info) = address_info(function) else { return false };
    // SAFETY: the loader's name of an object is a string that lives as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    name.to_bytes().windows(9).any(|part| part == b"nvidia-ml")
}

/// Returns a symbol of the driver, wherever it is loaded; null where the driver has none, or there is no driver.
pub(crate) fn driver_symbol(name: &CStr) -> *mut c_void {
    let library = if name.to_bytes().starts_with(b"nvml") { c"libnvidia-ml.so.1" } else { c"libcuda.so.1" };
    let known = DRIVER.load(Acquire);
    let of_known = address_info(known).filter(|_| !known.is_null() && !name.to_bytes().starts_with(b"nvml"));
    let not_own = |found: &*mut c_void| !found.is_null() && !is_own(*found);
    of_known
        .and_then(|info| symbol_in_loaded(info.dli_fname, name).filter(not_own))
        .or_else(|| Some(real_lookup(libc::RTLD_NEXT, name)).filter(not_own))
        .or_else(|| symbol_in_loaded(library.as_ptr(), name).filter(not_own))
        .unwrap_or(ptr::null_mut())
}

/// Loads the driver's management library, if there is one, and returns one of its functions. It stays loaded.
pub(crate) fn management_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the management library may be loaded at any time, on any thread.
    let handle = unsafe { real_dlopen()(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY) };
    if handle.is_null() { ptr::null_mut() } else { real_lookup(handle, name) }
}
