//! The memory runtime for programs that share GPUs.
//!
//! # A tour
//!
//! A [driver](driver::cuda_or_simulated) finds the devices: CUDA's where there are any, simulated ones otherwise. A [`Stack`] says how
//! memory is handed out: its layers, from the one that sees requests first down to the [`leaf`]. A [`DevicePool`] builds
//! that stack for each device, and a [`DeviceBuffer`] is memory that frees itself, in stream order.
//!
//! ```
//! use bursar::prelude::*;
//!
//! # fn main() -> bursar::Result<()> {
//! let driver = bursar::driver::cuda_or_simulated()?;
//! let statistics = Statistics::default();
//! let stack = Stack::new()
//!     .observe(statistics.clone())
//!     .layer(PagePool::default()) // sees requests first
//!     .layer(GlobalDeviceBudget::of(Bytes::gib(16))) // a limit for each device
//!     .over(leaf::Frames);
//!
//! let gpus = DevicePool::open(driver, &stack)?;
//! let gpu = gpus.most_free();
//! let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
//!
//! let mut weights = gpu.buffer::<f32>(1 << 20, &a, tag!("weights"))?;
//! a.submit(|work| work.fill(&mut weights, 1.0))?;
//! let ones = b.submit(|work| work.read_back(&weights))?; // ordered after the write
//! assert_eq!(ones.wait()?[..2], [1.0, 1.0]);
//!
//! let refused = gpu.buffer::<u8>(17 << 30, &a, tag!("too big")).unwrap_err();
//! assert!(refused.is_capacity());
//! println!("{refused:#}"); // what was asked for, the limit, and who holds the rest
//!
//! drop(weights); // freed in stream order
//! assert_eq!(statistics.counts().current.count, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Where things are
//!
//! The root has the names that most programs write, and [`prelude`] brings those (but for [`Result`]) and a few more in with
//! one `use`. The rest is in modules, by what a program is about to do:
//!
//! | to | look in |
//! | --- | --- |
//! | choose between CUDA and simulated devices | [`driver`] |
//! | open devices, make buffers, read facts about devices | [`device`] |
//! | submit work to streams, share buffers between them, adopt the streams of another library | [`stream`] |
//! | limit, pool and guard memory, or write a layer of one's own | [`memory`] |
//! | share a device with other processes, reserve memory before it is needed | [`ledger`], [`Ledgers`] |
//! | find out how many workers fit, and start that many | [`fit`] |
//! | have pinned host memory on the right NUMA node | [`host`] |
//! | understand a refusal | [`error`] |
//! | count and log what memory is used for | [`observe`] |
//! | watch who holds what, over time and for those who scrape | [`metrics`] |
//! | read, convert, replay and show logs | [`trace`] |
//! | find races and test budgets without a GPU | [`testing`], on the simulated devices of [`sim`] |
//!
//! # The raw level
//!
//! Those who launch kernels themselves use the parts: a [`DeviceContext`](device::DeviceContext) gives streams and adopts
//! those of others, a [`DeviceMemoryResource`](memory::DeviceMemoryResource) gives [`DeviceBlock`](memory::DeviceBlock)s,
//! and nothing else is needed.
//!
//! # Without a GPU
//!
//! [`sim::Sim`] is a driver like any other, and the reference for what is right: it moves real bytes, runs streams in any
//! order they may run in, and reports every use of memory that nothing ordered.
//!
//! # Beside other libraries
//!
//! CUDA is loaded at run time, so nothing of it is needed to build. Handles are the driver's own values, contexts are the
//! primary ones, and no other crate's bindings are chosen: Bursar stands beside cudarc with any of its version features.
#![forbid(unsafe_code)]

pub mod device;
pub mod driver;
pub mod error;
pub mod graph;
mod ledgers;
pub mod memory;
pub mod metrics;
pub mod observe;
mod sleep_when_asked;
pub mod stream;
pub mod sync;
pub mod testing;

#[doc(inline)]
pub use bursar_cuda as cuda;
#[doc(inline)]
pub use bursar_fit as fit;
#[doc(inline)]
pub use bursar_host as host;
#[doc(inline)]
pub use bursar_ledger as ledger;
#[doc(inline)]
pub use bursar_sim as sim;
#[doc(inline)]
pub use bursar_trace as trace;

#[doc(inline)]
pub use device::{DeviceBuffer, DeviceId, DevicePool, Gpu};
#[doc(inline)]
pub use error::{Error, Result};
pub use ledgers::Ledgers;
#[doc(inline)]
pub use memory::{Bytes, GlobalDeviceBudget, Guard, PagePool, Quota, Stack, leaf};
#[doc(inline)]
pub use observe::Statistics;
#[doc(inline)]
pub use stream::{Stream, StreamLease, Transfer, Work};

#[doc(inline)]
pub use bursar_core::tag;

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
        Access, Admission, AllocTag, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource,
        DeviceMemoryResourceExt, Driver, Error, Holder, Layer, Stack, Stream, TrackedBlock, Transfer, leaf, tag,
    };
    pub use bursar_device::{DeviceBuffer, DevicePool, Gpu, Kernel, StreamLease, StreamPool, Work};
    pub use bursar_fit::{compute_fit, fit_workers};
    pub use bursar_host::{NumaWorkerPool, PinnedArray, PinnedBuffer, PinnedOptions, PinnedPool};
    pub use bursar_ledger::{Ledger, Priority, Reservation};
    pub use bursar_memory::{GlobalDeviceBudget, Guard, PagePool, Quota, Statistics};
}
