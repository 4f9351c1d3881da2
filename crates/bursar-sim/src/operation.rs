//! Driver calls and the operations they submit, as hazards and the log name them.

use bursar_core::{Access, AllocTag, DeviceId, Status};
use std::fmt;
use std::ops::Range;
use std::panic::Location;

/// The executor of an operation: the host, or a stream.
///
/// ```
/// use bursar::sim::Executor;
///
/// assert_eq!(Executor::Stream(2).to_string(), "stream 2");
/// assert_eq!(Executor::DefaultStream.to_string(), "the default stream");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// The host, for a call that takes effect at once.
    Host,
    /// The legacy default stream of the device.
    DefaultStream,
    /// A stream, by the number that its contexts name it by too
    /// ([`Stream::number`](bursar_core::Stream::number)): its place in the order in which the device's streams were
    /// created.
    Stream(u32),
    /// A graph, by the number of the call order in which graphs were instantiated.
    Graph(u32),
    /// A handle that is not a stream.
    Unknown(u64),
}

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("the host"),
            Self::DefaultStream => f.pad("the default stream"),
            Self::Stream(number) => f.pad(&format!("stream {number}")),
            Self::Graph(number) => f.pad(&format!("graph {number}")),
            Self::Unknown(handle) => f.pad(&format!("unknown stream {handle:#x}")),
        }
    }
}

/// An operation on memory: its name, its executor, and the driver call that made it.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Pattern};
/// use bursar::memory::DevicePtr;
/// use bursar::sim::Sim;
///
/// let sim = Sim::seeded(1);
/// let (device, stream) = (DeviceId(0), sim.stream_create(DeviceId(0), 0)?);
/// // SAFETY: breaking the driver's contract is what the simulator is for.
/// unsafe { sim.fill(device, stream, DevicePtr(0x10_0000), Pattern::U8(1), 16).unwrap_err() };
/// assert_eq!(sim.hazards()[0].second.to_string(), "fill on stream 1 (call 2)");
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The name of the driver call or, for a simulated kernel, of the kernel.
    pub what: &'static str,
    /// The device it was submitted to.
    pub device: DeviceId,
    /// The host or the stream that ran it.
    pub executor: Executor,
    /// The tag of the memory, where the layers above gave one.
    pub tag: AllocTag,
    /// The number of the call in the log.
    pub call: u64,
    /// The kind of access to the bytes; `None` for an operation that allocates or frees them.
    pub access: Option<Access>,
    /// The bytes it reaches, of which those of the hazard are a part; `None` where it has no range of its own.
    pub bytes: Option<ByteRange>,
    /// The place in the program that made the call; `None` where it is unknown.
    pub location: Option<&'static Location<'static>>,
}

impl fmt::Display for Operation {
    /// Writes name, executor and number; the alternate form adds the place in the program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} (call {})", self.what, self.executor, self.call)?;
        match self.location {
            _ if !f.alternate() => Ok(()),
            Some(location) => write!(f, " at {location}"),
            None => f.write_str(" at an unknown place"),
        }
    }
}

/// A simulated kernel that panicked.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
/// use bursar::sim::{Launch, Sim};
///
/// let (sim, device) = (Sim::seeded(1), DeviceId(0));
/// let stream = sim.stream_create(device, 0)?;
/// sim.launch(device, stream, Launch::new("bad").body(|_| panic!("a bug")))?;
/// sim.settle();
/// let panic = &sim.kernel_panics()[0];
/// assert_eq!((panic.operation.what, panic.message.as_str()), ("bad", "a bug"));
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelPanic {
    /// The kernel.
    pub operation: Operation,
    /// The panic message.
    pub message: String,
}

/// A range of addresses that can be copied and compared with a [`Range`].
///
/// ```
/// use bursar::sim::ByteRange;
///
/// let range = ByteRange { start: 0x100, end: 0x200 };
/// assert_eq!(range, 0x100..0x200);
/// assert_eq!(range.to_string(), "0x100..0x200");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl PartialEq<Range<u64>> for ByteRange {
    fn eq(&self, other: &Range<u64>) -> bool {
        (self.start, self.end) == (other.start, other.end)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// The result of a driver call before its name and device are added to a failure.
pub(crate) type CallResult<T> = Result<T, Status>;

/// A driver call in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallInfo {
    pub(crate) name: &'static str,
    pub(crate) number: u64,
    pub(crate) device: usize,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl CallInfo {
    pub(crate) fn operation(self, executor: Executor) -> Operation {
        Operation {
            what: self.name,
            device: DeviceId(self.device as u32),
            executor,
            tag: AllocTag::UNTAGGED,
            call: self.number,
            access: None,
            bytes: None,
            location: self.location,
        }
    }
}
