//! A driver that loses one wait.
#![allow(unsafe_code)]

use bursar_core::{
    DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link, MemoryInfo,
    Note, Pattern, Progress, RawContext, RawEvent, RawPages, RawStream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A driver that forwards to another, except for one of the waits of streams for events, which it says it submitted and
/// does not: to see whether somebody notices.
///
/// ```
/// use bursar_conformance::uses::{Program, Shape, Swallow};
/// use bursar_sim::Sim;
///
/// let sim = Sim::seeded(1);
/// let swallow = Swallow::nth(sim.clone(), 3);
/// Program::generate(1, Shape::BARE).run(swallow.clone());
/// assert!(swallow.waits() >= 3);
/// assert!(sim.check().is_err());
/// ```
#[derive(Debug)]
pub struct Swallow {
    inner: Arc<dyn Driver>,
    nth: u64,
    waits: AtomicU64,
}

impl Swallow {
    /// Loses the `nth` wait, counted from one; none if that is zero.
    pub fn nth(inner: Arc<dyn Driver>, nth: u64) -> Arc<Self> {
        Arc::new(Self { inner, nth, waits: AtomicU64::new(0) })
    }

    /// How many waits there were, the lost one included.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}

/// Methods that are forwarded unchanged.
macro_rules! forwarded {
    ($(fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.inner.$method($($arg),*)
        }
    )* };
    ($(unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        unsafe fn $method(&self, device: DeviceId, $($arg: $type),*) -> DriverResult<$answer> {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method(device, $($arg),*) }
        }
    )* };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out; that a wait is lost breaks the order of
// streams on purpose, in programs that touch nothing but memory of a simulator.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Swallow {
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        if self.waits.fetch_add(1, Relaxed) + 1 == self.nth {
            return Ok(());
        }
        // SAFETY: the caller's own promise.
        unsafe { self.inner.stream_wait(device, stream, event) }
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        // SAFETY: the caller's own promise.
        unsafe { self.inner.note(device, note) }
    }

    forwarded! {
        fn describe() -> String;
        fn listens() -> bool;
        fn device_count() -> u32;
        fn last_error(device: DeviceId) -> Option<DriverError>;
        fn facts(device: DeviceId) -> DriverResult<DeviceFacts>;
        fn memory(device: DeviceId) -> DriverResult<MemoryInfo>;
        fn links(device: DeviceId) -> DriverResult<Vec<Link>>;
        fn open(device: DeviceId) -> DriverResult<RawContext>;
        fn allocate(device: DeviceId, bytes: u64) -> DriverResult<DevicePtr>;
        fn stream_create(device: DeviceId, priority: i32) -> DriverResult<RawStream>;
        fn event_create(device: DeviceId) -> DriverResult<RawEvent>;
        fn address_reserve(device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr>;
        fn pages_create(device: DeviceId, bytes: u64) -> DriverResult<RawPages>;
        fn host_allocate(device: DeviceId, bytes: usize, flags: HostFlags) -> DriverResult<*mut u8>;
    }

    forwarded! {
        unsafe fn close() -> ();
        unsafe fn free(ptr: DevicePtr) -> ();
        unsafe fn allocate_async(stream: RawStream, bytes: u64) -> DevicePtr;
        unsafe fn free_async(stream: RawStream, ptr: DevicePtr) -> ();
        unsafe fn stream_destroy(stream: RawStream) -> ();
        unsafe fn stream_query(stream: RawStream) -> Progress;
        unsafe fn stream_synchronize(stream: RawStream) -> ();
        unsafe fn stream_is_capturing(stream: RawStream) -> bool;
        unsafe fn event_destroy(event: RawEvent) -> ();
        unsafe fn event_record(event: RawEvent, stream: RawStream) -> ();
        unsafe fn event_query(event: RawEvent) -> Progress;
        unsafe fn event_synchronize(event: RawEvent) -> ();
        unsafe fn address_release(ptr: DevicePtr, bytes: u64) -> ();
        unsafe fn pages_release(pages: RawPages) -> ();
        unsafe fn pages_map(ptr: DevicePtr, bytes: u64, pages: RawPages) -> ();
        unsafe fn pages_allow(ptr: DevicePtr, bytes: u64) -> ();
        unsafe fn pages_unmap(ptr: DevicePtr, bytes: u64) -> ();
        unsafe fn host_free(ptr: *mut u8) -> ();
        unsafe fn host_register(ptr: *mut u8, bytes: usize, flags: HostFlags) -> ();
        unsafe fn host_unregister(ptr: *mut u8) -> ();
        unsafe fn copy_to_device(stream: RawStream, dst: DevicePtr, src: *const u8, bytes: u64) -> ();
        unsafe fn copy_to_host(stream: RawStream, dst: *mut u8, src: DevicePtr, bytes: u64) -> ();
        unsafe fn copy_on_device(stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> ();
        unsafe fn fill(stream: RawStream, dst: DevicePtr, pattern: Pattern, count: u64) -> ();
        unsafe fn host_function(stream: RawStream, function: HostFunction) -> ();
    }
}
