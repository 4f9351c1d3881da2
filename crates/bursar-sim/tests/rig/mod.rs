//! The driver's calls without `unsafe` blocks: the simulator checks every promise, and nothing here may fail unless a test
//! says so.
#![allow(unsafe_code, dead_code)]

use bursar_core::{
    AllocTag, DeviceId, DevicePtr, Driver, DriverResult, HostFlags, HostFunction, Note, Pattern, Progress, RawEvent,
    RawPages, RawStream,
};
use bursar_sim::{Hazard, Sim};
use std::sync::Arc;

pub(crate) const PAGE: u64 = 2 << 20;

/// The number of seeds with which every claim about order is tested.
pub(crate) const SEEDS: std::ops::Range<u64> = 0..96;

pub(crate) struct Rig {
    pub(crate) sim: Arc<Sim>,
    pub(crate) device: DeviceId,
}

macro_rules! calls {
    ($($name:ident => $call:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => { $(
        #[track_caller]
        pub(crate) fn $name(&self, $($arg: $type),*) -> $answer {
            // SAFETY: the simulator checks what its callers promise, and reports it.
            unsafe { self.sim.$call(self.device, $($arg),*) }.unwrap()
        }
    )* };
}

impl Rig {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::of(Sim::seeded(seed))
    }

    pub(crate) fn of(sim: Arc<Sim>) -> Self {
        Self { sim, device: DeviceId(0) }
    }

    pub(crate) fn on(&self, device: u32) -> Self {
        Self { sim: self.sim.clone(), device: DeviceId(device) }
    }

    calls! {
        close => close() -> ();
        alloc_on => allocate_async(stream: RawStream, bytes: u64) -> DevicePtr;
        free_on => free_async(stream: RawStream, ptr: DevicePtr) -> ();
        free => free(ptr: DevicePtr) -> ();
        destroy => stream_destroy(stream: RawStream) -> ();
        query => stream_query(stream: RawStream) -> Progress;
        sync => stream_synchronize(stream: RawStream) -> ();
        wait => stream_wait(stream: RawStream, event: RawEvent) -> ();
        is_capturing => stream_is_capturing(stream: RawStream) -> bool;
        record => event_record(event: RawEvent, stream: RawStream) -> ();
        query_event => event_query(event: RawEvent) -> Progress;
        sync_event => event_synchronize(event: RawEvent) -> ();
        destroy_event => event_destroy(event: RawEvent) -> ();
        release_address => address_release(ptr: DevicePtr, bytes: u64) -> ();
        release_pages => pages_release(pages: RawPages) -> ();
        map => pages_map(ptr: DevicePtr, bytes: u64, pages: RawPages) -> ();
        allow => pages_allow(ptr: DevicePtr, bytes: u64) -> ();
        unmap => pages_unmap(ptr: DevicePtr, bytes: u64) -> ();
        host_free => host_free(ptr: *mut u8) -> ();
        host_unregister => host_unregister(ptr: *mut u8) -> ();
        upload => copy_to_device(stream: RawStream, dst: DevicePtr, src: *const u8, bytes: u64) -> ();
        download => copy_to_host(stream: RawStream, dst: *mut u8, src: DevicePtr, bytes: u64) -> ();
        copy => copy_on_device(stream: RawStream, dst: DevicePtr, src: DevicePtr, bytes: u64) -> ();
        fill_with => fill(stream: RawStream, dst: DevicePtr, pattern: Pattern, count: u64) -> ();
        host_function => host_function(stream: RawStream, function: HostFunction) -> ();
    }

    pub(crate) fn alloc(&self, bytes: u64) -> DevicePtr {
        self.sim.allocate(self.device, bytes).unwrap()
    }

    pub(crate) fn stream(&self) -> RawStream {
        self.sim.stream_create(self.device, 0).unwrap()
    }

    pub(crate) fn event(&self) -> RawEvent {
        self.sim.event_create(self.device).unwrap()
    }

    pub(crate) fn fill(&self, stream: RawStream, dst: DevicePtr, byte: u8, count: u64) {
        self.fill_with(stream, dst, Pattern::U8(byte), count);
    }

    /// Fills, where that may be refused.
    pub(crate) fn try_fill(&self, stream: RawStream, dst: DevicePtr, byte: u8, count: u64) -> DriverResult<()> {
        // SAFETY: the simulator checks it.
        unsafe { self.sim.fill(self.device, stream, dst, Pattern::U8(byte), count) }
    }

    pub(crate) fn host(&self, stream: RawStream, run: impl FnOnce() + Send + 'static) {
        self.host_function(stream, HostFunction::new(run));
    }

    /// Orders everything that follows on `after` behind everything on `before`.
    pub(crate) fn order(&self, before: RawStream, after: RawStream) {
        let event = self.event();
        self.record(event, before);
        self.wait(after, event);
        self.destroy_event(event);
    }

    pub(crate) fn granted(&self, ptr: DevicePtr, bytes: u64, stream: RawStream, tag: AllocTag) {
        self.note(Note::Granted { ptr, bytes, stream, tag });
    }

    pub(crate) fn freed(&self, ptr: DevicePtr, stream: RawStream) {
        self.note(Note::Freed { ptr, stream, home: stream });
    }

    pub(crate) fn note(&self, note: Note) {
        // SAFETY: the simulator checks it.
        unsafe { self.sim.note(self.device, note) };
    }

    pub(crate) fn reserve(&self, bytes: u64) -> DevicePtr {
        self.sim.address_reserve(self.device, bytes, 0).unwrap()
    }

    pub(crate) fn pages(&self, bytes: u64) -> RawPages {
        self.sim.pages_create(self.device, bytes).unwrap()
    }

    /// Maps one accessible page at `ptr`.
    pub(crate) fn mapped(&self, ptr: DevicePtr) -> RawPages {
        let pages = self.pages(PAGE);
        self.map(ptr, PAGE, pages);
        self.allow(ptr, PAGE);
        pages
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Host {
        let flags = HostFlags::default();
        Host(self.sim.host_allocate(self.device, bytes, flags).unwrap())
    }

    pub(crate) fn register(&self, memory: &mut [u8]) -> DriverResult<()> {
        // SAFETY: the tests unregister before the memory goes.
        unsafe { self.sim.host_register(self.device, memory.as_mut_ptr(), memory.len(), HostFlags::default()) }
    }

    pub(crate) fn used(&self) -> u64 {
        self.sim.memory(self.device).unwrap().used().get()
    }

    pub(crate) fn peek(&self, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
        self.sim.peek(ptr, bytes)
    }

    /// Returns the only hazard.
    #[track_caller]
    pub(crate) fn only_hazard(&self) -> Hazard {
        let hazards = self.sim.take_hazards();
        let words: Vec<String> = hazards.iter().map(ToString::to_string).collect();
        assert_eq!(hazards.len(), 1, "{}", words.join("\n"));
        hazards[0]
    }
}

/// Pinned memory.
#[derive(Clone, Copy)]
pub(crate) struct Host(pub(crate) *mut u8);

impl Host {
    pub(crate) fn write(self, at: usize, byte: u8) {
        let place = self.0.wrapping_add(at);
        // SAFETY: the tests stay inside what they allocated.
        unsafe { place.write(byte) };
    }

    pub(crate) fn read(self, at: usize) -> u8 {
        let place = self.0.wrapping_add(at);
        // SAFETY: as above.
        unsafe { place.read() }
    }
}
