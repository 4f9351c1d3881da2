//! Building blocks for code that several threads run at once.

mod latch;
mod thread;

pub use latch::{Latch, LatchGuard};
pub use thread::ThreadIndex;
pub(crate) use thread::at_thread_end;
