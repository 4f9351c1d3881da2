//! The simulator as a [`Driver`]: every call is checked, logged and passed on.
//!
//! The simulator checks the safety contracts of the calls and does not rely on them, except for host memory, which is real.
#![allow(unsafe_code)]

use super::{Launch, Sim};
use crate::Executor;
use crate::call_log::CallArguments;
use crate::host_memory::HostPtr;
use crate::machine::{AllocationKind, Work};
use bursar_core::{
    Bytes, DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link,
    MemoryInfo, Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
    SimulatedKernel, Status,
};

/// The path of this file, as locations in it name it.
pub(crate) const FILE: &str = file!();

/// The status that CUDA returns where a device is not open.
const NOT_OPEN: Status = Status::Other { code: 201, name: "CUDA_ERROR_INVALID_CONTEXT", sticky: false };

impl Sim {
    fn facts_of(&self, device: DeviceId, call: &'static str) -> DriverResult<&DeviceFacts> {
        let facts = self.facts.get(device.0 as usize);
        facts.ok_or(DriverError::new(call, device, Status::InvalidDevice))
    }

    #[inline]
    fn needs_stream_order(&self, device: DeviceId, call: &'static str) -> DriverResult<()> {
        match self.facts_of(device, call)?.capabilities.stream_ordered {
            true => Ok(()),
            false => Err(DriverError::new(call, device, Status::NotSupported)),
        }
    }

    /// Returns the page size, for a call that needs pages.
    fn needs_pages(&self, device: DeviceId, call: &'static str) -> DriverResult<u64> {
        let granularity = self.facts_of(device, call)?.capabilities.page_granularity;
        granularity.map(Bytes::get).ok_or(DriverError::new(call, device, Status::NotSupported))
    }
}

