//! The addresses that pools have mapped memory to.

use bursar_core::{Action, Actions, DeviceId, Holding, Observer, Record};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An observer that follows which addresses have memory behind them, from the records of pools that grow, remap or trim.
/// Memory that is mapped without a record is unknown to it, so a drawing compares the total with the device memory in use.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::observe::Observer;
/// use bursar::sim::Sim;
/// use bursar::trace::BackedAddresses;
/// use std::sync::Arc;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let backed_addresses = Arc::new(BackedAddresses::default());
/// context.sink().subscribe(&(backed_addresses.clone() as Arc<dyn Observer>))?;
/// assert_eq!(backed_addresses.remaps(), 0, "no pool has moved anything");
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct BackedAddresses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    backed: Arc<AddressRanges>,
    remaps: u64,
}

/// Ranges of addresses: the end of each by its start. No two touch.
pub(super) type AddressRanges = BTreeMap<u64, u64>;

impl BackedAddresses {
    /// Returns the number of times that a pool moved frames to other addresses.
    pub fn remaps(&self) -> u64 {
        self.state().remaps
    }

    /// Returns a copy of the ranges that have memory behind them now.
    pub(super) fn ranges(&self) -> Arc<AddressRanges> {
        self.state().backed.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for BackedAddresses {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Grow, Action::Remap, Action::Trim])
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn record(&self, record: &Record<'_>) {
        let mut state = self.state();
        state.remaps += u64::from(record.action == Action::Remap);
        let (start, bytes) = (record.ptr.0, record.granted.get());
        if start > 0 && bytes > 0 {
            let backed = Arc::make_mut(&mut state.backed);
            let end = start.saturating_add(bytes);
            cut(backed, start, end);
            if record.action == Action::Grow {
                add(backed, start, end);
            }
        }
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

/// Removes `start .. end` from the ranges.
fn cut(ranges: &mut AddressRanges, start: u64, end: u64) {
    let touched: Vec<(u64, u64)> =
        ranges.range(..end).rev().map(|(&from, &to)| (from, to)).take_while(|&(_, to)| to > start).collect();
    for (from, to) in touched {
        ranges.remove(&from);
        if from < start {
            ranges.insert(from, start);
        }
        if to > end {
            ranges.insert(end, to);
        }
    }
}

/// Adds `start .. end`, which overlaps no range, and joins it to its neighbours.
pub(super) fn add(ranges: &mut AddressRanges, mut start: u64, mut end: u64) {
    if let Some(to) = ranges.remove(&end) {
        end = to;
    }
    if let Some((&from, &to)) = ranges.range(..start).next_back()
        && to == start
    {
        start = from;
    }
    ranges.insert(start, end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_core::{Bytes, DevicePtr};

    #[test]
    fn what_is_backed_follows_what_pools_tell() {
        for seed in 1..40u64 {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let backed_addresses = BackedAddresses::default();
            let (mut model, mut remaps) = ([false; 64], 0);
            for _ in 0..200 {
                let action = [Action::Grow, Action::Remap, Action::Trim][draw(3) as usize];
                let start = draw(60) + 1;
                let bytes = draw(63 - start) + 1;
                backed_addresses.record(&Record {
                    ptr: DevicePtr(start),
                    granted: Bytes(bytes),
                    ..Record::new(action, DeviceId(0))
                });
                model[start as usize..(start + bytes) as usize].fill(action == Action::Grow);
                remaps += u64::from(action == Action::Remap);
                let mut shown = [false; 64];
                let backed = backed_addresses.ranges();
                for (&from, &to) in &*backed {
                    assert!(from < to && !backed.contains_key(&to), "neighbours are joined");
                    shown[from as usize..to as usize].fill(true);
                }
                assert_eq!(shown, model, "seed {seed}");
            }
            assert_eq!(backed_addresses.remaps(), remaps);
        }
    }

    #[test]
    fn a_record_without_a_place_counts_and_changes_nothing() {
        let backed_addresses = BackedAddresses::default();
        backed_addresses.record(&Record { granted: Bytes(64), ..Record::new(Action::Remap, DeviceId(0)) });
        assert_eq!((backed_addresses.remaps(), backed_addresses.ranges().len()), (1, 0));
    }
}
