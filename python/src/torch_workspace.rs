//! The answer to how much memory PyTorch could have in one piece, which cuDNN's benchmark asks before it tries an algorithm.
//!
//! PyTorch's class for allocators of others has no hook for it: its virtual function `cacheInfo` throws. So the allocator that
//! PyTorch was given gets a table of virtual functions of its own, a copy in which that one is ours.
//!
//! # What it relies on
//! - The Itanium C++ ABI: an object begins with the address of its virtual functions, which is two words after the symbol of
//!   the table; both words are copied too.
//! - The symbols of the class, of the function and of the current allocator. Where one is missing, or the allocator is of
//!   another class, it stays as it is, and PyTorch throws.
#![allow(unsafe_code)]

use crate::pool;
use crate::throw::{loaded, symbol};
use bursar::{Bytes, DeviceId};
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The words of a table before the address that objects have: an offset and the type.
const BEFORE: usize = 2;

/// The request to `dladdr1` for the entry of a symbol.
const RTLD_DL_SYMENT: c_int = 1;

type FindSymbol = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info, *mut *const libc::Elf64_Sym, c_int) -> c_int;

/// Has PyTorch's current allocator, which was made of our functions, answer; returns whether it does.
#[pyfunction]
pub(crate) fn torch_answer_workspaces() -> bool {
    let (torch, cuda) = (loaded(c"libtorch_cuda.so"), loaded(c"libc10_cuda.so"));
    let current = symbol(cuda, c"_ZN3c104cuda20CUDACachingAllocator9allocatorE");
    let class = symbol(torch, c"_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
    let asked = symbol(torch, c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm");
    if current.is_null() || class.is_null() || asked.is_null() {
        return false;
    }
    let Some(words) = words_of(class) else { return false };
    // SAFETY: a table of a library that is never unloaded, as long as its symbol says.
    let table = unsafe { std::slice::from_raw_parts(class.cast::<*const c_void>(), words) };
    let Some(nth) = table.iter().position(|&function| function == asked) else { return false };
    // SAFETY: PyTorch's variable, an atomic address.
    let allocator = unsafe { &*current.cast::<AtomicPtr<AtomicPtr<c_void>>>() }.load(Ordering::Acquire);
    if allocator.is_null() {
        return false;
    }
    // SAFETY: the current allocator is an object with virtual functions, which is never destroyed.
    let functions = unsafe { &*allocator };
    if !std::ptr::eq(functions.load(Ordering::Acquire), class.cast::<*const c_void>().wrapping_add(BEFORE).cast()) {
        return false;
    }
    let mut own = table.to_vec();
    own[nth] = cache_info as *const c_void;
    // It stays as long as the allocator.
    let own: &'static mut [*const c_void] = own.leak();
    functions.store(own[BEFORE..].as_mut_ptr().cast(), Ordering::Release);
    true
}

/// Returns how many words a symbol's object has.
fn words_of(object: *const c_void) -> Option<usize> {
    let find = symbol(loaded(c"libc.so.6"), c"dladdr1");
    if find.is_null() {
        return None;
    }
    // SAFETY: the C library's function has this type.
    let find = unsafe { std::mem::transmute::<*const c_void, FindSymbol>(find) };
    let mut of = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let mut entry = std::ptr::null();
    // SAFETY: an address, and two variables to write to.
    let is_found = unsafe { find(object, &raw mut of, &raw mut entry, RTLD_DL_SYMENT) } != 0;
    if !is_found || entry.is_null() || !std::ptr::eq(of.dli_saddr, object) {
        return None;
    }
    // SAFETY: an entry of the library's table of symbols.
    let bytes = unsafe { (*entry).st_size } as usize;
    Some(bytes / size_of::<*const c_void>()).filter(|&words| words > BEFORE)
}

/// Raises `largest` to what a request on a device could have in one piece.
unsafe extern "C-unwind" fn cache_info(_: *mut c_void, device: i8, largest: *mut usize) {
    let could_have = catch_unwind(AssertUnwindSafe(|| could_have(device as u32)));
    // SAFETY: PyTorch's own variable.
    let largest = unsafe { &mut *largest };
    *largest = (*largest).max(could_have.map_or(0, |bytes| bytes.get() as usize));
}

/// Returns what the device has left, as far as the pool's own limit goes, and what the pool has free.
fn could_have(number: u32) -> Bytes {
    let Some(device) = pool::current().and_then(|pool| pool.device(DeviceId(number)).ok()) else { return Bytes::ZERO };
    let context = &device.context;
    let left = context.driver().memory(context.device()).map_or(Bytes::ZERO, |memory| memory.free);
    let reading = device.pages.readings().into_iter().find(|reading| reading.device == context.device());
    let reading = reading.unwrap_or_default();
    let within = device.own_limit().map_or(left, |limit| limit.saturating_sub(reading.held).min(left));
    within.saturating_add(reading.cached)
}
