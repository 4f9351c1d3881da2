//! Support for layers that check memory: blocks with margins around them, and comparisons in stream order.
//!
//! Margins and freed blocks are copied to pinned memory and compared by a host function on the freeing stream; only a
//! driver that takes no more work for that stream makes anybody wait. One piece of host memory serves a stream, because
//! what follows there comes after the comparison.

mod fence;
mod inspector;

pub use fence::FencedBlock;
pub use inspector::Inspector;
