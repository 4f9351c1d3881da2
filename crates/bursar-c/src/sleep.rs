//! Memory of a device that sleeps: its contents wait in host memory, and its addresses stay.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned};
use crate::device::bursar_device;
use crate::enter::call;
use crate::handles::{DEVICES, Device};
use crate::status::{CallResult, bursar_status};
use bursar::Error;
use bursar::host::PinnedPool;
use bursar::memory::{SleepReading, SleepReport, SleepRequest, SleepState, WakeRequest};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The memory is in use as usual.
pub const BURSAR_SLEEP_AWAKE: u32 = 0;
/// A part of the memory is asleep.
pub const BURSAR_SLEEP_PARTLY: u32 = 1;
/// The memory is falling asleep or waking.
pub const BURSAR_SLEEP_MOVING: u32 = 2;
/// The memory is asleep.
pub const BURSAR_SLEEP_ASLEEP: u32 = 3;

/// The time that uses and streams are waited for where none is given.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options of a sleep. Zeroes but for the size are the defaults, and so is a null pointer to it: nothing is lost, and nothing
/// stays charged.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_sleep_options {
    /// The size of this structure: `sizeof(bursar_sleep_options)`.
    pub struct_size: usize,
    /// The longest time to wait for work that is under way, in milliseconds; zero for a minute.
    pub timeout_ms: u64,
    /// One to leave what sleeps charged, so that waking is not refused by a limit. Zero otherwise.
    pub keep_place: u32,
    /// One to give all contents up, which takes no host memory. Zero otherwise.
    pub discard: u32,
}

impl Default for bursar_sleep_options {
    fn default() -> Self {
        Self { struct_size: size_of::<Self>(), timeout_ms: 0, keep_place: 0, discard: 0 }
    }
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_sleep_options {}

/// The result of falling asleep.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_sleep_report {
    /// The size of this structure, set by the caller: `sizeof(bursar_sleep_report)`.
    pub struct_size: usize,
    /// The bytes of device memory that went back to the driver.
    pub released: u64,
    /// The bytes of contents that were copied to the host.
    pub saved: u64,
    /// The bytes of contents that were given up.
    pub discarded: u64,
    /// The bytes that stay on the device, because the driver did not take them back.
    pub kept: u64,
    /// The time that it took, in microseconds.
    pub elapsed_us: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_sleep_report {}

/// The result of waking.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_wake_report {
    /// The size of this structure, set by the caller: `sizeof(bursar_wake_report)`.
    pub struct_size: usize,
    /// The bytes of device memory that were taken from the driver again.
    pub taken: u64,
    /// The bytes of contents that were copied back.
    pub restored: u64,
    /// The time that it took, in microseconds.
    pub elapsed_us: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_wake_report {}

/// The memory of a device that sleeps, at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_sleep_reading {
    /// The size of this structure, set by the caller: `sizeof(bursar_sleep_reading)`.
    pub struct_size: usize,
    /// The bytes of device memory that waking takes.
    pub asleep: u64,
    /// The bytes of host memory that contents lie in.
    pub on_host: u64,
    /// One of `BURSAR_SLEEP_*`.
    pub state: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_sleep_reading {}

/// Puts the memory of all pools on a device to sleep: contents go to pinned host memory, device memory goes back to the driver
/// and its charge to the ledger. Addresses stay, and blocks can be freed. Work that was recorded is waited for; work that was
/// not must have run. Until it wakes, allocations are `BURSAR_ASLEEP`, and the memory must not be used. Memory that sleeps
/// already stays as it is.
///
/// Errors: `BURSAR_STILL_IN_USE` where work goes on for longer than the options allow; `BURSAR_INVALID_STREAM` while a stream is being
/// captured (between `bursar_capture_begin` and that it succeeds, and what the capture allocates is `BURSAR_ASLEEP`); `BURSAR_ASLEEP`
/// while another thread has it fall asleep or wake; `BURSAR_UNSUPPORTED` for a device without a pool; `BURSAR_OUT_OF_BUDGET` and `BURSAR_OTHER` for want of host memory;
/// `BURSAR_DRIVER_FAILED`, `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. It is then awake as it was, unless the reading says otherwise.
/// Threads: any.
/// Ownership: the structure is the caller's. Host memory is kept for the next sleep, with the device.
///
/// # Safety
/// `options` is null or points to a `bursar_sleep_options`; `out` is null or points to a `bursar_sleep_report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_sleep(
    device: bursar_device,
    options: *const bursar_sleep_options,
    out: *mut bursar_sleep_report,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        // SAFETY: the caller's own promise.
        let options = unsafe { arguments::options(options, "options") }?;
        arguments::check_flag(options.keep_place, "keep_place")?;
        arguments::check_flag(options.discard, "discard")?;
        let device = DEVICES.keep(device.id)?;
        device.check_usable()?;
        let request = SleepRequest {
            discard_all: options.discard == 1,
            keep_place: options.keep_place == 1,
            patience: if options.timeout_ms == 0 { PATIENCE } else { Duration::from_millis(options.timeout_ms) },
            ..SleepRequest::default()
        };
        let SleepReport { released, saved, discarded, kept, elapsed, .. } = sleep(&device, &request)?;
        let report = bursar_sleep_report {
            struct_size: size_of::<bursar_sleep_report>(),
            released: released.get(),
            saved: saved.get(),
            discarded: discarded.get(),
            kept: kept.get(),
            elapsed_us: in_microseconds(elapsed),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, report) };
        Ok(())
    })
}

