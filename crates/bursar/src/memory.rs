//! Memory: stacks, the layers and leaves they are made of, and the traits to write layers of one's own.
//!
//! A [`Stack`] is a recipe: layers from the one that sees requests first down to a [`leaf`]. The layers here are
//! [`PagePool`], [`GlobalDeviceBudget`], [`Quota`], [`Guard`] and [`OnFailure`]. What a stack builds is a
//! [`DeviceMemoryResource`], which hands out [`DeviceBlock`]s: linear tokens that cannot be copied, forged or freed twice.
//!
//! A layer of one's own implements [`Layer`] and, for what it makes, [`Holder`] and [`DeviceMemoryResource`];
//! [`forward_holder!`] and [`forward_memory_resource!`] write the methods that it only passes on.

#[doc(inline)]
pub use bursar_core::{
    Account, Admission, AllocTag, AsleepId, BlockParts, BlocksOf, Build, Bytes, Compose, DeviceBlock,
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DeviceRange, FencedBlock, Frame, FrameKind, FrameRelease,
    FrameSource, Generation, Holder, HostElements, HostMemory, HostStore, Identity, Inspector, Layer, LentBlocks,
    MAX_ALIGN, MAX_SIZE, MIN_ALIGN, ObservedResource, OwnerId, ParseBytesError, RawBlock, Refused, RefusedFrame,
    SleepDecision, SleepReading, SleepReport, SleepRequest, SleepRequestId, SleepState, Sleeper, Stack, TagRecord,
    TaggedBlocks, WakeReport, WakeRequest, forward_holder, forward_memory_resource, grant, is_size, leaf,
};
#[doc(inline)]
pub use bursar_memory::{
    BudgetReading, Failure, FailureAction, GlobalDeviceBudget, GlobalDeviceBudgetResource, Guard, GuardResource,
    OnAccount, OnFailure, OnFailureResource, OwnLimit, PagePool, PagePoolResource, PoolReading, Quota, QuotaResource,
};
