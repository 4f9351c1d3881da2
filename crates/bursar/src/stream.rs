//! Streams: pools of them, those of other libraries, and the order of what is submitted to several.
//!
//! A [`StreamPool`] lends streams as [`StreamLease`]s. [`Work`] is what is submitted to one: copies, fills and launches that
//! are ordered after whatever they depend on, on any stream. A [`Transfer`] is the result of a copy to the host. On the raw
//! level a [`TrackedBlock`] knows its uses, and an [`AdoptedStream`] is one that somebody else made.

#[doc(inline)]
pub use bursar_core::{
    Access, AdoptedStream, BlockUse, RefusedTracked, RefusedTransfer, STREAM_SLOTS, Stream, StreamHold, StreamProgress,
    Submission, TrackedBlock, Transfer,
};
#[doc(inline)]
pub use bursar_device::{Kernel, KernelRanges, MoreRanges, StreamLease, StreamOptions, StreamPool, Work};
