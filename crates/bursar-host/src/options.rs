//! The options of a request: the kind of memory, its node, and its deadline.

use bursar_core::{Account, Bytes, NumaNode};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The ways to create pinned memory.
///
/// ```
/// use bursar::host::PinnedKind;
///
/// assert_eq!(PinnedKind::default(), PinnedKind::Registered);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinnedKind {
    /// Mapped, placed and touched here, then registered with the driver: fast to create, and as fast for the CPU as any
    /// memory.
    #[default]
    Registered,
    /// Allocated by the driver: slow to create, since the driver touches it with one thread, and placed where that thread
    /// runs.
    DriverAllocated,
    /// Allocated by the driver, bypassing caches: the device may read it faster across the bus, and writing it in order
    /// leaves the CPU's caches to other data, but each read by the CPU goes to memory, which is many times slower. For
    /// memory that the CPU only writes. Registered memory cannot be write-combined, so the driver allocates it.
    WriteCombined,
}

/// The options of a request besides its size.
///
/// ```
/// use bursar::host::{PinnedKind, PinnedOptions};
/// use std::time::Duration;
///
/// let options = PinnedOptions::default().kind(PinnedKind::WriteCombined).patience(Duration::from_secs(2));
/// assert!(format!("{options:?}").contains("WriteCombined"));
/// ```
#[derive(Clone, Default)]
pub struct PinnedOptions {
    pub(crate) kind: PinnedKind,
    pub(crate) node: Option<NumaNode>,
    pub(crate) patience: Option<Duration>,
    pub(crate) account: Option<Arc<dyn Account>>,
    pub(crate) small_pages: bool,
}

impl PinnedOptions {
    /// Sets the way it is created.
    pub fn kind(mut self, kind: PinnedKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the node, instead of the one that the GPU's PCI address reports.
    pub fn node(mut self, node: NumaNode) -> Self {
        self.node = Some(node);
        self
    }

    /// Sets the time that the request may take, including its wait for the worker, instead of [`default_patience`].
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Sets the account that is charged before anything is taken, until it is released.
    pub fn account(mut self, account: Arc<dyn Account>) -> Self {
        self.account = Some(account);
        self
    }

    /// Does not ask for huge pages.
    pub fn small_pages(mut self) -> Self {
        self.small_pages = true;
        self
    }
}

impl fmt::Debug for PinnedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, node, patience, account, small_pages } = self;
        let mut shown = f.debug_struct("PinnedOptions");
        shown.field("kind", kind).field("node", node).field("patience", patience);
        shown.field("account", account).field("small_pages", small_pages).finish()
    }
}

/// Returns the time that a request may take by default: 10 s and 1 s for each GiB, at most 300 s.
///
/// ```
/// use bursar::Bytes;
/// use bursar::host::default_patience;
/// use std::time::Duration;
///
/// assert_eq!(default_patience(Bytes::gib(8)), Duration::from_secs(18));
/// ```
pub fn default_patience(bytes: Bytes) -> Duration {
    const MOST: Duration = Duration::from_secs(300);
    let more = (u128::from(bytes.get()) * 1_000_000_000) >> 30;
    let more = Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX));
    Duration::from_secs(10).saturating_add(more).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n5_patience_grows_with_the_size_and_ends_at_five_minutes() {
        assert_eq!(default_patience(Bytes(0)), Duration::from_secs(10));
        assert_eq!(default_patience(Bytes::mib(512)), Duration::from_millis(10_500));
        assert_eq!(default_patience(Bytes::gib(290)), Duration::from_secs(300));
        assert_eq!(default_patience(Bytes::gib(291)), Duration::from_secs(300));
        assert_eq!(default_patience(Bytes(u64::MAX)), Duration::from_secs(300));
    }
}
