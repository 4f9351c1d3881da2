//! Pinned host memory on the right NUMA node: created in parallel, verified by the kernel, pooled, and accounted for.
//!
//! A [`NumaWorkerPool`] has one worker thread for each NUMA node, pinned to its CPUs. A request for a GPU goes to the node
//! that the GPU's PCI address reports. The worker charges the account, reserves addresses, binds them to the node, asks for
//! huge pages, touches them with as many threads as the node has CPUs, lets the driver pin them, and asks the kernel where
//! they are. The result is a [`PinnedBuffer`], which releases all of that when it is dropped.
//!
//! A [`PinnedPool`] keeps such memory, in exact sizes, because creating it takes long and releasing it waits for the device.
//!
//! ```
//! use bursar::device::DeviceContext;
//! use bursar::host::{NumaWorkerPool, PinnedOptions, PinnedPool};
//! use bursar::memory::{Build, DeviceMemoryResource};
//! use bursar::sim::Sim;
//! use bursar::stream::TrackedBlock;
//! use bursar::{Bytes, DeviceId, Stack, leaf, tag};
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
//! # Structure
//! Each module uses only those above it:
//!
//! - `topology` reads the NUMA nodes, CPUs and GPUs of a machine.
//! - `system` is the seam to the operating system: the [`System`] trait, and [`Machine`], which implements it with system
//!   calls.
//! - `memory` is pinned memory: a slab with its charge and its placement, and the pieces it is cut into.
//! - `cache` keeps free pieces by size, and pieces that streams may still be using. A [`PinnedBuffer`] returns its piece
//!   there.
//! - `workers` creates slabs, one request at a time on each node.
//! - `affinity` pins threads of the caller near a device.
//! - `pool` is [`PinnedPool`], which takes from a cache or asks the workers.
//!
//! # Invariants
//! - **Pinned memory is a value that moves.** Charge, region, slab and piece each release themselves when dropped. So a
//!   request can end at any step, by an error, a panic or a caller who has gone, and nothing leaks.
//! - **Releasing pinned memory waits for the device**, so trimming does it on a thread of its own, everything there is at a
//!   time.
//!
//! # Decisions
//! - **A node is preferred, not enforced.** A strict memory policy invokes the OOM killer when a node is full. A preference
//!   falls back to other nodes, and the kernel is asked afterwards where the pages are.
//! - **Returning a pinned buffer on a stream costs no driver call.** Streams are queried when somebody needs memory; a busy
//!   one gets one event for everything returned on it until then.
//!
//! # Evidence
//! `cargo xtask numa` boots a kernel with five nodes, one of 256 MiB, one without memory and one without CPUs, and asks it with
//! `move_pages` where pages are that were pinned for each, also by a process that its control group restricts to one node.
//! Speed was measured on hardware with one node. The division of a node's CPUs among GPUs, and holes in the numbering, rest on
//! the files that such machines are documented to have, recreated in tests.
//!
//! The crate is for Linux, whose files and system calls it uses.

mod affinity;
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

pub use affinity::{ThreadPin, current_node, pin_thread_near, pin_thread_to};
pub use cache::{PinnedArray, PinnedBuffer, PinnedPoolCounts};
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
