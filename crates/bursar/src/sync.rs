//! Parts for layers that many threads call at once, and for languages whose waits can be interrupted.

#[doc(inline)]
pub use bursar_core::{Latch, LatchGuard, ThreadIndex, interrupt_interval, interruptible, is_interrupted};
