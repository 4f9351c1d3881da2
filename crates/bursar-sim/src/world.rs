//! The state of the simulated machine, behind one lock.

use crate::clock::Clock;
use crate::heap::{EagerSpace, Heap};
use crate::host::PinnedMap;
use crate::log::{KEPT, Log};
use crate::oracle::Oracle;
use crate::random::{Random, mix};
use crate::schedule::{Mark, Op};
use crate::share::Share;
use crate::sparse::{Sparse, Word};
use crate::{Operation, Place};
use bursar_core::{DeviceId, RawEvent, RawPages, RawStream, Status};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a call answers before its name and device are put to a failure.
pub(crate) type Answer<T> = Result<T, Status>;

/// How many addresses each device has; the upper half is for reservations.
const SPAN: u64 = 1 << 46;
/// How many addresses of a device are for allocations, and how many for reservations.
pub(crate) const ADDRESSES: u64 = SPAN / 2;
/// The first handle of a stream that was created; smaller ones are the default streams.
const FIRST_STREAM: u64 = 0x10;

/// The addresses of a device: those of allocations, and those of reservations.
pub(crate) fn addresses(device: usize) -> (Range<u64>, Range<u64>) {
    let base = (device as u64 + 1) * SPAN;
    (base..base + ADDRESSES, base + ADDRESSES..base + SPAN)
}

/// A driver call in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) name: &'static str,
    pub(crate) number: u64,
    pub(crate) device: usize,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl Caller {
    pub(crate) fn operation(self, place: Place) -> Operation {
        Operation {
            what: self.name,
            device: DeviceId(self.device as u32),
            place,
            tag: bursar_core::AllocTag::UNTAGGED,
            call: self.number,
            access: None,
            bytes: None,
            location: self.location,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
    pub(crate) is_allowed: bool,
}

/// Physical memory that can be mapped.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) store: Sparse,
    pub(crate) mappings: u32,
    pub(crate) is_released: bool,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) heap: Arc<Mutex<Heap>>,
    pub(crate) space: EagerSpace,
    pub(crate) store: Sparse,
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) spare_reservations: Vec<(u64, u64)>,
    pub(crate) next_reservation: u64,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) opened: u32,
    pub(crate) is_lost: bool,
    is_touched: bool,
}

impl Device {
    pub(crate) fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mapping that holds an address.
    pub(crate) fn mapping_at(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at < start + mapping.bytes).then_some((*start, mapping))
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) place: Place,
    /// Whether it synchronises with the legacy default stream.
    pub(crate) is_blocking: bool,
    pub(crate) is_alive: bool,
    pub(crate) is_capturing: bool,
    /// A host function of it is running, with the lock released.
    pub(crate) is_busy: bool,
    pub(crate) queue: VecDeque<Op>,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

impl Stream {
    fn new(device: usize, place: Place, is_blocking: bool) -> Self {
        Self {
            device,
            place,
            is_blocking,
            is_alive: true,
            is_capturing: false,
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
    pub(crate) record: Option<Mark>,
    pub(crate) clock: Clock,
}

/// Everything the simulator knows, apart from the heaps of an immediate one.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) random: Random,
    fresh: u8,
    pub(crate) devices: Vec<Device>,
    /// The legacy default streams first, by device.
    pub(crate) streams: Vec<Stream>,
    /// The streams that have something queued.
    pub(crate) active: Vec<usize>,
    pub(crate) events: HashMap<u64, Event>,
    next_event: u64,
    pub(crate) pages: BTreeMap<u64, Pages>,
    next_pages: u64,
    pub(crate) pinned: PinnedMap,
    /// What other processes hold of devices that have a name.
    pub(crate) share: Option<Share>,
    /// `None` for an immediate simulator.
    pub(crate) oracle: Option<Oracle>,
    pub(crate) log: Log,
    /// What keeps an immediate simulator from taking its short cuts: queued work, captures, lost devices, devices with a
    /// name, of which others have to be told.
    pub(crate) disturbances: Arc<AtomicUsize>,
}

impl World {
    pub(crate) fn new(seed: Option<u64>, heaps: &[Arc<Mutex<Heap>>], disturbances: Arc<AtomicUsize>) -> Self {
        let fresh = seed.map_or(0xa5, |seed| 0x80 | mix(seed) as u8);
        let device = |(index, heap): (usize, &Arc<Mutex<Heap>>)| {
            let (allocations, reservations) = addresses(index);
            Device {
                heap: heap.clone(),
                space: EagerSpace::new(allocations.start, allocations.end),
                store: Sparse::new(fresh),
                reservations: BTreeMap::new(),
                spare_reservations: Vec::new(),
                next_reservation: reservations.start,
                mappings: BTreeMap::new(),
                opened: 0,
                is_lost: false,
                is_touched: false,
            }
        };
        let mut world = Self {
            random: Random::new(seed.unwrap_or(0)),
            fresh,
            devices: heaps.iter().enumerate().map(device).collect(),
            streams: Vec::new(),
            active: Vec::new(),
            events: HashMap::new(),
            next_event: 1,
            pages: BTreeMap::new(),
            next_pages: 1,
            pinned: PinnedMap::default(),
            share: None,
            oracle: seed.map(|_| Oracle::new(heaps.len())),
            log: Log::new(KEPT),
            disturbances,
        };
        for index in 0..heaps.len() {
            world.add_stream(Stream::new(index, Place::DefaultStream, false));
        }
        world
    }

