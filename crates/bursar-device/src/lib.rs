//! The devices of Bursar: what a program holds to use a GPU.
//!
//! - [`DevicePool`]: the usable devices of a driver, and the choice between them.
//! - [`Gpu`]: one device, with its memory erased to one type and its streams.
//! - [`StreamPool`]: a bounded number of streams, acquired for good or leased for a while.
//! - [`DeviceBuffer`]: typed device memory that frees itself.
//! - [`Work`]: what is submitted to a stream, which says what buffers it uses and is ordered by that.
//!
//! ```
//! use bursar_core::{Stack, leaf, tag};
//! use bursar_device::DevicePool;
//! use bursar_sim::Sim;
//!
//! let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
//! let gpu = gpus.most_free();
//! let stream = gpu.streams().lease()?;
//!
//! let mut weights = gpu.buffer::<f32>(1024, &stream, tag!("weights"))?;
//! weights.fill(0.5)?;
//! weights.slice_mut(..2)?.write_from_host(&[1.0, 2.0])?;
//! assert_eq!(weights.slice(..3)?.to_vec()?, [1.0, 2.0, 0.5]);
//! # Ok::<(), bursar_core::Error>(())
//! ```
#![forbid(unsafe_code)]

mod buffer;
mod choose;
mod device_pool;
mod gpu;
mod leak;
mod lease;
mod priming;
mod sites;
mod slice;
mod stranded;
mod stream_pool;
mod work;

pub use buffer::DeviceBuffer;
pub use device_pool::DevicePool;
pub use gpu::Gpu;
pub use leak::{Leak, LeakReport, Site};
pub use lease::StreamLease;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream_pool::{StreamOptions, StreamPool};
pub use work::Work;
