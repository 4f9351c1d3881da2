//! Drivers, and what they say of their devices.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned, fixed_text};
use crate::enter::call;
use crate::forks;
use crate::handles::{DRIVERS, DriverOfCaller};
use crate::status::{CallResult, Failure, bursar_status};
use bursar::driver::{Choice, DriverChoiceError, OpenedDriver, SimDevices};
use bursar::{DeviceId, Error};
use std::ffi::c_char;
use std::sync::Arc;

/// A driver; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_driver {
    /// The number of the handle.
    pub id: u64,
}

/// The driver that `BURSAR_DRIVER` names (`cuda` or `sim`); without it CUDA where that works, and simulated devices otherwise.
pub const BURSAR_DRIVER_DEFAULT: u32 = 0;
/// CUDA, or a failure that says why it cannot be used.
pub const BURSAR_DRIVER_CUDA: u32 = 1;
/// Simulated devices.
pub const BURSAR_DRIVER_SIMULATED: u32 = 2;

/// The choice of a driver. Zeroes but for the size are the defaults, and so is a null pointer to it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_driver_options {
    /// The size of this structure: `sizeof(bursar_driver_options)`.
    pub struct_size: usize,
    /// One of `BURSAR_DRIVER_*`.
    pub choice: u32,
    /// One to look at devices and reserve their memory only: no context is made, which takes memory of each device, and there are
    /// no stacks and no streams, on simulated devices neither. Zero otherwise.
    pub observes_only: u32,
    /// The simulated devices, such as "2x80GiB", or "2x80GiB@name" for devices that processes share. Null: those that
    /// `BURSAR_SIM_DEVICES` describes, or two.
    pub simulated_devices: *const c_char,
}

impl Default for bursar_driver_options {
    fn default() -> Self {
        let (struct_size, simulated_devices) = (size_of::<Self>(), std::ptr::null());
        Self { struct_size, choice: BURSAR_DRIVER_DEFAULT, observes_only: 0, simulated_devices }
    }
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers and a pointer.
unsafe impl Versioned for bursar_driver_options {}

/// A driver that was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_driver_facts {
    /// The size of this structure, set by the caller: `sizeof(bursar_driver_facts)`.
    pub struct_size: usize,
    /// The number of devices.
    pub device_count: u32,
    /// One if the devices are simulated, zero if they are real.
    pub is_simulated: u32,
    /// The name and the version of the driver.
    pub name: [c_char; 128],
    /// The reason that the devices are simulated, if nobody asked for that; empty otherwise.
    pub instead_of_cuda: [c_char; 256],
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_driver_facts {}

/// The facts about a device that do not change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_device_facts {
    /// The size of this structure, set by the caller: `sizeof(bursar_device_facts)`.
    pub struct_size: usize,
    /// The size of its memory.
    pub total: u64,
    /// The size that pages come in, where physical memory can be mapped; zero otherwise.
    pub page_granularity: u64,
    /// One if memory can be allocated and freed in stream order by the driver.
    pub is_stream_ordered: u32,
    /// One if other processes can open the same device, so that they share its ledger.
    pub is_shared: u32,
    /// The NUMA node that it is near to; -1 where none is reported.
    pub numa_node: i32,
    /// The priority of its most urgent streams; lower numbers are more urgent.
    pub greatest_priority: i32,
    /// The priority of its least urgent streams.
    pub least_priority: i32,
    /// Zero.
    pub reserved: u32,
    /// The identity of the physical device, the same in every process.
    pub uuid: [u8; 16],
    /// The address on the PCI bus, such as "0000:4e:00.0"; empty where it has none.
    pub pci: [c_char; 32],
    /// The product's name.
    pub name: [c_char; 128],
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_device_facts {}

/// The memory of a device at one moment, whoever holds it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_device_memory {
    /// The size of this structure, set by the caller: `sizeof(bursar_device_memory)`.
    pub struct_size: usize,
    /// The bytes that the driver could still allocate.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_device_memory {}

/// Opens a driver: CUDA, or simulated devices where that is chosen or CUDA does not work. `bursar_driver_read` says which.
///
/// Errors: `BURSAR_NO_DRIVER` with the reason, also where `BURSAR_DRIVER` or `BURSAR_SIM_DEVICES` make no sense;
/// `BURSAR_INVALID_ARGUMENT`. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_driver_close`; devices that were opened from it stay open.
///
/// # Safety
/// `options` is null or points to a `bursar_driver_options`; `out` is null or points to a `bursar_driver`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_driver_open(
    options: *const bursar_driver_options,
    out: *mut bursar_driver,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_driver::default()) };
        // SAFETY: the caller's own promise.
        let options = unsafe { arguments::options(options, "options") }?;
        arguments::check_flag(options.observes_only, "observes_only")?;
        // SAFETY: the caller's own promise.
        let devices = unsafe { arguments::text(options.simulated_devices, "simulated_devices") }?;
        forks::watch();
        let observes_only = options.observes_only == 1;
        let opened = open(options.choice, devices, observes_only)?;
        let id = DRIVERS.insert(Arc::new(DriverOfCaller { opened, observes_only }))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_driver { id }) };
        Ok(())
    })
}

