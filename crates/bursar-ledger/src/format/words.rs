//! The ground a ledger stands on: 64-bit words by number, and whether the process at a place lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Words that several threads or processes share. The algorithms know nothing else of memory, so they run unchanged on a
/// mapped file, on memory of this process and on the atomics of a model checker.
///
/// A number beyond the last word means some word within: a damaged file can lead to wrong figures, never out of the map.
pub trait Words {
    /// Reads a word; what was stored before the value read is seen afterwards.
    fn load(&self, at: usize) -> u64;

    /// Writes a word, after everything this thread stored before it.
    fn store(&self, at: usize, value: u64);

    /// Replaces `current` by `new`, or says what is there instead.
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64>;

    /// Changes a word to what `change` makes of it, or not at all where that is nothing; answers whether it did.
    #[inline(always)]
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut word = self.load(at);
        loop {
            let Some(new) = change(word) else { return false };
            match self.compare_exchange(at, word, new) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// As [`Self::update`], but gives up if somebody else changes the word meanwhile.
    #[inline(always)]
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let word = self.load(at);
        change(word).is_some_and(|new| self.compare_exchange(at, word, new).is_ok())
    }

    /// Adds to a word, and says what it was.
    fn fetch_add(&self, at: usize, value: u64) -> u64;

    /// Sleeps while the lower half of a word is that of `value`, until woken, at most for `timeout`. May return early.
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>);

    /// Wakes at most `most` of those who sleep on a word.
    fn wake(&self, at: usize, most: u32);

    /// Whether the process that took `place` still lives. Asked only about places other than one's own.
    fn alive(&self, place: usize) -> bool;
}

impl<W: Words + ?Sized> Words for &W {
    fn load(&self, at: usize) -> u64 {
        (**self).load(at)
    }
    fn store(&self, at: usize, value: u64) {
        (**self).store(at, value);
    }
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        (**self).compare_exchange(at, current, new)
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        (**self).fetch_add(at, value)
    }
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>) {
        (**self).wait(at, value, timeout);
    }
    fn wake(&self, at: usize, most: u32) {
        (**self).wake(at, most);
    }
    fn alive(&self, place: usize) -> bool {
        (**self).alive(place)
    }
}

/// A copy of a ledger's words, to be looked at and repaired without touching the original.
#[derive(Debug)]
pub struct Sheet {
    words: Vec<AtomicU64>,
    alive: Vec<bool>,
}

impl Sheet {
    /// So many words and who of the processes lives. `words` is a power of two.
    pub fn new(words: impl IntoIterator<Item = u64>, alive: Vec<bool>) -> Self {
        let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        assert!(words.len().is_power_of_two(), "a ledger has a power of two words");
        Self { words, alive }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at & (self.words.len() - 1)]
    }
}

impl Words for Sheet {
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }
    fn wait(&self, _: usize, _: u64, _: Option<Duration>) {
        std::thread::yield_now();
    }
    fn wake(&self, _: usize, _: u32) {}
    fn alive(&self, place: usize) -> bool {
        self.alive.get(place).copied().unwrap_or(false)
    }
}
