//! The calls with handles of any kind in any place.
#![allow(unsafe_code)]

use bursar_c::*;
use std::ffi::CString;
use std::ptr::null;

/// A handle of any kind, or a number that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    Driver(u64),
    Device(u64),
    Stack(u64),
    Stream(u64),
    Block(u64, u64),
    Reservation(u64),
    Garbage(u64),
}

impl Handle {
    pub(crate) const fn id(self) -> u64 {
        match self {
            Self::Driver(id)
            | Self::Device(id)
            | Self::Stack(id)
            | Self::Stream(id)
            | Self::Block(id, _)
            | Self::Reservation(id)
            | Self::Garbage(id) => id,
        }
    }

    const fn device(self) -> bursar_device {
        bursar_device { id: self.id() }
    }

    const fn block(self) -> bursar_block {
        match self {
            Self::Block(id, address) => bursar_block { id, address },
            other => bursar_block { id: other.id(), address: 4096 },
        }
    }
}

/// Opens simulated devices.
pub(crate) fn open_driver(devices: &str) -> Handle {
    let devices = CString::new(devices).expect("no zero");
    let options = bursar_driver_options {
        struct_size: size_of::<bursar_driver_options>(),
        choice: BURSAR_DRIVER_SIMULATED,
        observes_only: 0,
        simulated_devices: devices.as_ptr(),
    };
    let mut out = bursar_driver::default();
    // SAFETY: the pointers are of what they say.
    let status = unsafe { bursar_driver_open(&raw const options, &raw mut out) };
    assert_eq!(status, bursar_status::BURSAR_OK, "{}", last_message());
    Handle::Driver(out.id)
}

pub(crate) fn open_device(driver: Handle, ordinal: u32) -> (bursar_status, Handle) {
    let mut out = bursar_device { id: 7 };
    // SAFETY: the pointers are null or of what they say.
    let status = unsafe { bursar_device_open(bursar_driver { id: driver.id() }, ordinal, null(), &raw mut out) };
    (status, Handle::Device(out.id))
}

/// Opens a pool with a limit, or without one if that is zero, on a reservation if there is one.
pub(crate) fn open_stack(device: Handle, limit: u64, reservation: Option<Handle>) -> (bursar_status, Handle) {
    let reservation_id = reservation.map_or(0, Handle::id);
    let options = bursar_stack_options {
        struct_size: size_of::<bursar_stack_options>(),
        kind: BURSAR_STACK_POOL,
        account: if reservation.is_some() { BURSAR_ACCOUNT_RESERVATION } else { BURSAR_ACCOUNT_NONE },
        limit,
        reservation: bursar_reservation { id: reservation_id },
        tenant: null(),
        patience_ms: 1,
        wait_before_growing: 0,
    };
    let mut out = bursar_stack { id: 7 };
    // SAFETY: the pointers are of what they say.
    let status = unsafe { bursar_stack_open(device.device(), &raw const options, &raw mut out) };
    (status, Handle::Stack(out.id))
}

pub(crate) fn create_stream(device: Handle) -> (bursar_status, Handle) {
    let mut out = bursar_stream { id: 7 };
    // SAFETY: the pointer is of what it says.
    let status = unsafe { bursar_stream_create(device.device(), 0, &raw mut out) };
    (status, Handle::Stream(out.id))
}

/// Adopts the legacy default stream.
pub(crate) fn adopt_default(device: Handle) -> (bursar_status, Handle) {
    let mut out = bursar_stream { id: 7 };
    // SAFETY: the default stream always lives, and the pointer is of what it says.
    let status = unsafe { bursar_stream_adopt(device.device(), std::ptr::null_mut(), &raw mut out) };
    (status, Handle::Stream(out.id))
}

pub(crate) fn allocate(stack: Handle, bytes: u64, stream: Handle) -> (bursar_status, Handle) {
    let (stack, stream) = (bursar_stack { id: stack.id() }, bursar_stream { id: stream.id() });
    let mut out = bursar_block { id: 7, address: 7 };
    // SAFETY: the pointer is of what it says.
    let status = unsafe { bursar_allocate(stack, bytes, 0, stream, BURSAR_UNTAGGED, &raw mut out) };
    (status, Handle::Block(out.id, out.address))
}

pub(crate) fn free(block: Handle, stream: Handle) -> bursar_status {
    bursar_free(block.block(), bursar_stream { id: stream.id() })
}

pub(crate) fn record_use(block: Handle, stream: Handle, access: u32) -> bursar_status {
    bursar_record_use(block.block(), bursar_stream { id: stream.id() }, access)
}

pub(crate) fn reserve(device: Handle, bytes: u64) -> (bursar_status, Handle) {
    let mut out = bursar_reservation { id: 7 };
    // SAFETY: the pointers are null or of what they say.
    let status = unsafe { bursar_reserve(device.device(), bytes, null(), &raw mut out) };
    (status, Handle::Reservation(out.id))
}

pub(crate) fn trim(stack: Handle) -> bursar_status {
    // SAFETY: the pointer is null.
    unsafe { bursar_stack_trim(bursar_stack { id: stack.id() }, 0, std::ptr::null_mut()) }
}

/// Returns the number of blocks on a device, as its statistics have it.
pub(crate) fn counted_blocks(device: Handle) -> (bursar_status, u64) {
    // SAFETY: every pattern of bits is one of these numbers.
    let mut out: bursar_statistics = unsafe { std::mem::zeroed() };
    out.struct_size = size_of::<bursar_statistics>();
    // SAFETY: the pointer is of what it says.
    let status = unsafe { bursar_device_statistics(device.device(), &raw mut out) };
    (status, out.current_blocks)
}

pub(crate) fn free_memory(driver: Handle, ordinal: u32) -> u64 {
    let mut out = bursar_device_memory { struct_size: size_of::<bursar_device_memory>(), free: 0, total: 0 };
    // SAFETY: the pointer is of what it says.
    let status = unsafe { bursar_device_memory_read(bursar_driver { id: driver.id() }, ordinal, &raw mut out) };
    assert_eq!(status, bursar_status::BURSAR_OK, "{}", last_message());
    out.free
}

/// Closes a handle by the call of its kind; garbage as a stack, and a block, which is freed and not closed, as a stream.
pub(crate) fn close(handle: Handle) -> bursar_status {
    let id = handle.id();
    match handle {
        Handle::Driver(_) => bursar_driver_close(bursar_driver { id }),
        Handle::Device(_) => bursar_device_close(bursar_device { id }),
        Handle::Stack(_) | Handle::Garbage(_) => bursar_stack_close(bursar_stack { id }),
        Handle::Stream(_) | Handle::Block(..) => bursar_stream_close(bursar_stream { id }),
        Handle::Reservation(_) => bursar_reservation_close(bursar_reservation { id }),
    }
}

/// Returns the text of this thread's last failure.
pub(crate) fn last_message() -> String {
    // SAFETY: zeroes are a value of every field, the status included.
    let mut out: bursar_error = unsafe { std::mem::zeroed() };
    out.struct_size = size_of::<bursar_error>();
    // SAFETY: the pointer is of what it says.
    let _status = unsafe { bursar_last_error(&raw mut out) };
    // SAFETY: a message ends with a zero.
    unsafe { std::ffi::CStr::from_ptr(out.message.as_ptr()) }.to_string_lossy().into_owned()
}
