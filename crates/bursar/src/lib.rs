//! The memory runtime for programs that share GPUs.
//!
//! # A tour
//!
//! A [driver](driver::detect) finds the devices: CUDA's where there are any, simulated ones otherwise. A [`Stack`] says how
//! memory is handed out: its layers, from the one that sees requests first down to the [`leaf`]. A [`DevicePool`] builds
//! that stack for each device, and a [`DeviceBuffer`] is memory that frees itself, in stream order.
//!
//! ```
//! use bursar::prelude::*;
//!
//! # fn main() -> bursar::Result<()> {
//! let driver = bursar::driver::detect()?;
//! let statistics = Statistics::default();
//! let stack = Stack::new()
//!     .observe(statistics.clone())
//!     .layer(GlobalDeviceBudget::of(Bytes::gib(16)))
//!     .over(leaf::Async);
//!
//! let gpus = DevicePool::open(driver, &stack)?;
//! let gpu = gpus.most_free();
//! let stream = gpu.streams().lease()?;
//!
//! let mut weights = gpu.buffer::<f32>(1 << 20, &stream, tag!("weights"))?;
//! weights.fill(1.0)?;
//! assert_eq!(weights.slice(..2)?.to_vec()?, [1.0, 1.0]);
//!
//! let refused = gpu.buffer::<u8>(17 << 30, &stream, tag!("too big")).unwrap_err();
//! assert!(refused.is_capacity());
//! drop(weights);
//! assert_eq!(statistics.counts().current.count, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # The raw level
//!
//! Those who launch kernels themselves use the parts: a [`DeviceContext`] gives streams and adopts those of others, a
//! [`DeviceMemoryResource`] gives [`DeviceBlock`]s, and nothing else is needed.
//!
//! # Without a GPU
//!
//! [`sim::Sim`] is a driver like any other, and the reference for what is right: it moves real bytes, runs streams in any
//! order they may run in, and reports every use of memory that nothing ordered.
#![forbid(unsafe_code)]

pub mod driver;
mod ledgers;
pub mod testing;

pub use bursar_core::*;
pub use bursar_cuda as cuda;
pub use bursar_device::*;
pub use bursar_fit as fit;
pub use bursar_host as host;
pub use bursar_ledger as ledger;
pub use bursar_memory::*;
pub use bursar_sim as sim;
pub use bursar_trace as trace;
pub use ledgers::Ledgers;

/// The names that most programs use, in one `use`.
///
/// ```
/// use bursar::prelude::*;
///
/// let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::gib(1))).over(leaf::Direct);
/// ```
pub mod prelude {
    pub use crate::Ledgers;
    pub use bursar_core::{
        Access, AllocTag, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Error,
        Holder, Layer, Stack, Stream, TrackedBlock, Transfer, leaf, tag,
    };
    pub use bursar_device::{DeviceBuffer, DevicePool, Gpu, Kernel, StreamLease, StreamPool, Work};
    pub use bursar_fit::{compute_fit, fit_workers};
    pub use bursar_host::{NumaWorkerPool, PinnedArray, PinnedBuffer, PinnedOptions, PinnedPool};
    pub use bursar_ledger::{Ledger, Priority, Reservation};
    pub use bursar_memory::{GlobalDeviceBudget, PagePool, Statistics};
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
