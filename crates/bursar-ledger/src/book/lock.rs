//! The one lock of a ledger, which survives the death of its owner.
//!
//! The lock's word names the slot of its owner, how often the lock was taken, and two flags; it is free when it names
//! no slot. Every acquisition is counted, so a process that saw an owner dead cannot take the lock from the next owner
//! in the same slot.

use super::{Book, LockedBook};
use crate::format::{Words, header::LOCK, sealed, unsealed};
use std::time::{Duration, Instant};

const OWNER: u64 = 0xffff;
/// Set when notes were left: whoever gives the lock back applies them first.
pub(super) const NOTES: u64 = 1 << 16;
/// Set when somebody sleeps until the lock is given back.
const SLEEPERS: u64 = 1 << 17;
const ACQUISITION: u64 = 1 << 18;
/// The bits that count acquisitions; the count wraps around.
const ACQUISITIONS: u64 = (1 << 56) - ACQUISITION;

const _: () =
    assert!(NOTES == 1 << 16 && SLEEPERS == 1 << 17 && ACQUISITION == 1 << 18, "as format/layout.rs draws it");

/// The number of looks before sleeping. A model checker explores each look, and needs none.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };
/// The time to sleep before checking whether the owner is alive.
const LIVENESS_CHECK_EVERY: Duration = Duration::from_millis(20);

/// The reasons for which the lock could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// A living process keeps it: most likely it is stopped.
    Stuck {
        /// The slot of that process.
        slot: usize,
    },
    /// Others had it, one after the other, until the deadline had passed.
    Busy,
    /// A word is damaged, so nobody can know who has the lock or what its dead owner was doing.
    Damaged {
        /// The index of the word.
        word: usize,
    },
}

/// The end of a wait for the lock.
#[derive(Clone, Copy, Debug)]
enum WaitLimit {
    /// When one owner has kept the lock for so long since it was seen to take it.
    PerOwner(Duration),
    /// At this moment, whoever has the lock.
    Until(Instant),
}

impl WaitLimit {
    /// Returns how long to wait for an owner that was seen to take the lock at `since`, or `None` once the wait is
    /// over.
    fn remaining(self, since: Instant) -> Option<Duration> {
        let left = match self {
            Self::PerOwner(longest) => longest.saturating_sub(since.elapsed()),
            Self::Until(ends) => ends.saturating_duration_since(Instant::now()),
        };
        (!left.is_zero()).then_some(left)
    }
}

