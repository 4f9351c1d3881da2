//! Facts about the memory that a refused request went to: the limits on its way, the pool and the leaf.

use super::limit_name::LimitId;
use super::{Claims, LimitName, MemoryUsage};
use crate::Bytes;

/// The limits, pools and leaves on the way of a request, the outermost first, as they stand at a moment.
///
/// It is made when a request was refused, by [`Holder::survey`](crate::Holder::survey): each layer adds what it has to
/// say and passes it on. What is said there makes the difference between advice and a guess: whoever frees what a
/// refusal [advises](crate::Advice::Free) is granted the request.
///
/// ```
/// # use bursar::error::{LimitName, Survey};
/// # use bursar::prelude::*;
/// fn limits(memory: &dyn Holder) -> Vec<LimitName> {
///     Survey::of(|survey| memory.survey(survey)).limits().map(|limit| limit.name.clone()).collect()
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Survey {
    steps: Vec<SurveyStep>,
    /// True if only the way is of interest.
    is_path: bool,
    /// The limit that refused, and what was asked of it, where that is what the survey is made for.
    refusal: Option<(LimitName, Bytes)>,
}

/// One step on the way of a request.
///
/// ```
/// use bursar::Bytes;
/// use bursar::error::{Survey, SurveyStep};
///
/// let survey = Survey::of(|survey| survey.add(SurveyStep::Quarantine(Bytes::ZERO)));
/// assert_eq!(survey.limits().count(), 0);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SurveyStep {
    /// A limit.
    Limit(LimitReading),
    /// A layer that keeps what is freed for a while before the memory below has it back: so much at present.
    Quarantine(Bytes),
    /// A pool: steps below it are those of its frames.
    Pool(PoolFigures),
    /// A leaf that asks the driver for each block.
    Leaf {
        /// The bytes that it holds and waits for.
        usage: MemoryUsage,
        /// True if what is freed comes back once its stream has passed the free; otherwise it is back at once.
        frees_in_order: bool,
    },
}

/// The state of one limit at a moment.
///
/// ```
/// use bursar::Bytes;
/// use bursar::error::{LimitName, LimitReading};
///
/// let reading = LimitReading::new(LimitName::new("model-a"), Bytes::gib(2), Bytes::gib(3));
/// assert_eq!(reading.missing(Bytes::gib(1)), Some(Bytes::gib(2)), "it was lowered below what is used");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitReading {
    /// Its name.
    pub name: LimitName,
    /// The limit and what is used of it, which may be more; `None` where others decide, as with an account.
    pub figures: Option<(Bytes, Bytes)>,
    /// True if what is freed counts as free at once, before the memory below has it back.
    pub ends_at_free: bool,
    /// True if the limit counts by tag what it granted.
    pub counts: bool,
    /// The claims on the memory that the limit is about, where it refused and others decide.
    pub claims: Option<Claims>,
}

impl LimitReading {
    /// Makes a reading of a limit that has `used` of `limit` in use, and whose charges end when the memory is free.
    pub const fn new(name: LimitName, limit: Bytes, used: Bytes) -> Self {
        Self { name, figures: Some((limit, used)), ends_at_free: false, counts: false, claims: None }
    }

    /// Makes a reading of a limit that somebody else keeps.
    pub const fn unknown(name: LimitName) -> Self {
        Self { name, figures: None, ends_at_free: false, counts: false, claims: None }
    }

    /// Returns what would have to be free for `requested` to fit: zero if it does; `None` where that is not known.
    pub fn missing(&self, requested: Bytes) -> Option<Bytes> {
        let (limit, used) = self.figures?;
        Some(used.saturating_add(requested).saturating_sub(limit))
    }
}

