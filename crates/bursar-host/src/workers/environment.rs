//! The objects that all workers of a pool share.

use super::unplaced::UnplacedMemory;
use crate::memory::StrandedSlabs;
use crate::{System, Topology};
use std::sync::Arc;

/// The machine that workers work on, and what they keep of it together.
#[derive(Debug)]
pub(super) struct WorkerEnvironment {
    pub(super) system: Arc<dyn System>,
    pub(super) topology: Topology,
    pub(super) stranded: Arc<StrandedSlabs>,
    pub(super) unplaced: UnplacedMemory,
}