impl<W: Words> Book<W> {
    /// Takes the lock. Fails when a living owner keeps it for longer than `timeout` at a time.
    pub fn lock(&self, timeout: Duration) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::PerOwner(timeout), false)
    }

    /// Takes the lock if that is possible before `ends`, and in any case if it is free.
    pub fn lock_until(&self, ends: Instant) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::Until(ends), false)
    }

    /// Takes the lock for a process that has just claimed its slot: if the lock names the slot, the owner is a dead
    /// predecessor.
    pub fn lock_as_newcomer(&self, timeout: Duration) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::PerOwner(timeout), true)
    }

    /// Takes the lock as [`lock_as_newcomer`](Self::lock_as_newcomer) does, if that is possible before `ends`.
    pub fn lock_as_newcomer_until(&self, ends: Instant) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::Until(ends), true)
    }

    /// Takes the lock of a snapshot that nobody else uses, whoever had the original's, and undoes its unfinished step.
    pub fn lock_snapshot(&self) -> LockedBook<'_, W> {
        let word = self.read_lock();
        self.words.store(LOCK, sealed(self.slot as u64 + 1));
        let locked = LockedBook::take_over(self);
        if let Err(LockError::Damaged { word }) = word {
            locked.record_damage(word);
        }
        locked
    }

    /// Returns how often the lock was taken and the slot that has it, from the lock's word.
    pub fn lock_state(word: u64) -> (u64, Option<usize>) {
        let word = unsealed(word).unwrap_or(0);
        (word / ACQUISITION, (word & OWNER).checked_sub(1).map(|slot| slot as usize))
    }

    /// Returns the lock's word when the process in `slot` has taken it as the `acquisitions`th.
    pub const fn lock_word(acquisitions: u64, slot: usize) -> u64 {
        sealed((acquisitions * ACQUISITION) | (slot as u64 + 1))
    }

    /// Returns how often the lock was taken so far. The number does not change while an owner is stopped.
    pub fn acquisitions(&self) -> u64 {
        Self::lock_state(self.words.load(LOCK)).0
    }

    fn read_lock(&self) -> Result<u64, LockError> {
        unsealed(self.words.load(LOCK)).ok_or(LockError::Damaged { word: LOCK })
    }

    fn swap_lock(&self, word: u64, new: u64) -> bool {
        self.words.compare_exchange(LOCK, sealed(word), sealed(new)).is_ok()
    }

    fn acquire(&self, limit: WaitLimit, newcomer: bool) -> Result<LockedBook<'_, W>, LockError> {
        let (mut spins, mut slept) = (0, 0);
        let (mut seen, mut is_passed_on): (Option<(u64, Instant)>, bool) = (None, false);
        loop {
            let word = self.read_lock()?;
            let owner = word & OWNER;
            if owner == 0 {
                if self.take(word, slept) {
                    return Ok(LockedBook::new(self));
                }
                continue;
            }
            let slot = owner as usize - 1;
            let dead = if slot == self.slot { newcomer } else { spins >= SPINS && !self.words.alive(slot) };
            if dead {
                if let Err(at) = self.check_journal()
                    && self.read_lock()? == word
                {
                    return Err(LockError::Damaged { word: at });
                }
                // The dead owner may have left notes half applied.
                if self.take(word, NOTES | word & SLEEPERS | slept) {
                    return Ok(LockedBook::take_over(self));
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            let since = match seen {
                Some((acquisition, since)) if acquisition == word / ACQUISITION => since,
                _ => {
                    is_passed_on = seen.is_some() && matches!(limit, WaitLimit::Until(_));
                    seen.insert((word / ACQUISITION, Instant::now())).1
                }
            };
            let Some(left) = limit.remaining(since) else {
                return Err(if is_passed_on { LockError::Busy } else { LockError::Stuck { slot } });
            };
            if word & SLEEPERS != 0 || self.swap_lock(word, word | SLEEPERS) {
                self.words.wait(LOCK, sealed(word | SLEEPERS), Some(LIVENESS_CHECK_EVERY.min(left)));
                // Others may sleep too, and the one who woke this thread cleared the flag for all.
                slept = SLEEPERS;
            }
        }
    }

    fn take(&self, word: u64, flags: u64) -> bool {
        let acquisitions = ((word & !(ACQUISITION - 1)) + ACQUISITION) & ACQUISITIONS;
        self.swap_lock(word, acquisitions | flags | (self.slot as u64 + 1))
    }

    /// Takes the lock if it is free. Otherwise tells its owner that there are notes, which the owner applies before
    /// giving the lock back.
    pub(super) fn lock_or_flag_notes(&self) -> Option<LockedBook<'_, W>> {
        loop {
            let word = self.read_lock().ok()?;
            if word & OWNER == 0 {
                if self.take(word, 0) {
                    return Some(LockedBook::new(self));
                }
            } else if word & NOTES != 0 || self.swap_lock(word, word | NOTES) {
                return None;
            }
        }
    }

    /// Clears the flag that says that there are notes. Returns whether it was set, in which case the caller applies
    /// them.
    pub(super) fn take_notes_flag(&self) -> bool {
        while let Ok(word) = self.read_lock() {
            if word & NOTES == 0 {
                return false;
            }
            if self.swap_lock(word, word & !NOTES) {
                return true;
            }
        }
        false
    }

    /// Gives the lock back, unless notes were left meanwhile. Returns whether it did. A damaged lock word stays as it
    /// is.
    pub(super) fn unlock(&self) -> bool {
        while let Ok(word) = self.read_lock() {
            if word & NOTES != 0 {
                return false;
            }
            if self.swap_lock(word, word & ACQUISITIONS) {
                if word & SLEEPERS != 0 {
                    self.words.wake(LOCK, 1);
                }
                return true;
            }
        }
        true
    }
}
