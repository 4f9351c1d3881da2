//! The advice that follows from a refusal.
//!
//! **Advice is true or it says less.** [`Advice::Free`] and [`Advice::Wait`] are promises: whoever does it and asks again
//! is granted the request, if nobody else takes the memory meanwhile. They are given only where every step on the way of
//! the request, from the limit that refused downwards, is known to have room then. Whatever stands above has admitted
//! the request already.
//!
//! A pool does not know whose its blocks are, so what freeing some of them leaves free in whole frames, which can be
//! moved together, is bounded from below: each block that stays keeps its own bytes and less than a frame on either
//! side.

use super::limit_name::LimitId;
use super::survey::{LimitReading, PoolFigures, Survey, SurveyStep};
use super::{Holding, LimitName};
use crate::{AllocTag, Bytes, MIN_ALIGN};
use std::fmt;

/// Advice on what would have had to be freed for a request to succeed.
///
/// [`Free`](Self::Free) and [`Wait`](Self::Wait) are promises; the others say what is known, and promise nothing.
///
/// ```
/// use bursar::error::Advice;
/// use bursar::{Bytes, tag};
///
/// let advice = Advice::Free { tags: vec![tag!("weights"), tag!("kv-cache")], bytes: Bytes::gib(3) };
/// assert_eq!(advice.to_string(), "freeing `weights` and `kv-cache` (3 GiB) would have been enough");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The request is larger than all memory there is, or than the limit.
    TooLarge,
    /// There is enough, but not in one piece.
    InPieces,
    /// Enough was freed already, and is available once the work that uses it has run.
    Wait,
    /// Freeing everything of these tags under the limit that refused: of the smallest one that is enough alone, or of
    /// the largest ones together.
    Free {
        /// The tags.
        tags: Vec<AllocTag>,
        /// The bytes held for them.
        bytes: Bytes,
    },
    /// So much more is needed; whether any free would be enough is not known.
    AtLeast {
        /// The bytes that were missing.
        missing: Bytes,
        /// The bytes that the holders named hold; `None` where nobody counts.
        listed: Option<Bytes>,
    },
    /// The numbers could not be read.
    Unknown,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("it is more than there is at all, so freeing cannot help"),
            Self::InPieces => f.write_str("there is enough, but not in one piece"),
            Self::Wait => f.write_str("waiting for the frees that are pending would have been enough"),
            Self::Free { tags, bytes } => {
                f.write_str("freeing ")?;
                for (at, tag) in tags.iter().enumerate() {
                    let comma = match at {
                        0 => "",
                        at if at + 1 == tags.len() => " and ",
                        _ => ", ",
                    };
                    write!(f, "{comma}`{tag}`")?;
                }
                write!(f, " ({bytes}) would have been enough")
            }
            Self::AtLeast { missing, listed: Some(listed) } if listed < missing => {
                write!(f, "at least {missing} more are needed, and the holders named hold only {listed}")
            }
            Self::AtLeast { missing, listed: Some(_) } => write!(f, "at least {missing} more are needed"),
            Self::AtLeast { missing, listed: None } => {
                write!(f, "at least {missing} more are needed, and nobody counts who holds what")
            }
            Self::Unknown => f.write_str("what is missing is unknown"),
        }
    }
}

/// The memory that is held for each tag through one way to the memory: a stack, or a layer that counts.
#[derive(Clone, Debug)]
pub(crate) struct ScopeHoldings {
    /// The limits and pools on the way.
    pub(crate) path: Vec<LimitId>,
    pub(crate) holdings: Vec<Holding>,
}

impl ScopeHoldings {
    pub(crate) fn passes(&self, id: LimitId) -> bool {
        self.path.contains(&id)
    }

    /// Returns what is held of some tags, or of all where none are given.
    fn amount(&self, tags: Option<&[AllocTag]>) -> Held {
        let chosen = self.holdings.iter().filter(|holding| tags.is_none_or(|tags| tags.contains(&holding.tag)));
        chosen.fold(Held::default(), |sum, holding| Held {
            bytes: sum.bytes.saturating_add(holding.bytes.get()),
            blocks: sum.blocks.saturating_add(holding.blocks),
        })
    }
}

