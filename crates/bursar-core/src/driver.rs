//! The port contract: what Bursar asks of a device driver, and nothing else.
//!
//! Everything above this file runs unchanged on any implementation. Handles are words that only their driver
//! understands. Contexts are the driver's own business: every call names its device and works on any thread, whatever
//! another library made current there.
//!
//! # Stream order
//! A stream runs what is submitted to it in order; work on different streams is unordered unless an event, a
//! synchronisation or the legacy default stream orders it. Calls marked *stream-ordered* only submit. The streams made
//! here do not block on the legacy default stream ([`RawStream::LEGACY`]), which synchronises only with blocking streams
//! that others made.
#![allow(unsafe_code)]

use crate::{AllocTag, DeviceFacts, DeviceId, DriverError, Link, MemoryInfo};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// An address in device memory; never dereferenced on the host.
///
/// ```
/// use bursar_core::DevicePtr;
///
/// assert_eq!(DevicePtr(0x200).offset(0x100), DevicePtr(0x300));
/// assert_eq!(DevicePtr(0x200).to_string(), "0x200");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    )* };
}

handles! {
    /// A driver's handle of a stream.
    ///
    /// ```
    /// assert_ne!(bursar_core::RawStream::LEGACY, bursar_core::RawStream::PER_THREAD);
    /// ```
    RawStream,
    /// A driver's handle of an event.
    ///
    /// ```
    /// assert_eq!(bursar_core::RawEvent(7).0, 7);
    /// ```
    RawEvent,
    /// A driver's handle of physical memory that can be mapped.
    ///
    /// ```
    /// assert_eq!(bursar_core::RawPages(7).0, 7);
    /// ```
    RawPages,
    /// A driver's handle of a device's primary context, for other libraries in the process.
    ///
    /// ```
    /// assert_eq!(bursar_core::RawContext(7).0, 7);
    /// ```
    RawContext,
}

impl RawStream {
    /// The legacy default stream of a device.
    pub const LEGACY: Self = Self(1);
    /// The per-thread default stream, which nothing here accepts: it is a different stream on each thread.
    pub const PER_THREAD: Self = Self(2);
}

/// How far something submitted has come.
///
/// ```
/// use bursar_core::Progress;
///
/// assert!(Progress::Complete.is_complete());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything asked about has run.
    Complete,
    /// Something has not.
    Pending,
}

impl Progress {
    /// Whether everything asked about has run.
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Complete)
    }
}

/// The kinds of host memory a driver can make, or make of existing memory.
///
/// ```
/// use bursar_core::HostFlags;
///
/// assert!(!HostFlags::default().write_combined);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFlags {
    /// Fast for the device to read across the bus, very slow for the CPU to read.
    pub write_combined: bool,
}

/// What a fill repeats.
///
/// ```
/// use bursar_core::Pattern;
///
/// assert_eq!(Pattern::U32(1).width(), 4);
/// assert_eq!(Pattern::U16(0xff01).bytes().as_ref(), 0xff01u16.to_ne_bytes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    U8(u8),
    /// Two bytes, at an even address.
    U16(u16),
    /// Four bytes, at an address divisible by four.
    U32(u32),
}

impl Pattern {
    /// How many bytes it is wide.
    pub const fn width(self) -> u64 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }

    /// Its bytes in memory order.
    pub fn bytes(self) -> impl AsRef<[u8]> {
        struct Of([u8; 4], usize);
        impl AsRef<[u8]> for Of {
            fn as_ref(&self) -> &[u8] {
                &self.0[..self.1]
            }
        }
        let mut bytes = [0; 4];
        let width = self.width() as usize;
        match self {
            Self::U8(value) => bytes[0] = value,
            Self::U16(value) => bytes[..2].copy_from_slice(&value.to_ne_bytes()),
            Self::U32(value) => bytes.copy_from_slice(&value.to_ne_bytes()),
        }
        Of(bytes, width)
    }
}

