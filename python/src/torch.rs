//! The functions that PyTorch calls where this process's pool is its allocator.
//!
//! They are handed to PyTorch by address. A refusal is [thrown](crate::throw), because PyTorch takes a null for memory. A
//! panic never leaves: it is thrown as an error of PyTorch's, or, where something is given back, ignored.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_book::{Count, Counts, Held};
use crate::pool_device::PoolDevice;
use crate::pool_requests::{self, Found};
use crate::pool_streams::Life;
use crate::throw::{self, Kind};
use crate::torch_capture::{self, PoolId, Relaxed};
use crate::torch_filter::CaptureFilter;
use crate::torch_refusal;
use bursar::memory::SleepState;
use bursar::{Bytes, DeviceId, Error};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Runs `act`, and throws what goes wrong in it.
#[inline]
fn or_throw<T>(device: u32, bytes: u64, act: impl FnOnce() -> Result<T, Failure>) -> T {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => refuse(device, bytes, failure),
        Err(_) => throw::throw(Kind::Other, "bursar: an internal error, described on standard error".to_owned()),
    }
}

#[cold]
#[inline(never)]
fn refuse(device: u32, bytes: u64, failure: Failure) -> ! {
    // What no device has is out of memory to PyTorch, negative sizes among it, which it takes for large ones.
    let is_for_memory = failure.is_capacity() || bytes > 1 << 60;
    let message = match is_for_memory {
        true => torch_refusal::describe(device, bytes, &failure),
        false => format!("bursar: {failure}"),
    };
    drop(failure);
    throw::throw(if is_for_memory { Kind::OutOfMemory } else { Kind::Other }, message)
}

/// Allocates memory on a stream.
extern "C-unwind" fn allocate(bytes: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    let (bytes, number, raw) = (bytes as u64, device as u32, stream.addr() as u64);
    let found = or_throw(number, bytes, || {
        pool::check_not_forked()?;
        pool_requests::find(number, raw, Life::Lasting)
    });
    let ptr = match found.device.captures.load(Ordering::Acquire) {
        0 => or_throw(number, bytes, || match found.allocate(&found.device.book, bytes, raw) {
            Err(Failure::Replaced) => pool_requests::allocate(bytes, number, raw),
            decided => decided,
        }),
        _ => allocate_in_capture(found, bytes, number, raw),
    };
    ptr as *mut c_void
}

/// Allocates memory on a stream for a cache of PyTorch's own, which takes a null for a refusal.
extern "C-unwind" fn allocate_or_null(bytes: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    if bytes <= 0 || pool::is_forked() {
        return std::ptr::null_mut();
    }
    let (bytes, number, raw) = (bytes as u64, device as u32, stream.addr() as u64);
    let act = || {
        let _relaxed = Relaxed::enter();
        pool_requests::allocate(bytes, number, raw)
    };
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(ptr)) => ptr as *mut c_void,
        _ => std::ptr::null_mut(),
    }
}

#[cold]
#[inline(never)]
fn allocate_in_capture(found: Found, bytes: u64, number: u32, raw: u64) -> u64 {
    // What it asks of PyTorch may throw, through frames that have nothing to catch it.
    match torch_capture::allocate(found.device, number, bytes, raw, found.stream) {
        Some(Ok(ptr)) => return ptr,
        Some(Err(failure)) => {
            found.leave();
            refuse(number, bytes, failure)
        }
        None => found.leave(),
    }
    or_throw(number, bytes, || {
        let _relaxed = Relaxed::enter();
        pool_requests::allocate(bytes, number, raw)
    })
}

/// Frees memory after the stream that it was allocated on, and after those that it was used on.
extern "C-unwind" fn free(ptr: *mut c_void, _: usize, device: c_int, _: *mut c_void) {
    if ptr.is_null() || pool::is_forked() {
        return;
    }
    let _freed = catch_unwind(AssertUnwindSafe(|| free_at(ptr.addr() as u64, device as u32)));
}

#[inline]
fn free_at(ptr: u64, number: u32) {
    let Some(device) = pool::opened(number) else { return };
    let Some(held) = device.book.lock().take(ptr) else { return };
    if held.arena != 0 || device.captures.load(Ordering::Acquire) > 0 {
        return free_in_capture(device, number, held);
    }
    device.free(held);
}

#[cold]
#[inline(never)]
fn free_in_capture(device: &PoolDevice, number: u32, held: Held) {
    if held.arena != 0 {
        return torch_capture::free(device, number, held);
    }
    let _relaxed = Relaxed::enter();
    device.free(held);
}

/// Remembers that memory is used on another stream.
extern "C-unwind" fn record_stream(ptr: *mut c_void, stream: *mut c_void) {
    if ptr.is_null() || pool::is_forked() {
        return;
    }
    or_throw(0, 0, || {
        let (ptr, raw) = (ptr.addr() as u64, stream.addr() as u64);
        let Some(pool) = pool::current() else { return Ok(()) };
        for (number, device) in pool.numbered() {
            if device.book.lock().has(ptr) {
                let found = pool_requests::find(number, raw, Life::Lasting)?;
                if !device.book.lock().share(ptr, found.stream) {
                    found.leave();
                }
                break;
            }
        }
        Ok(())
    });
}

