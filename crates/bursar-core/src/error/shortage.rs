//! The explanation of a refusal for want of memory: who holds what, and what would have had to be freed.

use super::{Advice, Claims, LimitName};
use crate::{AllocTag, Bytes, DeviceId};
use std::fmt;

/// The memory that is held for one tag.
///
/// ```
/// use bursar::error::Holding;
/// use bursar::{Bytes, tag};
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
/// use bursar::Bytes;
/// use bursar::error::MemoryUsage;
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
    /// The most bytes that it held at a time, where it knows.
    pub peak: Option<Bytes>,
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
            // The two need not have been reached together, so this may be more than was ever held; but one of them that holds
            // nothing had its peak before, as a pool that another has replaced.
            peak: self.peak.or(other.peak).map(|_| {
                let most = |one: Self| one.peak.unwrap_or(one.held);
                match self.held.min(other.held) {
                    Bytes::ZERO => most(self).max(most(other)),
                    _ => most(self).saturating_add(most(other)),
                }
            }),
        }
    }
}

/// The explanation of a refusal for want of memory: everything that is known about it beside the numbers of the refusal
/// itself. A number that could not be read is absent.
///
/// It is part of the [error](crate::Error::shortage), which shows its advice with `{}` and all of it with `{:#}`: the
/// request, the figures of the device, who holds what under the limit that refused, and what would have had to be freed.
///
/// ```
/// use bursar::error::{Advice, Holding, Shortage};
/// use bursar::{Bytes, DeviceId, Error, tag};
///
/// let mut shortage = Shortage::new(DeviceId(0), Bytes::gib(4));
/// shortage.holders = vec![
///     Holding { tag: tag!("weights"), bytes: Bytes::gib(12), blocks: 2 },
///     Holding { tag: tag!("activations"), bytes: Bytes::gib(3), blocks: 40 },
/// ];
/// shortage.advice = Advice::Free { tags: vec![tag!("activations")], bytes: Bytes::gib(3), must_wait: false };
/// let refused = Error::out_of_budget(Bytes::gib(4), Bytes::gib(1), Bytes::gib(16)).explained(shortage);
/// assert!(matches!(refused, Error::OutOfBudget { .. }));
/// assert!(refused.to_string().ends_with("freeing `activations` (3 GiB) would have been enough"));
/// assert!(format!("{refused:#}").contains("weights: 12 GiB in 2 blocks"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The device that was asked.
    pub device: DeviceId,
    /// The requested bytes.
    pub requested: Bytes,
    /// The limit that refused, where one did.
    pub by: Option<LimitName>,
    /// The bytes that it allows.
    pub limit: Option<Bytes>,
    /// The bytes that the driver could still allocate, read after the refusal.
    pub free: Option<Bytes>,
    /// All memory of the device.
    pub total: Option<Bytes>,
    /// The bytes that the memory under the limit holds.
    pub held: Option<Bytes>,
    /// The bytes of it that nobody uses.
    pub cached: Option<Bytes>,
    /// The bytes of it that were freed but may still be in use by work that has not run.
    pub pending: Option<Bytes>,
    /// The most that could be granted in one piece from what is cached.
    pub largest_free_run: Option<Bytes>,
    /// The largest holders by tag under the limit that refused, at most ten; empty where nobody counts.
    pub holders: Vec<Holding>,
    /// The bytes in use under the limit that no holder named here has: of other tags, of layers that nobody counts, or
    /// of other processes. Absent where that is not known.
    pub unlisted: Option<Bytes>,
    /// The claims on the memory under the limit that refused, those of this process included: at most ten of each kind. Empty where
    /// the limit is not an account's, or that is not known.
    pub claims: Claims,
    /// The advice that follows.
    pub advice: Advice,
}

impl Shortage {
    /// Makes an explanation of which nothing is known yet but the request.
    pub const fn new(device: DeviceId, requested: Bytes) -> Self {
        Self {
            device,
            requested,
            by: None,
            limit: None,
            free: None,
            total: None,
            held: None,
            cached: None,
            pending: None,
            largest_free_run: None,
            holders: Vec::new(),
            unlisted: None,
            claims: Claims { processes: Vec::new(), waiting: Vec::new(), unmanaged: Bytes::ZERO },
            advice: Advice::Unknown,
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
        writeln!(f, "  requested         {} on {}", self.requested, self.device)?;
        match (&self.by, self.limit) {
            (Some(by), Some(limit)) if by.is_named() => writeln!(f, "  limit             {limit} of {by}")?,
            (_, Some(limit)) => writeln!(f, "  limit             {limit}")?,
            _ => {}
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
        match (self.holders.is_empty(), &self.advice) {
            (false, _) => writeln!(f, "  holders")?,
            (true, advice) if advice.listed().is_some() => writeln!(f, "  holders           none")?,
            (true, _) => writeln!(f, "  holders           unknown")?,
        }
        for holding in &self.holders {
            writeln!(f, "    {holding}")?;
        }
        if let Some(unlisted) = self.unlisted.filter(|unlisted| *unlisted > Bytes::ZERO && !self.holders.is_empty()) {
            writeln!(f, "    not listed: {unlisted}")?;
        }
        let Claims { processes, waiting, unmanaged } = &self.claims;
        if !processes.is_empty() || *unmanaged > Bytes::ZERO {
            writeln!(f, "  processes")?;
        }
        for process in processes {
            writeln!(f, "    {process}")?;
        }
        if *unmanaged > Bytes::ZERO {
            writeln!(f, "    programs without an account: {unmanaged}")?;
        }
        if !waiting.is_empty() {
            writeln!(f, "  waiting")?;
        }
        for request in waiting {
            writeln!(f, "    {request}")?;
        }
        write!(f, "  {}", self.advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn p4_a_shortage_is_one_line_unless_all_of_it_is_asked_for() {
        let refused = Error::out_of_memory(DeviceId(0), Bytes(600), Bytes(200), Bytes(1000));
        let refused = refused.explained(Shortage::new(DeviceId(0), Bytes(700)));
        assert_eq!(
            refused.to_string(),
            "gpu0 is out of memory: 700 B requested, which takes 600 B more; 200 B of 1000 B free; what is missing is unknown"
        );
        assert_eq!(format!("{refused:#}").lines().count(), 9);
        assert_eq!(format!("{refused:?}"), format!("{refused:#}"), "it is what main prints");
        assert!(refused.is_capacity() && matches!(refused, Error::OutOfMemory { .. }));
    }

    #[test]
    fn m5_peaks_add_up_only_of_those_that_hold_something() {
        let usage = |held, peak| MemoryUsage { held: Bytes(held), peak: Some(Bytes(peak)), ..MemoryUsage::default() };
        let (replaced, used, other) = (usage(0, 40), usage(30, 30), usage(10, 20));
        assert_eq!(replaced.and(used).peak, Some(Bytes(40)), "a pool that another has replaced");
        assert_eq!(used.and(replaced).peak, Some(Bytes(40)));
        assert_eq!(used.and(other).peak, Some(Bytes(50)));
        assert_eq!(usage(0, 0).and(MemoryUsage::default()).peak, Some(Bytes(0)));
    }
}