/// Wakes what sleeps on a device: at the same addresses, with the same contents. Where others have the memory, it is waited for in
/// the ledger's queue, `timeout_ms` at most.
///
/// Errors: `BURSAR_OUT_OF_BUDGET`, `BURSAR_OUT_OF_MEMORY` or `BURSAR_WITHHELD` where there is no room in time; `BURSAR_ASLEEP` while another thread has
/// it fall asleep or wake; `BURSAR_LEDGER`, `BURSAR_DRIVER_FAILED`, `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. It then sleeps as it did,
/// or, where tags had slept by themselves before, these alone.
/// Threads: any; while it waits, only the calling thread does.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_wake_report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_wake(
    device: bursar_device,
    timeout_ms: u64,
    out: *mut bursar_wake_report,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let device = DEVICES.keep(device.id)?;
        let request = WakeRequest { patience: Duration::from_millis(timeout_ms), ..WakeRequest::default() };
        let report = device.context.wake(&request)?;
        let report = bursar_wake_report {
            struct_size: size_of::<bursar_wake_report>(),
            taken: report.taken.get(),
            restored: report.restored.get(),
            elapsed_us: in_microseconds(report.elapsed),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, report) };
        Ok(())
    })
}

/// Reads whether the memory of a device sleeps, and how much of it.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_sleep_reading`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_sleep_read(
    device: bursar_device,
    out: *mut bursar_sleep_reading,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let device = DEVICES.keep(device.id)?;
        let readings = device.context.sleepers().into_iter().map(|sleeper| sleeper.sleep_reading());
        let sum = readings.reduce(SleepReading::and).unwrap_or_default();
        let state = match sum.state {
            SleepState::Awake => BURSAR_SLEEP_AWAKE,
            SleepState::Partly => BURSAR_SLEEP_PARTLY,
            SleepState::Moving => BURSAR_SLEEP_MOVING,
            SleepState::Asleep => BURSAR_SLEEP_ASLEEP,
        };
        let read = bursar_sleep_reading {
            struct_size: size_of::<bursar_sleep_reading>(),
            asleep: sum.asleep.get(),
            on_host: sum.on_host.get(),
            state,
            reserved: 0,
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}

fn in_microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Puts every pool of a device to sleep.
fn sleep(device: &Device, request: &SleepRequest) -> CallResult<SleepReport> {
    if device.context.sleepers().is_empty() {
        let what = "sleep: it has no stack with a pool";
        return Err(Error::Unsupported { device: device.context.device(), what }.into());
    }
    Ok(device.context.sleep(&*store_of(device)?, request)?)
}

/// Returns the pinned memory that contents go to, kept with the device.
fn store_of(device: &Device) -> CallResult<Arc<PinnedPool>> {
    let mut store = device.pinned.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = &*store {
        return Ok(store.clone());
    }
    let made = Arc::new(PinnedPool::near(&device.context).map_err(Error::from)?);
    Ok(store.insert(made).clone())
}