/// The state of a pool at a moment.
///
/// ```
/// use bursar::Bytes;
/// use bursar::error::{LimitName, MemoryUsage, PoolFigures};
///
/// let usage = MemoryUsage { held: Bytes::mib(4), ..MemoryUsage::default() };
/// let pool = PoolFigures::new(LimitName::unnamed("pool"), usage, Bytes::mib(4));
/// assert_eq!(pool.whole_frames, Bytes::ZERO);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolFigures {
    /// Its name.
    pub name: LimitName,
    /// The bytes that it holds, caches and waits for.
    pub usage: MemoryUsage,
    /// The bytes that blocks hold.
    pub live: Bytes,
    /// The longest run that every stream may have.
    pub longest_common_run: Bytes,
    /// The bytes in frames that are wholly free, or will be once what is pending has run.
    pub whole_frames: Bytes,
    /// The bytes that can be neither used nor given back at present.
    pub stuck: Bytes,
    /// The size that frames are multiples of.
    pub granule: Bytes,
    /// True if frames can be moved together; otherwise a request needs one that is large enough.
    pub moves_frames: bool,
    /// The largest frame there is.
    pub largest_frame: Bytes,
    /// True if a request waits for frees that have not run before it is refused.
    pub waits: bool,
}

impl PoolFigures {
    /// Makes the figures of a pool of which nothing can be reused.
    pub const fn new(name: LimitName, usage: MemoryUsage, live: Bytes) -> Self {
        let (longest_common_run, whole_frames, stuck) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        let (granule, largest_frame, moves_frames, waits) = (Bytes(1), usage.held, false, false);
        Self { name, usage, live, longest_common_run, whole_frames, stuck, granule, moves_frames, largest_frame, waits }
    }
}

impl Survey {
    /// Makes a survey with what `fill` adds.
    pub fn of(fill: impl FnOnce(&mut Self)) -> Self {
        let mut survey = Self::default();
        fill(&mut survey);
        survey
    }

    /// Makes a survey of the way alone: the figures may be old.
    pub fn of_path(fill: impl FnOnce(&mut Self)) -> Self {
        let mut survey = Self { is_path: true, ..Self::default() };
        fill(&mut survey);
        survey
    }

    /// Makes a survey of the memory that refused `requested` bytes by the limit of that name, or by none.
    pub(crate) fn of_refusal(refusal: Option<(LimitName, Bytes)>, fill: impl FnOnce(&mut Self)) -> Self {
        let mut survey = Self { refusal, ..Self::default() };
        fill(&mut survey);
        survey
    }

    /// Returns what was asked of the limit of that name, if it is the one that refused: then it is worth asking who has its memory.
    pub fn refused_by(&self, limit: &LimitName) -> Option<Bytes> {
        self.refusal.as_ref().filter(|(name, _)| name == limit).map(|(_, requested)| *requested)
    }

    /// Returns whether the figures matter, so that it is worth asking the driver how far streams have come.
    pub const fn wants_figures(&self) -> bool {
        !self.is_path
    }

    /// Adds a step below those added before.
    pub fn add(&mut self, step: SurveyStep) {
        self.steps.push(step);
    }

    /// Returns the limits, the outermost first.
    pub fn limits(&self) -> impl Iterator<Item = &LimitReading> {
        self.steps.iter().filter_map(|step| match step {
            SurveyStep::Limit(limit) => Some(limit),
            _ => None,
        })
    }

    pub(crate) fn steps(&self) -> &[SurveyStep] {
        &self.steps
    }

    /// Returns whether a limit is below a pool, so that it limits frames.
    pub(crate) fn is_below_pool(&self, limit: &LimitName) -> bool {
        let before = self.steps.iter().take_while(|step| !matches!(step, SurveyStep::Limit(one) if one.name == *limit));
        before.into_iter().any(|step| matches!(step, SurveyStep::Pool(_)))
    }

    /// Returns what the pools and leaves on the way hold together; `None` where there are none.
    pub(crate) fn usage(&self) -> Option<MemoryUsage> {
        let usages = self.steps.iter().filter_map(|step| match step {
            SurveyStep::Pool(pool) => Some(pool.usage),
            SurveyStep::Leaf { usage, .. } => Some(*usage),
            SurveyStep::Quarantine(kept) => Some(MemoryUsage { pending: *kept, ..MemoryUsage::default() }),
            SurveyStep::Limit(_) => None,
        });
        usages.reduce(MemoryUsage::and)
    }

    /// Returns the identities of the limits and pools on the way.
    pub(crate) fn path(&self) -> Vec<LimitId> {
        let id = |step: &SurveyStep| match step {
            SurveyStep::Limit(limit) => Some(limit.name.id()),
            SurveyStep::Pool(pool) => Some(pool.name.id()),
            _ => None,
        };
        self.steps.iter().filter_map(id).collect()
    }
}
