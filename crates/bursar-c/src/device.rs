//! Devices that are open, and the counts of their memory.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned};
use crate::driver::{bursar_driver, device_of};
use crate::enter::call;
use crate::handles::{DEVICES, Device};
use crate::status::{CallResult, bursar_status};
use crate::tag::tag_of;
use bursar::device::DeviceContext;
use bursar::observe::Counts;
use bursar::{Error, Ledgers, Statistics};
use std::sync::{Arc, Mutex};

/// A device that is open; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_device {
    /// The number of the handle.
    pub id: u64,
}

/// The options of a device. Zeroes but for the size are the defaults, and so is a null pointer to it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_device_options {
    /// The size of this structure: `sizeof(bursar_device_options)`.
    pub struct_size: usize,
    /// One to count nothing, which saves some twenty instructions an allocation; refusals then name no holders. Zero
    /// otherwise.
    pub without_statistics: u32,
    /// Zero.
    pub reserved: u32,
}

impl Default for bursar_device_options {
    fn default() -> Self {
        Self { struct_size: size_of::<Self>(), without_statistics: 0, reserved: 0 }
    }
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_device_options {}

/// Counts of the memory that was granted on a device, or of one tag.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_statistics {
    /// The size of this structure, set by the caller: `sizeof(bursar_statistics)`.
    pub struct_size: usize,
    /// The bytes that are granted now.
    pub current_bytes: u64,
    /// The blocks that are granted now.
    pub current_blocks: u64,
    /// The most bytes that were granted at a time: never less than the truth, and at most 1 MiB for each thread more.
    pub peak_bytes: u64,
    /// The most blocks that were granted at a time, likewise.
    pub peak_blocks: u64,
    /// All bytes that were ever granted.
    pub total_bytes: u64,
    /// All blocks that were ever granted.
    pub total_blocks: u64,
    /// The requests that a limit refused; zero for a tag.
    pub refused: u64,
    /// The requests that failed for another reason; zero for a tag.
    pub failed: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_statistics {}

/// Opens a device of a driver, by its ordinal. Its streams, statistics and memory are those of this handle: a device that is
/// opened twice has them twice, and they do not mix.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_device_close`; what was made on it stays.
///
/// # Safety
/// `options` is null or points to a `bursar_device_options`; `out` is null or points to a `bursar_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_open(
    driver: bursar_driver,
    device: u32,
    options: *const bursar_device_options,
    out: *mut bursar_device,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_device::default()) };
        // SAFETY: the caller's own promise.
        let options = unsafe { arguments::options(options, "options") }?;
        arguments::check_flag(options.without_statistics, "without_statistics")?;
        arguments::check_reserved(options.reserved)?;
        let (kept, device) = device_of(driver, device)?;
        let context = DeviceContext::open(kept.opened.driver.clone(), device)?;
        let observes_only = kept.observes_only;
        let statistics = (options.without_statistics == 0).then(Statistics::default);
        let (ledgers, pinned) = (Ledgers::default(), Mutex::default());
        let id = DEVICES.insert(Arc::new(Device { context, ledgers, statistics, observes_only, pinned }))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_device { id }) };
        Ok(())
    })
}

/// Closes a device. Stacks, streams and reservations that were made on it stay as they are, and keep it open.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any; it waits for calls of other threads that are running.
/// Ownership: the handle is used up.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_device_close(device: bursar_device) -> bursar_status {
    call(|| DEVICES.close(device.id).map(drop))
}

fn statistics_of(device: bursar_device) -> CallResult<Statistics> {
    let device = DEVICES.keep(device.id)?;
    let declined = || Error::Unsupported { device: device.context.device(), what: "statistics, which were declined" };
    Ok(device.statistics.clone().ok_or_else(declined)?)
}

fn counted(counts: Counts, refused: u64, failed: u64) -> bursar_statistics {
    let Counts { current, peak, total } = counts;
    bursar_statistics {
        struct_size: size_of::<bursar_statistics>(),
        current_bytes: current.bytes.get(),
        current_blocks: current.count,
        peak_bytes: peak.bytes.get(),
        peak_blocks: peak.count,
        total_bytes: total.bytes.get(),
        total_blocks: total.count,
        refused,
        failed,
    }
}

/// Reads the counts of everything that was granted on a device, by all of its stacks.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`; `BURSAR_UNSUPPORTED` if the device was opened without statistics.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_statistics`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_statistics(device: bursar_device, out: *mut bursar_statistics) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let statistics = statistics_of(device)?;
        let read = counted(statistics.counts(), statistics.refused(), statistics.failed());
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}

/// Reads the counts of what was granted on a device under one tag; those of tags beyond the first 4,095 are counted together.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a tag that was never made; `BURSAR_UNSUPPORTED` if the
/// device was opened without statistics.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_statistics`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_statistics_of(
    device: bursar_device,
    tag: u32,
    out: *mut bursar_statistics,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let (tag, statistics) = (tag_of(tag)?, statistics_of(device)?);
        // SAFETY: it was checked.
        unsafe { arguments::write(out, counted(statistics.counts_of(tag), 0, 0)) };
        Ok(())
    })
}
