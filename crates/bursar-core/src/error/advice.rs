//! The advice that follows from a refusal.
//!
//! **Advice is true or it says less.** [`Advice::Free`] and [`Advice::Wait`] are promises: whoever does it and asks again
//! is granted the request, if nobody else takes the memory meanwhile. They are given only where every step on the way of
//! the request, from the limit that refused downwards, is known to have room then. Whatever stands above has admitted
//! the request already.
//!
//! Memory that is freed in the order of a stream is there when the stream has passed the free. Advice to free says
//! whether that has to be waited for: it does not where a limit counts what is freed as free at once, where the leaf
//! frees at once, and where a pool waits by itself.
//!
//! A pool does not know whose its blocks are, so what freeing some of them leaves free in whole frames, which can be
//! moved together, is bounded from below: each block that stays keeps its own bytes and less than a frame on either
//! side.

use super::claims::QueuedFirst;
use super::limit_name::LimitId;
use super::survey::{LimitReading, PoolFigures, Survey, SurveyStep};
use super::{Claim, Claims, Holding, LimitName, WaitingClaim};
use crate::{AllocTag, Bytes, MIN_ALIGN};
use std::fmt;

/// Advice on what would have had to be freed for a request to succeed.
///
/// [`Free`](Self::Free) and [`Wait`](Self::Wait) are promises; the others say what is known, and promise nothing. To wait
/// is to call [`reap_blocking`](crate::Holder::reap_blocking) of the memory that was asked.
///
/// ```
/// use bursar::error::Advice;
/// use bursar::{Bytes, tag};
///
/// let tags = vec![tag!("weights"), tag!("kv-cache")];
/// let advice = Advice::Free { tags: tags.clone(), bytes: Bytes::gib(3), must_wait: false };
/// assert_eq!(advice.to_string(), "freeing `weights` and `kv-cache` (3 GiB) would have been enough");
/// let advice = Advice::Free { tags, bytes: Bytes::gib(3), must_wait: true };
/// assert!(advice.to_string().ends_with("(3 GiB) and waiting until that has run would have been enough"));
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
        /// True if the memory is there only once the streams have passed the frees. Where it is false the next
        /// request is granted, though a pool on its way may wait for the frees, as long as its patience lasts.
        must_wait: bool,
    },
    /// So much more is needed; whether any free would be enough is not known.
    AtLeast {
        /// The bytes that were missing.
        missing: Bytes,
        /// The bytes that the holders named hold: zero where there are none; `None` where nobody counts.
        listed: Option<Bytes>,
    },
    /// So much more is needed, of an account that processes draw on.
    Held {
        /// The bytes that were missing.
        missing: Bytes,
        /// The bytes that the holders named hold; `None` where nobody counts.
        listed: Option<Bytes>,
        /// The process that has the most.
        most: Box<Claim>,
    },
    /// So much more is needed, of a device that programs without an account use the most of.
    Unmanaged {
        /// The bytes that were missing.
        missing: Bytes,
        /// The bytes that the holders named hold; `None` where nobody counts.
        listed: Option<Bytes>,
        /// The bytes that those programs use.
        bytes: Bytes,
    },
    /// There is room, and it is kept for those whose turn comes first.
    Queued {
        /// The bytes that the holders named hold; `None` where nobody counts.
        listed: Option<Bytes>,
        /// The first that waits.
        first: Box<WaitingClaim>,
        /// The number of requests that wait behind it.
        behind: usize,
    },
    /// The numbers could not be read.
    Unknown,
}

impl Advice {
    /// Returns the bytes that the holders named hold, where they are counted and are not enough.
    pub(crate) const fn listed(&self) -> Option<Bytes> {
        match self {
            Self::AtLeast { listed, .. }
            | Self::Held { listed, .. }
            | Self::Unmanaged { listed, .. }
            | Self::Queued { listed, .. } => *listed,
            _ => None,
        }
    }

