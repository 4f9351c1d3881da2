//! A driver that calls a hook of the test around every call about host memory, and around questions about streams.
#![allow(unsafe_code)]

use bursar_core::{
    DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link, MemoryInfo,
    Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
    SimulatedKernel,
};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Called before and after a call; an error refuses it.
type Hook = Arc<dyn Fn(&'static str, bool) -> Option<DriverError> + Send + Sync>;

pub(crate) struct Hooked {
    inner: Arc<dyn Driver>,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, hook: Mutex::new(None) })
    }

    pub(crate) fn hook(&self, hook: impl Fn(&'static str, bool) -> Option<DriverError> + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    pub(crate) fn unhook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    fn around<T>(&self, name: &'static str, make: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let hook = self.hook.lock().unwrap().clone();
        let interrupt = |is_over| hook.as_ref().and_then(|hook| hook(name, is_over)).map_or(Ok(()), Err);
        interrupt(false)?;
        let result = make()?;
        // A call that was carried out is not refused.
        let _ = interrupt(true);
        Ok(result)
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:?})", self.inner)
    }
}

macro_rules! forward {
    ($(fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        fn $method(&self, $($arg: $type),*) -> $result {
            self.inner.$method($($arg),*)
        }
    )* };
    ($(unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        unsafe fn $method(&self, device: DeviceId, $($arg: $type),*) -> $result {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method(device, $($arg),*) }
        }
    )* };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Hooked {
    fn host_allocate(&self, device: DeviceId, bytes: usize, flags: HostFlags) -> DriverResult<*mut u8> {
        self.around("host_allocate", || self.inner.host_allocate(device, bytes, flags))
    }

    unsafe fn host_free(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.around("host_free", || unsafe { self.inner.host_free(device, ptr) })
    }

    unsafe fn host_register(&self, device: DeviceId, ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.around("host_register", || unsafe { self.inner.host_register(device, ptr, bytes, flags) })
    }

    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.around("host_unregister", || unsafe { self.inner.host_unregister(device, ptr) })
    }

    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        // SAFETY: the caller's own promise.
        self.around("stream_query", || unsafe { self.inner.stream_query(device, stream) })
    }

    forward! {
        fn describe() -> String;
        fn device_count() -> u32;
        fn facts(device: DeviceId) -> DriverResult<DeviceFacts>;
        fn memory(device: DeviceId) -> DriverResult<MemoryInfo>;
        fn links(device: DeviceId) -> DriverResult<Vec<Link>>;
        fn open(device: DeviceId) -> DriverResult<RawContext>;
        fn last_error(device: DeviceId) -> Option<DriverError>;
        fn stream_number(device: DeviceId, stream: RawStream) -> Option<u32>;
        fn listens() -> bool;
        fn beside_captures(call: &mut dyn FnMut()) -> ();
        fn simulates() -> bool;
        fn allocate(device: DeviceId, bytes: u64) -> DriverResult<DevicePtr>;
        fn stream_create(device: DeviceId, priority: i32) -> DriverResult<RawStream>;
        fn event_create(device: DeviceId) -> DriverResult<RawEvent>;
        fn address_reserve(device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr>;
        fn pages_create(device: DeviceId, bytes: u64) -> DriverResult<RawPages>;
        fn host_device_pointer(device: DeviceId, ptr: *mut u8) -> DriverResult<DevicePtr>;
    }

    forward! {
        unsafe fn close() -> DriverResult<()>;
        unsafe fn note(note: Note) -> ();
        unsafe fn free(ptr: DevicePtr) -> DriverResult<()>;
        unsafe fn allocate_async(stream: RawStream, bytes: u64) -> DriverResult<DevicePtr>;
        unsafe fn free_async(stream: RawStream, ptr: DevicePtr) -> DriverResult<()>;
        unsafe fn stream_destroy(stream: RawStream) -> DriverResult<()>;
        unsafe fn stream_synchronize(stream: RawStream) -> DriverResult<()>;
        unsafe fn stream_wait(stream: RawStream, event: RawEvent) -> DriverResult<()>;
        unsafe fn stream_is_capturing(stream: RawStream) -> DriverResult<bool>;
        unsafe fn capture_begin(stream: RawStream) -> DriverResult<()>;
        unsafe fn capture_end(stream: RawStream) -> DriverResult<RawGraph>;
        unsafe fn graph_instantiate(graph: RawGraph) -> DriverResult<RawGraphExec>;
        unsafe fn graph_destroy(graph: RawGraph) -> DriverResult<()>;
        unsafe fn graph_launch(graph: RawGraphExec, stream: RawStream) -> DriverResult<()>;
        unsafe fn graph_exec_destroy(graph: RawGraphExec) -> DriverResult<()>;
        unsafe fn event_destroy(event: RawEvent) -> DriverResult<()>;
        unsafe fn event_record(event: RawEvent, stream: RawStream) -> DriverResult<()>;
        unsafe fn event_query(event: RawEvent) -> DriverResult<Progress>;
        unsafe fn event_synchronize(event: RawEvent) -> DriverResult<()>;
        unsafe fn address_release(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn pages_release(pages: RawPages) -> DriverResult<()>;
        unsafe fn pages_map(ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()>;
        unsafe fn pages_allow(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn pages_unmap(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_to_device(stream: RawStream, dst: DevicePtr, src: *const u8, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_to_host(stream: RawStream, dst: *mut u8, src: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_on_device(stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> DriverResult<()>;
        unsafe fn copy_peer(stream: RawStream, dst: PeerPtr, src: PeerPtr, bytes: u64) -> DriverResult<()>;
        unsafe fn fill(stream: RawStream, dst: DevicePtr, pattern: Pattern, count: u64) -> DriverResult<()>;
        unsafe fn host_function(stream: RawStream, function: HostFunction) -> DriverResult<()>;
        unsafe fn simulate(stream: RawStream, kernel: SimulatedKernel) -> DriverResult<()>;
    }
}
