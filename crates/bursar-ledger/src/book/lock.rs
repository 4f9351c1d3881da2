//! The one lock of a ledger, which outlives its owner's death.
//!
//! The lock word says which place has it, how often it was taken, and two flags. It is free when no place is named. Each
//! taking counts up, so a process that saw its owner dead cannot take it from the next owner at the same place.

use super::{Book, Desk};
use crate::format::{Words, header::LOCK, sealed, unsealed};
use std::time::{Duration, Instant};

const OWNER: u64 = 0xffff;
/// Something was left to be looked at by whoever gives the lock back.
pub(super) const ATTENTION: u64 = 1 << 16;
/// Somebody sleeps until the lock is given back.
const SLEEPERS: u64 = 1 << 17;
const TAKING: u64 = 1 << 18;
/// The bits that count takings; they begin anew when they are full.
const TAKINGS: u64 = (1 << 56) - TAKING;

/// How often to look again before sleeping. A model checker explores each look, and needs none.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };
/// How long to sleep before asking whether the owner lives.
const NAP: Duration = Duration::from_millis(20);

/// Why the lock was not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLock {
    /// A living process has it and does not give it back: most likely it is stopped.
    Stuck {
        /// Where that is in the table of processes.
        place: usize,
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
enum Patience {
    /// When an owner has had it for so long, since it was seen to take it.
    Taking(Duration),
    /// At that moment, whoever has it.
    Until(Instant),
}

impl Patience {
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
    /// Takes the lock; a living owner may keep it for `patience`, each time it takes it.
    pub fn lock(&self, patience: Duration) -> Result<Desk<'_, W>, NoLock> {
        self.acquire(Patience::Taking(patience), false)
    }

    /// Takes the lock if it can be had by then, and in any case if it is free.
    pub fn lock_until(&self, ends: Instant) -> Result<Desk<'_, W>, NoLock> {
        self.acquire(Patience::Until(ends), false)
    }

    /// Takes the lock for a process that has just come to its place: if the lock names the place, it is a dead
    /// predecessor's.
    pub fn lock_as_newcomer(&self, patience: Duration) -> Result<Desk<'_, W>, NoLock> {
        self.acquire(Patience::Taking(patience), true)
    }

    /// Takes the lock of a copy that nobody else uses, whoever had the original's, and undoes what was half done in it.
    pub fn lock_copy(&self) -> Desk<'_, W> {
        let word = self.lock_now();
        self.words.store(LOCK, sealed(self.place as u64 + 1));
        let desk = Desk::sit_down_for_the_dead(self);
        if let Err(NoLock::Damaged { word }) = word {
            desk.damaged(word);
        }
        desk
    }

    /// How often the lock was taken, and the place that has it.
    pub fn lock_state(word: u64) -> (u64, Option<usize>) {
        let word = unsealed(word).unwrap_or(0);
        (word / TAKING, (word & OWNER).checked_sub(1).map(|place| place as usize))
    }

    /// The lock's word when the process at `place` has taken it for the `takings`th time.
    pub const fn lock_word(takings: u64, place: usize) -> u64 {
        sealed((takings * TAKING) | (place as u64 + 1))
    }

    /// How often the lock was taken until now: an owner that is stopped keeps that from changing.
    pub fn takings(&self) -> u64 {
        Self::lock_state(self.words.load(LOCK)).0
    }

    fn lock_now(&self) -> Result<u64, NoLock> {
        unsealed(self.words.load(LOCK)).ok_or(NoLock::Damaged { word: LOCK })
    }

    fn change(&self, word: u64, new: u64) -> bool {
        self.words.compare_exchange(LOCK, sealed(word), sealed(new)).is_ok()
    }

    fn acquire(&self, patience: Patience, newcomer: bool) -> Result<Desk<'_, W>, NoLock> {
        let (mut spins, mut slept) = (0, 0);
        let (mut seen, mut is_passed_on): (Option<(u64, Instant)>, bool) = (None, false);
        loop {
            let word = self.lock_now()?;
            let owner = word & OWNER;
            if owner == 0 {
                if self.take(word, slept) {
                    return Ok(Desk::sit_down(self));
                }
                continue;
            }
            let place = owner as usize - 1;
            let dead = if place == self.place { newcomer } else { spins >= SPINS && !self.words.alive(place) };
            if dead {
                if let Err(at) = self.check_journal()
                    && self.lock_now()? == word
                {
                    return Err(NoLock::Damaged { word: at });
                }
                // It may have died with notes half digested.
                if self.take(word, ATTENTION | word & SLEEPERS | slept) {
                    return Ok(Desk::sit_down_for_the_dead(self));
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            let since = match seen {
                Some((taking, since)) if taking == word / TAKING => since,
                _ => {
                    is_passed_on = seen.is_some() && matches!(patience, Patience::Until(_));
                    seen.insert((word / TAKING, Instant::now())).1
                }
            };
            let Some(left) = patience.left(since) else {
                return Err(if is_passed_on { NoLock::Busy } else { NoLock::Stuck { place } });
            };
            if word & SLEEPERS != 0 || self.change(word, word | SLEEPERS) {
                self.words.wait(LOCK, sealed(word | SLEEPERS), Some(NAP.min(left)));
                // Others may sleep too, and the one who woke us has forgotten them.
                slept = SLEEPERS;
            }
        }
    }

    fn take(&self, word: u64, flags: u64) -> bool {
        let takings = ((word & !(TAKING - 1)) + TAKING) & TAKINGS;
        self.change(word, takings | flags | (self.place as u64 + 1))
    }

    /// Takes the lock if it is free. If not, whoever has it is told of notes, and digests them before giving it back.
    pub(super) fn lock_or_leave_a_note(&self) -> Option<Desk<'_, W>> {
        loop {
            let word = self.lock_now().ok()?;
            if word & OWNER == 0 {
                if self.take(word, 0) {
                    return Some(Desk::sit_down(self));
                }
            } else if word & ATTENTION != 0 || self.change(word, word | ATTENTION) {
                return None;
            }
        }
    }

    /// Whether there are notes; whoever asks digests them.
    pub(super) fn take_note(&self) -> bool {
        while let Ok(word) = self.lock_now() {
            if word & ATTENTION == 0 {
                return false;
            }
            if self.change(word, word & !ATTENTION) {
                return true;
            }
        }
        false
    }

    /// Gives the lock back, unless a note was left meanwhile. One that is damaged stays as it is.
    pub(super) fn unlock(&self) -> bool {
        while let Ok(word) = self.lock_now() {
            if word & ATTENTION != 0 {
                return false;
            }
            if self.change(word, word & TAKINGS) {
                if word & SLEEPERS != 0 {
                    self.words.wake(LOCK, 1);
                }
                return true;
            }
        }
        true
    }
}
