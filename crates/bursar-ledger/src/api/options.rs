//! The options of a reservation.

/// The priority of a request: a higher one is served first, and among equals the one that came first.
///
/// ```
/// use bursar::ledger::Priority;
///
/// assert!(Priority::HIGH > Priority::default() && Priority::default() > Priority::LOW);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// Served after requests of normal priority.
    pub const LOW: Self = Self(64);
    /// The priority of most requests.
    pub const NORMAL: Self = Self(128);
    /// Served before requests of normal priority.
    pub const HIGH: Self = Self(192);
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// The options of a reservation: its label, its priority, and what it leaves free.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, ReserveOptions};
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(100));
/// let options = ReserveOptions::new().label("train").keep_free_millionths(300_000);
/// let reservation = ledger.reserve_with(Bytes::gib(70), &options)?;
/// assert_eq!(ledger.reading()?.processes[0].labels, ["train"]);
/// // Another such request finds nothing, whoever makes it; one that keeps nothing free does.
/// assert!(ledger.reserve_with(Bytes(1), &options).unwrap_err().is_capacity());
/// assert!(ledger.reserve(Bytes::gib(30)).is_ok());
/// # drop(reservation);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ReserveOptions {
    pub(crate) label: String,
    pub(crate) priority: Priority,
    pub(crate) kept: u64,
}

impl ReserveOptions {
    /// Returns the options of most reservations: no label, normal priority, and nothing that stays free.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the label by which readings show the reservation and those who draw on it. Of a longer one the first 49 bytes
    /// are kept.
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Sets the priority: that of its turn where it waits. At once it is granted as if it had come first among those of lower ones.
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Leaves so many millionths of what all may have together free: the reservation is granted if everything that is charged
    /// then, the reservation included, is at most the rest.
    pub fn keep_free_millionths(self, millionths: u32) -> Self {
        Self { kept: u64::from(millionths).min(crate::book::WHOLE), ..self }
    }
}
