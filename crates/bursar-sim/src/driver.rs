//! The simulator as a driver: every call checked, logged and passed on.
//!
//! The safety contracts of the calls are what the simulator checks; it does not rely on them, except for host memory,
//! which is real.
#![allow(unsafe_code)]

use crate::Sim;
use crate::heap::{Heap, Kind};
use crate::host::HostPtr;
use crate::log::Given;
use crate::memory::rounded;
use crate::schedule::Work;
use bursar_core::{
    Bytes, DeviceFacts, DeviceId, DevicePtr, Driver, DriverError, DriverResult, HostFlags, HostFunction, Link,
    MemoryInfo, Note, Pattern, Progress, RawContext, RawEvent, RawPages, RawStream, Status,
};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// This file, as locations in it name it.
pub(crate) const FILE: &str = file!();

/// What CUDA answers where a device is not open.
const NOT_OPEN: Status = Status::Other { code: 201, name: "CUDA_ERROR_INVALID_CONTEXT", sticky: false };

fn locked(heap: &Mutex<Heap>) -> MutexGuard<'_, Heap> {
    heap.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// Whether every stream has run dry, none is captured, no device is lost and none has a name, so that an immediate
    /// simulator can answer without looking.
    #[inline]
    fn is_calm(&self) -> bool {
        self.seed.is_none() && self.disturbances.load(Ordering::Acquire) == 0
    }

    /// The heap of a device that an immediate simulator can use directly.
    #[inline]
    fn calm_heap(&self, device: DeviceId) -> Option<&Mutex<Heap>> {
        self.is_calm().then(|| self.heaps.get(device.0 as usize)).flatten().map(|heap| &**heap)
    }

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

    /// The page size, for a call that needs pages.
    fn needs_pages(&self, device: DeviceId, call: &'static str) -> DriverResult<u64> {
        let granularity = self.facts_of(device, call)?.capabilities.page_granularity;
        granularity.map(Bytes::get).ok_or(DriverError::new(call, device, Status::NotSupported))
    }

    /// Takes an allocation of an immediate simulator without the lock of the world.
    #[inline]
    fn take_calmly(
        &self,
        heap: &Mutex<Heap>,
        call: &'static str,
        device: DeviceId,
        bytes: u64,
        kind: Kind,
    ) -> DriverResult<DevicePtr> {
        let taken = rounded(bytes).and_then(|bytes| locked(heap).take(bytes, kind).ok_or(Status::OutOfMemory));
        taken.map(DevicePtr).map_err(|status| DriverError::new(call, device, status))
    }

    /// Gives an allocation of an immediate simulator back without the lock of the world, unless there are bytes in it.
    #[inline]
    fn give_back_calmly(
        &self,
        heap: &Mutex<Heap>,
        call: &'static str,
        device: DeviceId,
        ptr: DevicePtr,
        kind: Kind,
    ) -> DriverResult<()> {
        let mut heap = locked(heap);
        let retired = heap.retire(ptr.0, kind);
        let bytes = retired.ok_or(DriverError::new(call, device, Status::InvalidValue))?;
        if heap.is_touched {
            drop(heap);
            let mut world = self.lock();
            let device = &mut world.devices[device.0 as usize];
            device.store.discard(ptr.0, bytes);
            device.heap().recycle(ptr.0, bytes);
        } else {
            heap.recycle(ptr.0, bytes);
        }
        Ok(())
    }
}

