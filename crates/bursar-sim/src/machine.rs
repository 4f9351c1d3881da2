//! The simulated machine: devices and their memory, streams and the work queued on them, all behind one lock.

mod capacity;
mod captures;
mod contents;
mod device;
mod eager_space;
mod heap;
mod pools;
mod queues;
mod shared_usage;
mod sparse;
mod state;
mod work;

pub(crate) use captures::{Graph, GraphBody, GraphExec, NodeEffect, Output};
pub(crate) use device::{ADDRESSES, Mapping, Pages, addresses};
pub(crate) use heap::{AllocationKind, Heap, UNIT};
pub(crate) use pools::Pool;
pub(crate) use queues::{Blocker, StartedHostFunction, StreamPoint};
pub(crate) use shared_usage::SharedUsage;
pub(crate) use sparse::{SparseBytes, Word};
pub(crate) use state::MachineState;
pub use work::KernelMemory;
pub(crate) use work::{KernelBody, Source, Work};
