//! The operations of a program.

use super::HostKind;
use bursar_core::{Pattern, Progress, Status};
use bursar_sim::Random;
use std::fmt;

/// A range of a block, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) block: usize,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// The order of an allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllocationOrder {
    /// The order of a stream.
    Stream,
    /// None: the block can be used on every stream at once, and its free waits for the device.
    Device,
}

/// An offset in host memory, of bytes that no other operation of the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostOffset {
    pub(super) host: HostKind,
    pub(super) at: usize,
}

/// A call that every driver must refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImpossibleCall {
    Allocate { bytes: u64 },
    AllocateOnNoDevice,
    AllocateAsync { stream: usize, bytes: u64 },
    HostAllocate { bytes: usize },
    PagesCreate { bytes: u64 },
    AddressReserve { bytes: u64 },
}

/// Sizes that exceed any device and any host.
const ABSURD: [u64; 3] = [1 << 50, 1 << 56, 1 << 60];

impl ImpossibleCall {
    /// Returns a random one.
    pub(super) fn pick(random: &mut Random, stream: usize) -> Self {
        let absurd = ABSURD[random.index(ABSURD.len())];
        let bytes = if random.chance(2) { 0 } else { absurd };
        match random.below(6) {
            0 => Self::Allocate { bytes },
            1 => Self::AllocateOnNoDevice,
            2 => Self::HostAllocate { bytes: bytes as usize },
            3 => Self::PagesCreate { bytes },
            4 => Self::AddressReserve { bytes },
            _ => Self::AllocateAsync { stream, bytes },
        }
    }

    /// Returns the status that drivers fail with.
    pub(super) fn status(self) -> Status {
        match self {
            Self::AllocateOnNoDevice => Status::InvalidDevice,
            Self::Allocate { bytes }
            | Self::AllocateAsync { bytes, .. }
            | Self::PagesCreate { bytes }
            | Self::AddressReserve { bytes } => status_of_size(bytes),
            Self::HostAllocate { bytes } => status_of_size(bytes as u64),
        }
    }
}

/// Returns the status that drivers fail with for an impossible size.
fn status_of_size(bytes: u64) -> Status {
    match bytes {
        0 => Status::InvalidValue,
        _ => Status::OutOfMemory,
    }
}

/// One operation. Streams, events and blocks are named by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Allocate {
        block: usize,
        bytes: u64,
        stream: usize,
        ordering: AllocationOrder,
    },
    Free {
        block: usize,
        stream: usize,
    },
    Fill {
        range: BlockRange,
        pattern: Pattern,
        stream: usize,
    },
    Upload {
        range: BlockRange,
        from: HostOffset,
        stream: usize,
    },
    ReadBack {
        range: BlockRange,
        to: HostOffset,
        stream: usize,
    },
    Copy {
        to: BlockRange,
        from: BlockRange,
        stream: usize,
    },
    /// A kernel that adds each byte of `from` to one of `to`.
    Add {
        to: BlockRange,
        from: BlockRange,
        stream: usize,
    },
    /// A host function, which records that it ran.
    Host {
        number: u32,
        stream: usize,
    },
    /// A host function that holds its stream until [`Op::Open`].
    Hold {
        number: u32,
        stream: usize,
    },
    Open,
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        event: usize,
        stream: usize,
    },
    Synchronize {
        stream: usize,
    },
    SynchronizeEvent {
        event: usize,
    },
    /// Queries the progress of a stream. Without `expected`, the result depends on the schedule.
    Query {
        stream: usize,
        expected: Option<Progress>,
    },
    QueryEvent {
        event: usize,
        expected: Option<Progress>,
    },
    Refused(ImpossibleCall),
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}..{}]", self.block, self.at, self.at + self.bytes)
    }
}

impl fmt::Display for HostOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            HostKind::Pageable => write!(f, "pageable memory at {}", self.at),
            HostKind::Pinned => write!(f, "pinned memory at {}", self.at),
        }
    }
}

fn expectation(expected: Option<Progress>) -> &'static str {
    match expected {
        Some(Progress::Complete) => "complete",
        Some(Progress::Pending) => "pending",
        None => "depends",
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { block, bytes, stream, ordering: AllocationOrder::Stream } => {
                write!(f, "s{stream}  allocate b{block}, {bytes} bytes")
            }
            Self::Allocate { block, bytes, .. } => write!(f, "    allocate b{block}, {bytes} bytes"),
            Self::Free { block, stream } => write!(f, "s{stream}  free b{block}"),
            Self::Fill { range, pattern, stream } => write!(f, "s{stream}  fill {range} with {pattern:x?}"),
            Self::Upload { range, from, stream } => write!(f, "s{stream}  copy {from} to {range}"),
            Self::ReadBack { range, to, stream } => write!(f, "s{stream}  copy {range} to {to}"),
            Self::Copy { to, from, stream } => write!(f, "s{stream}  copy {from} to {to}"),
            Self::Add { to, from, stream } => write!(f, "s{stream}  add {from} to {to}"),
            Self::Host { number, stream } => write!(f, "s{stream}  host function {number}"),
            Self::Hold { number, stream } => write!(f, "s{stream}  host function {number}, behind a gate"),
            Self::Open => f.write_str("    open the gate"),
            Self::Record { event, stream } => write!(f, "s{stream}  record e{event}"),
            Self::Wait { event, stream } => write!(f, "s{stream}  wait for e{event}"),
            Self::Synchronize { stream } => write!(f, "    synchronise s{stream}"),
            Self::SynchronizeEvent { event } => write!(f, "    synchronise e{event}"),
            Self::Query { stream, expected } => write!(f, "    query s{stream} ({})", expectation(*expected)),
            Self::QueryEvent { event, expected } => write!(f, "    query e{event} ({})", expectation(*expected)),
            Self::Refused(refusal) => write!(f, "    {refusal:?}, refused"),
        }
    }
}
