//! The explanation of a refusal for want of memory: who holds what, and what would have had to be freed.

use crate::{AllocTag, Bytes, DeviceId, Error};
use std::fmt;

/// The memory that is held for one tag.
///
/// ```
/// use bursar_core::{Bytes, Holding, tag};
///
/// let weights = Holding { tag: tag!("weights"), bytes: Bytes::gib(3), blocks: 2 };
/// assert_eq!(weights.to_string(), "weights: 3 GiB in 2 blocks");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The tag.
    pub tag: AllocTag,
    /// The bytes granted.
    pub bytes: Bytes,
    /// The number of blocks.
    pub blocks: u64,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, bytes, blocks } = self;
        write!(f, "{tag}: {bytes} in {blocks} block{}", if *blocks == 1 { "" } else { "s" })
    }
}

/// The memory that one [`Member`](crate::Member) of a device holds, and how.
///
/// ```
/// use bursar_core::{Bytes, MemoryUsage};
///
/// let one = MemoryUsage { held: Bytes::mib(4), cached: Bytes::mib(2), largest_free_run: Some(Bytes::mib(1)), ..MemoryUsage::default() };
/// let both = one.and(MemoryUsage { held: Bytes::mib(1), pending: Bytes::mib(1), ..MemoryUsage::default() });
/// assert_eq!((both.held, both.cached, both.pending), (Bytes::mib(5), Bytes::mib(2), Bytes::mib(1)));
/// assert_eq!(both.largest_free_run, Some(Bytes::mib(1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The bytes that it holds of the device: live, cached and pending ones.
    pub held: Bytes,
    /// The bytes that it holds and nobody uses.
    pub cached: Bytes,
    /// The bytes that were freed but may still be in use by work that has not run.
    pub pending: Bytes,
    /// The most bytes it could grant in one piece from what is cached, where it knows.
    pub largest_free_run: Option<Bytes>,
}

impl MemoryUsage {
    /// Returns the sum of what two members hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            held: self.held.saturating_add(other.held),
            cached: self.cached.saturating_add(other.cached),
            pending: self.pending.saturating_add(other.pending),
            largest_free_run: self.largest_free_run.max(other.largest_free_run),
        }
    }
}

/// A request that was refused for want of memory, and everything that explains the refusal. A number that could not be
/// read is absent.
///
/// `{}` shows it on one line. `{:#}` shows the whole explanation: the request, the figures of the device, who holds
/// what, and what would have had to be freed.
///
/// ```
/// use bursar_core::{Bytes, DeviceId, Error, Holding, Shortage, tag};
///
/// let cause = Error::OutOfBudget { requested: Bytes::gib(4), remaining: Bytes::gib(1), limit: Bytes::gib(16) };
/// let mut shortage = Shortage::new(cause, DeviceId(0), Bytes::gib(4));
/// shortage.holders = vec![
///     Holding { tag: tag!("weights"), bytes: Bytes::gib(12), blocks: 2 },
///     Holding { tag: tag!("activations"), bytes: Bytes::gib(3), blocks: 40 },
/// ];
/// let advice = "freeing `activations` (3 GiB) would have been enough";
/// let refused = Error::from(shortage);
/// assert!(refused.is_capacity() && refused.to_string().ends_with(advice));
/// assert!(format!("{refused:#}").contains("weights: 12 GiB in 2 blocks"));
/// assert!(matches!(refused.root(), Error::OutOfBudget { .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Shortage {
    /// The refusal itself with its exact numbers, by a limit or by the device.
    #[source]
    pub cause: Error,
    /// The device that was asked.
    pub device: DeviceId,
    /// The requested bytes.
    pub requested: Bytes,
    /// The bytes that the driver could still allocate, read after the refusal.
    pub free: Option<Bytes>,
    /// All memory of the device.
    pub total: Option<Bytes>,
    /// The limit that refused, where one did.
    pub limit: Option<Bytes>,
    /// The bytes that the device's pools hold together.
    pub held: Option<Bytes>,
    /// The bytes of it that nobody uses.
    pub cached: Option<Bytes>,
    /// The bytes of it that were freed but may still be in use by work that has not run.
    pub pending: Option<Bytes>,
    /// The most that could be granted in one piece from what is cached.
    pub largest_free_run: Option<Bytes>,
    /// The largest holders by tag, at most ten; empty where nobody counts.
    pub holders: Vec<Holding>,
}

impl Shortage {
    /// Makes a shortage of which nothing is known yet but its cause.
    pub fn new(cause: Error, device: DeviceId, requested: Bytes) -> Self {
        let (free, total, limit) = match cause {
            Error::OutOfMemory { free, total, .. } => (Some(free), Some(total), None),
            Error::OutOfBudget { limit, .. } => (None, None, Some(limit)),
            _ => (None, None, None),
        };
        Self {
            cause,
            device,
            requested,
            free,
            total,
            limit,
            held: None,
            cached: None,
            pending: None,
            largest_free_run: None,
            holders: Vec::new(),
        }
    }
}

/// A size that may be unknown.
struct OrUnknown(Option<Bytes>);

impl fmt::Display for OrUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => bytes.fmt(f),
            None => f.pad("unknown"),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = self.advice();
        if !f.alternate() {
            return write!(f, "{}; {advice}", self.cause);
        }
        writeln!(f, "{}", self.cause)?;
        writeln!(f, "  requested         {} on {}", self.requested, self.device)?;
        if let Some(limit) = self.limit {
            writeln!(f, "  limit             {limit}")?;
        }
        writeln!(f, "  free              {} of {}", OrUnknown(self.free), OrUnknown(self.total))?;
        let figures = [
            ("held", self.held),
            ("cached", self.cached),
            ("pending", self.pending),
            ("largest free run", self.largest_free_run),
        ];
        for (name, bytes) in figures {
            writeln!(f, "  {name:<17} {}", OrUnknown(bytes))?;
        }
        writeln!(f, "  holders{}", if self.holders.is_empty() { "           unknown" } else { "" })?;
        for holding in &self.holders {
            writeln!(f, "    {holding}")?;
        }
        write!(f, "  {advice}")
    }
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(Box::new(shortage))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::error) fn out_of_memory(requested: u64, free: u64) -> Shortage {
        let (requested, free, total) = (Bytes(requested), Bytes(free), Bytes(1000));
        Shortage::new(Error::OutOfMemory { device: DeviceId(0), requested, free, total }, DeviceId(0), requested)
    }

    #[test]
    fn p4_a_shortage_is_one_line_unless_all_of_it_is_asked_for() {
        let refused = Error::from(out_of_memory(600, 200));
        assert_eq!(refused.to_string().lines().count(), 1);
        assert_eq!(format!("{refused:#}").lines().count(), 9);
        assert!(refused.is_capacity() && matches!(refused.root(), Error::OutOfMemory { .. }));
    }
}
