//! The counts of one thread, by column and tag.

use super::chunks::Chunks;
use super::columns::ColumnSet;
use super::key::{COLUMNS, NEAR_COLUMNS, NEAR_TAGS};
use super::{Amount, Key};
use crate::Bytes;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one column and one tag: everything granted and everything freed. Only one thread writes, so an
/// addition is a load and a store.
#[derive(Debug, Default)]
pub(super) struct TagCounts {
    granted: Sum,
    freed: Sum,
}

#[derive(Debug, Default)]
struct Sum {
    bytes: AtomicU64,
    count: AtomicU64,
}

impl TagCounts {
    const fn new() -> Self {
        Self { granted: Sum::new(), freed: Sum::new() }
    }

    #[inline]
    pub(super) fn add(&self, bytes: u64) {
        self.granted.add(bytes, 1);
    }

    #[inline]
    pub(super) fn remove(&self, bytes: u64) {
        self.freed.add(bytes, 1);
    }

    /// Undoes [`remove`](Self::remove).
    pub(super) fn restore(&self, bytes: u64) {
        self.freed.add(bytes.wrapping_neg(), 1u64.wrapping_neg());
    }

    /// Counts bytes of a block that another tag has from here on.
    pub(super) fn lend(&self, bytes: u64) {
        self.freed.add(bytes, 0);
    }

    /// Undoes [`lend`](Self::lend).
    pub(super) fn take_back(&self, bytes: u64) {
        self.freed.add(bytes.wrapping_neg(), 0);
    }

    /// Resets it.
    fn clear(&self) {
        for sum in [&self.granted, &self.freed] {
            sum.bytes.store(0, Ordering::Relaxed);
            sum.count.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the sum of what was ever granted in all of some counts.
    pub(super) fn granted<'a>(all: impl Iterator<Item = &'a Self>) -> Amount {
        Sum::total(all.map(|counts| &counts.granted))
    }

    /// Returns the sum of what was ever freed in all of some counts.
    pub(super) fn freed<'a>(all: impl Iterator<Item = &'a Self>) -> Amount {
        Sum::total(all.map(|counts| &counts.freed))
    }
}

impl TagCounts {
    /// Adds what was ever granted to an amount.
    pub(super) fn add_granted(&self, amount: &mut Amount) {
        self.granted.add_to(amount);
    }

    /// Adds what was ever freed to an amount.
    pub(super) fn add_freed(&self, amount: &mut Amount) {
        self.freed.add_to(amount);
    }
}

impl Sum {
    fn add_to(&self, amount: &mut Amount) {
        amount.bytes = Bytes(amount.bytes.get().wrapping_add(self.bytes.load(Ordering::Acquire)));
        amount.count = amount.count.wrapping_add(self.count.load(Ordering::Acquire));
    }

    const fn new() -> Self {
        Self { bytes: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    #[inline]
    fn add(&self, bytes: u64, count: u64) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    fn total<'a>(sums: impl Iterator<Item = &'a Self>) -> Amount {
        sums.fold(Amount::default(), |mut total, sum| {
            sum.add_to(&mut total);
            total
        })
    }
}

/// Counts for each column and tag. Near ones are in place; the others are allocated as they are used.
#[derive(Debug)]
pub(super) struct TagCountsTable {
    /// The counts of one column lie together.
    near: [TagCounts; NEAR_COLUMNS * NEAR_TAGS],
    far: Chunks<OnceLock<Chunks<TagCounts, NEAR_TAGS>>, NEAR_COLUMNS>,
}

impl TagCountsTable {
    pub(super) const fn new() -> Self {
        let near = [const { TagCounts::new() }; NEAR_COLUMNS * NEAR_TAGS];
        Self { near, far: Chunks::new([const { OnceLock::new() }; NEAR_COLUMNS]) }
    }

    /// Returns the counts of a near key.
    #[inline]
    pub(super) fn near(&self, key: Key) -> Option<&TagCounts> {
        key.near().map(|key| self.nearest(key.index()))
    }

    /// Returns the counts of a near key by its [index](Key::index).
    #[inline]
    pub(super) fn nearest(&self, index: usize) -> &TagCounts {
        &self.near[index % (NEAR_COLUMNS * NEAR_TAGS)]
    }

    /// Resets all counts.
    pub(super) fn clear(&self) {
        self.near.iter().for_each(TagCounts::clear);
        self.far
            .one_or_all(None)
            .filter_map(OnceLock::get)
            .flat_map(|tags| tags.one_or_all(None))
            .for_each(TagCounts::clear);
    }

    /// Returns the counts of any key.
    pub(super) fn get_or_make(&self, key: Key) -> &TagCounts {
        self.near(key)
            .unwrap_or_else(|| self.far.get_or_make(key.column).get_or_init(Chunks::default).get_or_make(key.tag))
    }

    /// Returns the counts of a key, if there are any.
    pub(super) fn get(&self, key: Key) -> Option<&TagCounts> {
        self.near(key).or_else(|| self.far.get(key.column)?.get()?.get(key.tag))
    }

    /// Returns the counts there are, of some columns and of one tag or all.
    pub(super) fn of(&self, columns: ColumnSet, tag: Option<usize>) -> impl Iterator<Item = &TagCounts> {
        let near = self.near.chunks_exact(NEAR_TAGS).enumerate().filter(move |(at, _)| columns.contains(*at));
        let near = near.flat_map(move |(_, tags)| match tag {
            None => tags,
            Some(tag) => tags.get(tag).map_or(&[][..], std::slice::from_ref),
        });
        let far = (0..COLUMNS).filter(move |at| columns.contains(*at)).filter_map(|at| self.far.get(at)?.get());
        let far = far.flat_map(move |tags| tags.one_or_all(tag));
        near.chain(far)
    }
}
