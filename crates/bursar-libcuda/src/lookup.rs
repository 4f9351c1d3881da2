//! Finding entry points by name, version and flags, as `cuGetProcAddress` does.

use crate::arguments::{In, Out};
use crate::status::{CUresult, CallResult};
use crate::types::CUdriverProcAddressQueryResult as Found;
use std::ffi::{c_char, c_int, c_ulonglong, c_void};

/// An entry point: one line of the table.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The name in the manual, which all versions share.
    pub name: &'static str,
    /// The name in the shared object.
    pub symbol: &'static str,
    /// The version of CUDA that introduced it, as `cuDriverGetVersion` writes it.
    pub since: c_int,
    /// True if it means the default stream of the thread where no stream is named.
    pub per_thread: bool,
    /// True if there is another form of it for the other meaning.
    pub has_forms: bool,
    /// The address of the function.
    pub address: usize,
}

/// The flags of `cuGetProcAddress`.
const LEGACY_STREAM: c_ulonglong = 1;
const PER_THREAD_DEFAULT_STREAM: c_ulonglong = 2;

/// Finds the newest entry point that `version` of CUDA has under this name.
fn find(table: &[EntryPoint], name: &str, version: c_int, per_thread: bool) -> Result<EntryPoint, Found> {
    let named = || table.iter().filter(|entry| entry.name == name);
    let fits = |entry: &&EntryPoint| entry.since <= version && (!entry.has_forms || entry.per_thread == per_thread);
    match named().filter(fits).max_by_key(|entry| entry.since) {
        Some(entry) => Ok(*entry),
        None if named().next().is_some() => Err(Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        None => Err(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    }
}

fn search(
    table: &[EntryPoint],
    symbol: In<c_char>,
    function: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
) -> CallResult<Found> {
    function.required()?;
    let name = symbol.text()?.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if name.is_empty() || flags > (LEGACY_STREAM | PER_THREAD_DEFAULT_STREAM) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (address, found) = match find(table, name, version, flags & PER_THREAD_DEFAULT_STREAM != 0) {
        Ok(entry) => (std::ptr::with_exposed_provenance_mut(entry.address), Found::CU_GET_PROC_ADDRESS_SUCCESS),
        Err(why) => (std::ptr::null_mut(), why),
    };
    function.set(address)?;
    Ok(found)
}

/// Finds an entry point; one that is not there is a null and a reason.
pub(crate) fn get_v2(
    table: &[EntryPoint],
    symbol: In<c_char>,
    function: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
    status: Out<Found>,
) -> CallResult {
    let found = search(table, symbol, function, version, flags)?;
    status.set_if_wanted(found);
    Ok(())
}

/// Finds an entry point; one that is not there is an error.
pub(crate) fn get(
    table: &[EntryPoint],
    symbol: In<c_char>,
    function: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
) -> CallResult {
    match search(table, symbol, function, version, flags)? {
        Found::CU_GET_PROC_ADDRESS_SUCCESS => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_NOT_FOUND),
    }
}
