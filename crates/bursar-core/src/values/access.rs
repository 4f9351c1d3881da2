//! Kinds of access to memory.

/// The way in which work accesses a block; the greater of two accesses covers both.
///
/// ```
/// use bursar::stream::Access;
///
/// assert_eq!(Access::Read.max(Access::Write), Access::Write);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Read-only access.
    Read,
    /// Write access, possibly with reads.
    Write,
}
