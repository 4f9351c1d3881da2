//! Programs that use Bursar themselves.
//!
//! Such a program asks its driver for memory through `bursar-cuda`, and may have charged it to its share before that, through its own
//! `bursar-ledger`. Nobody but the program knows. So each of the two crates looks for a function of this library when it starts:
//!
//! - `bursar-cuda` asks [`bursar_enforce_function`] about every driver function that it looked up. What it asks about memory is answered by the driver,
//!   since ledgers are measured by that, and its allocating calls come through doors of their own.
//! - `bursar-ledger` reports by [`bursar_enforce_account_opened`] that it has an account with the ledger of a device.
//!
//! What comes through those doors is charged like everything else until the program has an account with the ledger of its share, and
//! is left to the program from then on. So a program that mixes Bursar with other libraries is charged for what the others take, and
//! one that uses Bursar without a ledger is charged as any program.
#![allow(unsafe_code)]

use crate::entry::Entry;
use crate::{gate, share, table};
use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};
use std::mem::transmute;

/// Declares that this program looks at devices and takes none of their memory, as the command `bursar` does: it is told about the whole
/// device, and not charged for a context.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn bursar_enforce_observe() {
    gate::observe();
}

/// Reports that this program has an account with the ledger of the device with that UUID, of 16 bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn bursar_enforce_account_opened(uuid: *const u8) {
    if share::is_opening() || uuid.is_null() {
        return;
    }
    // SAFETY: the caller gives the 16 bytes of a UUID.
    let uuid = unsafe { uuid.cast::<[u8; 16]>().read() };
    if let gate::Admission::Share(share) = gate::share()
        && share.uuid().0 == uuid
    {
        share::note_own_account();
    }
}

/// Returns the function that Bursar's own driver crate calls for `found`, which it looked up by `name`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn bursar_enforce_function(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if found.is_null() || name.is_null() {
        return found;
    }
    // SAFETY: the caller gives a string.
    let name = unsafe { CStr::from_ptr(name) };
    match table::by_symbol(name) {
        Some(entry) if found == entry.wrapper() && table::answers_about_memory(entry) => entry.real(),
        Some(entry) if found == entry.wrapper() => door(entry).unwrap_or(found),
        _ => found,
    }
}

fn door(entry: &Entry) -> Option<*mut c_void> {
    let door = match entry.symbol.to_bytes() {
        b"cuMemAlloc_v2" => allocate as *const (),
        b"cuMemAllocAsync" => allocate_async as *const (),
        b"cuMemCreate" => create as *const (),
        _ => return None,
    };
    Some(door.cast::<c_void>().cast_mut())
}

/// Defines a door: the driver's own function where the program charges itself, and the wrapper otherwise.
macro_rules! door {
    ($($name:ident = $entry:path, ($($arg:ident: $type:ty),*);)*) => {$(
        extern "C" fn $name($($arg: $type),*) -> c_int {
            let function = if share::charges_itself() { $entry.real() } else { $entry.wrapper() };
            // SAFETY: both are functions of the driver's signature.
            let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(function) };
            // SAFETY: the program's own call of the driver.
            unsafe { function($($arg),*) }
        }
    )*};
}

door! {
    allocate = crate::linear::cuMemAlloc_v2::ENTRY, (ptr: *mut u64, bytes: usize);
    allocate_async = crate::pools::cuMemAllocAsync::ENTRY, (ptr: *mut u64, bytes: usize, stream: *mut c_void);
    create = crate::handles::cuMemCreate::ENTRY, (handle: *mut u64, bytes: usize, kind: *const c_void, flags: c_ulonglong);
}