/// An amount of bytes, and of blocks that have them.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}

/// Everything that advice on a refusal by a limit follows from.
pub(crate) struct Refusal<'a> {
    /// The limits, pools and leaves on the way of the request.
    pub(crate) survey: &'a Survey,
    /// The limit that refused.
    pub(crate) by: &'a LimitName,
    /// The bytes that would have been granted, and their alignment.
    pub(crate) granted: Bytes,
    pub(crate) align: u64,
    /// The bytes that were missing, as the refusal itself has them.
    pub(crate) missing: Bytes,
    /// The limit that refused, as the refusal itself has it.
    pub(crate) limit: Bytes,
    /// The bytes that the driver could still allocate.
    pub(crate) device_free: Bytes,
    /// The blocks under the limit that refused, by the way they came, each counted once.
    pub(crate) under: &'a [ScopeHoldings],
    /// The blocks of whole stacks, each counted once.
    pub(crate) stacks: &'a [ScopeHoldings],
}

impl Refusal<'_> {
    /// Returns the advice, with the largest holders, which it chooses from.
    pub(crate) fn advice(&self, holders: &[Holding]) -> Advice {
        if self.granted > self.limit {
            return Advice::TooLarge;
        }
        if self.missing == Bytes::ZERO {
            return Advice::InPieces;
        }
        let steps = self.survey.steps();
        let refused = steps.iter().position(|step| matches!(step, SurveyStep::Limit(limit) if limit.name == *self.by));
        let listed = holders.iter().fold(Bytes::ZERO, |sum, holding| sum.saturating_add(holding.bytes));
        let unknown = Advice::AtLeast { missing: self.missing, listed: (!holders.is_empty()).then_some(listed) };
        let Some(refused) = refused else { return unknown };
        // A limit below a pool: the request begins at the pool.
        let pool = steps[..refused].iter().position(|step| matches!(step, SurveyStep::Pool(_)));
        let way = &steps[pool.unwrap_or(refused)..];
        if self.is_enough(way, Change::Waited) {
            return Advice::Wait;
        }
        let enough = |tags: &[AllocTag]| self.is_enough(way, Change::Freed(tags));
        let alone = holders.iter().rev().find(|holding| enough(&[holding.tag]));
        if let Some(holding) = alone {
            return Advice::Free { tags: vec![holding.tag], bytes: holding.bytes };
        }
        let (mut tags, mut bytes) = (Vec::new(), Bytes::ZERO);
        for holding in holders {
            tags.push(holding.tag);
            bytes = bytes.saturating_add(holding.bytes);
            if enough(&tags) {
                return Advice::Free { tags, bytes };
            }
        }
        unknown
    }

    /// Returns whether the request is sure to be granted once something has been freed, or has run.
    fn is_enough(&self, way: &[SurveyStep], change: Change<'_>) -> bool {
        for (at, step) in way.iter().enumerate() {
            match step {
                SurveyStep::Limit(limit) => {
                    let below = &way[at + 1..];
                    if !self.fits_under(limit, below, change) {
                        return false;
                    }
                }
                SurveyStep::Quarantine => {}
                SurveyStep::Pool(pool) => return self.fits_in_pool(pool, &way[at + 1..], change),
                // What the driver makes of what it gets back is its own affair.
                SurveyStep::Leaf(_) => return self.device_free >= self.granted,
            }
        }
        false
    }

    fn fits_under(&self, limit: &LimitReading, below: &[SurveyStep], change: Change<'_>) -> bool {
        let Some(missing) = limit.missing(self.granted) else { return false };
        if missing == Bytes::ZERO {
            return true;
        }
        let Some((_, used)) = limit.figures else { return false };
        let counted: u64 = self.through(self.under, &limit.name).map(|scope| scope.amount(None).bytes).sum();
        let comes_back = match change {
            // Blocks are freed through others than counted them: the counts say nothing.
            Change::Freed(_) if counted > used.get() => 0,
            Change::Freed(_) if !limit.ends_at_free && below.iter().any(SurveyStep::is_quarantine) => 0,
            Change::Freed(tags) => {
                self.through(self.under, &limit.name).map(|scope| scope.amount(Some(tags)).bytes).sum()
            }
            Change::Waited if limit.ends_at_free => 0,
            Change::Waited => below.iter().map(SurveyStep::pending).sum(),
        };
        comes_back >= missing.get()
    }

    fn fits_in_pool(&self, pool: &PoolFigures, below: &[SurveyStep], change: Change<'_>) -> bool {
        // With room for the alignment, and for the unit at the end of a slab.
        let room = self.granted.get().saturating_add(self.align.max(MIN_ALIGN));
        if pool.longest_common_run.get() >= room {
            return true;
        }
        let whole = match change {
            Change::Waited if pool.usage.pending == Bytes::ZERO => return false,
            Change::Waited => pool.whole_frames.get(),
            Change::Freed(_) if pool.usage.pending > Bytes::ZERO => 0,
            Change::Freed(tags) => self.whole_frames_after(pool, tags),
        };
        let granule = pool.granule.get().max(1);
        let left =
            |limit: &LimitReading| limit.figures.map_or(0, |(limit, used)| limit.get().saturating_sub(used.get()));
        let limits = below.iter().filter_map(|step| match step {
            SurveyStep::Limit(limit) => Some(left(limit)),
            _ => None,
        });
        let exact = if pool.moves_frames { room - MIN_ALIGN } else { room };
        let Some(need) = exact.checked_next_multiple_of(granule) else { return false };
        if pool.moves_frames {
            let can_be_made = limits.fold(self.device_free.get(), u64::min) / granule * granule;
            return whole.saturating_add(can_be_made) >= need;
        }
        // Whole frames are given back, and one that is large enough is made.
        let allowed = limits.fold(u64::MAX, u64::min);
        self.device_free.get() >= need && whole.saturating_add(allowed) >= need
    }

    /// Returns the least that lies in whole free frames once everything of these tags is free.
    fn whole_frames_after(&self, pool: &PoolFigures, tags: &[AllocTag]) -> u64 {
        let sum = |scopes: &[ScopeHoldings], tags| {
            self.through(scopes, &pool.name).map(|scope| scope.amount(tags)).fold(Held::default(), |sum, held| Held {
                bytes: sum.bytes.saturating_add(held.bytes),
                blocks: sum.blocks.saturating_add(held.blocks),
            })
        };
        let (counted, freed) = (sum(self.stacks, None), sum(self.under, Some(tags)));
        if counted.bytes > pool.live.get() || freed.bytes > counted.bytes || freed.blocks > counted.blocks {
            return 0;
        }
        // Blocks that nobody counts may be as small as blocks can be.
        let uncounted = (pool.live.get() - counted.bytes).div_ceil(MIN_ALIGN);
        let blocks = counted.blocks - freed.blocks + uncounted;
        let beside = 2 * pool.largest_frame.get().saturating_sub(MIN_ALIGN);
        let kept = (pool.live.get() - freed.bytes).saturating_add(blocks.saturating_mul(beside));
        pool.usage.held.get().saturating_sub(pool.stuck.get()).saturating_sub(kept)
    }

    fn through<'a>(&self, scopes: &'a [ScopeHoldings], name: &LimitName) -> impl Iterator<Item = &'a ScopeHoldings> {
        let id = name.id();
        scopes.iter().filter(move |scope| scope.passes(id))
    }
}

/// The change that is to make room.
#[derive(Clone, Copy)]
enum Change<'a> {
    /// The frees that are pending have run.
    Waited,
    /// Everything of these tags under the limit that refused was freed, and has run.
    Freed(&'a [AllocTag]),
}

impl SurveyStep {
    const fn is_quarantine(&self) -> bool {
        matches!(self, Self::Quarantine)
    }

    fn pending(&self) -> u64 {
        match self {
            Self::Leaf(usage) => usage.pending.get(),
            _ => 0,
        }
    }
}
