//! The vocabulary and the interfaces of Bursar, the memory runtime for programs that share GPUs.
//!
//! Three interfaces carry everything else, each in a file that reads on its own:
//!
//! - [`Driver`] (`driver.rs`): the port to a device. A simulated one and CUDA implement it, and everything above runs
//!   unchanged on both.
//! - [`DeviceMemoryResource`] and [`FrameSource`] (`memory/resource.rs`): the traits that layers and pools implement. A
//!   [`Stack`] composes them over one of the [`leaf`]s.
//! - [`Account`], which limits how much may be held, and [`Admission`], which reserves memory before it is.
//!
//! A [`DeviceContext`] stands beside each device's column of layers. Memory is a [`DeviceBlock`]: a linear token that
//! cannot be copied, forged or freed twice.
//!
//! # Words
//! | word | meaning |
//! | --- | --- |
//! | block | a range of device memory, owned by one token |
//! | frame | a piece of physical memory that a pool maps where it needs it, or a slab where the device cannot map |
//! | leaf, layer, stack | the resource that calls the driver, a resource over another one, and a recipe of both |
//! | granted, requested | what a block costs, and what its user asked for |
//! | outstanding, pending | live or freed but possibly still in use; only the latter |
//! | reap | to find out which frees have completed |
//! | adopted stream | a stream that somebody else made, used here until its adoption is dropped |
//! | heir | the context's stream that comes after everything given to adopted streams that have ended |
//! | unordered | of a stream that ended while the driver let nothing be ordered after it |
//! | member | a pool or leaf that can be asked to give memory back |
//! | remains | what a dropped holder could not give back, kept and tried again by the context |
//! | fault, alarm | a failure for the next fallible call to report; a reason to check a stream or the device again |
//! | note | a message to a driver that listens, a checker, about which range is a block |
//! | use, submission | an access of a stream to a block; the numbered piece of work it is part of |
//! | tally, slack, level | counts of blocks; a thread's reserve in them; the shared part of them |
//! | favourite | the thread that takes a latch with plain stores |
//!
//! # Modules
//! Each module uses only those above it in this list:
//!
//! | module | contents |
//! | --- | --- |
//! | `sync` | a lock for short critical sections, dense thread numbers, waits that can be interrupted |
//! | `values` | sizes, addresses, tags, generations, device identity and facts |
//! | `driver` | the port: the [`Driver`] trait, its handles and its errors, and a driver that counts calls |
//! | `error` | [`Error`], and the [`Shortage`] that explains a refusal |
//! | `stream` | stream tokens, the table that makes them, and the clocks that order submissions |
//! | `block` | the tokens that own memory: blocks and frames, and blocks lent across a raw boundary |
//! | `observe` | records and the sink they go to, the tally that counts blocks, query numbers |
//! | `context` | [`DeviceContext`], one file for each of its concerns |
//! | `memory` | resource traits, layers and stacks, the leaves, accounts and admission |
//! | `tracking` | uses of a block on several streams, and the work that is ordered by them |
//! | `graph` | memory inside graphs: [`GraphMemory`], captures, and launches in the order of everything else |
//! | `inspect` | fenced blocks and comparisons in stream order, for the guard layer |

mod block;
mod context;
mod driver;
mod error;
mod graph;
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
pub use context::{
    AdoptedStream, AsleepId, BlocksOf, CallSite, DeviceContext, Fault, HasContext, HostStore, Member, Remains,
    SleepDecision, SleepReading, SleepReport, SleepRequest, SleepRequestId, SleepState, Sleeper, StreamProgress,
    TagRecord, TaggedBlocks, UsageSource, UsageView, WakeReport, WakeRequest,
};
pub use driver::{
    CountingDriver, DeviceRange, Driver, DriverError, DriverResult, Gate, HostElements, HostFlags, HostFunction,
    HostMemory, Note, Pattern, PeerPtr, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream,
    SimulatedBytes, SimulatedKernel, SimulatedMemory, Status,
};
pub use error::{
    Advice, Claim, Claims, Error, ExternalError, Holding, LimitName, LimitReading, MemoryUsage, PoolFigures, Result,
    Shortage, StreamMisuse, StreamNumber, Survey, SurveyStep, WaitingClaim,
};
pub use graph::{Capture, ForeignCapture, Graph, GraphMemory};
pub use inspect::{FencedBlock, Inspector};
pub use memory::{
    Account, Admission, Build, Compose, DeviceMemoryResource, DeviceMemoryResourceExt, FrameRelease, FrameSource,
    Holder, Identity, Layer, ObservedResource, Stack, explain, leaf,
};
pub use observe::{
    Action, Actions, Amount, Counts, EventSink, Observer, PartCount, QueryId, QueryScope, Record, Tally,
};
pub use stream::{STREAM_SLOTS, Stream, StreamHold};
pub use sync::{Latch, LatchGuard, ThreadIndex, interrupt_interval, interruptible, is_interrupted};
pub use tracking::{BlockUse, RefusedTracked, RefusedTransfer, Submission, TrackedBlock, Transfer};
pub use values::{
    Access, AllocTag, Bytes, Capabilities, DeviceFacts, DeviceId, DevicePtr, DeviceUuid, Generation, Link, LinkKind,
    MAX_ALIGN, MAX_SIZE, MIN_ALIGN, MemoryInfo, NumaNode, ParseBytesError, ParseUuidError, PciAddress, is_size,
};
