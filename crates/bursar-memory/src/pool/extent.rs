//! An extent: a stretch of the pool's memory that is in no free run.

/// A stretch of the pool's memory, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: u64,
    pub(super) len: u64,
}
