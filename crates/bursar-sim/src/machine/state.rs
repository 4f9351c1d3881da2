//! The state of the simulated machine, behind one lock.

use super::captures::{CapturedRecord, Graphs};
use super::device::{Device, Pages, addresses};
use super::eager_space::EagerAddressSpace;
use super::heap::Heap;
use super::pools::Pool;
use super::queues::{QueuedWork, StreamPoint};
use super::shared_usage::SharedUsage;
use super::sparse::SparseBytes;
use crate::call_log::{CALLS_KEPT, CallLog};
use crate::host_memory::PinnedMap;
use crate::operation::CallResult;
use crate::oracle::{Oracle, VectorClock};
use crate::random::{Random, mix};
use crate::{Executor, KernelPanic};
use bursar_core::{DeviceId, RawEvent, RawPages, RawStream, Status};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The first handle of a created stream; smaller ones are the default streams.
const FIRST_STREAM: u64 = 0x10;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) executor: Executor,
    /// True if it synchronises with the legacy default stream.
    pub(crate) is_blocking: bool,
    pub(crate) is_alive: bool,
    /// True once it was destroyed and the host knows all its work to have run: nobody needs to wait for it any more.
    pub(crate) is_over: bool,
    /// The capture that it is part of.
    pub(crate) capture: Option<u64>,
    /// True for a stream that runs a lane of graphs, which has no handle.
    pub(crate) is_lane: bool,
    /// True while a host function of it is running, with the lock released.
    pub(crate) is_busy: bool,
    pub(crate) queue: VecDeque<QueuedWork>,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

impl Stream {
    fn new(device: usize, executor: Executor, is_blocking: bool) -> Self {
        Self {
            device,
            executor,
            is_blocking,
            is_alive: true,
            is_over: false,
            capture: None,
            is_lane: false,
            is_busy: false,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.completed == self.submitted
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) record: Option<StreamPoint>,
    pub(crate) clock: VectorClock,
    /// Its last record, if that was in a capture.
    pub(crate) captured: Option<CapturedRecord>,
}

/// The state of the machine, apart from the heaps of an immediate simulator.
#[derive(Debug)]
pub(crate) struct MachineState {
    pub(crate) random: Random,
    fresh: u8,
    pub(crate) devices: Vec<Device>,
    /// The streams; the legacy default streams come first, by device.
    pub(crate) streams: Vec<Stream>,
    /// The streams that have queued work.
    pub(crate) active: Vec<usize>,
    pub(crate) events: HashMap<u64, Event>,
    next_event: u64,
    pub(crate) pages: BTreeMap<u64, Pages>,
    next_pages: u64,
    pub(crate) graphs: Graphs,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(super) next_pool: u64,
    /// The pool of each allocation that is in one.
    pub(crate) pool_of: HashMap<u64, u64>,
    pub(crate) pinned: PinnedMap,
    /// The memory that other processes hold of devices with a name.
    pub(crate) share: Option<SharedUsage>,
    /// The oracle; `None` for an immediate simulator.
    pub(crate) oracle: Option<Oracle>,
    pub(crate) log: CallLog,
    /// The kernels that panicked, of which the first are kept.
    pub(crate) kernel_panics: Vec<KernelPanic>,
    /// The number of reasons why an immediate simulator must not take shortcuts: queued work, captures, lost devices, and a
    /// name, which makes other processes count.
    pub(crate) shortcut_blockers: Arc<AtomicUsize>,
}

impl MachineState {
    pub(crate) fn new(seed: Option<u64>, heaps: &[Arc<Mutex<Heap>>], shortcut_blockers: Arc<AtomicUsize>) -> Self {
        let fresh = seed.map_or(0xa5, |seed| 0x80 | mix(seed) as u8);
        let device = |(index, heap): (usize, &Arc<Mutex<Heap>>)| {
            let (allocations, reservations) = addresses(index);
            Device {
                heap: heap.clone(),
                space: EagerAddressSpace::new(allocations.start, allocations.end),
                store: SparseBytes::new(fresh),
                shared: BTreeMap::new(),
                reservations: BTreeMap::new(),
                spare_reservations: Vec::new(),
                next_reservation: reservations.start,
                mappings: BTreeMap::new(),
                opened: 0,
                is_lost: false,
                is_touched: false,
            }
        };
        let mut state = Self {
            random: Random::new(seed.unwrap_or(0)),
            fresh,
            devices: heaps.iter().enumerate().map(device).collect(),
            streams: Vec::new(),
            active: Vec::new(),
            events: HashMap::new(),
            next_event: 1,
            pages: BTreeMap::new(),
            next_pages: 1,
            graphs: Graphs::default(),
            pools: BTreeMap::new(),
            next_pool: 1,
            pool_of: HashMap::new(),
            pinned: PinnedMap::default(),
            share: None,
            oracle: seed.map(|_| Oracle::new(heaps.len())),
            log: CallLog::new(CALLS_KEPT),
            kernel_panics: Vec::new(),
            shortcut_blockers,
        };
        for index in 0..heaps.len() {
            state.add_stream(Stream::new(index, Executor::DefaultStream, false));
        }
        state
    }

