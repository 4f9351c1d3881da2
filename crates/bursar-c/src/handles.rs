//! The kinds of handles, the things that they stand for, and their lookup.

use crate::running::RunningCall;
use crate::status::{CallResult, Failure};
use crate::table::{SLOTS, Table};
use bursar::device::DeviceContext;
use bursar::driver::OpenedDriver;
use bursar::graph::{ForeignCapture, GraphMemory};
use bursar::host::PinnedPool;
use bursar::ledger::Reservation;
use bursar::memory::{DeviceBlock, DeviceMemoryResource};
use bursar::stream::{AdoptedStream, Stream, TrackedBlock};
use bursar::{Error, Ledgers, PagePool, Statistics};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

/// A driver that was opened.
#[derive(Debug)]
pub(crate) struct DriverOfCaller {
    pub(crate) opened: OpenedDriver,
    /// True if nothing is to be allocated.
    pub(crate) observes_only: bool,
}

/// A device that was opened.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) ledgers: Ledgers,
    /// The counts of its memory, unless they were declined.
    pub(crate) statistics: Option<Statistics>,
    /// True if nothing is to be allocated.
    pub(crate) observes_only: bool,
    /// The host memory that contents of what sleeps go to, once something slept.
    pub(crate) pinned: Mutex<Option<Arc<PinnedPool>>>,
}

impl Device {
    /// Fails where nothing is to be allocated, whichever driver it is.
    pub(crate) fn check_usable(&self) -> CallResult {
        let what = "memory and streams while its driver only observes";
        if self.observes_only { Err(Error::Unsupported { device: self.context.device(), what }.into()) } else { Ok(()) }
    }
}

/// The memory of a device.
#[derive(Debug)]
pub(crate) struct StackMemory {
    pub(crate) memory: Arc<dyn DeviceMemoryResource>,
    /// The pool, if it has one.
    pub(crate) pool: Option<PagePool>,
    /// The memory of graphs, if it is one.
    pub(crate) captured: Option<CapturedMemory>,
    /// The device, whose handle may be closed.
    pub(crate) device: Arc<Device>,
}

/// Memory for graphs that the caller captures.
#[derive(Debug)]
pub(crate) struct CapturedMemory {
    pub(crate) memory: GraphMemory,
    /// The capture under way.
    pub(crate) capture: Mutex<Option<ForeignCapture>>,
}

/// A stream, with what gives it back.
#[derive(Debug)]
pub(crate) struct StreamOfCaller {
    pub(crate) stream: Stream,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) origin: StreamOrigin,
}

/// The origin of a stream.
#[derive(Debug)]
pub(crate) enum StreamOrigin {
    /// One of ours, with its priority.
    Own(i32),
    /// One that somebody else made, until this is dropped.
    Adopted { _until: AdoptedStream },
}

/// A block that was allocated.
#[derive(Debug)]
pub(crate) struct HeldBlock {
    /// The number of its stack's handle.
    pub(crate) stack: u64,
    pub(crate) address: u64,
    pub(crate) token: BlockToken,
}

/// The token of a block, tracked once a use of it was recorded.
#[derive(Debug)]
pub(crate) enum BlockToken {
    Plain(DeviceBlock),
    Tracked(TrackedBlock),
    /// Between the two, and where a panic came in between.
    Absent,
}

impl BlockToken {
    pub(crate) fn block(&self) -> Option<&DeviceBlock> {
        match self {
            Self::Plain(block) => Some(block),
            Self::Tracked(tracked) => Some(tracked.block()),
            Self::Absent => None,
        }
    }
}

/// A way to give up a reservation that waits.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    pub(crate) is_cancelled: AtomicBool,
    waiting: Mutex<Vec<Thread>>,
}

impl Cancellation {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Thread>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters this thread among those that are woken.
    pub(crate) fn join(&self) {
        self.waiting().push(std::thread::current());
    }

    /// Removes this thread, once.
    pub(crate) fn leave(&self) {
        let (mut waiting, this) = (self.waiting(), std::thread::current().id());
        if let Some(at) = waiting.iter().position(|thread| thread.id() == this) {
            waiting.swap_remove(at);
        }
    }

    pub(crate) fn wake_all(&self) {
        self.waiting().iter().for_each(Thread::unpark);
    }
}

pub(crate) static DRIVERS: Kind<Arc<DriverOfCaller>> = Kind::new("driver", 1);
pub(crate) static DEVICES: Kind<Arc<Device>> = Kind::new("device", 2);
pub(crate) static STACKS: Kind<Arc<StackMemory>> = Kind::new("stack", 3);
pub(crate) static STREAMS: Kind<Arc<StreamOfCaller>> = Kind::new("stream", 4);
pub(crate) static BLOCKS: Kind<HeldBlock> = Kind::new("block", 5);
pub(crate) static RESERVATIONS: Kind<Arc<Reservation>> = Kind::new("reservation", 6);
pub(crate) static CANCELLATIONS: Kind<Arc<Cancellation>> = Kind::new("cancellation", 7);

/// A kind of handles.
pub(crate) struct Kind<T> {
    pub(crate) name: &'static str,
    pub(crate) table: Table<T>,
}

impl<T> Kind<T> {
    const fn new(name: &'static str, number: u8) -> Self {
        Self { name, table: Table::new(number) }
    }

    #[cold]
    pub(crate) fn stale(&self, id: u64) -> Box<Failure> {
        Box::new(Failure::Handle { kind: self.name, id })
    }

    #[cold]
    pub(crate) fn full(&self) -> Box<Failure> {
        Box::new(Failure::TooManyHandles { kind: self.name, max: SLOTS })
    }

    /// Returns what a handle stands for, which stays while the call runs.
    #[inline]
    pub(crate) fn get<'c>(&self, id: u64, call: &'c RunningCall) -> CallResult<&'c T> {
        match self.table.get(id, call) {
            Some(value) => Ok(value),
            None => Err(self.stale(id)),
        }
    }

    /// Enters a value and returns the number of its handle.
    pub(crate) fn insert(&self, value: T) -> CallResult<u64> {
        self.table.insert(value).map_err(|_| self.full())
    }
}

impl<T> Kind<Arc<T>> {
    /// Returns what a handle stands for, to be kept while the call waits for others: closing the handle does not wait for
    /// that.
    pub(crate) fn keep(&self, id: u64) -> CallResult<Arc<T>> {
        let call = RunningCall::begin();
        self.get(id, &call).cloned()
    }

    /// Closes a handle and returns what it stood for, once no running call uses it.
    pub(crate) fn close(&self, id: u64) -> CallResult<Arc<T>> {
        self.close_if(id, |_| Ok(()))
    }

    /// Closes a handle as [`close`](Self::close) does, unless `check`, which is called once no running call uses the value,
    /// returns an error: then the handle stays.
    pub(crate) fn close_if(&self, id: u64, check: impl FnOnce(&T) -> CallResult) -> CallResult<Arc<T>> {
        let settled = self.table.take(id).ok_or_else(|| self.stale(id))?.settle();
        if let Err(failure) = check(settled.value()) {
            settled.put_back();
            return Err(failure);
        }
        let (value, index) = settled.end();
        self.table.return_vacant(index.into_iter());
        Ok(value)
    }
}
