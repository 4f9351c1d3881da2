//! The only room of this crate with unsafe code: system calls, and driver calls about host memory.
//!
//! What leaves it is safe: a [`Region`] unmaps itself, a slab is unpinned before it is unmapped, and pieces of a slab
//! never overlap and keep it alive.

mod calls;
mod machine;
mod passing;
mod region;
mod slab;
mod transfer;

pub use machine::Machine;
pub(crate) use passing::{Passing, is_idle};
pub use region::Region;
pub(crate) use slab::{Piece, Slab, Stranded};
