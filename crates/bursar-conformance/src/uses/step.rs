//! What a program does.

use bursar_sim::Call;

/// One step, with the failure that it meets, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) fault: Option<Fault>,
}

/// Slots hold buffers; one that is empty gets a buffer, on the stream of the step, before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Fills all of it.
    Write { slot: usize, stream: usize, value: u32, how: How },
    /// Fills one half and leaves the other.
    Update { slot: usize, stream: usize, value: u32, second: bool },
    /// Copies one to another.
    Copy { from: usize, to: usize, stream: usize, how: How },
    /// Reads all of it.
    Read { slot: usize, stream: usize, how: How },
    /// Two uses that overlap: a write is launched, a read on another stream begins, and they end in either order.
    Overlap { slot: usize, writer: usize, reader: usize, value: u32, reader_first: bool },
    /// Drops it, and has its memory freed on a stream if one is named.
    Drop { slot: usize, on: Option<usize> },
    /// The host waits for a stream.
    Synchronize { stream: usize },
    /// The adopted stream ends, and another takes its place.
    End,
}

/// By which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The address is asked for, and the driver is called by hand.
    Launched,
    /// As work that is submitted.
    Submitted,
    /// Done when the call returns.
    Waited,
}

/// A driver call of the step fails, or is carried out and its answer lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) call: Call,
    pub(super) is_lost_answer: bool,
}
