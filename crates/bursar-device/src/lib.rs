//! The devices of Bursar: the types through which a program uses a GPU.
//!
//! - [`DevicePool`]: the usable devices of a driver, and the choice between them.
//! - [`Gpu`]: one device, with its memory erased to one type and its streams.
//! - [`StreamPool`]: a bounded number of streams, acquired permanently or leased for a while.
//! - [`DeviceBuffer`]: typed device memory that frees itself.
//! - [`Work`]: work that is submitted to a stream, which says what buffers it uses and is ordered by that.
//!
//! ```
//! use bursar::sim::Sim;
//! use bursar::{DevicePool, Stack, leaf, tag};
//!
//! let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
//! let gpu = gpus.most_free();
//! let stream = gpu.streams().lease()?;
//!
//! let mut weights = gpu.buffer::<f32>(1024, &stream, tag!("weights"))?;
//! weights.fill(0.5)?;
//! weights.slice_mut(..2)?.write_from_host(&[1.0, 2.0])?;
//! assert_eq!(weights.slice(..3)?.to_vec()?, [1.0, 2.0, 0.5]);
//! # Ok::<(), bursar::Error>(())
//! ```
//!
//! # Modules
//! Each module uses only those above it in this list:
//!
//! | module | contents |
//! | --- | --- |
//! | `leak`, `live_blocks` | reports of memory that is still held; where it was allocated, and for which tag |
//! | `deferred_frees` | frees of blocks in stream order, and those that were refused, to be tried again |
//! | `stream_pool` | [`StreamPool`] and [`StreamLease`] |
//! | `handle_memory` | the count of what one handle holds of memory that others use as well |
//! | `gpu` | [`Gpu`] and [`GpuOptions`] |
//! | `graph` | [`GpuCapture`], and how a [`Gpu`] captures graphs |
//! | `slice` | parts of buffers: copies and fills that wait, and those that are submitted |
//! | `buffer` | [`DeviceBuffer`], and how a [`Gpu`] makes one |
//! | `work` | [`Work`], and how it is submitted to a lease or a stream |
//! | `kernel` | [`Kernel`], declared once for hardware and for the race detector |
//! | `device_pool` | [`DevicePool`], and the choice of a device |
//!
//! # Source locations
//! `#[track_caller]` does not pass through a `dyn` seam. So entry points that programs call directly begin with
//! [`DeviceContext::enter_call_site`](bursar_core::DeviceContext::enter_call_site), which does nothing unless the
//! driver listens. The outermost location counts, since that is the program's; a call that no entry point announced has
//! no location, never a guess.
#![forbid(unsafe_code)]

mod buffer;
mod deferred_frees;
mod device_pool;
mod gpu;
mod graph;
mod handle_memory;
mod kernel;
mod leak;
mod live_blocks;
mod slice;
mod stream_pool;
mod work;

pub use buffer::{DeviceBuffer, RefusedIntoBlock};
pub use bytemuck::{Pod, Zeroable};
pub use device_pool::DevicePool;
pub use gpu::{Gpu, GpuOptions, SleepOptions, WakeOptions};
pub use graph::GpuCapture;
pub use kernel::{Kernel, KernelRanges, MoreRanges};
pub use leak::{Leak, LeakReport, Site, WaitingFree};
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream_pool::{StreamLease, StreamOptions, StreamPool};
pub use work::Work;
