//! Pinned host memory on the right NUMA node: made in parallel, verified by the kernel, pooled, and accounted for.
//!
//! A [`NumaWorkerPool`] has one worker thread a node, pinned to its CPUs. A request for a GPU goes to the node that the
//! GPU's PCI address reports: the worker charges the account, reserves addresses, names the node, asks for huge pages,
//! touches them with as many threads as the node has CPUs, has the driver pin them and asks the kernel where they are. What
//! comes back is a [`PinnedBuffer`], which gives all of that back when it is dropped.
//!
//! A [`PinnedPool`] keeps such memory, in exact sizes, because making it takes long and giving it back waits for the device.
//!
//! ```
//! use bursar_core::{Bytes, DeviceContext, DeviceId, Stack, TrackedBlock, leaf, Build, DeviceMemoryResource, tag};
//! use bursar_host::{NumaWorkerPool, PinnedOptions, PinnedPool};
//! use bursar_sim::Sim;
//!
//! let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
//! let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
//! let mut batch = pool.get(1000)?;
//! batch.fill(7);
//!
//! let memory = Stack::new().over(leaf::Direct).build(&context)?;
//! let stream = context.create_stream(0)?;
//! let mut block = TrackedBlock::new(&memory, memory.allocate(1000, 256, stream, tag!("batch"))?);
//! let upload = block.copy_from_host_async(&context, 0, batch, stream)?;
//! let batch = upload.wait()?;
//! assert_eq!(batch[..3], [7, 7, 7]);
//! block.free(&memory, stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What rests on what
//! Placement on one node is what was measured on hardware. That requests find the right one of several nodes, and how GPUs
//! share a node's CPUs, rests on the files that such machines are documented to show, recreated in tests.
//!
//! The crate is for Linux, whose files and calls it uses.

mod cache;
mod errno;
mod error;
mod index_set;
mod memory;
mod options;
mod pool;
mod step;
mod system;
mod thread;
mod topology;
mod workers;

pub use cache::{PinnedBuffer, PinnedPoolCounts};
pub use errno::Errno;
pub use error::HostError;
pub use index_set::{IndexSet, ParseIndexSetError};
pub use memory::{Placement, pages_on_node};
pub use options::{PinnedKind, PinnedOptions, default_patience};
pub use pool::{GetRequest, PinnedPool, PrimeRequest, RefusedBuffer};
pub use step::{PinStep, StepOutcome};
pub use system::{LockedMemory, Machine, MemoryLimit, Region, System};
pub use topology::{GpuPlace, HugePages, Node, Topology};
pub use workers::{NumaWorkerPool, PinRequest};