    /// Says who stands against the request, where nothing else is known to help.
    pub(crate) fn with_claims(self, claims: &Claims) -> Self {
        let Self::AtLeast { missing, listed } = self else { return self };
        let most = claims.processes.first();
        match claims.waiting.split_first() {
            Some((first, behind)) => Self::Queued { listed, first: Box::new(first.clone()), behind: behind.len() },
            None if claims.unmanaged > most.map_or(Bytes::ZERO, Claim::bytes) => {
                Self::Unmanaged { missing, listed, bytes: claims.unmanaged }
            }
            None => most.map_or(self, |most| Self::Held { missing, listed, most: Box::new(most.clone()) }),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("it is more than there is at all, so freeing cannot help"),
            Self::InPieces => f.write_str("there is enough, but not in one piece"),
            Self::Wait => f.write_str("waiting for the frees that are pending would have been enough"),
            Self::Free { tags, bytes, must_wait } => {
                f.write_str("freeing ")?;
                for (at, tag) in tags.iter().enumerate() {
                    let comma = match at {
                        0 => "",
                        at if at + 1 == tags.len() => " and ",
                        _ => ", ",
                    };
                    write!(f, "{comma}`{tag}`")?;
                }
                let waiting = if *must_wait { " and waiting until that has run" } else { "" };
                write!(f, " ({bytes}){waiting} would have been enough")
            }
            Self::AtLeast { missing, listed: Some(Bytes::ZERO) } => {
                write!(f, "at least {missing} more are needed, and nothing that is counted is held")
            }
            Self::AtLeast { missing, listed: Some(listed) } if listed < missing => {
                write!(f, "at least {missing} more are needed, and the holders named hold only {listed}")
            }
            Self::AtLeast { missing, listed: Some(_) } => write!(f, "at least {missing} more are needed"),
            Self::AtLeast { missing, listed: None } => {
                write!(f, "at least {missing} more are needed, and nobody counts who holds what")
            }
            Self::Held { missing, most, .. } => {
                write!(f, "at least {missing} more are needed; the largest holder is {most}")
            }
            Self::Unmanaged { missing, bytes, .. } => {
                write!(f, "at least {missing} more are needed; programs without an account use {bytes}")
            }
            Self::Queued { first, behind, .. } => write!(f, "what is free {}", QueuedFirst(first, *behind)),
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
        let unknown = Advice::AtLeast { missing: self.missing, listed: (!self.under.is_empty()).then_some(listed) };
        let Some(refused) = refused else { return unknown };
        // A limit below a pool: the request begins at the pool.
        let pool = steps[..refused].iter().position(|step| matches!(step, SurveyStep::Pool(_)));
        let way = &steps[pool.unwrap_or(refused)..];
        if self.granted_after(way, Change::Waited) > Granted::Unknown {
            return Advice::Wait;
        }
        // A quarantine above keeps what is freed, until it is waited for or the memory below has refused.
        let is_kept = steps[..refused].iter().any(SurveyStep::is_quarantine);
        let enough = |tags: &[AllocTag]| match self.granted_after(way, Change::Freed(tags)) {
            Granted::Unknown => None,
            granted => Some(is_kept || granted == Granted::OnceRun),
        };
        let alone = holders.iter().rev().find_map(|holding| Some((holding, enough(&[holding.tag])?)));
        if let Some((holding, must_wait)) = alone {
            return Advice::Free { tags: vec![holding.tag], bytes: holding.bytes, must_wait };
        }
        let (mut tags, mut bytes) = (Vec::new(), Bytes::ZERO);
        for holding in holders {
            tags.push(holding.tag);
            bytes = bytes.saturating_add(holding.bytes);
            if let Some(must_wait) = enough(&tags) {
                return Advice::Free { tags, bytes, must_wait };
            }
        }
        unknown
    }

    /// Returns when the request is sure to be granted once something has been freed, or has run.
    fn granted_after(&self, way: &[SurveyStep], change: Change<'_>) -> Granted {
        let mut granted = Granted::AtOnce;
        for (at, step) in way.iter().enumerate() {
            let below = &way[at + 1..];
            match step {
                SurveyStep::Limit(limit) => granted = granted.min(self.granted_under(limit, below, change)),
                SurveyStep::Quarantine(_) => {}
                SurveyStep::Pool(pool) => return granted.min(self.granted_in_pool(pool, below, change)),
                // What the driver makes of what it gets back is its own affair.
                SurveyStep::Leaf { .. } if self.device_free >= self.granted => return granted,
                SurveyStep::Leaf { .. } => return Granted::Unknown,
            }
        }
        Granted::Unknown
    }

    fn granted_under(&self, limit: &LimitReading, below: &[SurveyStep], change: Change<'_>) -> Granted {
        let Some(missing) = limit.missing(self.granted) else { return Granted::Unknown };
        if missing == Bytes::ZERO {
            return Granted::AtOnce;
        }
        let Some((_, used)) = limit.figures else { return Granted::Unknown };
        let counted: u64 = self.through(self.under, &limit.name).map(|scope| scope.amount(None).bytes).sum();
        let freed = match change {
            // Blocks are freed through others than counted them: the counts say nothing.
            Change::Freed(_) if counted > used.get() => return Granted::Unknown,
            Change::Freed(tags) => {
                self.through(self.under, &limit.name).map(|scope| scope.amount(Some(tags)).bytes).sum()
            }
            Change::Waited => 0,
        };
        let pending = if limit.ends_at_free { 0 } else { below.iter().map(SurveyStep::pending).sum() };
        let comes_at_once = limit.ends_at_free || frees_at_once(below);
        match missing.get() {
            missing if freed >= missing && comes_at_once => Granted::AtOnce,
            missing if freed.saturating_add(pending) >= missing => Granted::OnceRun,
            _ => Granted::Unknown,
        }
    }

    fn granted_in_pool(&self, pool: &PoolFigures, below: &[SurveyStep], change: Change<'_>) -> Granted {
        // With room for the alignment, and for the unit at the end of a slab.
        let room = self.granted.get().saturating_add(self.align.max(MIN_ALIGN));
        if pool.longest_common_run.get() >= room {
            return Granted::AtOnce;
        }
        let whole = match change {
            Change::Waited => pool.whole_frames.get(),
            Change::Freed(tags) => self.whole_frames_after(pool, tags),
        };
        if !self.has_room_with(pool, below, whole, room) {
            return Granted::Unknown;
        }
        if pool.waits { Granted::AtOnce } else { Granted::OnceRun }
    }

    /// Returns whether a pool has room for a request once so much lies in whole free frames.
    fn has_room_with(&self, pool: &PoolFigures, below: &[SurveyStep], whole: u64, room: u64) -> bool {
        let granule = pool.granule.get().max(1);
        let left =
            |limit: &LimitReading| limit.figures.map_or(0, |(limit, used)| limit.get().saturating_sub(used.get()));
        let limits = below.iter().filter_map(|step| match step {
            SurveyStep::Limit(limit) => Some(left(limit)),
            _ => None,
        });
        // What frames are moved together for begins at the border of one.
        let exact = match pool.moves_frames {
            true if self.align <= granule => self.granted.get(),
            true => room - MIN_ALIGN,
            false => room,
        };
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
    /// Everything of these tags under the limit that refused was freed.
    Freed(&'a [AllocTag]),
}

/// When a request is granted after a change, the surest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Granted {
    /// Perhaps never.
    Unknown,
    /// Once the streams have passed every free.
    OnceRun,
    /// The next time it is asked for.
    AtOnce,
}

/// Returns whether memory has a block back as soon as it is freed. A pool has: it sees to it that nobody gets it early.
fn frees_at_once(below: &[SurveyStep]) -> bool {
    for step in below {
        match step {
            SurveyStep::Limit(_) => {}
            SurveyStep::Quarantine(_) => return false,
            SurveyStep::Pool(_) => return true,
            SurveyStep::Leaf { frees_in_order, .. } => return !frees_in_order,
        }
    }
    false
}

impl SurveyStep {
    const fn is_quarantine(&self) -> bool {
        matches!(self, Self::Quarantine(_))
    }

    /// Returns what comes back from here to a limit above, of what was freed before.
    fn pending(&self) -> u64 {
        match self {
            Self::Leaf { usage, .. } => usage.pending.get(),
            Self::Quarantine(kept) => kept.get(),
            _ => 0,
        }
    }
}
