//! Support for layers that check memory: blocks with margins around them, and comparisons in stream order.

mod fence;
mod inspector;

pub use fence::Fenced;
pub use inspector::Inspector;