/// Gives back what nobody uses: `torch.cuda.empty_cache`.
extern "C-unwind" fn empty_cache() {
    if !pool::is_forked() {
        or_throw(0, 0, || {
            let _relaxed = Relaxed::enter();
            pool::current().map(pool::Pool::trim);
            Ok(())
        });
    }
}

/// Sets the part of a device's memory that the pool may hold.
extern "C-unwind" fn set_fraction(fraction: f64, device: c_int) {
    or_throw(0, 0, || limit_to_fraction(device as u32, fraction));
}

fn limit_to_fraction(device: u32, fraction: f64) -> Result<(), Failure> {
    let Some(pool) = pool::current() else { return Ok(()) };
    let device = pool.device(DeviceId(device))?;
    let part = Bytes((device.context.facts().total.get() as f64 * fraction.clamp(0.0, 1.0)) as u64);
    let limit = pool.terms().limit.map_or(part, |limit| limit.min(part));
    device.limit.set_limit(limit);
    // What the pool only keeps must not count for more than the program may have.
    let held = device.pages.readings().into_iter().fold(Bytes::ZERO, |sum, pool| sum.saturating_add(pool.held));
    if held > limit {
        let _relaxed = Relaxed::enter();
        device.trim();
    }
    Ok(())
}

/// Returns the part of a device's memory that the pool may hold.
#[pyfunction]
pub(crate) fn torch_fraction(device: u32) -> Result<f64, Failure> {
    let Some(pool) = pool::current() else { return Ok(1.0) };
    let device = pool.device(DeviceId(device))?;
    let total = device.context.facts().total;
    Ok(device.own_limit().unwrap_or(total).get() as f64 / total.get().max(1) as f64)
}

/// Fails if a stream that PyTorch uses the pool on is being captured into a graph.
#[pyfunction]
pub(crate) fn torch_check_captures() -> Result<(), Failure> {
    let devices = pool::current().into_iter().flat_map(pool::Pool::numbered);
    devices.into_iter().try_for_each(|(number, device)| torch_capture::check_none_is_captured(device, number))
}

/// Fails if all memory of a device sleeps: what PyTorch needs for any graph is in it, and is written when one is captured or
/// launched.
#[pyfunction]
pub(crate) fn torch_check_awake(device: u32) -> Result<(), Failure> {
    pool::opened(device).map_or(Ok(()), |opened| check_awake(opened, device))
}

#[inline]
fn check_awake(opened: &PoolDevice, device: u32) -> Result<(), Failure> {
    if !opened.context.has_asleep() {
        return Ok(());
    }
    let sleepers = opened.context.sleepers();
    match sleepers.iter().any(|sleeper| sleeper.sleep_reading().state == SleepState::Asleep) {
        true => Err(Error::Asleep { device: DeviceId(device), what: "the pool", is_moving: false }.into()),
        false => Ok(()),
    }
}

/// Remembers that a graph is about to be launched on a stream, which its memory then goes back after. Returns true where the launch
/// has to be [told](torch_launched_of) too, because nobody says when the stream ends; fails if all memory sleeps.
#[pyfunction]
pub(crate) fn torch_launches(device: u32, stream: u64) -> Result<bool, Failure> {
    let Some(opened) = pool::opened(device).filter(|_| !pool::is_forked()) else { return Ok(false) };
    check_awake(opened, device)?;
    let found = pool_requests::find(device, stream, Life::Lasting)?;
    found.leave();
    Ok(found.is_guest)
}

/// Has the memory of the graphs that share a pool of PyTorch's go back after what a stream was given.
#[pyfunction]
pub(crate) fn torch_launched_of(device: u32, stream: u64, pool: (u64, u64)) -> Result<(), Failure> {
    let found = pool_requests::find(device, stream, Life::Lasting)?;
    let ordered = torch_capture::launched(device, PoolId { first: pool.0, second: pool.1 }, found.stream);
    found.leave();
    ordered
}

/// Remembers that others than PyTorch made a stream that it uses.
#[pyfunction]
pub(crate) fn torch_uses_stream(handle: u64) {
    Life::Lasting.note(handle, true);
}

/// Finds the block that an address lies in.
extern "C-unwind" fn base_allocation(ptr: *mut c_void, bytes: *mut usize) -> *mut c_void {
    let opened = pool::current().into_iter().flat_map(pool::Pool::opened);
    let around = opened.map(|device| device.book.lock().around(ptr.addr() as u64)).find_map(|found| found);
    let (begin, len) = around.unwrap_or((ptr.addr() as u64, 0));
    if !bytes.is_null() {
        // SAFETY: PyTorch's own variable.
        unsafe { *bytes = len as usize };
    }
    begin as *mut c_void
}

