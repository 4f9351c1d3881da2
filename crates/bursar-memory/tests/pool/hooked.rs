//! A driver that does something else before every call.
#![allow(unsafe_code)]

use bursar_core::{
    DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link, MemoryInfo,
    Note, Pattern, Progress, RawContext, RawEvent, RawPages, RawStream,
};
use std::fmt;
use std::sync::{Arc, OnceLock};

type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

/// Forwards to another driver; before each call, the hook is told its name.
pub(crate) struct Hooked {
    inner: Arc<dyn Driver>,
    hook: OnceLock<Hook>,
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, hook: OnceLock::new() })
    }

    pub(crate) fn set(&self, hook: impl Fn(&'static str) + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok(), "it is set once");
    }

    fn before(&self, call: &'static str) {
        if let Some(hook) = self.hook.get() {
            hook(call);
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

macro_rules! hooked {
    ($(fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.before(stringify!($method));
            self.inner.$method($($arg),*)
        }
    )* };
    ($(unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        unsafe fn $method(&self, device: DeviceId, $($arg: $type),*) -> $answer {
            self.before(stringify!($method));
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method(device, $($arg),*) }
        }
    )* };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Hooked {
    hooked! {
        fn describe() -> String;
        fn device_count() -> u32;
        fn listens() -> bool;
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

    hooked! {
        unsafe fn note(note: Note) -> ();
        unsafe fn close() -> DriverResult<()>;
        unsafe fn free(ptr: DevicePtr) -> DriverResult<()>;
        unsafe fn allocate_async(stream: RawStream, bytes: u64) -> DriverResult<DevicePtr>;
        unsafe fn free_async(stream: RawStream, ptr: DevicePtr) -> DriverResult<()>;
        unsafe fn stream_destroy(stream: RawStream) -> DriverResult<()>;
        unsafe fn stream_query(stream: RawStream) -> DriverResult<Progress>;
        unsafe fn stream_synchronize(stream: RawStream) -> DriverResult<()>;
        unsafe fn stream_wait(stream: RawStream, event: RawEvent) -> DriverResult<()>;
        unsafe fn stream_is_capturing(stream: RawStream) -> DriverResult<bool>;
        unsafe fn event_destroy(event: RawEvent) -> DriverResult<()>;
        unsafe fn event_record(event: RawEvent, stream: RawStream) -> DriverResult<()>;
        unsafe fn event_query(event: RawEvent) -> DriverResult<Progress>;
        unsafe fn event_synchronize(event: RawEvent) -> DriverResult<()>;
        unsafe fn address_release(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn pages_release(pages: RawPages) -> DriverResult<()>;
        unsafe fn pages_map(ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()>;
        unsafe fn pages_allow(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn pages_unmap(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn host_free(ptr: *mut u8) -> DriverResult<()>;
        unsafe fn host_register(ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()>;
        unsafe fn host_unregister(ptr: *mut u8) -> DriverResult<()>;
        unsafe fn copy_to_device(stream: RawStream, dst: DevicePtr, src: *const u8, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_to_host(stream: RawStream, dst: *mut u8, src: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_on_device(stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn fill(stream: RawStream, dst: DevicePtr, pattern: Pattern, count: u64) -> DriverResult<()>;
        unsafe fn host_function(stream: RawStream, function: HostFunction) -> DriverResult<()>;
    }
}
