//! The multiple that the driver takes linear memory in, which no call says.
//!
//! Before the first allocation, a byte is allocated and freed again, and what is free before and after is compared. Other programs change
//! that too, so two answers in a row have to agree. Drivers of hardware pack small allocations into pages of 2 MiB; then memory is
//! charged by the pages that it lies in, and so it is where the answers do not agree, which is never too little.

use crate::driver;
use crate::share::Share;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The pages that the driver takes from a device.
pub(crate) const PAGE: u64 = 2 << 20;

/// The multiples smaller than a page that a driver may use.
const MULTIPLES: [u64; 4] = [256, 512, 4 << 10, 64 << 10];
/// The questions after which pages are assumed.
const QUESTIONS_MAX: u32 = 8;

/// The granularity of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granule {
    /// Every allocation is rounded up to this multiple.
    Multiple(u64),
    /// Allocations lie in pages, and small ones share them.
    Pages,
}

/// The multiple in bytes, a page for pages; 0 while it is not known.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// Returns the granularity of the driver, learned when it is first asked for on the share's device.
#[inline]
pub(crate) fn known(share: &Share) -> Granule {
    match KNOWN.load(Relaxed) {
        0 => learn(share),
        PAGE => Granule::Pages,
        multiple => Granule::Multiple(multiple),
    }
}

#[cold]
fn learn(share: &Share) -> Granule {
    static LEARNING: Mutex<()> = Mutex::new(());
    let _alone = LEARNING.lock().unwrap_or_else(PoisonError::into_inner);
    if KNOWN.load(Relaxed) == 0 {
        // Where there is no room to find out, what is asked for is more than there is as well.
        if !share.charge(PAGE) {
            return Granule::Pages;
        }
        let found = decide(driver::memory_of_a_byte);
        share.release(PAGE);
        // Without a context nothing can be found out, nor allocated.
        let Some(found) = found else { return Granule::Pages };
        KNOWN.store(found, Relaxed);
    }
    known(share)
}

/// Asks until two answers in a row are the same, and returns the multiple; none where there is no answer.
fn decide(mut ask: impl FnMut() -> Option<u64>) -> Option<u64> {
    let mut last = None;
    for _ in 0..QUESTIONS_MAX {
        let answer = ask()?;
        if last == Some(answer) {
            return Some(if MULTIPLES.contains(&answer) { answer } else { PAGE });
        }
        last = Some(answer);
    }
    Some(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(answers: &[Option<u64>]) -> Option<u64> {
        let mut answers = answers.iter();
        decide(|| *answers.next().expect("enough answers"))
    }

    #[test]
    fn e1_two_answers_that_agree_are_believed() {
        assert_eq!(decided(&[Some(256), Some(256)]), Some(256));
        assert_eq!(decided(&[Some(512), Some(7_000), Some(512), Some(512)]), Some(512), "somebody else took memory");
        assert_eq!(decided(&[Some(PAGE), Some(PAGE)]), Some(PAGE));
        assert_eq!(decided(&[Some(0), Some(0)]), Some(PAGE), "a byte in a page that was there");
        assert_eq!(decided(&[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(7), Some(8)]), Some(PAGE));
        assert_eq!(decided(&[Some(256), None]), None, "no context");
    }
}
