//! The mistakes that the oracle reports, and the sentences that explain them.

use crate::{ByteRange, Operation};
use bursar_core::{AllocTag, DeviceId};
use std::fmt;

/// The kinds of mistakes that the simulator reports.
///
/// ```
/// use bursar::sim::HazardKind;
///
/// assert_eq!(HazardKind::UseAfterFree.to_string(), "use after free");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HazardKind {
    /// Memory was touched by work that is not ordered after its allocation.
    UseBeforeAllocation,
    /// Memory was touched after it was freed, whether or not its address has been allocated again.
    UseAfterFree,
    /// Memory was freed while a use of it was not ordered before the free.
    FreeUnordered,
    /// A block was allocated by work that is not ordered after the last free of its bytes, or after an access to them while
    /// they were not a block.
    ReusedUnordered,
    /// A block was allocated while another that overlaps it was live.
    Overlap,
    /// Two accesses to the same bytes, at least one of them a write, are not ordered.
    Conflict,
    /// Memory was unmapped while a use of it may not have run, or while a block lay in it.
    UnmapUnderUse,
    /// Memory was touched that was never allocated, is not mapped, or has no access granted yet.
    NotMapped,
    /// Memory of an allocation was touched outside the blocks in it.
    OutOfBounds,
    /// Memory that slept was taken for awake before its contents were back.
    ContentsLost,
    /// Host memory of an asynchronous copy was touched before the copy had run.
    HostTouched,
    /// A host function called the driver.
    CallFromHostFunction,
    /// A simulated kernel panicked.
    KernelPanicked,
}

impl fmt::Display for HazardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::UseBeforeAllocation => "use before allocation",
            Self::UseAfterFree => "use after free",
            Self::FreeUnordered => "free while in use",
            Self::ReusedUnordered => "reuse without a wait",
            Self::Overlap => "overlapping blocks",
            Self::Conflict => "conflicting accesses",
            Self::UnmapUnderUse => "unmap while in use",
            Self::NotMapped => "use of memory that is not there",
            Self::OutOfBounds => "access out of bounds",
            Self::ContentsLost => "woken without its contents",
            Self::HostTouched => "host memory touched before its copy was done",
            Self::CallFromHostFunction => "driver call from a host function",
            Self::KernelPanicked => "panic in a kernel",
        })
    }
}

/// A mistake in a program: two operations that nothing orders, or one that must not happen at all.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Pattern};
/// use bursar::sim::{HazardKind, Sim};
///
/// let (sim, device) = (Sim::seeded(1), DeviceId(0));
/// let (a, b) = (sim.stream_create(device, 0)?, sim.stream_create(device, 0)?);
/// // SAFETY: breaking the driver's contract is what the simulator is for.
/// let ptr = unsafe { sim.allocate_async(device, a, 4096)? };
/// // SAFETY: as above: nothing orders stream b after the allocation.
/// unsafe { sim.fill(device, b, ptr, Pattern::U8(1), 16)? };
///
/// let hazard = sim.hazards()[0];
/// assert_eq!(hazard.kind, HazardKind::UseBeforeAllocation);
/// assert_eq!(hazard.range, ptr.0..ptr.0 + 16);
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hazard {
    /// The kind of mistake.
    pub kind: HazardKind,
    /// The device of the memory; `None` for host memory.
    pub device: Option<DeviceId>,
    /// The bytes that both operations reach.
    pub range: ByteRange,
    /// The tag of the memory, where the layers above gave one.
    pub tag: AllocTag,
    /// The earlier operation, where there was one.
    pub first: Option<Operation>,
    /// The operation that revealed the mistake.
    pub second: Operation,
    /// The operation that allocated the memory again between the two, where there was one.
    pub reused: Option<Operation>,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Some(device) => write!(f, "{} on {device}, bytes {}", self.kind, self.range)?,
            None => write!(f, "{}, bytes {}", self.kind, self.range)?,
        }
        match self.tags() {
            (Some(one), Some(other)) => write!(f, " (tags {:?} and {:?})", one.name(), other.name())?,
            (Some(tag), None) | (None, Some(tag)) => write!(f, " (tag {:?})", tag.name())?,
            (None, None) => {}
        }
        write!(f, ":\n    {} ", self.second)?;
        self.explain(f)
    }
}

impl Hazard {
    /// Returns the known tags of the memory, that of its earlier lifetime first; the second only where it differs.
    fn tags(&self) -> (Option<AllocTag>, Option<AllocTag>) {
        let known = |tag: &AllocTag| *tag != AllocTag::UNTAGGED;
        let first = self.first.map(|first| first.tag).filter(known).or(Some(self.tag)).filter(known);
        let second = Some(self.second.tag).filter(known).filter(|tag| Some(*tag) != first);
        (first, second)
    }

    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.first else {
            return f.write_str(match self.kind {
                HazardKind::OutOfBounds => "touches bytes of an allocation that belong to no block",
                HazardKind::CallFromHostFunction => "was made by host code that runs in stream order",
                HazardKind::KernelPanicked => "panicked while it ran",
                HazardKind::FreeUnordered => "frees what is no live block",
                HazardKind::ContentsLost => "takes memory for awake that does not hold what it held",
                _ => "touches memory that nobody was given",
            });
        };
        match self.kind {
            HazardKind::UseBeforeAllocation => {
                write!(f, "touches memory that {first} gives out;\n    nothing orders it after that")
            }
            HazardKind::UseAfterFree => write!(f, "touches memory that {first} gave back"),
            HazardKind::FreeUnordered => {
                write!(f, "gives back memory that {first} uses;\n    nothing orders that before it")
            }
            HazardKind::ReusedUnordered => {
                write!(f, "gives out memory that {first} gave back or touched;\n    nothing orders it after that")
            }
            HazardKind::Overlap => write!(f, "gives out bytes that {first} gave out and that are still held"),
            HazardKind::Conflict => {
                write!(f, "and {first} touch the same bytes, at least one writing;\n    nothing orders them")
            }
            HazardKind::UnmapUnderUse => {
                write!(f, "takes away memory that {first} uses;\n    the host does not know that to be over")
            }
            HazardKind::NotMapped => write!(f, "touches memory that {first} took away"),
            HazardKind::OutOfBounds => write!(f, "reaches beyond the block that {first} gave out"),
            HazardKind::ContentsLost => {
                write!(f, "takes memory for awake that {first} fills;\n    the host does not know that to have run")
            }
            HazardKind::HostTouched => {
                write!(f, "touches host memory of {first};\n    the host does not know that to have run")
            }
            HazardKind::CallFromHostFunction => write!(f, "was made by the host code of {first}"),
            HazardKind::KernelPanicked => write!(f, "panicked after {first}"),
        }?;
        match self.reused {
            Some(reused) => write!(f, ";\n    it was given out again by {reused}, which nothing orders before it"),
            None => Ok(()),
        }
    }
}