    pub(crate) fn disturb(&self) {
        self.disturbances.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn calm(&self) {
        self.disturbances.fetch_sub(1, Ordering::AcqRel);
    }

    fn add_stream(&mut self, stream: Stream) {
        self.streams.push(stream);
        if let Some(oracle) = &mut self.oracle {
            oracle.add_stream();
        }
    }

    pub(crate) fn create_stream(&mut self, device: usize, is_blocking: bool) -> RawStream {
        let created = self.streams.len() - self.devices.len();
        self.add_stream(Stream::new(device, Place::Stream(created as u32 + 1), is_blocking));
        RawStream(FIRST_STREAM + created as u64)
    }

    /// The index of a handle, whoever's it is.
    fn index_of(&self, device: usize, raw: RawStream) -> Option<usize> {
        match raw.0 {
            0 => Some(device),
            _ if raw == RawStream::LEGACY => Some(device),
            handle => usize::try_from(handle.checked_sub(FIRST_STREAM)?).ok()?.checked_add(self.devices.len()),
        }
    }

    /// The stream that a handle means on a device, if it is alive there.
    pub(crate) fn stream(&self, device: usize, raw: RawStream) -> Answer<usize> {
        let index = self.index_of(device, raw).ok_or(Status::InvalidHandle)?;
        match self.streams.get(index) {
            Some(stream) if stream.is_alive && stream.device == device => Ok(index),
            _ => Err(Status::InvalidHandle),
        }
    }

    /// The stream that a handle means, if work can be submitted to it.
    pub(crate) fn open_stream(&self, device: usize, raw: RawStream) -> Answer<usize> {
        let index = self.stream(device, raw)?;
        match self.streams[index].is_capturing {
            true => Err(Status::Capturing),
            false => Ok(index),
        }
    }

    /// A handle as the log names it.
    pub(crate) fn place(&self, device: DeviceId, raw: RawStream) -> Place {
        let index = self.index_of(device.0 as usize, raw);
        let stream = index.and_then(|index| self.streams.get(index));
        stream.map_or(Place::Unknown(raw.0), |stream| stream.place)
    }

    pub(crate) fn create_event(&mut self, device: usize) -> RawEvent {
        let raw = self.next_event;
        self.next_event += 1;
        let event = Event { device, record: None, clock: Clock::default() };
        self.events.insert(raw, event);
        RawEvent(raw)
    }

    /// An event, if it is alive and of this device.
    pub(crate) fn event(&self, device: usize, raw: RawEvent) -> Answer<&Event> {
        let event = self.events.get(&raw.0).filter(|event| event.device == device);
        event.ok_or(Status::InvalidHandle)
    }

    pub(crate) fn create_pages(&mut self, device: usize, bytes: u64) -> RawPages {
        let raw = self.next_pages;
        self.next_pages += 1;
        let pages = Pages { device, bytes, store: Sparse::new(self.fresh), mappings: 0, is_released: false };
        self.pages.insert(raw, pages);
        RawPages(raw)
    }

    /// Drops physical memory that is released and mapped nowhere.
    pub(crate) fn drop_pages_if_unused(&mut self, raw: u64) {
        let is_unused = |pages: &Pages| pages.is_released && pages.mappings == 0;
        if self.pages.get(&raw).is_some_and(is_unused)
            && let Some(pages) = self.pages.remove(&raw)
        {
            self.release_room(pages.device, pages.bytes);
        }
    }

    /// The device whose addresses hold `at`.
    pub(crate) fn device_of(&self, at: u64) -> Option<usize> {
        let index = (at / SPAN).checked_sub(1)? as usize;
        (index < self.devices.len()).then_some(index)
    }

    /// Whether a range lies in one allocation, or in pages that are mapped and allowed all along.
    pub(crate) fn is_memory(&self, range: &Range<u64>) -> bool {
        let Some(index) = self.device_of(range.start) else { return false };
        let device = &self.devices[index];
        if addresses(index).0.contains(&range.start) {
            return match self.oracle {
                Some(_) => device.space.contains(range),
                None => device.heap().contains(range),
            };
        }
        let mut next = range.start;
        while next < range.end {
            match device.mapping_at(next) {
                Some((start, mapping)) if mapping.is_allowed => next = start + mapping.bytes,
                _ => return false,
            }
        }
        true
    }

    /// The memory behind an address, the offset in it, and how far it goes on from there; `None` where nothing is.
    fn locate(&mut self, at: u64) -> Option<(&mut Sparse, u64, u64)> {
        let index = self.device_of(at)?;
        let (allocations, _) = addresses(index);
        let device = &mut self.devices[index];
        if allocations.contains(&at) {
            return Some((&mut device.store, at, allocations.end - at));
        }
        let (start, mapping) = device.mapping_at(at).filter(|(_, mapping)| mapping.is_allowed)?;
        let (offset, rest) = (at - start, start + mapping.bytes - at);
        let pages = self.pages.get_mut(&mapping.pages)?;
        Some((&mut pages.store, offset, rest))
    }

    /// Calls `visit` for each run of `at .. at + len` that lies in one piece of memory, with the run's own offset.
    /// Stops where there is none.
    fn each_run(&mut self, at: u64, len: u64, mut visit: impl FnMut(&mut Sparse, u64, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let Some((store, offset, rest)) = self.locate(at + done) else {
                return;
            };
            let run = rest.min(len - done);
            visit(store, offset, done as usize..(done + run) as usize);
            done += run;
        }
    }

    pub(crate) fn read(&mut self, at: u64, into: &mut [u8]) {
        self.each_run(at, into.len() as u64, |store, offset, run| {
            store.read(offset, &mut into[run]);
        });
    }

    /// Has frees on the device of `at` forget what its allocations hold.
    fn touched(&mut self, at: u64) {
        if let Some(index) = self.device_of(at)
            && !self.devices[index].is_touched
        {
            self.devices[index].is_touched = true;
            self.devices[index].heap().is_touched = true;
        }
    }

    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        self.touched(at);
        self.each_run(at, from.len() as u64, |store, offset, run| store.write(offset, &from[run]));
    }

