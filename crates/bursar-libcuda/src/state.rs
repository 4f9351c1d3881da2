//! The driver's knowledge of a process beyond that of the simulator: contexts, and whose everything is.

use crate::handle::{Handle, Kind, handle};
use crate::memory_file::FileIdentity;
use crate::port::StreamOn;
use crate::status::{CUresult, CallResult};
use crate::types::{CUDA_ARRAY3D_DESCRIPTOR, CUmemAllocationFlags, CUmemLocation, CUstreamCaptureMode};
use bursar_core::{DeviceId, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream};
use bursar_sim::SimPool;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_uint;
use std::fs::File;
use std::time::Instant;

/// A context: where streams, events and allocations belong, which end with it.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// The ordinal of its device among those that are visible.
    pub(crate) ordinal: usize,
    pub(crate) flags: c_uint,
    pub(crate) api_version: c_uint,
    /// The number of retains of a primary context, and 1 for another.
    pub(crate) retains: u32,
    pub(crate) is_primary: bool,
    /// The memory that it takes itself.
    pub(crate) own: Option<RawPages>,
    /// The stream that goes on when the streams that were destroyed have done their work.
    pub(crate) heir: Option<RawStream>,
    pub(crate) limits: HashMap<c_uint, usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawStream,
    pub(crate) context: Handle,
    pub(crate) flags: c_uint,
    pub(crate) priority: i32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawEvent,
    pub(crate) context: Handle,
    pub(crate) flags: c_uint,
    /// The moment of the latest record.
    pub(crate) recorded: Option<Instant>,
}

/// The call that took a piece of memory, which says how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Linear,
    StreamOrdered {
        pool: Handle,
    },
    /// Host memory that devices reach, and the memory of the device that it counts as, by its address.
    Managed {
        counted: u64,
    },
    /// Memory of another process, which is opened and closed by its handle.
    Imported,
}

/// A piece of memory of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) taken: Taken,
    pub(crate) device: DeviceId,
    pub(crate) context: Handle,
    /// A number that no other allocation of this process has.
    pub(crate) number: u64,
}

/// Physical memory: freed once it is released as often as it was created and retained, and mapped nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawPages,
    pub(crate) references: u32,
    pub(crate) mappings: u32,
    pub(crate) properties: Properties,
}

/// The properties of physical memory that a program can ask for again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) handle_types: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) flags: CUmemAllocationFlags,
}

/// Memory of another process that was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: [u8; 64],
    pub(crate) device: DeviceId,
    pub(crate) raw: RawPages,
    pub(crate) bytes: u64,
    /// The number of times that it was opened and not closed.
    pub(crate) count: u32,
}

/// Pages that are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) pages: Handle,
    pub(crate) access: c_uint,
}

/// A pool, and what a program can set about it without an effect here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) sim: SimPool,
    pub(crate) device: DeviceId,
    pub(crate) is_default: bool,
    pub(crate) reuse: [i32; 3],
}

/// An array: memory that programs reach by its handle alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array {
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) device: DeviceId,
    pub(crate) context: Handle,
    pub(crate) at: u64,
    /// The mipmapped array of which it is a level, and which of them.
    pub(crate) level_of: Option<(Handle, u32)>,
}

/// An array of arrays, each half as wide and high as the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MipmappedArray {
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) levels: u32,
    pub(crate) device: DeviceId,
    pub(crate) context: Handle,
    pub(crate) at: u64,
}

/// A capture of a stream into a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) mode: CUstreamCaptureMode,
    /// The number of the thread that began it.
    pub(crate) thread: u64,
    pub(crate) on: StreamOn,
}

/// A graph that was captured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphOn {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawGraph,
}

/// A graph that can be launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphExecOn {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawGraphExec,
}

