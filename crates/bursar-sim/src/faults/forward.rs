//! The [`Driver`] methods of the wrapper.
#![allow(unsafe_code)]

use super::{Call, Faults};
use bursar_core::{
    DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link, MemoryInfo,
    Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
    SimulatedKernel,
};

/// Defines methods that forward their arguments unchanged, as calls of the kind on the left.
macro_rules! forward {
    ($($call:ident: fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        fn $method(&self, device: DeviceId, $($arg: $type),*) -> DriverResult<$result> {
            self.through(Call::$call, device, || self.inner.$method(device, $($arg),*))
        }
    )* };
    ($($call:ident: unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        unsafe fn $method(&self, device: DeviceId, $($arg: $type),*) -> DriverResult<$result> {
            self.through(Call::$call, device, || {
                // SAFETY: the caller's own promise.
                unsafe { self.inner.$method(device, $($arg),*) }
            })
        }
    )* };
}

// SAFETY: whatever is returned comes from a driver that upholds the contract; a failed call returns nothing, and no call
// whose result can be lost returns anything either.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Faults {
    fn describe(&self) -> String {
        self.counts.add(Call::Describe);
        format!("{}, with faults", self.inner.describe())
    }

    fn device_count(&self) -> u32 {
        self.counts.add(Call::DeviceCount);
        self.inner.device_count()
    }

    fn last_error(&self, device: DeviceId) -> Option<DriverError> {
        self.counts.add(Call::LastError);
        self.lost(device).or_else(|| self.inner.last_error(device))
    }

    fn stream_number(&self, device: DeviceId, stream: RawStream) -> Option<u32> {
        self.inner.stream_number(device, stream)
    }

    fn listens(&self) -> bool {
        self.counts.add(Call::Listens);
        self.inner.listens()
    }

    fn simulates(&self) -> bool {
        self.counts.add(Call::Simulates);
        self.inner.simulates()
    }

    fn beside_captures(&self, call: &mut dyn FnMut()) {
        self.inner.beside_captures(call);
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        self.counts.add(Call::Note);
        // SAFETY: the caller's own promise.
        unsafe { self.inner.note(device, note) }
    }

    fn memory(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        self.through(Call::Memory, device, || Ok(self.holdings.cap(device, self.inner.memory(device)?)))
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr> {
        self.take(Call::Allocate, device, bytes, || self.inner.allocate(device, bytes))
    }

    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()> {
        self.give(Call::Free, device, ptr, || {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.free(device, ptr) }
        })
    }

    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr> {
        self.take(Call::AllocateAsync, device, bytes, || {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.allocate_async(device, stream, bytes) }
        })
    }

    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()> {
        self.give(Call::FreeAsync, device, ptr, || {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.free_async(device, stream, ptr) }
        })
    }

    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages> {
        self.take(Call::PagesCreate, device, bytes, || self.inner.pages_create(device, bytes))
    }

    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()> {
        self.give(Call::PagesRelease, device, pages, || {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.pages_release(device, pages) }
        })
    }

    forward! {
        Facts: fn facts() -> DeviceFacts;
        Links: fn links() -> Vec<Link>;
        Open: fn open() -> RawContext;
        StreamCreate: fn stream_create(priority: i32) -> RawStream;
        EventCreate: fn event_create() -> RawEvent;
        AddressReserve: fn address_reserve(bytes: u64, align: u64) -> DevicePtr;
        HostAllocate: fn host_allocate(bytes: usize, flags: HostFlags) -> *mut u8;
        HostDevicePointer: fn host_device_pointer(ptr: *mut u8) -> DevicePtr;
    }

    forward! {
        Close: unsafe fn close() -> ();
        StreamDestroy: unsafe fn stream_destroy(stream: RawStream) -> ();
        StreamQuery: unsafe fn stream_query(stream: RawStream) -> Progress;
        StreamSynchronize: unsafe fn stream_synchronize(stream: RawStream) -> ();
        StreamWait: unsafe fn stream_wait(stream: RawStream, event: RawEvent) -> ();
        StreamIsCapturing: unsafe fn stream_is_capturing(stream: RawStream) -> bool;
        CaptureBegin: unsafe fn capture_begin(stream: RawStream) -> ();
        CaptureEnd: unsafe fn capture_end(stream: RawStream) -> RawGraph;
        GraphInstantiate: unsafe fn graph_instantiate(graph: RawGraph) -> RawGraphExec;
        GraphDestroy: unsafe fn graph_destroy(graph: RawGraph) -> ();
        GraphLaunch: unsafe fn graph_launch(graph: RawGraphExec, stream: RawStream) -> ();
        GraphExecDestroy: unsafe fn graph_exec_destroy(graph: RawGraphExec) -> ();
        EventDestroy: unsafe fn event_destroy(event: RawEvent) -> ();
        EventRecord: unsafe fn event_record(event: RawEvent, stream: RawStream) -> ();
        EventQuery: unsafe fn event_query(event: RawEvent) -> Progress;
        EventSynchronize: unsafe fn event_synchronize(event: RawEvent) -> ();
        AddressRelease: unsafe fn address_release(ptr: DevicePtr, bytes: u64) -> ();
        PagesMap: unsafe fn pages_map(ptr: DevicePtr, bytes: u64, pages: RawPages) -> ();
        PagesAllow: unsafe fn pages_allow(ptr: DevicePtr, bytes: u64) -> ();
        PagesUnmap: unsafe fn pages_unmap(ptr: DevicePtr, bytes: u64) -> ();
        HostFree: unsafe fn host_free(ptr: *mut u8) -> ();
        HostRegister: unsafe fn host_register(ptr: *mut u8, bytes: usize, flags: HostFlags) -> ();
        HostUnregister: unsafe fn host_unregister(ptr: *mut u8) -> ();
        CopyToDevice: unsafe fn copy_to_device(stream: RawStream, dst: DevicePtr, src: *const u8, bytes: u64) -> ();
        CopyToHost: unsafe fn copy_to_host(stream: RawStream, dst: *mut u8, src: DevicePtr, bytes: u64) -> ();
        CopyOnDevice: unsafe fn copy_on_device(stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> ();
        CopyPeer: unsafe fn copy_peer(stream: RawStream, dst: PeerPtr, src: PeerPtr, bytes: u64) -> ();
        Fill: unsafe fn fill(stream: RawStream, dst: DevicePtr, pattern: Pattern, count: u64) -> ();
        HostFunction: unsafe fn host_function(stream: RawStream, function: HostFunction) -> ();
        Simulate: unsafe fn simulate(stream: RawStream, kernel: SimulatedKernel) -> ();
    }
}
