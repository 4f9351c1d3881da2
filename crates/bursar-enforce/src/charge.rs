//! Charging a share for one call: what may be too much is given back, and what pools keep is asked for before a refusal.

use crate::growth;
use crate::share::Share;
use crate::stores;
use std::ops::RangeInclusive;

/// Charges all of `bytes` or nothing. Before it gives up, what pools of the driver keep without using it is given back, as the driver
/// does before it says that there is no memory.
#[inline]
pub(crate) fn all(share: &Share, bytes: u64) -> bool {
    if share.charge(bytes) {
        growth::look_if_near(share);
        return true;
    }
    growth::look_again(share);
    stores::reclaim(share) && share.charge(bytes)
}

/// Charges the most that a call may cost, or else the least; what it does cost is settled afterwards. Returns what was charged.
#[inline]
pub(crate) fn between(share: &Share, cost: RangeInclusive<u64>) -> Option<u64> {
    let (least, most) = cost.into_inner();
    if share.charge(most) {
        return Some(most);
    }
    between_slow(share, least, most)
}

#[cold]
fn between_slow(share: &Share, least: u64, most: u64) -> Option<u64> {
    if least < most && share.charge(least) {
        return Some(least);
    }
    if !stores::reclaim(share) {
        return None;
    }
    [most, least].into_iter().find(|bytes| share.charge(*bytes))
}

/// Turns a charge of `charged` into one of `actual`. Returns false, and changes nothing, where the share does not have the rest.
#[inline]
pub(crate) fn settle(share: &Share, charged: u64, actual: u64) -> bool {
    if actual > charged {
        return all(share, actual - charged);
    }
    share.release(charged - actual);
    true
}
