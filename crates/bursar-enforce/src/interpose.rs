//! `dlsym`, `dlvsym` and `dlopen` as programs call them.
//!
//! The C library's functions look from where their caller is. So each is a few instructions that ask [`resolve`] or [`resolve_load`] and, unless
//! that has an answer of its own, jump on to the real function with the caller's arguments and return address in place.
#![allow(unsafe_code)]

use crate::entry::Entry;
use crate::share::Share;
use crate::{deep_binding, loader, proc_address, table};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// The decision about a look-up: the function to jump to, or, where that is null, what to return.
#[repr(C)]
struct Resolution {
    jump: *mut c_void,
    answer: *mut c_void,
}

/// Defines functions that stand before the C library's. Each asks its resolver, which gets the three arguments that there are at most
/// and the address of the caller, and jumps to where that says with everything in place, or returns its answer.
macro_rules! stand_before {
    ($($name:ident($($arg:ident: $type:ty),*) = $resolver:ident;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, [rsp + 24]",
                "call {resolver}",
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
                resolver = sym $resolver,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "mov x3, x30",
                "bl {resolver}",
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
                resolver = sym $resolver,
            );
        }
    )*};
}

stand_before! {
    dlsym(handle: *mut c_void, name: *const c_char) = resolve_plain;
    dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) = resolve;
    dlopen(path: *const c_char, flags: c_int) = resolve_load;
}

/// Decides about a look-up without a version.
extern "C" fn resolve_plain(
    handle: *mut c_void,
    name: *const c_char,
    _: *const c_char,
    caller: *const c_void,
) -> Resolution {
    resolve(handle, name, ptr::null(), caller)
}

/// Decides about a load. One that binds deeply is made here, and has what it brought in rebound.
extern "C" fn resolve_load(path: *const c_char, flags: c_int) -> Resolution {
    let jump = loader::real_dlopen() as *mut c_void;
    let is_deep = flags & libc::RTLD_DEEPBIND != 0 && !path.is_null() && Share::is_named();
    let loaded = if is_deep { deep_binding::load(path, flags, wrapper_for) } else { ptr::null_mut() };
    // Where it failed, the caller's own folders may have the library.
    if loaded.is_null() {
        Resolution { jump, answer: loaded }
    } else {
        Resolution { jump: ptr::null_mut(), answer: loaded }
    }
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
    if name.is_null() {
        return onwards;
    }
    // SAFETY: the caller gives a string, as `dlsym` demands.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(known) = known(name) else { return onwards };
    if handle == libc::RTLD_NEXT {
        return match known {
            Known::Driver(entry) if version.is_null() && Share::is_named() && comes_next(entry, name, caller) => {
                Resolution { jump: ptr::null_mut(), answer: entry.wrapper() }
            }
            _ => onwards,
        };
    }
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

/// Returns whether the driver's function is what comes next after the code at `caller`. It is not for a library that stands before that
/// function itself: a chain of those must end.
fn comes_next(entry: &Entry, name: &CStr, caller: *const c_void) -> bool {
    let real = entry.real();
    !real.is_null() && !loader::defines(caller, name) && loader::global_symbol(name, caller) == real
}

/// A symbol that is not left to the loader.
enum Known {
    /// A function of the loader itself, and what programs get for it.
    Loader(*const ()),
    Driver(&'static Entry),
}

/// Returns what programs get for a symbol; none where it is left to the loader.
fn wrapper_for(name: &CStr) -> Option<*mut c_void> {
    known(name).map(|known| match known {
        Known::Loader(wrapper) => wrapper.cast::<c_void>().cast_mut(),
        Known::Driver(entry) => entry.wrapper(),
    })
}

fn known(name: &CStr) -> Option<Known> {
    match name.to_bytes() {
        b"dlsym" => Some(Known::Loader(dlsym as *const ())),
        b"dlopen" => Some(Known::Loader(dlopen as *const ())),
        b"dlvsym" => Some(Known::Loader(dlvsym as *const ())),
        bytes if bytes.starts_with(b"cu") || bytes.starts_with(b"nvml") => {
            table::by_symbol(name).or_else(|| proc_address::by_symbol(name)).map(Known::Driver)
        }
        _ => None,
    }
}
