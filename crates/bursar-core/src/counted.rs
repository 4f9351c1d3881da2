//! A driver that counts what it is asked.
#![allow(unsafe_code)]

use crate::{
    DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link, MemoryInfo,
    Note, Pattern, Progress, RawContext, RawEvent, RawPages, RawStream, ThreadIndex,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

thread_local! {
    static OF_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
    static FIRST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How many places there are to count in, so that threads seldom meet in one.
const PLACES: usize = 32;

/// A place of its own cache lines: 128 bytes, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place(AtomicU64);

/// A driver that forwards to another and counts the calls, so that a measurement can tell an operation that reached the
/// driver from one that did not, for the price of reading a thread-local variable.
///
/// Every call counts except [`note`](Driver::note) and [`listens`](Driver::listens), which hardware never sees.
///
/// ```
/// # use bursar_core::*;
/// # use std::sync::Arc;
/// # fn show(driver: Arc<dyn Driver>) {
/// let counted = Counted::new(driver);
/// let before = Counted::calls_of_this_thread();
/// counted.device_count();
/// assert_eq!(Counted::calls_of_this_thread() - before, 1);
/// assert_eq!(counted.calls(), 1);
/// # }
/// ```
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn Driver>,
    places: [Place; PLACES],
}

impl Counted {
    /// Counts the calls that go through to `driver` from here on.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner: driver, places: Default::default() })
    }

    /// How many calls this driver was asked for, by all threads.
    pub fn calls(&self) -> u64 {
        self.places.iter().map(|place| place.0.load(Relaxed)).sum()
    }

    /// How many calls the current thread made to counted drivers, whichever they were. Two readings around an operation
    /// say how many driver calls it made.
    #[inline]
    pub fn calls_of_this_thread() -> u64 {
        OF_THIS_THREAD.get()
    }

    /// When the current thread made its first call to a counted driver since this was last asked. Asked after each
    /// operation, it says whether the operation reached the driver and from when on, and the clock is read only then.
    #[inline]
    pub fn take_first_call() -> Option<Instant> {
        FIRST.take()
    }

    #[inline]
    fn count(&self) {
        OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
        if FIRST.get().is_none() {
            FIRST.set(Some(Instant::now()));
        }
        let place = ThreadIndex::current().map_or(0, ThreadIndex::get) % PLACES;
        self.places[place].0.fetch_add(1, Relaxed);
    }
}

/// Methods that are counted and forwarded unchanged.
macro_rules! counted {
    ($(fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.count();
            self.inner.$method($($arg),*)
        }
    )* };
    ($(unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        unsafe fn $method(&self, device: DeviceId, $($arg: $type),*) -> DriverResult<$answer> {
            self.count();
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method(device, $($arg),*) }
        }
    )* };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Counted {
    fn listens(&self) -> bool {
        self.inner.listens()
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        // SAFETY: the caller's own promise.
        unsafe { self.inner.note(device, note) }
    }

    counted! {
        fn describe() -> String;
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

    counted! {
        unsafe fn close() -> ();
        unsafe fn free(ptr: DevicePtr) -> ();
        unsafe fn allocate_async(stream: RawStream, bytes: u64) -> DevicePtr;
        unsafe fn free_async(stream: RawStream, ptr: DevicePtr) -> ();
        unsafe fn stream_destroy(stream: RawStream) -> ();
        unsafe fn stream_query(stream: RawStream) -> Progress;
        unsafe fn stream_synchronize(stream: RawStream) -> ();
        unsafe fn stream_wait(stream: RawStream, event: RawEvent) -> ();
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
