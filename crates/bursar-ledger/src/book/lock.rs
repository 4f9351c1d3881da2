//! The one lock of a ledger, which outlives its owner's death.
//!
//! The lock word says which place has it, how often it was taken, and two flags. It is free when no place is named. Each
//! taking counts up, so a process that saw its owner dead cannot take it from the next owner at the same place.

use super::{Book, LockedBook};
use crate::format::{Words, header::LOCK, sealed, unsealed};
use std::time::{Duration, Instant};

const OWNER: u64 = 0xffff;
/// Something was left to be looked at by whoever gives the lock back.
pub(super) const NOTES: u64 = 1 << 16;
/// Somebody sleeps until the lock is given back.
const SLEEPERS: u64 = 1 << 17;
const ACQUISITION: u64 = 1 << 18;
/// The bits that count takings; they begin anew when they are full.
const ACQUISITIONS: u64 = (1 << 56) - ACQUISITION;

/// How often to look again before sleeping. A model checker explores each look, and needs none.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };
/// How long to sleep before asking whether the owner lives.
const LIVENESS_CHECK_EVERY: Duration = Duration::from_millis(20);

/// Why the lock was not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// A living process has it and does not give it back: most likely it is stopped.
    Stuck {
        /// Where that is in the table of processes.
        slot: usize,
    },
    /// Others had it, one after the other, until the time was over.
    Busy,
    /// The file is damaged there: nobody can know who has the lock, or what its dead owner was doing.
    Damaged {
        /// Which word.
        word: usize,
    },
}

/// When to stop waiting for the lock.
#[derive(Clone, Copy, Debug)]
enum WaitLimit {
    /// When an owner has had it for so long, since it was seen to take it.
    Taking(Duration),
    /// At that moment, whoever has it.
    Until(Instant),
}

impl WaitLimit {
    /// How long to wait for an owner that was seen to take it at `since`; nothing once it is over.
    fn left(self, since: Instant) -> Option<Duration> {
        let left = match self {
            Self::Taking(longest) => longest.saturating_sub(since.elapsed()),
            Self::Until(ends) => ends.saturating_duration_since(Instant::now()),
        };
        (!left.is_zero()).then_some(left)
    }
}

impl<W: Words> Book<W> {
    /// Takes the lock; a living owner may keep it for `timeout`, each time it takes it.
    pub fn lock(&self, timeout: Duration) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::Taking(timeout), false)
    }

    /// Takes the lock if it can be had by then, and in any case if it is free.
    pub fn lock_until(&self, ends: Instant) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::Until(ends), false)
    }

    /// Takes the lock for a process that has just come to its place: if the lock names the place, it is a dead
    /// predecessor's.
    pub fn lock_as_newcomer(&self, timeout: Duration) -> Result<LockedBook<'_, W>, LockError> {
        self.acquire(WaitLimit::Taking(timeout), true)
    }

    /// Takes the lock of a copy that nobody else uses, whoever had the original's, and undoes what was half done in it.
    pub fn lock_snapshot(&self) -> LockedBook<'_, W> {
        let word = self.read_lock();
        self.words.store(LOCK, sealed(self.slot as u64 + 1));
        let locked = LockedBook::take_over(self);
        if let Err(LockError::Damaged { word }) = word {
            locked.record_damage(word);
        }
        locked
    }

    /// How often the lock was taken, and the place that has it.
    pub fn lock_state(word: u64) -> (u64, Option<usize>) {
        let word = unsealed(word).unwrap_or(0);
        (word / ACQUISITION, (word & OWNER).checked_sub(1).map(|slot| slot as usize))
    }

    /// The lock's word when the process at `place` has taken it for the `takings`th time.
    pub const fn lock_word(acquisitions: u64, slot: usize) -> u64 {
        sealed((acquisitions * ACQUISITION) | (slot as u64 + 1))
    }

    /// How often the lock was taken until now: an owner that is stopped keeps that from changing.
    pub fn acquisitions(&self) -> u64 {
        Self::lock_state(self.words.load(LOCK)).0
    }

    fn read_lock(&self) -> Result<u64, LockError> {
        unsealed(self.words.load(LOCK)).ok_or(LockError::Damaged { word: LOCK })
    }

    fn swap_lock(&self, word: u64, new: u64) -> bool {
        self.words.compare_exchange(LOCK, sealed(word), sealed(new)).is_ok()
    }

    fn acquire(&self, timeout: WaitLimit, newcomer: bool) -> Result<LockedBook<'_, W>, LockError> {
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
                // It may have died with notes half digested.
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
                Some((taking, since)) if taking == word / ACQUISITION => since,
                _ => {
                    is_passed_on = seen.is_some() && matches!(timeout, WaitLimit::Until(_));
                    seen.insert((word / ACQUISITION, Instant::now())).1
                }
            };
            let Some(left) = timeout.left(since) else {
                return Err(if is_passed_on { LockError::Busy } else { LockError::Stuck { slot } });
            };
            if word & SLEEPERS != 0 || self.swap_lock(word, word | SLEEPERS) {
                self.words.wait(LOCK, sealed(word | SLEEPERS), Some(LIVENESS_CHECK_EVERY.min(left)));
                // Others may sleep too, and the one who woke us has forgotten them.
                slept = SLEEPERS;
            }
        }
    }

    fn take(&self, word: u64, flags: u64) -> bool {
        let acquisitions = ((word & !(ACQUISITION - 1)) + ACQUISITION) & ACQUISITIONS;
        self.swap_lock(word, acquisitions | flags | (self.slot as u64 + 1))
    }

    /// Takes the lock if it is free. If not, whoever has it is told of notes, and digests them before giving it back.
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

    /// Whether there are notes; whoever asks digests them.
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

    /// Gives the lock back, unless a note was left meanwhile. One that is damaged stays as it is.
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
