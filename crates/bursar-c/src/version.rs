//! The version, and the errors of calls.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned, fixed_text};
use crate::enter::{call_about_errors, call_about_refusals};
use crate::status::{STATUSES, bursar_status, with_last_failure, with_last_refusal};
use bursar::driver::Status;
use std::ffi::c_char;

/// The number of this interface. It changes where a program that was compiled with an earlier header would no longer work.
pub const BURSAR_INTERFACE: u32 = 0;

/// The last failure of a thread, in numbers and as one line of text. Numbers that a failure does not have are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_error {
    /// The size of this structure, set by the caller: `sizeof(bursar_error)`.
    pub struct_size: usize,
    /// The status that the call returned.
    pub status: bursar_status,
    /// The driver's own number of its failure, as `CUresult` has it.
    pub driver_code: i32,
    /// The bytes that were asked for, the number that was refused, or the bytes that are still held.
    pub requested: u64,
    /// The bytes that were left.
    pub available: u64,
    /// The limit that refused: in bytes, or the most that there may be.
    pub limit: u64,
    /// One if the request failed for want of memory, so that it could succeed once some is freed; zero otherwise.
    pub is_capacity: u32,
    /// One if the driver's failure is for good: every later call of the device fails too.
    pub is_sticky: u32,
    /// The failure in one line, cut where it is longer.
    pub message: [c_char; 512],
}

// SAFETY: it has the layout of C and begins with its size. It is only written, so its status is never read from a caller.
unsafe impl Versioned for bursar_error {}

/// Returns the version of the library, such as "0.1.0".
///
/// Errors: none.
/// Threads: any.
/// Ownership: the text lasts as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns the number of the interface that the library has, to be compared with `BURSAR_INTERFACE` of the header.
///
/// Errors: none.
/// Threads: any.
/// Ownership: none.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_interface() -> u32 {
    BURSAR_INTERFACE
}

/// Returns the name of a status, such as "BURSAR_OUT_OF_MEMORY"; null for a number that is none.
///
/// Errors: none.
/// Threads: any.
/// Ownership: the text lasts as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_status_name(status: i32) -> *const c_char {
    let known = STATUSES.iter().find(|(known, _)| *known as i32 == status);
    known.map_or(std::ptr::null(), |(_, name)| name.as_ptr())
}

/// Reads the last failure of this thread. Calls that succeed leave it as it is, and so does this one.
///
/// Errors: `BURSAR_INVALID_ARGUMENT` if `out` is null or of another size, or the thread has had no failure.
/// Threads: any; each has its own last failure.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_last_error(out: *mut bursar_error) -> bursar_status {
    call_about_errors(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let none = || crate::status::Failure::argument("out", "cannot be filled: the thread has had no failure");
        let error = with_last_failure(|failure| {
            let failure = failure?;
            let (requested, available, limit) = failure.numbers();
            let driver = failure.error().and_then(|error| error.driver_error()).map(|error| error.status);
            Some(bursar_error {
                struct_size: size_of::<bursar_error>(),
                status: failure.status(),
                driver_code: driver.map_or(0, Status::code),
                requested,
                available,
                limit,
                is_capacity: failure.error().is_some_and(|error| error.is_capacity()).into(),
                is_sticky: driver.is_some_and(Status::is_sticky).into(),
                message: fixed_text(&failure.to_string()),
            })
        });
        let error = error.flatten().ok_or_else(none)?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, error) };
        Ok(())
    })
}

/// Copies the explanation of the last request of this thread that was refused for want of memory: what was asked for, the
/// figures of the limit and the device, who holds the rest, and what would have had to be freed. It is several lines, and
/// empty if no request was refused.
///
/// The text is cut to fit `capacity` bytes with a zero byte at its end, and `*length` is how many bytes all of it has without
/// one. To ask for the length, pass a null `buffer` with a capacity of zero; `length` may be null.
///
/// Errors: `BURSAR_INVALID_ARGUMENT` if `buffer` is null and `capacity` is not zero; that is then the last failure, and the last
/// refusal stays.
/// Threads: any; each has its own last refusal.
/// Ownership: the buffer is the caller's.
///
/// # Safety
/// `buffer` is null or points to `capacity` bytes; `length` is null or points to a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_last_refusal(
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> bursar_status {
    call_about_refusals(|| {
        // SAFETY: the caller's own promise.
        let copied = with_last_refusal(|text| unsafe { arguments::copy_text(text, buffer, capacity, length) });
        copied.unwrap_or(Ok(()))
    })
}
