//! The kinds of driver calls, sets of them, and a count of each.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! calls {
    ($($call:ident = $method:ident),* $(,)?) => {
        /// A kind of driver call: one for each method of [`Driver`](bursar_core::Driver).
        ///
        /// ```
        /// use bursar::sim::Call;
        ///
        /// assert_eq!(Call::AllocateAsync.to_string(), "allocate_async");
        /// assert!(Call::ALL.contains(&Call::AllocateAsync));
        /// assert!(Call::AllocateAsync.can_fail() && !Call::AllocateAsync.is_submission());
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Call {
            $(
                #[doc = concat!("[`Driver::", stringify!($method), "`](bursar_core::Driver::", stringify!($method), ").")]
                $call,
            )*
        }

        impl Call {
            /// Every kind, in the order of the [`Driver`](bursar_core::Driver) methods.
            pub const ALL: &[Self] = &[$(Self::$call),*];

            /// Returns the name of the method, which an injected error also names.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$call => stringify!($method),)*
                }
            }
        }
    };
}

calls! {
    Describe = describe,
    DeviceCount = device_count,
    Facts = facts,
    Memory = memory,
    Links = links,
    Open = open,
    Close = close,
    LastError = last_error,
    Listens = listens,
    Note = note,
    Simulates = simulates,
    Allocate = allocate,
    Free = free,
    AllocateAsync = allocate_async,
    FreeAsync = free_async,
    StreamCreate = stream_create,
    StreamDestroy = stream_destroy,
    StreamQuery = stream_query,
    StreamSynchronize = stream_synchronize,
    StreamWait = stream_wait,
    StreamIsCapturing = stream_is_capturing,
    CaptureBegin = capture_begin,
    CaptureEnd = capture_end,
    GraphInstantiate = graph_instantiate,
    GraphDestroy = graph_destroy,
    GraphLaunch = graph_launch,
    GraphExecDestroy = graph_exec_destroy,
    EventCreate = event_create,
    EventDestroy = event_destroy,
    EventRecord = event_record,
    EventQuery = event_query,
    EventSynchronize = event_synchronize,
    AddressReserve = address_reserve,
    AddressRelease = address_release,
    PagesCreate = pages_create,
    PagesRelease = pages_release,
    PagesMap = pages_map,
    PagesAllow = pages_allow,
    PagesUnmap = pages_unmap,
    HostAllocate = host_allocate,
    HostFree = host_free,
    HostRegister = host_register,
    HostUnregister = host_unregister,
    HostDevicePointer = host_device_pointer,
    CopyToDevice = copy_to_device,
    CopyToHost = copy_to_host,
    CopyOnDevice = copy_on_device,
    CopyPeer = copy_peer,
    Fill = fill,
    HostFunction = host_function,
    Simulate = simulate,
}

impl Call {
    /// Returns whether the call can fail. Calls that cannot need no device.
    pub const fn can_fail(self) -> bool {
        !matches!(
            self,
            Self::Describe | Self::DeviceCount | Self::LastError | Self::Listens | Self::Note | Self::Simulates
        )
    }

    /// Returns whether the call only submits work to a stream and neither allocates nor frees, so that its result may be
    /// lost.
    pub const fn is_submission(self) -> bool {
        matches!(
            self,
            Self::StreamWait
                | Self::EventRecord
                | Self::GraphLaunch
                | Self::CopyToDevice
                | Self::CopyToHost
                | Self::CopyOnDevice
                | Self::CopyPeer
                | Self::Fill
                | Self::HostFunction
                | Self::Simulate
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of kinds.
#[derive(Clone, Copy)]
pub(super) struct Calls(u64);

const _: () = assert!(Call::ALL.len() <= u64::BITS as usize, "a set is one word");

impl Calls {
    pub(super) fn of(calls: impl IntoIterator<Item = Call>) -> Self {
        Self(calls.into_iter().fold(0, |bits, call| bits | 1 << call as u32))
    }

    pub(super) const fn contains(self, call: Call) -> bool {
        self.0 & 1 << call as u32 != 0
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Call::ALL.iter().filter(|call| self.contains(**call))).finish()
    }
}

/// The number of calls of each kind.
pub(super) struct Counts([AtomicU64; Call::ALL.len()]);

impl Counts {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; Call::ALL.len()])
    }

    #[inline]
    pub(super) fn add(&self, call: Call) {
        self.0[call as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self, call: Call) -> u64 {
        self.0[call as usize].load(Relaxed)
    }

    pub(super) fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Relaxed));
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = Call::ALL.iter().map(|&call| (call, self.get(call)));
        f.debug_map().entries(made.filter(|(_, count)| *count > 0)).finish()
    }
}
