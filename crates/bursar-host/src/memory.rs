//! Pinned memory: slabs with their charge and their placement, and the pieces that they are cut into.

mod charge;
mod placement;
mod slab;

pub(crate) use charge::Charge;
pub use placement::{Placement, pages_on_node};
pub(crate) use slab::{Piece, Slab, StrandedSlabs};
