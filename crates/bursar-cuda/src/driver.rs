//! The [`Driver`] on CUDA: each method is one call, made in the right context.
#![allow(unsafe_code)]

use crate::raw::sys::CUmemAccessDesc;
use crate::raw::{Api, Failure};
use crate::{Cuda, conv, device};
use bursar_core::{
    Bytes, DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link,
    MemoryInfo, Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
    SimulatedKernel, Status,
};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

impl Cuda {
    /// Submits work to a stream of a device.
    #[inline]
    fn submit<T>(&self, device: DeviceId, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        self.device(device)?.submit(&self.api, call)
    }

    /// Submits work to a stream by which the driver finds the context.
    #[inline]
    fn submit_on_stream<T>(
        &self,
        device: DeviceId,
        stream: RawStream,
        call: impl Fn(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        self.device(device)?.submit_on_stream(&self.api, stream, call)
    }

    /// Makes a call on a device that concerns no captured stream.
    #[inline]
    fn call<T>(&self, device: DeviceId, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        self.device(device)?.call(&self.api, call)
    }
}

// SAFETY: memory, handles and host pointers are the CUDA driver's own, which returns each only once until it is freed, and
// keeps it valid until then; the primary context they belong to is retained while the device is open.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Cuda {
    fn describe(&self) -> String {
        format!("CUDA driver {}", self.version())
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Creates and destroys the primary context if the device is not open and nobody else has created it: only a context
    /// knows the priorities of streams. They are kept for later calls.
    fn facts(&self, device: DeviceId) -> DriverResult<DeviceFacts> {
        self.describe_device(self.device(device)?, Path::new("/sys"))
    }

    /// Creates and destroys the primary context if the device is not open and nobody else has created it; the result then
    /// includes the memory of that context. A device that is only looked at is looked up in NVML first.
    fn memory(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        let device = self.device(device)?;
        if let Some(reported) = device.is_observed().then(|| self.memory_by_nvml(device)).flatten() {
            return Ok(reported);
        }
        let (free, total) = device.call_even_closed(&self.api, Api::memory_info)?;
        Ok(MemoryInfo { free: Bytes(free as u64), total: Bytes(total as u64) })
    }

    fn links(&self, device: DeviceId) -> DriverResult<Vec<Link>> {
        self.links_from(self.device(device)?)
    }

    fn open(&self, device: DeviceId) -> DriverResult<RawContext> {
        self.device(device)?.open(&self.api).map(conv::raw_context)
    }

    unsafe fn close(&self, device: DeviceId) -> DriverResult<()> {
        let device = self.device(device)?;
        // SAFETY: the caller's own promise.
        unsafe { device.close(&self.api) }
    }

    /// The driver makes no reports of its own.
    fn stream_number(&self, _: DeviceId, _: RawStream) -> Option<u32> {
        None
    }

    fn last_error(&self, device: DeviceId) -> Option<DriverError> {
        self.device(device).ok()?.first_sticky()
    }

    fn listens(&self) -> bool {
        false
    }

    unsafe fn note(&self, _: DeviceId, _: Note) {}

    fn simulates(&self) -> bool {
        false
    }

    fn beside_captures(&self, call: &mut dyn FnMut()) {
        device::beside_captures(&self.api, call);
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr> {
        self.call(device, |api| api.allocate(conv::size(bytes))).map(DevicePtr)
    }

    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.free(ptr.0) })
    }

    /// Allocates from the device's current pool: its default one, unless the program has chosen another with
    /// `cuDeviceSetMemPool`.
    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr> {
        // CUDA returns a null pointer and success.
        if bytes == 0 {
            return Err(self.device(device)?.refuse("cuMemAllocAsync", Status::InvalidValue));
        }
        let (bytes, on) = (conv::size(bytes), conv::stream(stream));
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe { api.allocate_async(bytes, on) }).map(DevicePtr)
    }

    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe { api.free_async(ptr.0, conv::stream(stream)) })
    }

    fn stream_create(&self, device: DeviceId, priority: i32) -> DriverResult<RawStream> {
        self.call(device, |api| api.stream_create(priority)).map(conv::raw_stream)
    }

    unsafe fn stream_destroy(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.stream_destroy(conv::stream(stream)) })
    }

    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        self.device(device)?.call_on_stream(&self.api, stream, |api| {
            // SAFETY: the caller's own promise.
            conv::progress(unsafe { api.stream_query(conv::stream(stream)) })
        })
    }

    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.stream_synchronize(conv::stream(stream)) })
    }

    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe {
            api.stream_wait(conv::stream(stream), conv::event(event))
        })
    }

    unsafe fn stream_is_capturing(&self, device: DeviceId, stream: RawStream) -> DriverResult<bool> {
        self.submit_on_stream(device, stream, |api| {
            // SAFETY: the caller's own promise.
            conv::is_capturing(unsafe { api.stream_capture_status(conv::stream(stream)) })
        })
    }

    unsafe fn capture_begin(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe { api.capture_begin(conv::stream(stream)) })
    }

    unsafe fn capture_end(&self, device: DeviceId, stream: RawStream) -> DriverResult<RawGraph> {
        // SAFETY: the caller's own promise.
        let graph = self.submit_on_stream(device, stream, |api| unsafe { api.capture_end(conv::stream(stream)) });
        graph.map(conv::raw_graph)
    }

    unsafe fn graph_instantiate(&self, device: DeviceId, graph: RawGraph) -> DriverResult<RawGraphExec> {
        // SAFETY: the caller's own promise.
        let exec = self.call(device, |api| unsafe { api.graph_instantiate(conv::graph(graph)) });
        exec.map(conv::raw_graph_exec)
    }

    unsafe fn graph_destroy(&self, device: DeviceId, graph: RawGraph) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.graph_destroy(conv::graph(graph)) })
    }

    unsafe fn graph_launch(&self, device: DeviceId, graph: RawGraphExec, stream: RawStream) -> DriverResult<()> {
        let (graph, on) = (conv::graph_exec(graph), conv::stream(stream));
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe { api.graph_launch(graph, on) })
    }

    unsafe fn graph_exec_destroy(&self, device: DeviceId, graph: RawGraphExec) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.graph_exec_destroy(conv::graph_exec(graph)) })
    }

    fn event_create(&self, device: DeviceId) -> DriverResult<RawEvent> {
        self.call(device, Api::event_create).map(conv::raw_event)
    }

    unsafe fn event_destroy(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.event_destroy(conv::event(event)) })
    }

    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.submit_on_stream(device, stream, |api| unsafe {
            api.event_record(conv::event(event), conv::stream(stream))
        })
    }

    unsafe fn event_query(&self, device: DeviceId, event: RawEvent) -> DriverResult<Progress> {
        self.call(device, |api| {
            // SAFETY: the caller's own promise.
            conv::progress(unsafe { api.event_query(conv::event(event)) })
        })
    }

    unsafe fn event_synchronize(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.event_synchronize(conv::event(event)) })
    }

    fn address_reserve(&self, device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr> {
        let (bytes, align) = (conv::size(bytes), conv::size(align));
        self.call(device, |api| api.address_reserve(bytes, align)).map(DevicePtr)
    }

    unsafe fn address_release(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.address_free(ptr.0, conv::size(bytes)) })
    }

    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages> {
        let kind = self.device(device)?.page_kind(&self.api)?;
        self.call(device, |api| api.pages_create(conv::size(bytes), &kind)).map(RawPages)
    }

    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.pages_release(pages.0) })
    }

    unsafe fn pages_map(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.pages_map(ptr.0, conv::size(bytes), pages.0) })
    }

    unsafe fn pages_allow(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let access = CUmemAccessDesc::of(self.device(device)?.handle()?);
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.pages_allow(ptr.0, conv::size(bytes), &access) })
    }

    unsafe fn pages_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.pages_unmap(ptr.0, conv::size(bytes)) })
    }

    fn host_allocate(&self, device: DeviceId, bytes: usize, flags: HostFlags) -> DriverResult<*mut u8> {
        // CUDA returns a null pointer and success.
        if bytes == 0 {
            return Err(self.device(device)?.refuse("cuMemHostAlloc", Status::InvalidValue));
        }
        let flags = conv::host_alloc_flags(flags);
        self.call(device, |api| api.host_allocate(bytes, flags)).map(<*mut c_void>::cast)
    }

    unsafe fn host_free(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.host_free(ptr.cast()) })
    }

    /// Existing memory cannot become write-combined: that is refused.
    unsafe fn host_register(&self, device: DeviceId, ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()> {
        let Some(flags) = conv::host_register_flags(flags) else {
            return Err(self.device(device)?.refuse("cuMemHostRegister", Status::NotSupported));
        };
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.host_register(ptr.cast(), bytes, flags) })
    }

    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.call(device, |api| unsafe { api.host_unregister(ptr.cast()) })
    }

    fn host_device_pointer(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<DevicePtr> {
        self.call(device, |api| api.host_device_pointer(ptr.cast())).map(DevicePtr)
    }

    unsafe fn copy_to_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
    ) -> DriverResult<()> {
        let (bytes, stream) = (conv::size(bytes), conv::stream(stream));
        // SAFETY: the caller's own promise.
        self.submit(device, |api| unsafe { api.copy_to_device(dst.0, src.cast(), bytes, stream) })
    }

    unsafe fn copy_to_host(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let (bytes, stream) = (conv::size(bytes), conv::stream(stream));
        // SAFETY: the caller's own promise.
        self.submit(device, |api| unsafe { api.copy_to_host(dst.cast(), src.0, bytes, stream) })
    }

    unsafe fn copy_on_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let (bytes, stream) = (conv::size(bytes), conv::stream(stream));
        // SAFETY: the caller's own promise.
        self.submit(device, |api| unsafe { api.copy_on_device(dst.0, src.0, bytes, stream) })
    }

    /// Goes through the host, by the CUDA driver itself, where the devices have no access to each other.
    unsafe fn copy_peer(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: PeerPtr,
        src: PeerPtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let (to, from) = (self.device(dst.device)?.opened()?, self.device(src.device)?.opened()?);
        let (bytes, stream) = (conv::size(bytes), conv::stream(stream));
        // SAFETY: the caller's own promise; both contexts are retained while their devices are open.
        self.submit(device, |api| unsafe { api.copy_peer((dst.ptr.0, to), (src.ptr.0, from), bytes, stream) })
    }

    unsafe fn fill(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        pattern: Pattern,
        count: u64,
    ) -> DriverResult<()> {
        let (count, stream) = (conv::size(count), conv::stream(stream));
        self.submit(device, |api| match pattern {
            // SAFETY: the caller's own promise.
            Pattern::U8(value) => unsafe { api.fill_u8(dst.0, value, count, stream) },
            // SAFETY: the caller's own promise.
            Pattern::U16(value) => unsafe { api.fill_u16(dst.0, value, count, stream) },
            // SAFETY: the caller's own promise.
            Pattern::U32(value) => unsafe { api.fill_u32(dst.0, value, count, stream) },
        })
    }

    /// If the device is lost before the stream reaches the function, it is neither run nor dropped. One that repeats is
    /// refused on a captured stream: nobody would know when the graph needs it no more.
    unsafe fn host_function(&self, device: DeviceId, stream: RawStream, function: HostFunction) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        if unsafe { self.stream_is_capturing(device, stream) }? {
            return Err(self.device(device)?.refuse("cuLaunchHostFunc", Status::Capturing));
        }
        let data = Box::into_raw(Box::new(function));
        let launch = |api: &Api| {
            // SAFETY: `run` takes the box behind `data` once; for the stream, the caller's own promise.
            unsafe { api.launch_host_function(conv::stream(stream), run, data.cast()) }
        };
        self.submit(device, launch).inspect_err(|_| {
            // SAFETY: it was not launched, so the box is still this function's.
            drop(unsafe { Box::from_raw(data) });
        })
    }

    /// A kernel on hardware is device code, which its program launches itself.
    unsafe fn simulate(&self, device: DeviceId, _: RawStream, _: SimulatedKernel) -> DriverResult<()> {
        Err(self.device(device)?.refuse("simulate", Status::NotSupported))
    }
}

/// Runs a host function on the driver's own thread. No panic may unwind into the driver.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: the box that `host_function` passed to the driver, which calls this once.
    let function = unsafe { Box::from_raw(data.cast::<HostFunction>()) };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| function.call())) {
        // Dropping the payload may panic too.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests;
