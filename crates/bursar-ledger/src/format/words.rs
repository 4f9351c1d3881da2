//! Access to the words of a ledger, wherever they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 64-bit words that several threads or processes share, addressed by index, and the liveness of those processes.
///
/// This is all that the algorithms in [`book`](crate::book) know of memory, so they run unchanged on a mapped file, on
/// memory of this process and on the atomics of a model checker.
///
/// An index beyond the last word selects some word within bounds: a damaged file can lead to wrong figures, never to an
/// access outside the mapping.
///
/// No method has a default body: a default would bypass the words below in an implementation that forwards.
/// Implementations with nothing better to do call [`update_with`] and [`attempt_with`].
pub trait Words {
    /// Reads a word; what was stored before the value read is seen afterwards.
    fn load(&self, at: usize) -> u64;

    /// Writes a word, after everything this thread stored before it.
    fn store(&self, at: usize, value: u64);

    /// Replaces `current` by `new`. Fails with the value that is there instead.
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64>;

    /// Changes a word to what `change` makes of it, retrying until no other thread interferes. Returns whether it was
    /// changed; it is not where `change` returns `None`.
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool;

    /// Changes a word as [`Self::update`] does, but gives up if another thread changes it meanwhile.
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool;

    /// Adds to a word and returns the value it had before.
    fn fetch_add(&self, at: usize, value: u64) -> u64;

    /// Sleeps while the lower half of a word equals that of `value`, until woken, at most for `timeout`. May return early.
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>);

    /// Wakes at most `most` of the threads that sleep on a word.
    fn wake(&self, at: usize, most: u32);

    /// Returns whether the process in `slot` is alive. Called only for slots other than the caller's own.
    fn alive(&self, slot: usize) -> bool;
}

/// Implements [`Words::update`] by the other methods.
#[inline(always)]
pub fn update_with<W: Words + ?Sized>(words: &W, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
    let mut word = words.load(at);
    loop {
        let Some(new) = change(word) else { return false };
        match words.compare_exchange(at, word, new) {
            Ok(_) => return true,
            Err(seen) => word = seen,
        }
    }
}

/// Implements [`Words::attempt`] by the other methods.
#[inline(always)]
pub fn attempt_with<W: Words + ?Sized>(words: &W, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
    let word = words.load(at);
    change(word).is_some_and(|new| words.compare_exchange(at, word, new).is_ok())
}

#[deny(clippy::missing_trait_methods)]
impl<W: Words + ?Sized> Words for &W {
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        (**self).load(at)
    }
    #[inline(always)]
    fn store(&self, at: usize, value: u64) {
        (**self).store(at, value);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        (**self).compare_exchange(at, current, new)
    }
    #[inline(always)]
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        (**self).update(at, change)
    }
    #[inline(always)]
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        (**self).attempt(at, change)
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
    fn alive(&self, slot: usize) -> bool {
        (**self).alive(slot)
    }
}

/// A copy of a ledger's words, to be inspected and repaired without touching the original.
#[derive(Debug)]
pub struct WordsSnapshot {
    words: Vec<AtomicU64>,
    alive: Vec<bool>,
}

impl WordsSnapshot {
    /// Makes a snapshot of the given words, of which there must be a power of two. `alive` tells, by slot, which processes
    /// were alive; those beyond its end were not.
    pub fn new(words: impl IntoIterator<Item = u64>, alive: Vec<bool>) -> Self {
        let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        assert!(words.len().is_power_of_two(), "a ledger has a power of two words");
        Self { words, alive }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at & (self.words.len() - 1)]
    }
}

#[deny(clippy::missing_trait_methods)]
impl Words for WordsSnapshot {
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        update_with(self, at, change)
    }
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        attempt_with(self, at, change)
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }
    fn wait(&self, _: usize, _: u64, _: Option<Duration>) {
        std::thread::yield_now();
    }
    fn wake(&self, _: usize, _: u32) {}
    fn alive(&self, slot: usize) -> bool {
        self.alive.get(slot).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Words that record which methods were called on them.
    #[derive(Default)]
    struct Recorder(RefCell<Vec<&'static str>>);

    impl Recorder {
        fn record(&self, method: &'static str) {
            self.0.borrow_mut().push(method);
        }
    }

    impl Words for Recorder {
        fn load(&self, _: usize) -> u64 {
            self.record("load");
            0
        }
        fn store(&self, _: usize, _: u64) {
            self.record("store");
        }
        fn compare_exchange(&self, _: usize, current: u64, _: u64) -> Result<u64, u64> {
            self.record("compare_exchange");
            Ok(current)
        }
        fn update(&self, _: usize, _: impl Fn(u64) -> Option<u64>) -> bool {
            self.record("update");
            true
        }
        fn attempt(&self, _: usize, _: impl FnOnce(u64) -> Option<u64>) -> bool {
            self.record("attempt");
            true
        }
        fn fetch_add(&self, _: usize, _: u64) -> u64 {
            self.record("fetch_add");
            0
        }
        fn wait(&self, _: usize, _: u64, _: Option<Duration>) {
            self.record("wait");
        }
        fn wake(&self, _: usize, _: u32) {
            self.record("wake");
        }
        fn alive(&self, _: usize) -> bool {
            self.record("alive");
            true
        }
    }

    fn call_every_method(words: impl Words) {
        words.load(0);
        words.store(0, 0);
        let _ = words.compare_exchange(0, 0, 0);
        words.update(0, |_| None);
        words.attempt(0, |_| None);
        words.fetch_add(0, 0);
        words.wait(0, 0, None);
        words.wake(0, 0);
        words.alive(0);
    }

    #[test]
    fn a_reference_forwards_every_method() {
        let recorder = Recorder::default();
        call_every_method(&recorder);
        let expected = ["load", "store", "compare_exchange", "update", "attempt", "fetch_add", "wait", "wake", "alive"];
        assert_eq!(*recorder.0.borrow(), expected);
    }
}
