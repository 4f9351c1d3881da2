//! Building blocks for code that several threads run at once.

mod interrupt;
mod latch;
mod thread;

pub use interrupt::{interrupt_interval, interruptible, is_interrupted};
pub use latch::{Latch, LatchGuard};
pub use thread::ThreadIndex;
pub(crate) use thread::at_thread_end;
