//! Counts of what is held through one stack, or one layer of it, by tag: for the explanation of a refusal by a limit below.
//!
//! A stack counts in a column of the tally that is its own, so that this costs nothing beyond the counting that there is.
//! A layer that several ways lead past, such as the quota of one tenant of a shared pool, counts apart what it grants.

use super::tally::{Column, ColumnKind, Counter, Tally};
use crate::error::{LimitId, ScopeHoldings};
use crate::{AllocTag, Bytes, DeviceId, LimitName, Survey, tag};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The stacks and layers of a device that count.
#[derive(Default)]
pub(crate) struct StackScopes(Mutex<Vec<Weak<Scope>>>);

impl StackScopes {
    fn all(&self) -> MutexGuard<'_, Vec<Weak<Scope>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a column of a tally for what counts on a device; `None` where there are none left.
    fn open(&self, tally: &Arc<Tally>, device: DeviceId, kind: ColumnKind, survey: &Survey) -> Option<Arc<Scope>> {
        let column = tally.take_column(device, kind)?;
        let scope = Arc::new(Scope { tally: tally.clone(), column, kind, path: survey.path() });
        let mut all = self.all();
        all.retain(|scope| scope.strong_count() > 0);
        all.push(Arc::downgrade(&scope));
        drop(all);
        Some(scope)
    }

    /// Makes the counts of a stack of which `survey` says what is below.
    pub(super) fn count_stack(&self, tally: &Arc<Tally>, device: DeviceId, survey: &Survey) -> StackCount {
        let scope = self.open(tally, device, ColumnKind::Stack, survey);
        let column = scope.as_ref().map_or(Tally::column_of(device), |scope| scope.column);
        StackCount { counter: Counter::new(tally, column), scope }
    }

    /// Makes the counts of a layer, whose limit `survey` begins with.
    pub(super) fn count_part(&self, tally: &Arc<Tally>, device: DeviceId, survey: &Survey) -> PartCount {
        let Some(scope) = self.open(tally, device, ColumnKind::Layer, survey) else { return PartCount::default() };
        PartCount { counter: Counter::new(tally, scope.column), scope: Some(scope) }
    }

    /// Makes the counts of the memory of graphs, of which `survey` says what is below.
    pub(super) fn count_graph(&self, tally: &Arc<Tally>, device: DeviceId, survey: &Survey) -> GraphCount {
        GraphCount { scope: self.open(tally, device, ColumnKind::Graph, survey) }
    }

    /// Returns what is in blocks inside the memory of graphs that a limit is below of.
    pub(crate) fn graphs_over(&self, limit: &LimitName) -> Vec<ScopeHoldings> {
        self.that(|scope| scope.kind == ColumnKind::Graph && scope.path.contains(&limit.id()))
    }

    /// Returns what each stack holds.
    pub(crate) fn stacks(&self) -> Vec<ScopeHoldings> {
        self.that(|scope| scope.kind == ColumnKind::Stack)
    }

    /// Returns what each layer of a limit that counts has granted.
    pub(crate) fn parts_of(&self, limit: &LimitName) -> Vec<ScopeHoldings> {
        self.that(|scope| scope.kind == ColumnKind::Layer && scope.path.first() == Some(&limit.id()))
    }

    fn that(&self, wanted: impl Fn(&Scope) -> bool) -> Vec<ScopeHoldings> {
        let living: Vec<_> = self.all().iter().filter_map(Weak::upgrade).collect();
        let wanted = living.iter().filter(|scope| wanted(scope));
        let holdings = |scope: &Arc<Scope>| ScopeHoldings {
            path: scope.path.clone(),
            holdings: scope.tally.holders_in(scope.column),
        };
        wanted.map(holdings).collect()
    }
}

/// A column, and the way to the memory of those who count in it.
struct Scope {
    tally: Arc<Tally>,
    column: Column,
    kind: ColumnKind,
    path: Vec<LimitId>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.tally.give_back_column(self.column);
    }
}

/// The counts of one stack in the tally of its device, if that had one when the stack was built.
#[derive(Default)]
pub(crate) struct StackCount {
    pub(crate) counter: Counter,
    scope: Option<Arc<Scope>>,
}

impl StackCount {
    /// Returns the column that blocks are counted in.
    pub(crate) fn column(&self, device: DeviceId) -> Column {
        self.scope.as_ref().map_or(Tally::column_of(device), |scope| scope.column)
    }
}

impl fmt::Debug for StackCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counter.fmt(f)
    }
}

/// Counts by tag of the blocks inside one memory of graphs: what they have of its own blocks, which its stack counts as
/// `graph memory`. Where the device has no tally nothing is counted.
#[derive(Default)]
pub(crate) struct GraphCount {
    scope: Option<Arc<Scope>>,
}

impl GraphCount {
    /// Returns the tag of the memory of graphs.
    pub(crate) fn tag() -> AllocTag {
        tag!("graph memory")
    }

    /// Counts a block that was cut out of that memory.
    pub(crate) fn granted(&self, tag: AllocTag, bytes: Bytes) {
        if let Some(scope) = &self.scope {
            scope.tally.divided(scope.column, Self::tag(), tag, bytes);
        }
    }

    /// Counts a block that is part of that memory again.
    pub(crate) fn freed(&self, tag: AllocTag, bytes: Bytes) {
        if let Some(scope) = &self.scope {
            scope.tally.rejoined(scope.column, Self::tag(), tag, bytes);
        }
    }
}

/// Counts by tag of what one layer has granted, for a limit that shares its memory with others: they are part of what the
/// stack counts, and make its refusals name their own holders. Where the device has no tally nothing is counted.
///
/// ```
/// # use bursar::error::Survey;
/// # use bursar::prelude::*;
/// # fn show(context: &DeviceContext, memory: &dyn Holder, block: &DeviceBlock) {
/// let part = context.sink().count_part(context.device(), &Survey::of(|survey| memory.survey(survey)));
/// part.granted(block.tag(), block.granted());
/// part.freed(block.tag(), block.granted());
/// # }
/// ```
#[derive(Default)]
pub struct PartCount {
    counter: Counter,
    scope: Option<Arc<Scope>>,
}

impl PartCount {
    /// Returns whether it counts.
    pub const fn is_counting(&self) -> bool {
        self.scope.is_some()
    }

    /// Counts a block that was granted.
    #[inline]
    pub fn granted(&self, tag: AllocTag, bytes: Bytes) {
        if let Some(scope) = &self.scope
            && !self.counter.granted_part(tag, bytes)
        {
            scope.tally.granted_part_slow(scope.column, tag, bytes);
        }
    }

    /// Counts a block that was freed.
    #[inline]
    pub fn freed(&self, tag: AllocTag, bytes: Bytes) {
        if let Some(scope) = &self.scope
            && !self.counter.freed_part(tag, bytes)
        {
            scope.tally.freed_part_slow(scope.column, tag, bytes);
        }
    }
}

impl fmt::Debug for PartCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartCount").field("is_counting", &self.is_counting()).finish_non_exhaustive()
    }
}