    pub(crate) fn block_shortcuts(&self) {
        self.shortcut_blockers.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn unblock_shortcuts(&self) {
        self.shortcut_blockers.fetch_sub(1, Ordering::AcqRel);
    }

    fn add_stream(&mut self, stream: Stream) {
        self.streams.push(stream);
        if let Some(oracle) = &mut self.oracle {
            oracle.add_stream();
        }
    }

    pub(crate) fn create_stream(&mut self, device: usize, is_blocking: bool) -> RawStream {
        let created = self.streams.len() - self.devices.len();
        let is_numbered = |stream: &&Stream| stream.device == device && !stream.is_lane;
        let on_device = self.streams.iter().filter(is_numbered).count();
        self.add_stream(Stream::new(device, Executor::Stream(on_device as u32), is_blocking));
        RawStream(FIRST_STREAM + created as u64)
    }

    /// Creates a stream without a handle, for the lane of a graph.
    pub(crate) fn create_lane(&mut self, device: usize, executor: Executor) -> usize {
        self.add_stream(Stream { is_alive: false, is_lane: true, ..Stream::new(device, executor, false) });
        self.streams.len() - 1
    }

    /// Returns the index of a handle, on whichever device.
    fn index_of(&self, device: usize, raw: RawStream) -> Option<usize> {
        match raw.0 {
            0 => Some(device),
            _ if raw == RawStream::LEGACY => Some(device),
            handle => usize::try_from(handle.checked_sub(FIRST_STREAM)?).ok()?.checked_add(self.devices.len()),
        }
    }

    /// Returns the stream of a handle, if it is alive on the device.
    pub(crate) fn stream(&self, device: usize, raw: RawStream) -> CallResult<usize> {
        let index = self.index_of(device, raw).ok_or(Status::InvalidHandle)?;
        match self.streams.get(index) {
            Some(stream) if stream.is_alive && stream.device == device => Ok(index),
            _ => Err(Status::InvalidHandle),
        }
    }

    /// Returns the stream of a handle, for a call that a capture cannot have: where the stream is being captured, that
    /// spoils the capture.
    pub(crate) fn open_stream(&mut self, device: usize, raw: RawStream) -> CallResult<usize> {
        let index = self.stream(device, raw)?;
        if self.is_capturing(index) {
            self.spoil_capture(index);
            return Err(Status::Capturing);
        }
        self.check_implicit(index)?;
        Ok(index)
    }

    /// Returns the stream of a handle, for memory in the order of the stream, which is not captured here.
    pub(crate) fn memory_stream(&mut self, device: usize, raw: RawStream) -> CallResult<usize> {
        let index = self.stream(device, raw)?;
        if self.is_capturing(index) { Err(Status::Capturing) } else { self.open_stream(device, raw) }
    }

    /// Returns the stream of a handle, for work that is run or captured.
    pub(crate) fn work_stream(&mut self, device: usize, raw: RawStream) -> CallResult<usize> {
        let index = self.stream(device, raw)?;
        if self.is_capturing(index) { Ok(index) } else { self.open_stream(device, raw) }
    }

    /// Returns the name of a handle for the log.
    pub(crate) fn executor_of(&self, device: DeviceId, raw: RawStream) -> Executor {
        let index = self.index_of(device.0 as usize, raw);
        let stream = index.and_then(|index| self.streams.get(index));
        stream.map_or(Executor::Unknown(raw.0), |stream| stream.executor)
    }

    pub(crate) fn create_event(&mut self, device: usize) -> RawEvent {
        let raw = self.next_event;
        self.next_event += 1;
        let event = Event { device, record: None, clock: VectorClock::default(), captured: None };
        self.events.insert(raw, event);
        RawEvent(raw)
    }

    /// Returns an event, if it is alive on the device.
    pub(crate) fn event(&self, device: usize, raw: RawEvent) -> CallResult<&Event> {
        let event = self.events.get(&raw.0).filter(|event| event.device == device);
        event.ok_or(Status::InvalidHandle)
    }

    pub(crate) fn create_pages(&mut self, device: usize, bytes: u64) -> RawPages {
        let store = SparseBytes::new(self.fresh);
        self.add_pages(Pages { device, bytes, store, mappings: 0, is_released: false, is_counted: true })
    }

    pub(crate) fn add_pages(&mut self, pages: Pages) -> RawPages {
        let raw = self.next_pages;
        self.next_pages += 1;
        self.pages.insert(raw, pages);
        RawPages(raw)
    }

    /// Drops physical memory that is released and mapped nowhere.
    pub(crate) fn drop_pages_if_unused(&mut self, raw: u64) {
        let is_unused = |pages: &Pages| pages.is_released && pages.mappings == 0;
        if self.pages.get(&raw).is_some_and(is_unused)
            && let Some(pages) = self.pages.remove(&raw)
            && pages.is_counted
        {
            self.release_capacity(pages.device, pages.bytes);
        }
    }
}
