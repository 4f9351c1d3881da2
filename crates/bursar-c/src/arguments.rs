//! The pointers that callers pass. Each is null or points to what its type says, which is all that a library in C can ask
//! for; it need not be aligned.
#![allow(unsafe_code)]

use crate::status::{CallResult, Failure};
use std::ffi::{CStr, c_char};

/// A structure that begins with its size, by which callers say which version of it they were compiled with.
///
/// # Safety
/// The type has the layout of C, begins with a `usize`, and every pattern of bits is a value of it.
pub(crate) unsafe trait Versioned: Copy {}

/// Reads a structure of options; a null pointer stands for the defaults.
///
/// # Safety
/// `pointer` is null or points to a structure that begins with its size, and is as long as that says.
pub(crate) unsafe fn options<T: Versioned + Default>(pointer: *const T, name: &'static str) -> CallResult<T> {
    if pointer.is_null() {
        return Ok(T::default());
    }
    // SAFETY: the caller's own promise.
    unsafe { check_size(pointer, name) }?;
    // SAFETY: it is as long as this type, whose every pattern of bits is a value.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Checks that a structure which the call fills in is there and of this version's size.
///
/// # Safety
/// As for [`options`].
pub(crate) unsafe fn check_out<T: Versioned>(pointer: *mut T, name: &'static str) -> CallResult {
    if pointer.is_null() {
        return Err(Failure::argument(name, "is a null pointer"));
    }
    // SAFETY: the caller's own promise.
    unsafe { check_size(pointer, name) }
}

/// # Safety
/// `pointer` points to a structure that begins with its size.
unsafe fn check_size<T: Versioned>(pointer: *const T, name: &'static str) -> CallResult {
    // SAFETY: the caller's own promise.
    let given = unsafe { pointer.cast::<usize>().read_unaligned() };
    let expected = size_of::<T>();
    if given == expected { Ok(()) } else { Err(Box::new(Failure::StructSize { name, given, expected })) }
}

/// Checks an integer that says yes or no.
pub(crate) fn check_flag(flag: u32, name: &'static str) -> CallResult {
    if flag <= 1 { Ok(()) } else { Err(Failure::argument(name, "is neither zero nor one")) }
}

/// Checks a field that a later version may give a meaning to.
pub(crate) fn check_reserved(reserved: u32) -> CallResult {
    if reserved == 0 { Ok(()) } else { Err(Failure::argument("reserved", "is not zero")) }
}

/// Checks that there is a place to write to.
#[inline]
pub(crate) fn check_place<T>(pointer: *mut T, name: &'static str) -> CallResult {
    if pointer.is_null() { Err(null_place(name)) } else { Ok(()) }
}

#[cold]
fn null_place(name: &'static str) -> Box<Failure> {
    Failure::argument(name, "is a null pointer")
}

/// Writes a value to a place that was checked.
///
/// # Safety
/// `pointer` points to memory for a `T`.
#[inline]
pub(crate) unsafe fn write<T: Copy>(pointer: *mut T, value: T) {
    // SAFETY: the caller's own promise.
    unsafe { pointer.write_unaligned(value) };
}

/// Reads a text that may be absent.
///
/// # Safety
/// `pointer` is null or points to a text that ends with a zero byte and stays as it is during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &'static str) -> CallResult<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's own promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::argument(name, "is not UTF-8"))
}

/// The most bytes of a tenant's name, which is what a ledger has room for.
const TENANT_MAX: usize = 48;

/// Reads the name of a tenant, which may be absent.
///
/// # Safety
/// `pointer` is null or points to a text that ends with a zero byte and stays as it is during the call.
pub(crate) unsafe fn tenant<'a>(pointer: *const c_char) -> CallResult<Option<&'a str>> {
    // SAFETY: the caller's own promise.
    let tenant = unsafe { text(pointer, "tenant") }?;
    match tenant.map_or(0, str::len) {
        length if length > TENANT_MAX => Err(Box::new(Failure::TooLong { name: "tenant", length, max: TENANT_MAX })),
        _ => Ok(tenant),
    }
}

/// Copies a text into a buffer of `capacity` bytes, cut at a character so that a zero byte fits after it, and says how long
/// the whole is.
///
/// # Safety
/// `buffer` is null or points to `capacity` bytes, and `length` is null or points to memory for its type.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, capacity: usize, length: *mut usize) -> CallResult {
    if buffer.is_null() && capacity > 0 {
        return Err(Failure::argument("buffer", "is a null pointer, and its capacity is not zero"));
    }
    if capacity > 0 {
        let end = cut(text, capacity - 1);
        // SAFETY: the text is no longer than the buffer, which is the caller's, and no part of it.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), end) };
        // SAFETY: `end` is below the capacity.
        let zero = unsafe { buffer.add(end) };
        // SAFETY: it is a byte of the buffer.
        unsafe { zero.write(0) };
    }
    if !length.is_null() {
        // SAFETY: the caller's own promise.
        unsafe { write(length, text.len()) };
    }
    Ok(())
}

/// Returns the most bytes of a text that are whole characters and at most so many.
fn cut(text: &str, most: usize) -> usize {
    let most = most.min(text.len());
    (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// Returns a text as an array that ends with a zero, cut at a character where it is longer.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let end = cut(text, N - 1);
    let mut array = [0; N];
    for (to, &byte) in array.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = byte as c_char;
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y1_texts_are_cut_at_a_character_and_end_with_a_zero() {
        let bytes = |array: [c_char; 6]| array.map(|c| c as u8);
        assert_eq!(&bytes(fixed_text("größe")), b"gr\xc3\xb6\0\0", "six letters and an umlaut of two bytes do not fit");
        let mut length = 0;
        let mut buffer = [1 as c_char; 6];
        // SAFETY: the buffer has six bytes.
        unsafe { copy_text("größe", buffer.as_mut_ptr(), 4, &raw mut length) }.expect("room");
        assert_eq!((buffer.map(|c| c as u8), length), (*b"gr\0\x01\x01\x01", 7));
        // SAFETY: a null pointer with no capacity is never written to.
        unsafe { copy_text("größe", std::ptr::null_mut(), 0, &raw mut length) }.expect("nothing to write");
        // SAFETY: it is refused before anything is written.
        assert!(unsafe { copy_text("größe", std::ptr::null_mut(), 1, &raw mut length) }.is_err());
    }
}
