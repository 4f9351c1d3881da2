//! The steps of a program.

use bursar_sim::Call;

/// One step, with the fault that is injected during it, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: UseAction,
    pub(super) fault: Option<Fault>,
}

/// The action of a step on slots, which hold buffers. An empty slot is given a buffer, on the stream of the step, before it is
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UseAction {
    /// Fills all of a buffer.
    Write { slot: usize, stream: usize, value: u32, method: Method },
    /// Fills one half of a buffer and leaves the other.
    Update { slot: usize, stream: usize, value: u32, second: bool },
    /// Copies one buffer to another.
    Copy { from: usize, to: usize, stream: usize, method: Method },
    /// Reads all of a buffer.
    Read { slot: usize, stream: usize, method: Method },
    /// Makes two uses that overlap: a write is launched, a read on another stream begins, and they end in either order.
    Overlap { slot: usize, writer: usize, reader: usize, value: u32, reader_first: bool },
    /// Drops a buffer, whose memory is freed on a stream if one is given.
    Drop { slot: usize, on: Option<usize> },
    /// Waits for a stream on the host.
    Synchronize { stream: usize },
    /// Ends the adopted stream and adopts another.
    End,
}

/// The method of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The address of the buffer is requested, and the driver is called directly.
    Launched,
    /// A fill, copy or read-back is submitted through the API.
    Submitted,
    /// The call returns when the work is done.
    Waited,
}

/// A fault: a driver call fails, or is carried out but reported as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) call: Call,
    pub(super) is_result_lost: bool,
}
