//! The multiple that the driver takes linear memory in, which no call says.
//!
//! It is learned from what is free before and after allocations: other programs change that too, so an observation that agrees with no
//! multiple is ignored, and several may be needed. Until it is known, and where the driver packs small allocations into pages, memory
//! is charged by the pages of 2 MiB that it lies in.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The pages that the driver takes from a device.
pub(crate) const PAGE: u64 = 2 << 20;

/// The multiples that a driver may use, the pages last.
const MULTIPLES: [u64; 5] = [256, 512, 4 << 10, 64 << 10, PAGE];
const PAGES: u32 = 1 << (MULTIPLES.len() - 1);
const ALL: u32 = (1 << MULTIPLES.len()) - 1;
/// The observations after which pages are assumed.
const OBSERVATIONS_MAX: u32 = 16;

/// The multiples that agree with everything observed so far, one bit each.
static POSSIBLE: AtomicU32 = AtomicU32::new(ALL);
static OBSERVED: AtomicU32 = AtomicU32::new(0);

/// The knowledge about the driver's granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granule {
    /// Every allocation is rounded up to this multiple.
    Multiple(u64),
    /// Allocations lie in pages, and small ones share them.
    Pages,
    /// Allocations have to be watched.
    Unknown,
}

pub(crate) fn known() -> Granule {
    granule(POSSIBLE.load(Relaxed), OBSERVED.load(Relaxed))
}

fn granule(possible: u32, observed: u32) -> Granule {
    match possible {
        PAGES => Granule::Pages,
        one if one.is_power_of_two() => Granule::Multiple(MULTIPLES[one.trailing_zeros() as usize]),
        _ if observed >= OBSERVATIONS_MAX => Granule::Pages,
        _ => Granule::Unknown,
    }
}

/// Takes note that an allocation of `bytes` took `taken` of what was free. Returns what to charge for it where that is a multiple, and
/// none where it is to be charged by pages.
pub(crate) fn observe(bytes: u64, taken: u64) -> Option<u64> {
    OBSERVED.fetch_add(1, Relaxed);
    let agreeing = agreeing(bytes, taken);
    let before = POSSIBLE.load(Relaxed);
    let after = before & agreeing;
    if after == 0 {
        return None;
    }
    // Another thread may have learned something meanwhile: the next observation tells.
    let _ = POSSIBLE.compare_exchange(before, after, Relaxed, Relaxed);
    (after != PAGES).then_some(taken)
}

/// Returns whether `taken` is what some multiple makes of `bytes`.
pub(crate) fn is_plausible(bytes: u64, taken: u64) -> bool {
    taken > 0 && POSSIBLE.load(Relaxed) & agreeing(bytes, taken) != 0
}

fn agreeing(bytes: u64, taken: u64) -> u32 {
    let rounds = |multiple: &u64| bytes.checked_next_multiple_of(*multiple) == Some(taken);
    let by_multiple = MULTIPLES.iter().enumerate().filter(|(_, multiple)| rounds(multiple));
    let bits = by_multiple.fold(0, |bits, (at, _)| bits | 1 << at);
    // A small allocation that takes nothing lies in a page that was there.
    if taken == 0 && bytes < PAGE { bits | PAGES } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_a_multiple_is_known_once_only_one_agrees() {
        assert_eq!(granule(ALL & agreeing(1000, 1024), 1), Granule::Unknown, "256 and 512 agree");
        assert_eq!(granule(ALL & agreeing(1000, 1024) & agreeing(700, 768), 2), Granule::Multiple(256));
        assert_eq!(granule(ALL & agreeing(1000, PAGE), 1), Granule::Pages);
        assert_eq!(granule(ALL & agreeing(1000, 0), 1), Granule::Pages);
        assert_eq!(granule(ALL & agreeing(4 * PAGE, 4 * PAGE), 1), Granule::Unknown, "every multiple agrees");
        assert_eq!(agreeing(1000, 3000), 0, "somebody else took memory");
        assert_eq!(granule(ALL, OBSERVATIONS_MAX), Granule::Pages);
    }
}
