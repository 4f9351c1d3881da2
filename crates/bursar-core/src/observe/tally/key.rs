//! The columns and tags that are counted apart.

use super::columns::Column;
use crate::{AllocTag, DeviceId};

/// The number of tags and columns that each shard has counts for from the start: the near ones.
pub(super) const NEAR_TAGS: usize = 64;
pub(super) const NEAR_COLUMNS: usize = 16;
/// The number of keys there are for tags; [`AllocTag::OTHERS`] has the last, and those beyond share it.
pub(super) const TAGS: usize = NEAR_TAGS * NEAR_TAGS;
/// The number of columns there are.
pub(super) const COLUMNS: usize = NEAR_COLUMNS * NEAR_COLUMNS;

/// Returns every tag that is counted, oldest first, and last the one that others are counted under.
pub(super) fn counted_tags() -> impl Iterator<Item = AllocTag> {
    AllocTag::all().take(TAGS - 1).chain(std::iter::once(AllocTag::OTHERS))
}

/// The column and tag under which a block is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) column: usize,
    pub(super) tag: usize,
}

impl Key {
    /// Makes the key of a device and a tag, whether or not they are counted apart.
    #[inline]
    pub(super) const fn of(device: DeviceId, tag: AllocTag) -> Self {
        Self::in_column(Column::of_device(device), tag)
    }

    /// Makes the key of a column and a tag.
    #[inline]
    pub(super) const fn in_column(column: Column, tag: AllocTag) -> Self {
        Self { column: column.index(), tag: tag.index() }
    }

    /// Returns the key if every shard has counts for it from the start.
    #[inline]
    pub(super) fn near(self) -> Option<Self> {
        (self.column < NEAR_COLUMNS && self.tag < NEAR_TAGS).then_some(self)
    }

    /// Returns its index among the near keys.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.column * NEAR_TAGS + self.tag
    }

    /// Returns the key that it is counted under: its own, or the one that tags beyond the bounds share.
    pub(super) fn bounded(self) -> Self {
        Self { column: self.column.min(COLUMNS - 1), tag: self.tag.min(TAGS - 1) }
    }
}