/// Addresses that are reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) bytes: u64,
    pub(crate) device: DeviceId,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) contexts: HashMap<Handle, Context>,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) pages: HashMap<Handle, Pages>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    /// The files of physical memory that can be shared, and of allocations that are, by handle and by address.
    pub(crate) files: HashMap<Handle, File>,
    /// The physical memory of files by their identity, and the files that were made here.
    pub(crate) pages_of_files: HashMap<FileIdentity, Handle>,
    pub(crate) own_files: HashSet<FileIdentity>,
    pub(crate) shared: HashMap<u64, File>,
    /// The memory of other processes, by its address here.
    pub(crate) opened: HashMap<u64, Opened>,
    pub(crate) pools: HashMap<Handle, Pool>,
    /// The pool that each device had first, and the one that it has now, by ordinal.
    pub(crate) default_pools: HashMap<usize, Handle>,
    pub(crate) current_pools: HashMap<usize, Handle>,
    pub(crate) arrays: HashMap<Handle, Array>,
    pub(crate) mipmapped_arrays: HashMap<Handle, MipmappedArray>,
    /// The captures, by the stream that each began on.
    pub(crate) captures: HashMap<Handle, Capture>,
    pub(crate) graphs: HashMap<Handle, GraphOn>,
    pub(crate) graph_execs: HashMap<Handle, GraphExecOn>,
    /// The contexts that were given access to another's memory: that which has it, and the other.
    pub(crate) peers: HashSet<(Handle, Handle)>,
    /// Pinned host memory: its bytes and flags.
    pub(crate) pinned: BTreeMap<u64, (u64, c_uint)>,
    /// The addresses that were ever given out, by the part of the address space they are in: its start and their end.
    given_out: BTreeMap<u64, u64>,
    next: u64,
}

impl Context {
    /// Returns the primary context of a device, which nobody has retained yet.
    pub(crate) fn primary(ordinal: usize) -> Self {
        let limits = HashMap::new();
        Self { ordinal, flags: 0, api_version: 3020, retains: 0, is_primary: true, own: None, heir: None, limits }
    }
}

impl State {
    /// Returns the state before anything is made; the handles of the first numbers belong to the primary contexts.
    pub(crate) fn starting_at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Returns a handle that was never given out.
    pub(crate) fn new_handle(&mut self, kind: Kind) -> Handle {
        self.next += 1;
        handle(kind, self.next)
    }

    /// Returns a number that was never given out.
    pub(crate) fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a context that is alive.
    pub(crate) fn context(&self, context: Handle) -> CallResult<&Context> {
        match self.contexts.get(&context) {
            None => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            Some(context) if context.retains == 0 => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            Some(context) => Ok(context),
        }
    }

    pub(crate) fn stream(&self, stream: Handle) -> CallResult<&Stream> {
        self.streams.get(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn event(&self, event: Handle) -> CallResult<&Event> {
        self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn pages(&self, pages: Handle) -> CallResult<&Pages> {
        self.pages.get(&pages).filter(|pages| pages.references > 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns the allocation that contains an address, with its start.
    pub(crate) fn allocation_at(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=at).next_back()?;
        (at < start + allocation.bytes).then_some((*start, allocation))
    }

    /// Returns the mapping that contains an address, with its start.
    pub(crate) fn mapping_at(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at < start + mapping.bytes).then_some((*start, mapping))
    }

    /// Returns the reservation that contains an address, with its start.
    pub(crate) fn reservation_at(&self, at: u64) -> Option<(u64, &Reservation)> {
        let (start, reservation) = self.reservations.range(..=at).next_back()?;
        (at < start + reservation.bytes).then_some((*start, reservation))
    }

    /// Returns the managed memory that contains an address: its start and its bytes.
    pub(crate) fn managed_at(&self, at: u64) -> Option<(u64, u64)> {
        let (start, allocation) = self.allocation_at(at)?;
        matches!(allocation.taken, Taken::Managed { .. }).then_some((start, allocation.bytes))
    }

    /// Returns the host memory that devices reach, pinned or managed, which contains an address: its start and its bytes.
    pub(crate) fn reached_at(&self, at: u64) -> Option<(u64, u64)> {
        let pinned = self.pinned_at(at).map(|(start, bytes, _)| (start, bytes));
        pinned.or_else(|| self.managed_at(at))
    }

    /// Returns the pinned host memory that contains an address: its start, its bytes and its flags.
    pub(crate) fn pinned_at(&self, at: u64) -> Option<(u64, u64, c_uint)> {
        let (start, (bytes, flags)) = self.pinned.range(..=at).next_back()?;
        (at < start + bytes).then_some((*start, *bytes, *flags))
    }

    /// Records that addresses were given out. The simulator gives them out from the start of each part of the address space.
    pub(crate) fn give_out(&mut self, at: u64, bytes: u64) {
        let end = self.given_out.entry(at & !(PART - 1)).or_default();
        *end = (*end).max(at + bytes);
    }

    /// Returns whether an address is, or was, one of a device. Host memory has the others.
    pub(crate) fn is_device_address(&self, at: u64) -> bool {
        self.given_out.get(&(at & !(PART - 1))).is_some_and(|end| at < *end)
    }
}

/// The size of the parts of the address space in which the simulator gives out addresses one after the other.
const PART: u64 = 1 << 45;
