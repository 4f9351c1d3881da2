//! The latch under every interleaving that the memory model allows. Built with `--cfg loom`.
#![cfg(loom)]

#[path = "../src/sync/latch/barrier.rs"]
mod barrier;
#[path = "../src/sync/latch/turns.rs"]
mod turns;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use turns::{Turn, Turns};

struct Shared {
    turns: Turns,
    inside: UnsafeCell<()>,
    count: AtomicU64,
    by_right: AtomicU64,
}

impl Shared {
    /// One time inside, for the thread with this number. Loom panics where two are.
    fn add(&self, me: usize) {
        let turn = self.turns.enter(me);
        self.inside.with_mut(|_| self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
        self.turns.leave(turn, me);
        self.by_right.fetch_add(u64::from(turn == Turn::ByRight), Ordering::Relaxed);
    }
}

/// One of two threads becomes the favourite and comes in by right while the other takes the right away, and both come
/// again.
#[test]
fn p8_a_latch_lets_one_in_at_a_time_favourite_or_not() {
    let favoured = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen = favoured.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (turns, inside) = (Turns::new(), UnsafeCell::new(()));
        let shared = Arc::new(Shared { turns, inside, count: AtomicU64::new(0), by_right: AtomicU64::new(0) });
        let other = shared.clone();
        let other = thread::spawn(move || {
            other.add(3);
            other.add(3);
            other.add(3);
        });
        shared.add(2);
        shared.add(2);
        shared.add(2);
        other.join().expect("no panic");
        assert_eq!(shared.count.load(Ordering::Relaxed), 6, "what others left is seen");
        seen.fetch_add(shared.by_right.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    assert!(favoured.load(Ordering::Relaxed) > 0, "somebody comes in by right");
}