fn open(choice: u32, devices: Option<&str>, observes_only: bool) -> CallResult<OpenedDriver> {
    let wrong = |error: DriverChoiceError| Box::<Failure>::from(Error::from(error));
    let choice = match choice {
        BURSAR_DRIVER_DEFAULT => Choice::from_environment().map_err(wrong)?,
        BURSAR_DRIVER_CUDA => Choice::Cuda,
        BURSAR_DRIVER_SIMULATED => Choice::Sim,
        _ => return Err(Failure::argument("choice", "is none of BURSAR_DRIVER_*")),
    };
    let devices = match devices {
        Some(text) => text.parse(),
        None => SimDevices::from_environment(),
    };
    let devices = devices.map_err(|error| wrong(error.into()))?;
    let open = if observes_only { bursar::driver::observe } else { bursar::driver::open };
    open(choice, &devices).map_err(wrong)
}

/// Says which driver it is, and how many devices it has.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_driver_facts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_driver_read(driver: bursar_driver, out: *mut bursar_driver_facts) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let kept = DRIVERS.keep(driver.id)?;
        let opened = &kept.opened;
        let facts = bursar_driver_facts {
            struct_size: size_of::<bursar_driver_facts>(),
            device_count: opened.driver.device_count(),
            is_simulated: opened.is_simulated.into(),
            name: fixed_text(&opened.driver.describe()),
            instead_of_cuda: fixed_text(opened.instead_of_cuda.as_deref().unwrap_or_default()),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, facts) };
        Ok(())
    })
}

/// Closes a driver. What was made from it stays as it is.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any; it waits for calls of other threads that are running.
/// Ownership: the handle is used up.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_driver_close(driver: bursar_driver) -> bursar_status {
    call(|| DRIVERS.close(driver.id).map(drop))
}

/// Returns a driver that is open and a device that it has.
pub(crate) fn device_of(driver: bursar_driver, device: u32) -> CallResult<(Arc<DriverOfCaller>, DeviceId)> {
    let (kept, device) = (DRIVERS.keep(driver.id)?, DeviceId(device));
    let count = kept.opened.driver.device_count();
    match device.0 < count {
        true => Ok((kept, device)),
        false => Err(Error::InvalidDevice { device, count }.into()),
    }
}

/// Reads the facts about a device, by its ordinal; it need not be open.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_device_facts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_read(
    driver: bursar_driver,
    device: u32,
    out: *mut bursar_device_facts,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let (kept, device) = device_of(driver, device)?;
        let facts = kept.opened.driver.facts(device).map_err(Error::from)?;
        let pages = facts.capabilities.page_granularity;
        let read = bursar_device_facts {
            struct_size: size_of::<bursar_device_facts>(),
            total: facts.total.get(),
            page_granularity: pages.map_or(0, |bytes| bytes.get()),
            is_stream_ordered: facts.capabilities.stream_ordered.into(),
            is_shared: facts.shared.into(),
            numa_node: facts.numa_node.index().and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
            greatest_priority: *facts.stream_priorities.start(),
            least_priority: *facts.stream_priorities.end(),
            reserved: 0,
            uuid: facts.uuid.0,
            pci: fixed_text(&facts.pci.map(|pci| pci.to_string()).unwrap_or_default()),
            name: fixed_text(&facts.name),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}

/// Reads how much memory of a device is free at this moment, by its ordinal. It need not be open; CUDA then makes a context for
/// the moment, unless the driver only observes.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_NO_DEVICE`, `BURSAR_DRIVER_FAILED`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_device_memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_device_memory_read(
    driver: bursar_driver,
    device: u32,
    out: *mut bursar_device_memory,
) -> bursar_status {
    call(|| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let (kept, device) = device_of(driver, device)?;
        let memory = kept.opened.driver.memory(device).map_err(Error::from)?;
        let struct_size = size_of::<bursar_device_memory>();
        let read = bursar_device_memory { struct_size, free: memory.free.get(), total: memory.total.get() };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}
