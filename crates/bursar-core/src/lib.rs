//! The nouns and the seams of Bursar, the memory runtime for programs that share GPUs.
//!
//! Three seams carry everything else, each a file that reads on its own:
//!
//! - [`Driver`]: what is asked of a device. A simulated one and CUDA implement it, and everything above runs unchanged
//!   on both.
//! - [`DeviceMemoryResource`] and [`FrameSource`]: what layers and pools are written to. A [`Stack`] composes them over
//!   one of the [`leaf`]s.
//! - [`Account`]: who says how much may be held, and [`Admission`]: who sets memory aside before it is.
//!
//! A [`DeviceContext`] stands beside each device's column of layers. Memory is a [`DeviceBlock`]: a linear token that
//! cannot be copied, forged or freed twice.
//!
//! # Modules
//! Each module uses only those above it in this list:
//!
//! | module | contents |
//! | --- | --- |
//! | `sync` | a lock for short critical sections, dense thread numbers |
//! | `values` | sizes, addresses, tags, generations, device identity and facts |
//! | `driver` | the port: the [`Driver`] trait, its handles and its errors, and a driver that counts calls |
//! | `error` | [`Error`], and the [`Shortage`] that explains a refusal |
//! | `stream` | stream tokens, the table that makes them, and the clocks that order submissions |
//! | `block` | the tokens that own memory: blocks and frames, and blocks lent across a raw boundary |
//! | `observe` | records and the sink they go to, the tally that counts blocks, query numbers |
//! | `context` | [`DeviceContext`], one file for each of its concerns |
//! | `memory` | resource traits, layers and stacks, the leaves, accounts and admission |
//! | `tracking` | uses of a block on several streams, and the work that is ordered by them |
//! | `inspect` | fenced blocks and comparisons in stream order, for the guard layer |

mod block;
mod context;
mod driver;
mod error;
mod inspect;
mod memory;
mod observe;
mod stream;
mod sync;
mod tracking;
mod values;

pub use block::{
    BlockParts, DeviceBlock, Frame, FrameKind, LentBlocks, OwnerId, RawBlock, Refused, RefusedFrame, grant,
};
pub use context::{AdoptedStream, CallSite, DeviceContext, Fault, Member, Remains, StreamProgress};
pub use driver::{
    CountingDriver, Driver, DriverError, DriverResult, Gate, HostFlags, HostFunction, Note, Pattern, Progress,
    RawContext, RawEvent, RawPages, RawStream, Status,
};
pub use error::{Advice, Error, Holding, MemoryUsage, Result, Shortage, StreamMisuse, StreamNumber};
pub use inspect::{FencedBlock, Inspector};
pub use memory::{
    Account, Admission, Build, Compose, DeviceMemoryResource, FrameRelease, FrameSource, Holder, HostMemory, Identity,
    Layer, ObservedResource, Stack, leaf,
};
pub use observe::{Action, Actions, Amount, Counts, EventSink, Observer, QueryId, QueryScope, Record, Tally};
pub use stream::{STREAM_SLOTS, Stream, StreamHold};
pub use sync::{Latch, LatchGuard, ThreadIndex};
pub use tracking::{Access, BlockUse, RefusedTracked, Submission, TrackedBlock, Transfer};
pub use values::{
    AllocTag, Bytes, Capabilities, DeviceFacts, DeviceId, DevicePtr, DeviceUuid, Generation, Link, LinkKind, MAX_ALIGN,
    MIN_ALIGN, MemoryInfo, NumaNode, ParseBytesError, ParseUuidError, PciAddress,
};