/// Begins a capture, before the driver does.
extern "C-unwind" fn begin_capture(device: c_int, id: PoolId, filter: *const CaptureFilter) {
    // SAFETY: PyTorch's own function, whole for this call.
    let filter = unsafe { CaptureFilter::copied(filter) };
    or_throw(0, 0, || {
        let device = device as u32;
        let pool = pool::current().ok_or(Error::NoDevice)?;
        torch_capture::begin(pool.device(DeviceId(device))?, device, id, filter)
    });
}

/// Ends a capture.
extern "C-unwind" fn end_capture(device: c_int, id: PoolId) {
    or_throw(0, 0, || match pool::opened(device as u32) {
        Some(opened) => torch_capture::end(opened, device as u32, id),
        None => Ok(()),
    });
}

/// Lets go of the memory of graphs.
extern "C-unwind" fn release_pool(device: c_int, id: PoolId) {
    if !pool::is_forked() {
        or_throw(0, 0, || {
            if let Some(opened) = pool::opened(device as u32) {
                torch_capture::release(opened, device as u32, id);
            }
            Ok(())
        });
    }
}

/// Returns the addresses of the functions that PyTorch calls, by the name of what sets each.
#[pyfunction]
pub(crate) fn torch_functions(py: Python<'_>) -> Result<Bound<'_, PyDict>, Failure> {
    throw::prepare().map_err(|symbol| Failure::NoSymbol { library: "PyTorch", symbol })?;
    pool::current_or_default(|| Machine::get(py))?;
    let functions = [
        ("allocate", allocate as *const () as usize),
        ("allocate_or_null", allocate_or_null as *const () as usize),
        ("free", free as *const () as usize),
        ("set_record_stream_fn", record_stream as *const () as usize),
        ("set_reset_fn", empty_cache as *const () as usize),
        ("set_memory_fraction_fn", set_fraction as *const () as usize),
        ("set_base_alloc_fn", base_allocation as *const () as usize),
        ("set_begin_allocate_to_pool", begin_capture as *const () as usize),
        ("set_end_allocate_to_pool_fn", end_capture as *const () as usize),
        ("set_release_pool", release_pool as *const () as usize),
    ];
    let addresses = PyDict::new(py);
    for (name, address) in functions {
        addresses.set_item(name, address)?;
    }
    Ok(addresses)
}

/// Returns the counts of a device: for blocks, granted and requested bytes those of all, small and large ones, each as what is
/// there, the peak, what was added and what was taken away; then the same of what the pool holds; then how often it refused,
/// and how many frames it made and gave back.
#[pyfunction]
pub(crate) fn torch_counts(py: Python<'_>, device: u32) -> PyResult<Bound<'_, PyDict>> {
    let fields = PyDict::new(py);
    let Some(device) = pool::opened(device) else { return Ok(fields) };
    let (counts, refusals) = {
        let book = device.book.lock();
        (book.counts, book.refusals)
    };
    let of = |count: Count| [count.current, count.peak, count.added, count.removed];
    let each = |pick: fn(&Counts) -> Count| counts.iter().map(|counts| of(pick(counts))).collect::<Vec<_>>();
    let reserved = device.reserved.counts();
    fields.set_item("blocks", each(|counts| counts.blocks))?;
    fields.set_item("granted", each(|counts| counts.granted))?;
    fields.set_item("requested", each(|counts| counts.requested))?;
    fields.set_item("reserved", [reserved.current, reserved.peak, reserved.added, reserved.removed])?;
    fields.set_item("refusals", refusals)?;
    fields.set_item("frames_made", reserved.frames_made)?;
    fields.set_item("frames_released", reserved.frames_released)?;
    Ok(fields)
}

/// Has the peaks of a device begin again.
#[pyfunction]
pub(crate) fn torch_reset_peaks(device: u32) {
    if let Some(device) = pool::opened(device) {
        device.book.lock().reset_peaks();
        device.reserved.reset_peak();
    }
}

/// Has the sums of a device begin again.
#[pyfunction]
pub(crate) fn torch_reset_totals(device: u32) {
    if let Some(device) = pool::opened(device) {
        device.book.lock().reset_totals();
        device.reserved.reset_totals();
    }
}

/// Returns the blocks of a device that are outside, by address: address, granted and requested bytes, stream, arena.
#[pyfunction]
pub(crate) fn torch_blocks(device: u32) -> Vec<(u64, u64, u64, u64, u32)> {
    let Some(device) = pool::opened(device) else { return Vec::new() };
    let book = device.book.lock();
    let fields = |held: &&Held| {
        let (ptr, granted) = (held.block.ptr().0, held.block.granted().get());
        (ptr, granted, held.requested, held.raw, held.arena)
    };
    book.sorted().iter().map(fields).collect()
}

/// Returns the stretches of addresses that the pool has memory at, as beginnings and lengths.
#[pyfunction]
pub(crate) fn torch_ranges(device: u32) -> Vec<(u64, u64)> {
    let Some(device) = pool::opened(device) else { return Vec::new() };
    device.pages.ranges().into_iter().map(|range| (range.start.0, range.end.0 - range.start.0)).collect()
}
