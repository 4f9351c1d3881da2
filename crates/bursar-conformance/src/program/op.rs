//! What a program can do.

use super::Host;
use bursar_core::{Pattern, Progress, Status};
use bursar_sim::Random;
use std::fmt;

/// A part of a block, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) block: usize,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// Who orders an allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordering {
    /// Its stream.
    Stream,
    /// Nobody: it can be used everywhere at once, and its free waits for the device.
    Device,
}

/// A place in host memory that no other operation of the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: Host,
    pub(super) at: usize,
}

/// A call that no driver grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Allocate { bytes: u64 },
    AllocateOnNoDevice,
    AllocateAsync { stream: usize, bytes: u64 },
    HostAllocate { bytes: usize },
    PagesCreate { bytes: u64 },
    AddressReserve { bytes: u64 },
}

/// Sizes that no device and no host has.
const ABSURD: [u64; 3] = [1 << 50, 1 << 56, 1 << 60];

impl Refusal {
    /// Any of them.
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

    /// What drivers answer.
    pub(super) fn status(self) -> Status {
        match self {
            Self::AllocateOnNoDevice => Status::InvalidDevice,
            Self::Allocate { bytes }
            | Self::AllocateAsync { bytes, .. }
            | Self::PagesCreate { bytes }
            | Self::AddressReserve { bytes } => refused(bytes),
            Self::HostAllocate { bytes } => refused(bytes as u64),
        }
    }
}

/// What drivers answer to a size that cannot be had.
fn refused(bytes: u64) -> Status {
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
        ordering: Ordering,
    },
    Free {
        block: usize,
        stream: usize,
    },
    Fill {
        part: Part,
        pattern: Pattern,
        stream: usize,
    },
    Upload {
        part: Part,
        from: Place,
        stream: usize,
    },
    ReadBack {
        part: Part,
        to: Place,
        stream: usize,
    },
    Copy {
        to: Part,
        from: Part,
        stream: usize,
    },
    /// A kernel that adds each byte of `from` to one of `to`.
    Add {
        to: Part,
        from: Part,
        stream: usize,
    },
    /// Host code, which notes that it ran.
    Host {
        number: u32,
        stream: usize,
    },
    /// Host code that holds its stream until [`Op::Open`].
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
    /// Asks how far a stream has come. Without an `answer`, that depends on the schedule.
    Query {
        stream: usize,
        answer: Option<Progress>,
    },
    QueryEvent {
        event: usize,
        answer: Option<Progress>,
    },
    Refused(Refusal),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}..{}]", self.block, self.at, self.at + self.bytes)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Pageable => write!(f, "pageable memory at {}", self.at),
            Host::Pinned => write!(f, "pinned memory at {}", self.at),
        }
    }
}

fn expecting(answer: Option<Progress>) -> &'static str {
    match answer {
        Some(Progress::Complete) => "complete",
        Some(Progress::Pending) => "pending",
        None => "depends",
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { block, bytes, stream, ordering: Ordering::Stream } => {
                write!(f, "s{stream}  allocate b{block}, {bytes} bytes")
            }
            Self::Allocate { block, bytes, .. } => write!(f, "    allocate b{block}, {bytes} bytes"),
            Self::Free { block, stream } => write!(f, "s{stream}  free b{block}"),
            Self::Fill { part, pattern, stream } => write!(f, "s{stream}  fill {part} with {pattern:x?}"),
            Self::Upload { part, from, stream } => write!(f, "s{stream}  copy {from} to {part}"),
            Self::ReadBack { part, to, stream } => write!(f, "s{stream}  copy {part} to {to}"),
            Self::Copy { to, from, stream } => write!(f, "s{stream}  copy {from} to {to}"),
            Self::Add { to, from, stream } => write!(f, "s{stream}  add {from} to {to}"),
            Self::Host { number, stream } => write!(f, "s{stream}  host function {number}"),
            Self::Hold { number, stream } => write!(f, "s{stream}  host function {number}, behind a gate"),
            Self::Open => f.write_str("    open the gate"),
            Self::Record { event, stream } => write!(f, "s{stream}  record e{event}"),
            Self::Wait { event, stream } => write!(f, "s{stream}  wait for e{event}"),
            Self::Synchronize { stream } => write!(f, "    synchronise s{stream}"),
            Self::SynchronizeEvent { event } => write!(f, "    synchronise e{event}"),
            Self::Query { stream, answer } => write!(f, "    query s{stream} ({})", expecting(*answer)),
            Self::QueryEvent { event, answer } => write!(f, "    query e{event} ({})", expecting(*answer)),
            Self::Refused(refusal) => write!(f, "    {refusal:?}, refused"),
        }
    }
}
