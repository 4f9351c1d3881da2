//! Pinned memory: slabs that are charged, placed, pinned and given back in that order, and the pieces they are cut into.

mod charge;
mod placement;
mod slab;

pub(crate) use charge::Charge;
pub use placement::{Placement, pages_on_node};
pub(crate) use slab::{Piece, Slab, StrandedSlabs};
