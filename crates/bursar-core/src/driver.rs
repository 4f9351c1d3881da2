//! The port: everything that Bursar asks of a device driver.
//!
//! Everything above this file runs unchanged on any implementation. Handles are words that only their driver
//! understands. Contexts are the driver's own concern: every call names its device and works on any thread, whatever
//! another library made current there.
//!
//! # Stream order
//! A stream runs what is submitted to it in order; work on different streams is unordered unless an event, a
//! synchronisation or the legacy default stream orders it. Calls marked *stream-ordered* only submit. The streams made
//! here do not block on the legacy default stream ([`RawStream::LEGACY`]), which synchronises only with blocking
//! streams that others made.
#![allow(unsafe_code)]

mod counting;
mod error;
mod host_function;
mod host_memory;
mod methods;
mod simulated;
mod values;

pub use counting::CountingDriver;
pub use error::{DriverError, Status};
pub use host_function::{Gate, HostFunction};
pub use host_memory::{HostElements, HostMemory};
pub use simulated::{DeviceRange, SimulatedBytes, SimulatedKernel, SimulatedMemory};
pub use values::{
    HostFlags, Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
};

use crate::{DeviceFacts, DeviceId, DevicePtr, Link, MemoryInfo};
use std::fmt;

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A device driver.
///
/// No method has a default body, so that a wrapper which forgets one does not compile. No method may be called from a
/// [`HostFunction`]. Allocating zero bytes is [`Status::InvalidValue`](crate::Status::InvalidValue); copying or filling
/// zero bytes is allowed, and waits for nothing.
///
/// # Safety
/// - Memory returned by a successful call overlaps nothing else that the driver has handed out and not been given back.
/// - A handle that was returned is valid until it is destroyed through this driver.
/// - A host pointer from [`host_allocate`](Self::host_allocate) is valid for reads and writes of the requested size, by
///   any thread, until [`host_free`](Self::host_free).
pub unsafe trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Returns the driver's name and version, for people.
    fn describe(&self) -> String;

    /// Returns the number of devices.
    fn device_count(&self) -> u32;

    /// Returns the facts about a device that do not change.
    fn facts(&self, device: DeviceId) -> DriverResult<DeviceFacts>;

    /// Returns how much memory is free right now, whoever holds the rest.
    fn memory(&self, device: DeviceId) -> DriverResult<MemoryInfo>;

    /// Returns the links from `device` that the machine reports; a device that is not among them is at an unknown
    /// distance.
    fn links(&self, device: DeviceId) -> DriverResult<Vec<Link>>;

    /// Makes the device usable and returns the raw handle of its primary context. Each call is matched by one
    /// [`close`](Self::close).
    fn open(&self, device: DeviceId) -> DriverResult<RawContext>;

    /// Undoes one [`open`](Self::open).
    ///
    /// # Safety
    /// If it is the last one, nothing of the device is used any more, and its memory has been freed.
    unsafe fn close(&self, device: DeviceId) -> DriverResult<()>;

    /// Returns the sticky error the device is under, if one has been seen.
    fn last_error(&self, device: DeviceId) -> Option<DriverError>;

    /// Returns whether the driver uses [notes](Self::note); where it does not, they need not be sent.
    fn listens(&self) -> bool;

    /// Tells the driver which ranges are blocks.
    ///
    /// # Safety
    /// The range lies in memory of this driver on `device`, and its caller owns it.
    unsafe fn note(&self, device: DeviceId, note: Note);

    /// Returns whether the driver runs kernels from what they declare ([`simulate`](Self::simulate)), as a simulator
    /// does, instead of device code.
    fn simulates(&self) -> bool;

    /// Allocates device memory, aligned to at least 256 bytes and usable on every stream at once.
    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr>;

    /// Frees memory of [`allocate`](Self::allocate), after waiting for all work of the device.
    ///
    /// # Safety
    /// `ptr` came from `allocate` on `device` and is freed once; nothing submitted later touches it.
    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()>;

    /// Stream-ordered: allocates device memory, aligned to at least 256 bytes and usable by work ordered after this.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr>;

    /// Stream-ordered: frees memory of [`allocate_async`](Self::allocate_async).
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. `ptr` came from `allocate_async` on `device` and is freed once; every use
    /// of it is ordered before this.
    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()>;

    /// Creates a stream that does not block on the legacy default stream. `priority` is within
    /// [`DeviceFacts::stream_priorities`].
    fn stream_create(&self, device: DeviceId, priority: i32) -> DriverResult<RawStream>;

    /// Returns the number by which the driver's own reports name a live stream, where it makes any: contexts name the
    /// stream by the same one.
    fn stream_number(&self, device: DeviceId, stream: RawStream) -> Option<u32>;

    /// Destroys a stream; work already on it still runs.
    ///
    /// # Safety
    /// `stream` came from [`stream_create`](Self::stream_create) on `device` and is not used again.
    unsafe fn stream_destroy(&self, device: DeviceId, stream: RawStream) -> DriverResult<()>;

    /// Returns whether everything submitted to the stream so far has run.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress>;

    /// Waits until everything submitted to the stream so far has run.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()>;

    /// Stream-ordered: what follows on `stream` waits for the latest record of `event`; at once if there is none.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`, and `event` a live event of this driver.
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()>;

    /// Returns whether the stream is being captured into a graph.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn stream_is_capturing(&self, device: DeviceId, stream: RawStream) -> DriverResult<bool>;

    /// Makes a call of this thread that captures under way would forbid, in whichever mode they are: one that concerns none of
    /// their streams.
    fn beside_captures(&self, call: &mut dyn FnMut());

    /// Begins to capture a stream into a graph, in the relaxed mode. Until [`capture_end`](Self::capture_end), what is
    /// submitted to it becomes part of the graph instead of being run. So does what is submitted to streams that wait for
    /// an event of the capture; before its end, the stream that it began on waits for each of them.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`, and not the legacy default stream.
    unsafe fn capture_begin(&self, device: DeviceId, stream: RawStream) -> DriverResult<()>;

    /// Ends the capture that began on a stream, and returns its graph. A capture that something has made invalid fails,
    /// as does one that a stream has not come back to; both have ended then.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn capture_end(&self, device: DeviceId, stream: RawStream) -> DriverResult<RawGraph>;

    /// Makes a graph ready to be launched. The graph itself is not needed afterwards.
    ///
    /// # Safety
    /// `graph` is a live graph of `device`.
    unsafe fn graph_instantiate(&self, device: DeviceId, graph: RawGraph) -> DriverResult<RawGraphExec>;

    /// Destroys a graph; what was instantiated from it stays.
    ///
    /// # Safety
    /// `graph` came from [`capture_end`](Self::capture_end) on `device` and is not used again.
    unsafe fn graph_destroy(&self, device: DeviceId, graph: RawGraph) -> DriverResult<()>;

    /// Stream-ordered: runs everything in a graph, after its earlier launches. What follows on `stream` comes after all
    /// of it.
    ///
    /// # Safety
    /// `stream` is a live stream and `graph` a live graph of `device`. All memory that the graph uses is valid until it
    /// has run, and ordered.
    unsafe fn graph_launch(&self, device: DeviceId, graph: RawGraphExec, stream: RawStream) -> DriverResult<()>;

    /// Destroys a graph that was instantiated; launches that were submitted still run.
    ///
    /// # Safety
    /// `graph` came from [`graph_instantiate`](Self::graph_instantiate) on `device` and is not used again.
    unsafe fn graph_exec_destroy(&self, device: DeviceId, graph: RawGraphExec) -> DriverResult<()>;

    /// Creates an event without timing.
    fn event_create(&self, device: DeviceId) -> DriverResult<RawEvent>;

    /// Destroys an event; waits that were submitted for it stay in place.
    ///
    /// # Safety
    /// `event` came from [`event_create`](Self::event_create) on `device` and is not used again.
    unsafe fn event_destroy(&self, device: DeviceId, event: RawEvent) -> DriverResult<()>;

    /// Stream-ordered: marks this point of the stream, replacing the event's earlier record.
    ///
    /// # Safety
    /// `stream` is a live stream and `event` a live event of `device`.
    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()>;

    /// Returns whether the stream has passed the latest record; complete if there is none.
    ///
    /// # Safety
    /// `event` is a live event of `device`.
    unsafe fn event_query(&self, device: DeviceId, event: RawEvent) -> DriverResult<Progress>;

    /// Waits until the stream has passed the latest record.
    ///
    /// # Safety
    /// `event` is a live event of `device`.
    unsafe fn event_synchronize(&self, device: DeviceId, event: RawEvent) -> DriverResult<()>;

    /// Reserves a range of addresses with no memory behind it. `bytes` and `align` are multiples of the page
    /// granularity; an `align` of zero leaves it to the driver.
    fn address_reserve(&self, device: DeviceId, bytes: u64, align: u64) -> DriverResult<DevicePtr>;

    /// Releases a reserved range of addresses.
    ///
    /// # Safety
    /// Exactly a range that [`address_reserve`](Self::address_reserve) returned, with nothing mapped in it.
    unsafe fn address_release(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()>;

    /// Creates physical memory that can be mapped; `bytes` is a multiple of the page granularity.
    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages>;

    /// Releases physical memory. It is free once it is mapped nowhere.
    ///
    /// # Safety
    /// `pages` came from [`pages_create`](Self::pages_create) on `device` and is released once.
    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()>;

    /// Maps all of `pages` at `ptr`, wherever else they are mapped; it may not be touched before
    /// [`pages_allow`](Self::pages_allow).
    ///
    /// # Safety
    /// `ptr .. ptr + bytes` is reserved on `device` and nothing is mapped there; `bytes` is the size of `pages`, which
    /// is live. No other thread maps, unmaps or releases the same pages meanwhile: CUDA does not count that well.
    unsafe fn pages_map(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, pages: RawPages) -> DriverResult<()>;

    /// Lets the device read and write a mapped range.
    ///
    /// # Safety
    /// Pages are mapped in all of `ptr .. ptr + bytes`, which begins and ends at the border of one.
    unsafe fn pages_allow(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()>;

    /// Unmaps a range, at once and without waiting for work.
    ///
    /// # Safety
    /// Pages are mapped in all of `ptr .. ptr + bytes`, which begins and ends at the border of one, and all work that
    /// touches it has run.
    unsafe fn pages_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()>;

    /// Allocates pinned host memory that every device can reach.
    fn host_allocate(&self, device: DeviceId, bytes: usize, flags: HostFlags) -> DriverResult<*mut u8>;

    /// Frees pinned host memory.
    ///
    /// # Safety
    /// `ptr` came from [`host_allocate`](Self::host_allocate) and is freed once; nothing touches it any more.
    unsafe fn host_free(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()>;

    /// Pins existing host memory so that every device can reach it.
    ///
    /// # Safety
    /// `ptr .. ptr + bytes` is mapped and stays so until [`host_unregister`](Self::host_unregister).
    unsafe fn host_register(&self, device: DeviceId, ptr: *mut u8, bytes: usize, flags: HostFlags) -> DriverResult<()>;

    /// Unpins memory that [`host_register`](Self::host_register) pinned, after waiting for all work of the device.
    ///
    /// # Safety
    /// `ptr` was registered and is unregistered once.
    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()>;

    /// Returns the address at which `device` reaches pinned host memory, for as long as that is pinned. An address that is
    /// not pinned is refused.
    fn host_device_pointer(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<DevicePtr>;

    /// Stream-ordered: copies host memory to device memory. Pageable memory may be read before this returns.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. Both ranges are valid until the copy has run, ordered before whoever
    /// touches them next, and `src` is not written until then.
    unsafe fn copy_to_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
    ) -> DriverResult<()>;

    /// Stream-ordered: copies device memory to host memory. For pageable memory this returns when the copy has run.
    ///
    /// # Safety
    /// As for [`copy_to_device`](Self::copy_to_device), and nobody reads or writes `dst` until the copy has run.
    unsafe fn copy_to_host(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()>;

    /// Stream-ordered: copies device memory to device memory; either side may be another device's.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. The ranges do not overlap, and both are valid and ordered.
    unsafe fn copy_on_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()>;

    /// Stream-ordered: copies memory of one device to memory of another, both open; `device` is either of them. Fails
    /// with [`Status::NotSupported`] where the two cannot reach each other: then the copy goes through the host.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. The ranges do not overlap, and both are valid and ordered.
    unsafe fn copy_peer(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: PeerPtr,
        src: PeerPtr,
        bytes: u64,
    ) -> DriverResult<()>;

    /// Stream-ordered: repeats `pattern` `count` times from `dst` on.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. The range is valid, ordered, and aligned to the width of the pattern.
    unsafe fn fill(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        pattern: Pattern,
        count: u64,
    ) -> DriverResult<()>;

    /// Stream-ordered: runs host code. On a stream that is being captured only a function that
    /// [repeats](HostFunction::repeating) can be part of the graph, and a driver may refuse that too.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn host_function(&self, device: DeviceId, stream: RawStream, function: HostFunction) -> DriverResult<()>;

    /// Stream-ordered: runs a kernel from what it declares. A driver that does not [simulate](Self::simulates) fails
    /// with [`Status::NotSupported`].
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn simulate(&self, device: DeviceId, stream: RawStream, kernel: SimulatedKernel) -> DriverResult<()>;
}
