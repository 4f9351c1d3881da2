//! `dlsym` and `dlvsym` as programs call them.
//!
//! The C library's functions look from where their caller is. So both are a few instructions that ask [`resolve`] and, unless it has
//! an answer of its own, jump on to the real function with the caller's arguments and return address in place.
#![allow(unsafe_code)]

use crate::entry::Entry;
use crate::share::Share;
use crate::{loader, proc_address, table};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// The decision about a look-up: the function to jump to, or, where that is null, what to return.
#[repr(C)]
struct Resolution {
    jump: *mut c_void,
    answer: *mut c_void,
}

/// Stands before the C library's `dlsym`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "xor edx, edx",
        "mov rcx, [rsp + 24]",
        "call {resolve}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rcx",
        "ret",
        resolve = sym resolve,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "mov x2, xzr",
        "mov x3, x30",
        "bl {resolve}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        resolve = sym resolve,
    );
}

/// Stands before the C library's `dlvsym`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rcx, [rsp + 24]",
        "call {resolve}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rcx",
        "ret",
        resolve = sym resolve,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "mov x3, x30",
        "bl {resolve}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        resolve = sym resolve,
    );
}

/// Decides about a look-up of `name` by code at `caller`; `version` is null for `dlsym`. A name that is none of ours costs a few
/// comparisons, takes no lock and allocates nothing, since an allocator may be the one that asks.
extern "C" fn resolve(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> Resolution {
    let real =
        if version.is_null() { loader::real_dlsym() as *mut c_void } else { loader::real_dlvsym() as *mut c_void };
    let onwards = Resolution { jump: real, answer: ptr::null_mut() };
    // What comes next after the caller is no business of ours: a chain of libraries before one function must end.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return onwards;
    }
    // SAFETY: the caller gives a string, as `dlsym` demands.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(known) = known(name) else { return onwards };
    let found = loader::look_up(handle, name, version);
    let found = if loader::is_own(found) { loader::global_symbol(name, caller) } else { found };
    let answer = match known {
        // Absent, or nothing to charge: as without us.
        _ if found.is_null() || !Share::is_named() => found,
        Known::Loader(wrapper) => wrapper.cast::<c_void>().cast_mut(),
        Known::Driver(entry) => entry.adopt(found),
    };
    Resolution { jump: ptr::null_mut(), answer }
}

/// A symbol that is not left to the loader.
enum Known {
    /// A function of the loader itself, and what programs get for it.
    Loader(*const ()),
    Driver(&'static Entry),
}

fn known(name: &CStr) -> Option<Known> {
    match name.to_bytes() {
        b"dlsym" => Some(Known::Loader(dlsym as *const ())),
        b"dlvsym" => Some(Known::Loader(dlvsym as *const ())),
        bytes if bytes.starts_with(b"cu") || bytes.starts_with(b"nvml") => {
            table::by_symbol(name).or_else(|| proc_address::by_symbol(name)).map(Known::Driver)
        }
        _ => None,
    }
}