/// A gate that is shut until someone opens it, once and for good.
///
/// ```
/// use bursar_core::Gate;
///
/// let gate = Gate::default();
/// assert!(!gate.is_open());
/// gate.open();
/// gate.wait();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gate {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    /// Opens it; everyone waiting goes on.
    pub fn open(&self) {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.1.notify_all();
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once it is open.
    pub fn wait(&self) {
        let mut open = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*open {
            open = self.shared.1.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Host code that runs in stream order. It must not call the driver, and a panic in it is caught and dropped by the
/// driver, since it unwinds into foreign code.
///
/// ```
/// use bursar_core::{Gate, HostFunction};
///
/// let gate = Gate::default();
/// let function = HostFunction::behind(gate.clone(), || ());
/// assert!(!function.is_ready());
/// gate.open();
/// function.call();
/// ```
pub struct HostFunction {
    gate: Option<Gate>,
    run: Box<dyn FnOnce() + Send>,
}

impl HostFunction {
    /// Runs `run` when the stream gets there.
    pub fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self { gate: None, run: Box::new(run) }
    }

    /// Holds the stream until `gate` opens, then runs `run`.
    pub fn behind(gate: Gate, run: impl FnOnce() + Send + 'static) -> Self {
        Self { gate: Some(gate), run: Box::new(run) }
    }

    /// The gate that holds it, if one does.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// Whether [`call`](Self::call) would run at once.
    pub fn is_ready(&self) -> bool {
        self.gate.as_ref().is_none_or(Gate::is_open)
    }

    /// Waits for the gate, then runs.
    pub fn call(self) {
        if let Some(gate) = &self.gate {
            gate.wait();
        }
        (self.run)();
    }
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// What the layers above tell a driver that listens ([`Driver::listens`]): which part of the memory it gave out is one
/// block now. A checker needs this to judge pools, whose blocks the driver never sees; hardware ignores it.
///
/// ```
/// use bursar_core::{AllocTag, DevicePtr, Note, RawStream};
///
/// let note = Note::Granted {
///     ptr: DevicePtr(0x1000),
///     bytes: 512,
///     stream: RawStream::LEGACY,
///     tag: AllocTag::UNTAGGED,
/// };
/// assert!(matches!(note, Note::Granted { bytes: 512, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// From this point of `stream` on, this range is one block.
    Granted {
        /// Where it begins.
        ptr: DevicePtr,
        /// How long it is.
        bytes: u64,
        /// The stream whose order the grant follows.
        stream: RawStream,
        /// What it is for.
        tag: AllocTag,
    },
    /// From this point of `stream` on, the block that began at `ptr` is nobody's.
    Freed {
        /// Where it began.
        ptr: DevicePtr,
        /// The stream whose order the free follows.
        stream: RawStream,
    },
}

/// What a driver answers with.
pub type DriverResult<T> = Result<T, DriverError>;

/// A device driver.
///
/// No method has a default body, so that a wrapper which forgets one does not compile. No method may be called from a
/// [`HostFunction`]. Asking for no memory at all is [`Status::InvalidValue`](crate::Status::InvalidValue); copying or
/// filling nothing is allowed, and waits for nothing.
///
/// # Safety
/// - Memory given out by a successful call overlaps nothing else the driver has given out and not got back.
/// - A handle given out is valid until it is destroyed through this driver.
/// - A host pointer from [`host_allocate`](Self::host_allocate) is valid for reads and writes of the size asked for, by
///   any thread, until [`host_free`](Self::host_free).
pub unsafe trait Driver: fmt::Debug + Send + Sync + 'static {
    /// The driver's name and version, for people.
    fn describe(&self) -> String;

    /// How many devices there are.
    fn device_count(&self) -> u32;

    /// What does not change about a device.
    fn facts(&self, device: DeviceId) -> DriverResult<DeviceFacts>;

    /// How much memory is free right now, whoever holds the rest.
    fn memory(&self, device: DeviceId) -> DriverResult<MemoryInfo>;

    /// The links from `device` that the machine reports; a device that is not in the answer is at an unknown distance.
    fn links(&self, device: DeviceId) -> DriverResult<Vec<Link>>;

    /// Makes the device usable and answers the raw handle of its primary context. Each call is matched by one
    /// [`close`](Self::close).
    fn open(&self, device: DeviceId) -> DriverResult<RawContext>;

    /// Undoes one [`open`](Self::open).
    ///
    /// # Safety
    /// If it is the last one, nothing that the device has given out is used any more, and memory has been freed.
    unsafe fn close(&self, device: DeviceId) -> DriverResult<()>;

    /// The sticky error the device is under, if one has been seen.
    fn last_error(&self, device: DeviceId) -> Option<DriverError>;

    /// Whether [`note`](Self::note) is worth calling.
    fn listens(&self) -> bool;

    /// Hears which ranges are blocks.
    ///
    /// # Safety
    /// The range lies in memory that this driver gave out on `device`, and its caller owns it.
    unsafe fn note(&self, device: DeviceId, note: Note);

    /// Allocates device memory, aligned to at least 256 bytes and usable on every stream at once.
    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<DevicePtr>;

    /// Frees what [`allocate`](Self::allocate) gave, after waiting for all work of the device.
    ///
    /// # Safety
    /// `ptr` came from `allocate` on `device` and is freed once; nothing submitted later touches it.
    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()>;

    /// Stream-ordered: allocates device memory, aligned to at least 256 bytes and usable by work ordered after this.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn allocate_async(&self, device: DeviceId, stream: RawStream, bytes: u64) -> DriverResult<DevicePtr>;

    /// Stream-ordered: frees what [`allocate_async`](Self::allocate_async) gave.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`. `ptr` came from `allocate_async` on `device` and is freed once; every use
    /// of it is ordered before this.
    unsafe fn free_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()>;

    /// Creates a stream that does not block on the legacy default stream. `priority` is within
    /// [`DeviceFacts::stream_priorities`].
    fn stream_create(&self, device: DeviceId, priority: i32) -> DriverResult<RawStream>;

    /// Destroys a stream; work already on it still runs.
    ///
    /// # Safety
    /// `stream` came from [`stream_create`](Self::stream_create) on `device` and is not used again.
    unsafe fn stream_destroy(&self, device: DeviceId, stream: RawStream) -> DriverResult<()>;

    /// Whether everything submitted to the stream so far has run.
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

    /// Whether the stream is being captured into a graph.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn stream_is_capturing(&self, device: DeviceId, stream: RawStream) -> DriverResult<bool>;

    /// Creates an event without timing.
    fn event_create(&self, device: DeviceId) -> DriverResult<RawEvent>;

    /// Destroys an event; whoever waits for it already goes on waiting.
    ///
    /// # Safety
    /// `event` came from [`event_create`](Self::event_create) on `device` and is not used again.
    unsafe fn event_destroy(&self, device: DeviceId, event: RawEvent) -> DriverResult<()>;

    /// Stream-ordered: marks this point of the stream, replacing the event's earlier record.
    ///
    /// # Safety
    /// `stream` is a live stream and `event` a live event of `device`.
    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()>;

    /// Whether the stream has passed the latest record; complete if there is none.
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

    /// Gives a reservation back.
    ///
    /// # Safety
    /// Exactly what [`address_reserve`](Self::address_reserve) gave, with nothing mapped in it.
    unsafe fn address_release(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> DriverResult<()>;

    /// Creates physical memory that can be mapped; `bytes` is a multiple of the page granularity.
    fn pages_create(&self, device: DeviceId, bytes: u64) -> DriverResult<RawPages>;

    /// Gives physical memory back. It is really free once it is mapped nowhere.
    ///
    /// # Safety
    /// `pages` came from [`pages_create`](Self::pages_create) on `device` and is released once.
    unsafe fn pages_release(&self, device: DeviceId, pages: RawPages) -> DriverResult<()>;

    /// Maps all of `pages` at `ptr`; nobody may touch it before [`pages_allow`](Self::pages_allow).
    ///
    /// # Safety
    /// `ptr .. ptr + bytes` is reserved on `device` and nothing is mapped there; `bytes` is the size of `pages`, which
    /// is live.
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

    /// Unpins what [`host_register`](Self::host_register) pinned, after waiting for all work of the device.
    ///
    /// # Safety
    /// `ptr` was registered and is unregistered once.
    unsafe fn host_unregister(&self, device: DeviceId, ptr: *mut u8) -> DriverResult<()>;

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

    /// Stream-ordered: runs host code.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    unsafe fn host_function(&self, device: DeviceId, stream: RawStream, function: HostFunction) -> DriverResult<()>;
}

/// Rounds up to a multiple of `to`, a power of two; `None` where it does not fit.
pub(crate) const fn round_up(bytes: u64, to: u64) -> Option<u64> {
    match bytes.checked_add(to - 1) {
        Some(sum) => Some(sum & !(to - 1)),
        None => None,
    }
}
