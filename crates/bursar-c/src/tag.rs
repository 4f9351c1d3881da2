//! Tags: the purposes of allocations.
#![allow(unsafe_code)]

use crate::arguments;
use crate::enter::call;
use crate::status::{CallResult, Failure, bursar_status};
use bursar::memory::AllocTag;
use std::ffi::c_char;

/// The tag of an allocation that nobody named.
pub const BURSAR_UNTAGGED: u32 = 0;

/// Returns the tag of a number.
#[inline]
pub(crate) fn tag_of(tag: u32) -> CallResult<AllocTag> {
    AllocTag::from_index(tag as usize).ok_or_else(unknown)
}

#[cold]
fn unknown() -> Box<Failure> {
    Failure::argument("tag", "is not a tag that bursar_tag made")
}

/// Returns the tag of a name: the same number for the same name, for the life of the process. The memory of a new name is never
/// freed, and counts tell 4,095 tags apart, so a name should stand for a kind of allocation and not for a single one.
///
/// Errors: `BURSAR_INVALID_ARGUMENT` if `name` or `out` is null, or `name` is not UTF-8.
/// Threads: any.
/// Ownership: `name` is copied.
///
/// # Safety
/// `name` is null or points to a text that ends with a zero byte; `out` is null or points to a `uint32_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_tag(name: *const c_char, out: *mut u32) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: the caller's own promise.
        let name = unsafe { arguments::text(name, "name") }?;
        let name = name.ok_or_else(|| Failure::argument("name", "is a null pointer"))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, AllocTag::intern(name).index() as u32) };
        Ok(())
    })
}
