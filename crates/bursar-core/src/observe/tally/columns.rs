//! Columns: what blocks are counted apart by, beside their tags.
//!
//! Each device has a column of its own. Where a device has several stacks, the others get columns besides, so that what
//! is held through one of them is known apart. So does each layer that counts what it grants: what it counts is part of
//! a stack already, and no part of any sum. The memory of graphs has one, which says under which tags the blocks inside it
//! are, and is a part of the sums of tags alone. A column that nobody counts in any more, with nothing live, is used again.

use super::key::{COLUMNS, NEAR_COLUMNS};
use crate::DeviceId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of devices that are counted apart; those beyond share the last column of a device.
pub(super) const DEVICES: usize = 64;

/// The number of devices whose columns are near; as many near columns are for stacks and layers.
const NEAR_DEVICES: usize = NEAR_COLUMNS / 2;

/// The first of the far columns that are for stacks and layers: those before are the devices'.
const FIRST_FAR: usize = NEAR_COLUMNS + DEVICES - NEAR_DEVICES;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column(usize);

impl Column {
    /// Returns the column of a device.
    #[inline]
    pub(super) const fn of_device(device: DeviceId) -> Self {
        let device = if (device.0 as usize) < DEVICES { device.0 as usize } else { DEVICES - 1 };
        if device < NEAR_DEVICES { Self(device) } else { Self(device - NEAR_DEVICES + NEAR_COLUMNS) }
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0
    }
}

/// A set of columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnSet([u64; COLUMNS / 64]);

impl ColumnSet {
    const NONE: Self = Self([0; COLUMNS / 64]);

    pub(super) const fn of(column: Column) -> Self {
        let mut set = Self::NONE;
        set.0[column.0 / 64] |= 1 << (column.0 % 64);
        set
    }

    pub(super) const fn contains(&self, column: usize) -> bool {
        self.0[column / 64] & (1 << (column % 64)) != 0
    }

    fn insert(&mut self, column: Column) {
        self.0[column.0 / 64] |= 1 << (column.0 % 64);
    }
}

/// The kind of thing that counts in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// A stack, whose blocks are counted nowhere else.
    Stack,
    /// A layer within one.
    Layer,
    /// The memory of graphs, which divides blocks of a stack.
    Graph,
}

/// The use of a column that is not a device's.
#[derive(Clone, Copy, Debug)]
struct Extra {
    device: DeviceId,
    kind: ColumnKind,
    is_taken: bool,
}

#[derive(Debug)]
struct Table {
    /// The devices whose own column a stack has.
    taken: [bool; DEVICES],
    /// True if others than that stack may count in a device's own column too.
    is_shared: bool,
    extras: [Option<Extra>; COLUMNS],
}

/// The columns of one tally.
#[derive(Debug)]
pub(super) struct Columns(Mutex<Box<Table>>);

impl Default for Columns {
    fn default() -> Self {
        Self(Mutex::new(Box::new(Table { taken: [false; DEVICES], is_shared: false, extras: [None; COLUMNS] })))
    }
}

impl Columns {
    fn table(&self) -> MutexGuard<'_, Box<Table>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a column for a stack, a layer or the memory of graphs on a device: the device's own for its first stack, or
    /// else one that was never used or was used for the same; for the memory of graphs none of the near ones, which are
    /// for allocations. `None` where all are taken: then a stack counts in the device's own.
    pub(super) fn take(&self, device: DeviceId, kind: ColumnKind) -> Option<Column> {
        let mut table = self.table();
        if kind == ColumnKind::Stack
            && let Some(taken @ false) = table.taken.get_mut(device.0 as usize)
        {
            *taken = true;
            return Some(Column::of_device(device));
        }
        let fits = |at: &usize| match table.extras[*at] {
            None => true,
            Some(extra) => !extra.is_taken && extra.kind == kind && extra.device == device,
        };
        let near = if kind == ColumnKind::Graph { 0..0 } else { NEAR_DEVICES..NEAR_COLUMNS };
        let Some(at) = near.chain(FIRST_FAR..COLUMNS).find(fits) else {
            table.is_shared |= kind == ColumnKind::Stack;
            return None;
        };
        table.extras[at] = Some(Extra { device, kind, is_taken: true });
        Some(Column(at))
    }

    /// Says that others than stacks with a column count in those of devices.
    pub(super) fn share(&self) {
        self.table().is_shared = true;
    }

    /// Returns whether only the one who took a column counts in it.
    pub(super) fn is_apart(&self, column: Column) -> bool {
        let table = self.table();
        table.extras[column.0].is_some() || !table.is_shared
    }

    /// Lets a column be taken again. Nothing in it is live.
    pub(super) fn give_back(&self, column: Column) {
        let mut table = self.table();
        if let Some(extra) = &mut table.extras[column.0] {
            extra.is_taken = false;
            return;
        }
        let own = (0..DEVICES).find(|&device| Column::of_device(DeviceId(device as u32)) == column);
        own.into_iter().for_each(|device| table.taken[device] = false);
    }

    /// Returns the columns in which the blocks of a device are counted once, or of all devices.
    pub(super) fn counted(&self, device: Option<DeviceId>) -> ColumnSet {
        self.of(device, &[ColumnKind::Stack])
    }

    /// Returns the columns whose sum is what each tag has of a device, or of all devices.
    pub(super) fn by_tag(&self, device: Option<DeviceId>) -> ColumnSet {
        self.of(device, &[ColumnKind::Stack, ColumnKind::Graph])
    }

    fn of(&self, device: Option<DeviceId>, kinds: &[ColumnKind]) -> ColumnSet {
        let mut set = ColumnSet::NONE;
        for at in 0..DEVICES as u32 {
            if device.is_none_or(|device| device.0 == at) {
                set.insert(Column::of_device(DeviceId(at)));
            }
        }
        for (at, extra) in self.table().extras.iter().enumerate() {
            let is_counted = |extra: &Extra| kinds.contains(&extra.kind) && device.is_none_or(|of| of == extra.device);
            if extra.as_ref().is_some_and(is_counted) {
                set.insert(Column(at));
            }
        }
        set
    }
}