// SAFETY: addresses given out lie in ranges that the heaps and the reservations take out of what they can give out again;
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
        self.call("memory", device, Given::default(), |turn| {
            let device = turn.device();
            turn.room(device)
        })
    }

    fn links(&self, device: DeviceId) -> DriverResult<Vec<Link>> {
        self.facts_of(device, "links")?;
        Ok(self.links[device.0 as usize].clone())
    }

    #[track_caller]
    fn open(&self, device: DeviceId) -> DriverResult<RawContext> {
        self.call("open", device, Given::default(), |turn| {
            let index = turn.device();
            turn.devices[index].opened += 1;
            Ok(RawContext(0x1000 + u64::from(device.0)))
        })
    }

    #[track_caller]
    unsafe fn close(&self, device: DeviceId) -> DriverResult<()> {
        self.call("close", device, Given::default(), |turn| {
            let index = turn.device();
            let opened = &mut turn.devices[index].opened;
            *opened = opened.checked_sub(1).ok_or(NOT_OPEN)?;
            Ok(())
        })
    }

    fn last_error(&self, device: DeviceId) -> Option<DriverError> {
        let world = self.lock();
        let is_lost = world.devices.get(device.0 as usize).is_some_and(|device| device.is_lost);
        is_lost.then(|| DriverError::new("last_error", device, Status::DeviceLost))
    }

    #[inline]
    fn listens(&self) -> bool {
        self.seed.is_some()
    }

    #[track_caller]
    unsafe fn note(&self, device: DeviceId, note: Note) {
        if self.seed.is_none() {
            return;
        }
        // A note cannot fail: one that names no stream of the device is logged as having failed.
        let _ = match note {
            Note::Granted { ptr, bytes, stream, .. } => {
                let given = Given::on(stream).at(ptr.0).of(bytes);
                self.call("granted", device, given, |turn| turn.note(note))
            }
            Note::Freed { ptr, stream } => {
                self.call("freed", device, Given::on(stream).at(ptr.0), |turn| turn.note(note))
            }
            _ => Ok(()),
        };
    }

    #[inline]
    #[track_caller]
    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr> {
        match self.calm_heap(device) {
            Some(heap) => self.take_calmly(heap, "allocate", device, bytes, Kind::Direct),
            None => self.call("allocate", device, Given::default().of(bytes), |turn| turn.allocate(bytes)),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()> {
        match self.calm_heap(device) {
            Some(heap) => self.give_back_calmly(heap, "free", device, ptr, Kind::Direct),
            None => self.call("free", device, Given::default().at(ptr.0), |turn| turn.free(ptr)),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr> {
        const CALL: &str = "allocate_async";
        self.needs_stream_order(device, CALL)?;
        match self.calm_heap(device) {
            Some(heap) => self.take_calmly(heap, CALL, device, bytes, Kind::StreamOrdered),
            None => self.call(CALL, device, Given::on(stream).of(bytes), |turn| turn.allocate_async(stream, bytes)),
        }
    }

    #[inline]
    #[track_caller]
    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()> {
        const CALL: &str = "free_async";
        self.needs_stream_order(device, CALL)?;
        match self.calm_heap(device) {
            Some(heap) => self.give_back_calmly(heap, CALL, device, ptr, Kind::StreamOrdered),
            None => self.call(CALL, device, Given::on(stream).at(ptr.0), |turn| turn.free_async(stream, ptr)),
        }
    }

    #[track_caller]
    fn stream_create(&self, device: DeviceId, priority: i32) -> DriverResult<RawStream> {
        let priorities = &self.facts_of(device, "stream_create")?.stream_priorities;
        self.call("stream_create", device, Given::default(), |turn| {
            if !priorities.contains(&priority) {
                return Err(Status::InvalidValue);
            }
            let device = turn.device();
            Ok(turn.create_stream(device, false))
        })
    }

    #[track_caller]
    unsafe fn stream_destroy(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.call("stream_destroy", device, Given::on(stream), |turn| turn.destroy_stream(stream))
    }

    #[inline]
    #[track_caller]
    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        if self.calm_heap(device).is_some() {
            return Ok(Progress::Complete);
        }
        self.call("stream_query", device, Given::on(stream), |turn| {
            let stream = turn.open_stream(turn.device(), stream)?;
            Ok(turn.query_stream(stream))
        })
    }

    #[track_caller]
    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        if self.calm_heap(device).is_some() {
            return Ok(());
        }
        self.call("stream_synchronize", device, Given::on(stream), |turn| {
            let stream = turn.open_stream(turn.device(), stream)?;
            turn.wait_for_stream(stream)
        })
    }

    #[track_caller]
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        if self.calm_heap(device).is_some() {
            return Ok(());
        }
        let given = Given::on(stream).at(event.0);
        self.call("stream_wait", device, given, |turn| turn.stream_wait(stream, event))
    }

    #[inline]
    #[track_caller]
    unsafe fn stream_is_capturing(&self, device: DeviceId, stream: RawStream) -> DriverResult<bool> {
        if self.calm_heap(device).is_some() {
            return Ok(false);
        }
        self.call("stream_is_capturing", device, Given::on(stream), |turn| {
            let stream = turn.stream(turn.device(), stream)?;
            Ok(turn.streams[stream].is_capturing)
        })
    }

    #[track_caller]
    fn event_create(&self, device: DeviceId) -> DriverResult<RawEvent> {
        self.call("event_create", device, Given::default(), |turn| {
            let device = turn.device();
            Ok(turn.create_event(device))
        })
    }

    #[track_caller]
    unsafe fn event_destroy(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        self.call("event_destroy", device, Given::default().at(event.0), |turn| {
            turn.event(turn.device(), event)?;
            turn.events.remove(&event.0);
            Ok(())
        })
    }

    #[inline]
    #[track_caller]
    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        if self.calm_heap(device).is_some() {
            // Everything is complete, and so is whatever the event recorded before.
            return Ok(());
        }
        let given = Given::on(stream).at(event.0);
        self.call("event_record", device, given, |turn| turn.event_record(event, stream))
    }

    #[inline]
    #[track_caller]
    unsafe fn event_query(&self, device: DeviceId, event: RawEvent) -> DriverResult<Progress> {
        if self.calm_heap(device).is_some() {
            return Ok(Progress::Complete);
        }
        self.call("event_query", device, Given::default().at(event.0), |turn| turn.event_query(event))
    }

    #[track_caller]
    unsafe fn event_synchronize(&self, device: DeviceId, event: RawEvent) -> DriverResult<()> {
        if self.calm_heap(device).is_some() {
            return Ok(());
        }
        self.call("event_synchronize", device, Given::default().at(event.0), |turn| turn.event_synchronize(event))
    }

    #[track_caller]
    fn address_reserve(&self, device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr> {
        let granularity = self.needs_pages(device, "address_reserve")?;
        self.call("address_reserve", device, Given::default().of(bytes), |turn| {
            turn.address_reserve(bytes, align, granularity)
        })
    }

    #[track_caller]
    unsafe fn address_release(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "address_release")?;
        let given = Given::default().at(ptr.0).of(bytes);
        self.call("address_release", device, given, |turn| turn.address_release(ptr, bytes))
    }

    #[track_caller]
    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages> {
        let granularity = self.needs_pages(device, "pages_create")?;
        self.call("pages_create", device, Given::default().of(bytes), |turn| turn.pages_create(bytes, granularity))
    }

    #[track_caller]
    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()> {
        self.needs_pages(device, "pages_release")?;
        self.call("pages_release", device, Given::default().at(pages.0), |turn| turn.pages_release(pages))
    }

    #[track_caller]
    unsafe fn pages_map(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()> {
        let granularity = self.needs_pages(device, "pages_map")?;
        let given = Given::default().at(ptr.0).of(bytes);
        self.call("pages_map", device, given, |turn| turn.pages_map(ptr, bytes, pages, granularity))
    }

    #[track_caller]
    unsafe fn pages_allow(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "pages_allow")?;
        let given = Given::default().at(ptr.0).of(bytes);
        self.call("pages_allow", device, given, |turn| turn.pages_allow(ptr, bytes))
    }

    #[track_caller]
    unsafe fn pages_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.needs_pages(device, "pages_unmap")?;
        let given = Given::default().at(ptr.0).of(bytes);
        self.call("pages_unmap", device, given, |turn| turn.pages_unmap(ptr, bytes))
    }

    #[track_caller]
    fn host_allocate(&self, device: DeviceId, bytes: usize, _: HostFlags) -> DriverResult<*mut u8> {
        self.call("host_allocate", device, Given::default().of(bytes as u64), |turn| turn.host_allocate(bytes))
    }

    #[track_caller]
    unsafe fn host_free(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        self.call("host_free", device, Given::default(), |turn| turn.host_free(HostPtr(ptr)))
    }

    #[track_caller]
    unsafe fn host_register(&self, device: DeviceId, ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()> {
        let given = Given::default().of(bytes as u64);
        self.call("host_register", device, given, |turn| match flags.write_combined {
            // Existing memory cannot become that.
            true => Err(Status::NotSupported),
            false => turn.host_register(HostPtr(ptr), bytes),
        })
    }

    #[track_caller]
    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()> {
        self.call("host_unregister", device, Given::default(), |turn| turn.host_unregister(HostPtr(ptr)))
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
        let given = Given::on(stream).at(dst.0).of(bytes);
        self.call("copy_to_device", device, given, |turn| {
            // SAFETY: the caller's own promise; the source is only read.
            unsafe { turn.copy_to_device_on(stream, dst, HostPtr(src.cast_mut()), bytes) }
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
        let given = Given::on(stream).at(src.0).of(bytes);
        self.call("copy_to_host", device, given, |turn| {
            // SAFETY: the caller's own promise.
            unsafe { turn.copy_to_host_on(stream, HostPtr(dst), src, bytes) }
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
        let given = Given::on(stream).at(dst.0).of(bytes);
        self.call("copy_on_device", device, given, |turn| turn.copy_on(stream, dst, src, bytes))
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
        let given = Given::on(stream).at(dst.0).of(count.saturating_mul(pattern.width()));
        self.call("fill", device, given, |turn| turn.fill_on(stream, dst, pattern, count))
    }

    #[track_caller]
    unsafe fn host_function(&self, device: DeviceId, stream: RawStream, function: HostFunction) -> DriverResult<()> {
        self.call("host_function", device, Given::on(stream), |turn| {
            let caller = turn.caller;
            let stream = turn.open_stream(caller.device, stream)?;
            turn.submit(caller, stream, None, &[], Work::Host(function));
            Ok(())
        })
    }
}