// SAFETY: addresses are allocated from ranges that the heaps and the reservations remove from what they can allocate again;
// handles are looked up and never reused; host memory is a heap allocation that lives until `host_free`.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Sim {
    fn describe(&self) -> String {
        let count = self.facts.len();
        let how = self.seed.map_or("immediate".to_owned(), |seed| format!("seed {seed}"));
        let plural = if count == 1 { "" } else { "s" };
        format!("simulated driver {}, {how}, {count} device{plural}", env!("CARGO_PKG_VERSION"))
    }

    fn device_count(&self) -> u32 {
        self.facts.len() as u32
    }

    fn facts(&self, device: DeviceId) -> DriverResult<DeviceFacts> {
        self.facts_of(device, "facts").cloned()
    }

    #[track_caller]
    fn memory(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        self.call("memory", device, CallArguments::default(), |active| {
            let device = active.device();
            active.memory_info(device)
        })
    }

    fn links(&self, device: DeviceId) -> DriverResult<Vec<Link>> {
        self.facts_of(device, "links")?;
        Ok(self.links[device.0 as usize].clone())
    }

    #[track_caller]
    fn open(&self, device: DeviceId) -> DriverResult<RawContext> {
        self.call("open", device, CallArguments::default(), |active| {
            let index = active.device();
            active.devices[index].opened += 1;
            Ok(RawContext(0x1000 + u64::from(device.0)))
        })
    }

    #[track_caller]
    unsafe fn close(&self, device: DeviceId) -> DriverResult<()> {
        self.call("close", device, CallArguments::default(), |active| {
            let index = active.device();
            let opened = &mut active.devices[index].opened;
            *opened = opened.checked_sub(1).ok_or(NOT_OPEN)?;
            Ok(())
        })
    }

    fn stream_number(&self, device: DeviceId, stream: RawStream) -> Option<u32> {
        match self.lock().executor_of(device, stream) {
            Executor::Stream(number) => Some(number),
            _ => None,
        }
    }

    fn last_error(&self, device: DeviceId) -> Option<DriverError> {
        let state = self.lock();
        let is_lost = state.devices.get(device.0 as usize).is_some_and(|device| device.is_lost);
        is_lost.then(|| DriverError::new("last_error", device, Status::DeviceLost))
    }

    #[inline]
    fn listens(&self) -> bool {
        self.seed.is_some()
    }

    fn simulates(&self) -> bool {
        true
    }

    fn beside_captures(&self, call: &mut dyn FnMut()) {
        call();
    }

    #[track_caller]
    unsafe fn note(&self, device: DeviceId, note: Note) {
        if self.seed.is_none() {
            return;
        }
        // A note cannot fail: one with a stream that does not exist is logged as failed.
        let _ = match note {
            Note::Granted { ptr, bytes, stream, .. } => {
                let arguments = CallArguments::on(stream).at(ptr.0).of(bytes);
                self.call("granted", device, arguments, |active| active.note(note))
            }
            Note::Divided { ptr, bytes, stream } => {
                let arguments = CallArguments::on(stream).at(ptr.0).of(bytes);
                self.call("divided", device, arguments, |active| active.note(note))
            }
            Note::Rejoined { ptr, stream } => {
                self.call("rejoined", device, CallArguments::on(stream).at(ptr.0), |active| active.note(note))
            }
            Note::Freed { ptr, stream, .. } => {
                self.call("freed", device, CallArguments::on(stream).at(ptr.0), |active| active.note(note))
            }
            Note::Asleep { ptr, bytes } => self.note_sleep("asleep", device, ptr, bytes, note),
            Note::Saved { ptr, bytes } => self.note_sleep("saved", device, ptr, bytes, note),
            Note::Awake { ptr, bytes } => self.note_sleep("awake", device, ptr, bytes, note),
            Note::Abandoned { ptr, bytes } => self.note_sleep("abandoned", device, ptr, bytes, note),
            _ => Ok(()),
        };
    }

    #[inline]
    #[track_caller]
    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr> {
        match self.shortcut_heap(device) {
            Some(heap) => self.allocate_directly(heap, "allocate", device, bytes, AllocationKind::Direct),
            None => self.call("allocate", device, CallArguments::default().of(bytes), |active| active.allocate(bytes)),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()> {
        match self.shortcut_heap(device) {
            Some(heap) => self.free_directly(heap, "free", device, ptr, AllocationKind::Direct),
            None => self.call("free", device, CallArguments::default().at(ptr.0), |active| active.free(ptr)),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr> {
        const CALL: &str = "allocate_async";
        self.needs_stream_order(device, CALL)?;
        match self.shortcut_heap(device) {
            Some(heap) => self.allocate_directly(heap, CALL, device, bytes, AllocationKind::StreamOrdered),
            None => self.call(CALL, device, CallArguments::on(stream).of(bytes), |active| {
                active.allocate_async(stream, bytes, None)
            }),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()> {
        const CALL: &str = "free_async";
        self.needs_stream_order(device, CALL)?;
        match self.shortcut_heap(device) {
            Some(heap) => self.free_directly(heap, CALL, device, ptr, AllocationKind::StreamOrdered),
            None => self.call(CALL, device, CallArguments::on(stream).at(ptr.0), |active| {
                active.free_async(stream, ptr, AllocationKind::StreamOrdered)
            }),
        }
    }

    #[track_caller]
    fn stream_create(&self, device: DeviceId, priority: i32) -> DriverResult<RawStream> {
        let priorities = &self.facts_of(device, "stream_create")?.stream_priorities;
        self.call("stream_create", device, CallArguments::default(), |active| {
            if !priorities.contains(&priority) {
                return Err(Status::InvalidValue);
            }
            let device = active.device();
            Ok(active.create_stream(device, false))
        })
    }

    #[track_caller]
    unsafe fn stream_destroy(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.call("stream_destroy", device, CallArguments::on(stream), |active| active.destroy_stream(stream))
    }

    #[inline]
    #[track_caller]
    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        if self.shortcut_heap(device).is_some() {
            return Ok(Progress::Complete);
        }
        self.call("stream_query", device, CallArguments::on(stream), |active| {
            let device = active.device();
            let stream = active.open_stream(device, stream)?;
            Ok(active.query_stream(stream))
        })
    }

    #[track_caller]
    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        if self.shortcut_heap(device).is_some() {
            return Ok(());
        }
        self.call("stream_synchronize", device, CallArguments::on(stream), |active| {
            let device = active.device();
            let stream = active.open_stream(device, stream)?;
            active.wait_for_stream(stream)?;
            active.trim_pools(device);
            Ok(())
        })
    }

    #[track_caller]
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        if self.shortcut_heap(device).is_some() {
            return Ok(());
        }
        let arguments = CallArguments::on(stream).at(event.0);
        self.call("stream_wait", device, arguments, |active| active.stream_wait(stream, event))
    }

    #[inline]
    #[track_caller]
    unsafe fn stream_is_capturing(&self, device: DeviceId, stream: RawStream) -> DriverResult<bool> {
        if self.shortcut_heap(device).is_some() {
            return Ok(false);
        }
        self.call("stream_is_capturing", device, CallArguments::on(stream), |active| {
            let stream = active.stream(active.device(), stream)?;
            let reached = active.implicit_waits(stream);
            let is_captured = |other: &usize| *other >= active.devices.len() && active.is_capturing(*other);
            Ok(active.is_capturing(stream) || reached.iter().any(is_captured))
        })
    }

    #[track_caller]
    unsafe fn capture_begin(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.call("capture_begin", device, CallArguments::on(stream), |active| active.capture_begin(stream))
    }

    #[track_caller]
    unsafe fn capture_end(&self, device: DeviceId, stream: RawStream) -> DriverResult<RawGraph> {
        self.call("capture_end", device, CallArguments::on(stream), |active| active.capture_end(stream))
    }

    #[track_caller]
    unsafe fn graph_instantiate(&self, device: DeviceId, graph: RawGraph) -> DriverResult<RawGraphExec> {
        let arguments = CallArguments::default().at(graph.0);
        self.call("graph_instantiate", device, arguments, |active| active.graph_instantiate(graph))
    }

    #[track_caller]
    unsafe fn graph_destroy(&self, device: DeviceId, graph: RawGraph) -> DriverResult<()> {
        self.call("graph_destroy", device, CallArguments::default().at(graph.0), |active| active.graph_destroy(graph))
    }

    #[track_caller]
    unsafe fn graph_launch(&self, device: DeviceId, graph: RawGraphExec, stream: RawStream) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(graph.0);
        self.call("graph_launch", device, arguments, |active| active.graph_launch(graph, stream))
    }

    #[track_caller]
    unsafe fn graph_exec_destroy(&self, device: DeviceId, graph: RawGraphExec) -> DriverResult<()> {
        let arguments = CallArguments::default().at(graph.0);
        self.call("graph_exec_destroy", device, arguments, |active| active.graph_exec_destroy(graph))
    }

    #[track_caller]
    fn event_create(&self, device: DeviceId) -> DriverResult<RawEvent> {
        self.call("event_create", device, CallArguments::default(), |active| {
            let device = active.device();
            Ok(active.create_event(device))
        })
    }

    #[track_caller]
    unsafe fn event_destroy(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        self.call("event_destroy", device, CallArguments::default().at(event.0), |active| {
            active.event(active.device(), event)?;
            active.events.remove(&event.0);
            Ok(())
        })
    }

    #[inline]
    #[track_caller]
    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        if self.shortcut_heap(device).is_some() {
            // Everything is complete, and so is whatever the event recorded before.
            return Ok(());
        }
        let arguments = CallArguments::on(stream).at(event.0);
        self.call("event_record", device, arguments, |active| active.event_record(event, stream))
    }

    #[inline]
    #[track_caller]
    unsafe fn event_query(&self, device: DeviceId, event: RawEvent) -> DriverResult<Progress> {
        if self.shortcut_heap(device).is_some() {
            return Ok(Progress::Complete);
        }
        self.call("event_query", device, CallArguments::default().at(event.0), |active| active.event_query(event))
    }

    #[track_caller]
    unsafe fn event_synchronize(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        if self.shortcut_heap(device).is_some() {
            return Ok(());
        }
        self.call("event_synchronize", device, CallArguments::default().at(event.0), |active| {
            active.event_synchronize(event)?;
            let device = active.device();
            active.trim_pools(device);
            Ok(())
        })
    }

    #[track_caller]
    fn address_reserve(&self, device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr> {
        let granularity = self.needs_pages(device, "address_reserve")?;
        self.call("address_reserve", device, CallArguments::default().of(bytes), |active| {
            active.address_reserve(bytes, align, granularity)
        })
    }

    #[track_caller]
    unsafe fn address_release(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "address_release")?;
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call("address_release", device, arguments, |active| active.address_release(ptr, bytes))
    }

    #[track_caller]
    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages> {
        let granularity = self.needs_pages(device, "pages_create")?;
        self.call("pages_create", device, CallArguments::default().of(bytes), |active| {
            active.pages_create(bytes, granularity)
        })
    }

    #[track_caller]
    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()> {
        self.needs_pages(device, "pages_release")?;
        self.call("pages_release", device, CallArguments::default().at(pages.0), |active| active.pages_release(pages))
    }

    #[track_caller]
    unsafe fn pages_map(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()> {
        let granularity = self.needs_pages(device, "pages_map")?;
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call("pages_map", device, arguments, |active| active.pages_map(ptr, bytes, pages, granularity))
    }

    #[track_caller]
    unsafe fn pages_allow(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "pages_allow")?;
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call("pages_allow", device, arguments, |active| active.pages_allow(ptr, bytes))
    }

    #[track_caller]
    unsafe fn pages_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "pages_unmap")?;
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call("pages_unmap", device, arguments, |active| active.pages_unmap(ptr, bytes))
    }

    #[track_caller]
    fn host_allocate(&self, device: DeviceId, bytes: usize, _: HostFlags) -> DriverResult<*mut u8> {
        self.call("host_allocate", device, CallArguments::default().of(bytes as u64), |active| {
            active.host_allocate(bytes)
        })
    }

    #[track_caller]
    unsafe fn host_free(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        self.call("host_free", device, CallArguments::default(), |active| active.host_free(HostPtr(ptr)))
    }

    #[track_caller]
    unsafe fn host_register(&self, device: DeviceId, ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()> {
        let arguments = CallArguments::default().of(bytes as u64);
        self.call("host_register", device, arguments, |active| match flags.write_combined {
            // Existing memory cannot become write-combined.
            true => Err(Status::NotSupported),
            false => active.host_register(HostPtr(ptr), bytes),
        })
    }

    #[track_caller]
    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        self.call("host_unregister", device, CallArguments::default(), |active| active.host_unregister(HostPtr(ptr)))
    }

    #[track_caller]
    fn host_device_pointer(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<DevicePtr> {
        let host = HostPtr(ptr);
        self.call("host_device_pointer", device, CallArguments::default(), |active| active.host_device_pointer(host))
    }

    #[track_caller]
    unsafe fn copy_to_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
    ) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(dst.0).of(bytes);
        self.call("copy_to_device", device, arguments, |active| {
            // SAFETY: the caller's own promise; the source is only read.
            unsafe { active.copy_to_device_on(stream, dst, HostPtr(src.cast_mut()), bytes) }
        })
    }

    #[track_caller]
    unsafe fn copy_to_host(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(src.0).of(bytes);
        self.call("copy_to_host", device, arguments, |active| {
            // SAFETY: the caller's own promise.
            unsafe { active.copy_to_host_on(stream, HostPtr(dst), src, bytes) }
        })
    }

    #[track_caller]
    unsafe fn copy_on_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(dst.0).of(bytes);
        self.call("copy_on_device", device, arguments, |active| active.copy_on(stream, dst, src, bytes))
    }

    #[track_caller]
    unsafe fn copy_peer(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: PeerPtr,
        src: PeerPtr,
        bytes: u64,
    ) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(dst.ptr.0).of(bytes);
        let links = &self.facts_of(src.device, "copy_peer").map(|_| &self.links[src.device.0 as usize])?;
        let is_linked = dst.device == src.device || links.iter().any(|link| link.to == dst.device);
        self.call("copy_peer", device, arguments, |active| match is_linked {
            true => active.copy_peer_on(stream, dst, src, bytes),
            false => Err(Status::NotSupported),
        })
    }

    #[track_caller]
    unsafe fn fill(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        pattern: Pattern,
        count: u64,
    ) -> DriverResult<()> {
        let arguments = CallArguments::on(stream).at(dst.0).of(count.saturating_mul(pattern.width()));
        self.call("fill", device, arguments, |active| active.fill_on(stream, dst, pattern, count))
    }

    #[track_caller]
    unsafe fn host_function(&self, device: DeviceId, stream: RawStream, function: HostFunction) -> DriverResult<()> {
        self.call("host_function", device, CallArguments::on(stream), |active| {
            let call = active.call;
            let stream = active.work_stream(call.device, stream)?;
            let work = active.capture_work(call, stream, &[], &[], Work::Host(function))?;
            if let Some(work) = work {
                active.submit(call, stream, &[], &[], work);
            }
            Ok(())
        })
    }

    #[track_caller]
    unsafe fn simulate(&self, device: DeviceId, stream: RawStream, kernel: SimulatedKernel) -> DriverResult<()> {
        let launch = Launch::declared(kernel);
        self.call(launch.name, device, CallArguments::on(stream), |active| active.launch(stream, launch))
    }
}