    pub(crate) fn fill(&mut self, at: u64, len: u64, word: Word) {
        self.touched(at);
        self.each_run(at, len, |store, offset, run| store.fill(offset, run.len() as u64, word));
    }

    /// Copies in steps; what repeats one word is copied as that.
    pub(crate) fn copy(&mut self, dst: u64, src: u64, len: u64) {
        const STEP: u64 = crate::sparse::CHUNK;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            let at = src + done;
            let step = (STEP - at % STEP).min(len - done);
            let uniform = self.locate(at).and_then(|(store, offset, rest)| {
                (rest >= step && (dst + done) % 4 == at % 4).then(|| store.uniform(offset, step))?
            });
            match uniform {
                Some(word) => self.fill(dst + done, step, word),
                None => {
                    buffer.resize(step as usize, 0);
                    self.read(at, &mut buffer);
                    self.write(dst + done, &buffer);
                }
            }
            done += step;
        }
    }

    /// How many bytes of host memory the contents of a device take.
    pub(crate) fn resident(&self, device: usize) -> u64 {
        let pages = self.pages.values().filter(|pages| pages.device == device);
        let allocations = self.devices.get(device).map_or(0, |device| device.store.resident());
        allocations + pages.map(|pages| pages.store.resident()).sum::<u64>()
    }
}
