//! Parts for layers that many threads call at once.

#[doc(inline)]
pub use bursar_core::{Latch, LatchGuard, ThreadIndex};
