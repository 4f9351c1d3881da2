//! Why there was no memory: who holds what, and what would have had to go.

use crate::{AllocTag, Bytes, DeviceId, Error};
use std::fmt;

/// What is held for one tag.
///
/// ```
/// use bursar_core::{Bytes, Holding, tag};
///
/// let weights = Holding { tag: tag!("weights"), bytes: Bytes::gib(3), blocks: 2 };
/// assert_eq!(weights.to_string(), "weights: 3 GiB in 2 blocks");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What it is for.
    pub tag: AllocTag,
    /// Bytes granted.
    pub bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, bytes, blocks } = self;
        write!(f, "{tag}: {bytes} in {blocks} block{}", if *blocks == 1 { "" } else { "s" })
    }
}

/// How one [`Member`](crate::Member) of a device stands.
///
/// ```
/// use bursar_core::{Bytes, Standing};
///
/// let one = Standing { held: Bytes::mib(4), cached: Bytes::mib(2), largest_free_run: Some(Bytes::mib(1)), ..Standing::default() };
/// let both = one.and(Standing { held: Bytes::mib(1), pending: Bytes::mib(1), ..Standing::default() });
/// assert_eq!((both.held, both.cached, both.pending), (Bytes::mib(5), Bytes::mib(2), Bytes::mib(1)));
/// assert_eq!(both.largest_free_run, Some(Bytes::mib(1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What it holds of the device: what is live, cached and pending.
    pub held: Bytes,
    /// What it holds and nobody uses.
    pub cached: Bytes,
    /// What was freed but may still be in use by work that has not run.
    pub pending: Bytes,
    /// The most it could grant in one piece from what is cached, where it knows.
    pub largest_free_run: Option<Bytes>,
}

impl Standing {
    /// How two members stand together.
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

/// A request refused for want of memory, and everything that explains it. A number that could not be read is absent.
///
/// Shown plainly it is one line. Shown with `{:#}` it is the whole explanation: what was asked for, how the device stands,
/// who holds what, and what would have had to go.
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
    /// The refusal itself, with its exact numbers: a limit's, or the device's own.
    #[source]
    pub cause: Error,
    /// The device that was asked.
    pub device: DeviceId,
    /// What was asked for.
    pub requested: Bytes,
    /// What the driver could still give out, read after the refusal.
    pub free: Option<Bytes>,
    /// All the device has.
    pub total: Option<Bytes>,
    /// The limit that refused, where one did.
    pub limit: Option<Bytes>,
    /// What the device's pools hold together.
    pub held: Option<Bytes>,
    /// What of it nobody uses.
    pub cached: Option<Bytes>,
    /// What of it was freed but may still be in use by work that has not run.
    pub pending: Option<Bytes>,
    /// The most that could be granted in one piece from what is cached.
    pub largest_free_run: Option<Bytes>,
    /// Who holds most, by tag, at most ten; none where nobody counts.
    pub holders: Vec<Holding>,
}

impl Shortage {
    /// A shortage of which nothing is known yet but what its cause says.
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

/// A size, or that it is not known.
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
