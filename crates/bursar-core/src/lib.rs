//! The nouns and the seams of Bursar, the memory runtime for programs that share GPUs.
//!
//! Three seams carry everything else, each a file that reads on its own:
//!
//! - [`Driver`]: what is asked of a device. A simulated one and CUDA implement it, and everything above runs unchanged on
//!   both.
//! - [`DeviceMemoryResource`] and [`FrameSource`]: what layers and pools are written to. A [`Stack`] composes them over
//!   one of the [`leaf`]s.
//! - [`Account`]: who says how much may be held.
//!
//! A [`DeviceContext`] stands beside each device's column of layers. Memory is a [`DeviceBlock`]: a linear token that
//! cannot be copied, forged or freed twice.

mod account;
mod block;
mod boundary;
mod context;
mod copies;
mod counted;
mod device;
mod driver;
mod error;
mod fault;
mod frame;
mod generation;
mod host;
mod layer;
pub mod leaf;
mod observed;
mod query;
mod resource;
mod sink;
mod stream;
mod tag;
mod thread;
mod units;

pub use account::Account;
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
pub use frame::{Frame, FrameKind, RefusedFrame};
pub use generation::Generation;
pub use host::HostMemory;
pub use layer::{Build, Compose, Identity, Layer, Stack};
pub use observed::Observed;
pub use query::{QueryId, QueryScope};
pub use resource::{DeviceMemoryResource, FrameSource, Holder};
pub use sink::{Action, Actions, EventSink, Observer, Record};
pub use stream::{STREAM_SLOTS, Stream};
pub use tag::AllocTag;
pub use thread::ThreadIndex;
pub use units::{Bytes, ParseBytesError};
