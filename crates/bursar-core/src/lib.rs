//! The nouns and the seams of Bursar, the memory runtime for programs that share GPUs.
//!
//! Three seams carry everything else, each a file that reads on its own:
//!
//! - [`Driver`]: what is asked of a device. A simulated one and CUDA implement it, and everything above runs unchanged on
//!   both.
//! - [`DeviceMemoryResource`] and [`FrameSource`]: what layers and pools are written to. A [`Stack`] composes them over
//!   one of the [`leaf`]s.
//! - [`Account`]: who says how much may be held, and [`Admission`]: who sets memory aside before it is.
//!
//! A [`DeviceContext`] stands beside each device's column of layers. Memory is a [`DeviceBlock`]: a linear token that
//! cannot be copied, forged or freed twice.

mod account;
mod admission;
mod block;
mod boundary;
mod context;
mod copies;
mod counted;
mod device;
mod driver;
mod error;
mod fault;
mod fence;
mod forward;
mod frame;
mod generation;
mod here;
mod host;
mod inspector;
mod latch;
mod layer;
pub mod leaf;
mod observed;
mod progress;
mod query;
mod remains;
mod resource;
mod shortage;
mod sink;
mod stream;
mod tag;
mod tally;
mod thread;
mod units;
mod unordered;
mod uses;

pub use account::Account;
pub use admission::Admission;
pub use block::{BlockParts, DeviceBlock, MAX_ALIGN, MIN_ALIGN, OwnerId, Refused, grant};
pub use boundary::{LentBlocks, RawBlock};
pub use context::{AdoptedStream, DeviceContext, Member};
pub use counted::Counted;
pub use device::{
    Capabilities, DeviceFacts, DeviceId, DeviceUuid, Link, LinkKind, MemoryInfo, NumaNode, ParseUuidError, PciAddress,
};
pub use driver::{
    DevicePtr, Driver, DriverResult, Gate, HostFlags, HostFunction, Note, Pattern, Progress, RawContext, RawEvent,
    RawPages, RawStream,
};
pub use error::{DriverError, Error, Result, Status, StreamMisuse, StreamNumber};
pub use fault::Fault;
pub use fence::Fenced;
pub use frame::{Frame, FrameKind, FrameRelease, RefusedFrame};
pub use generation::Generation;
pub use here::Here;
pub use host::HostMemory;
pub use inspector::Inspector;
pub use latch::{Latch, LatchGuard};
pub use layer::{Build, Compose, Identity, Layer, Stack};
pub use observed::Observed;
pub use progress::StreamProgress;
pub use query::{QueryId, QueryScope};
pub use remains::Remains;
pub use resource::{DeviceMemoryResource, FrameSource, Holder};
pub use shortage::{Advice, Holding, Shortage, Standing};
pub use sink::{Action, Actions, EventSink, Observer, Record};
pub use stream::{Held, STREAM_SLOTS, Stream};
pub use tag::AllocTag;
pub use tally::{Amount, Counts, Tally};
pub use thread::ThreadIndex;
pub use units::{Bytes, ParseBytesError};
pub use uses::{Access, BlockUse, RefusedTracked, Submission, TrackedBlock, Transfer};
