//! The pinned memory of a pool: free pieces by size, pieces that streams may be using, and buffers in use.

mod array;
mod buffer;
mod host_memory;
mod in_flight;
mod pieces;
mod releaser;

pub use array::PinnedArray;
pub use buffer::PinnedBuffer;
pub(crate) use pieces::PieceCache;
pub use pieces::PinnedPoolCounts;
pub(crate) use releaser::Releaser;
