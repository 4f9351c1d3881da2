//! The lock-free parts under every interleaving that the memory model allows: the charge of a budget, and the magazines of
//! a pool. Built with `--cfg loom`.
#![cfg(loom)]

#[allow(dead_code, reason = "the models use part of the core")]
#[path = "../src/charge.rs"]
mod charge;
#[allow(dead_code, reason = "the models use part of it")]
#[path = "../src/pool/magazine.rs"]
mod magazine;

use charge::Charge;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use magazine::{Kept, Magazine};

/// Every interleaving with at most three preemptions: enough for every known kind of lost update.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// Memory below a budget that frees at once: a released total and nothing else.
struct Below {
    charge: Charge,
    released: AtomicU64,
    held: AtomicU64,
}

impl Below {
    fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { charge: Charge::new(0, limit), released: AtomicU64::new(0), held: AtomicU64::new(0) })
    }

    /// Charges `bytes` the way a budget does; there is never anything to find.
    fn admit(&self, bytes: u64) -> bool {
        self.charge.admit(bytes, || self.released.load(Ordering::Acquire), || Ok::<(), ()>(())).is_ok()
    }

    fn try_take(&self, bytes: u64) -> bool {
        let charged = self.charge.try_charge(bytes, || self.released.load(Ordering::Acquire)).is_ok();
        if charged {
            self.charge.settle(bytes);
            let held = self.held.fetch_add(bytes, Ordering::AcqRel) + bytes;
            assert!(held <= self.charge.limit(), "more is held than the limit allows");
        }
        charged
    }

    fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.released.fetch_add(bytes, Ordering::Release);
    }

    fn used(&self) -> u64 {
        self.charge.used(|| self.released.load(Ordering::Acquire))
    }
}

#[test]
fn b7_the_sum_granted_never_exceeds_the_limit() {
    model(|| {
        let below = Below::new(3);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let below = below.clone();
                thread::spawn(move || {
                    if below.try_take(2) {
                        below.give(2);
                    }
                })
            })
            .collect();
        if below.try_take(2) {
            below.give(2);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(below.used(), 0);
    });
}

#[test]
fn b3_threads_that_stay_within_their_share_are_never_refused() {
    model(|| {
        let below = Below::new(2);
        let churn = |below: &Below| {
            for _ in 0..2 {
                assert!(below.try_take(1), "refused although there was room");
                below.give(1);
            }
        };
        let other = {
            let below = below.clone();
            thread::spawn(move || churn(&below))
        };
        churn(&below);
        other.join().unwrap();
        assert_eq!(below.used(), 0);
    });
}

#[test]
fn b8_a_charge_rolled_back_leaves_no_trace() {
    model(|| {
        let below = Below::new(2);
        let failing = {
            let below = below.clone();
            thread::spawn(move || {
                if below.charge.try_charge(1, || below.released.load(Ordering::Acquire)).is_ok() {
                    below.charge.roll_back(1);
                }
            })
        };
        assert!(below.try_take(1), "refused although there was room");
        below.give(1);
        failing.join().unwrap();
        assert_eq!(below.used(), 0);
    });
}

#[test]
fn b11_a_limit_lowered_while_running_is_kept() {
    model(|| {
        let below = Below::new(2);
        let lower = {
            let below = below.clone();
            thread::spawn(move || below.charge.set_limit(1))
        };
        let took = below.charge.try_charge(2, || below.released.load(Ordering::Acquire)).is_ok();
        lower.join().unwrap();
        let again = below.charge.try_charge(1, || below.released.load(Ordering::Acquire));
        assert_eq!(again.is_ok(), !took, "the lowered limit counts from here on");
    });
}

#[test]
fn b3_an_undecided_charge_that_is_rolled_back_refuses_nobody() {
    model(|| {
        let below = Below::new(2);
        let failing = {
            let below = below.clone();
            thread::spawn(move || {
                if below.admit(2) {
                    below.charge.roll_back(2);
                }
            })
        };
        assert!(below.admit(1), "refused for a charge that was rolled back");
        below.charge.settle(1);
        failing.join().unwrap();
        assert_eq!(below.used(), 1);
        assert!(!below.admit(2), "one of two is held");
    });
}

#[test]
fn b3_a_request_that_does_not_fit_beside_what_is_settled_is_refused() {
    model(|| {
        let below = Below::new(2);
        assert!(below.try_take(1));
        let failing = {
            let below = below.clone();
            thread::spawn(move || {
                if below.admit(1) {
                    below.charge.roll_back(1);
                }
            })
        };
        assert!(!below.admit(2), "one of two is held throughout");
        failing.join().unwrap();
        below.give(1);
        assert_eq!(below.used(), 0);
    });
}

/// What a thread that is not the magazine's own takes out.
fn drain(magazine: &Magazine) -> Vec<Kept> {
    let mut out = Vec::new();
    magazine.drain(&mut out);
    out
}

/// Every block of `blocks` is in one of `got` or still in the magazine, once.
fn each_is_got_once(magazine: &Magazine, got: [Vec<Kept>; 3], blocks: &[Kept]) {
    let mut all: Vec<_> = got.into_iter().flatten().chain(drain(magazine)).map(|kept| (kept.at, kept.len)).collect();
    all.sort_unstable();
    let expected: Vec<_> = blocks.iter().map(|kept| (kept.at, kept.len)).collect();
    assert_eq!(all, expected, "each block is got exactly once");
    assert_eq!(magazine.kept(), 0);
}

const MOST: u64 = 100;
const BLOCKS: [Kept; 3] = [Kept { at: 2, len: 1 }, Kept { at: 3, len: 5 }, Kept { at: 4, len: 1 }];

#[test]
fn p8_a_kept_block_is_got_once_by_its_thread_or_by_one_of_two_others() {
    model(|| {
        let magazine = Arc::new(Magazine::default());
        assert!(magazine.put(BLOCKS[0], MOST));
        let others = [(); 2].map(|()| {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        });
        let mut own = Vec::new();
        assert!(magazine.put(BLOCKS[1], MOST), "there is a place for two");
        own.extend(magazine.take(1).map(|at| Kept { at, len: 1 }));
        let [first, second] = others.map(|other| other.join().unwrap());
        each_is_got_once(&magazine, [own, first, second], &BLOCKS[..2]);
    });
}

#[test]
fn p8_a_block_that_takes_the_place_of_another_loses_neither() {
    model(|| {
        let magazine = Arc::new(Magazine::default());
        assert!(magazine.put(BLOCKS[0], MOST) && magazine.put(BLOCKS[1], MOST));
        let other = {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        };
        let mut own: Vec<_> = magazine.exchange(BLOCKS[2], MOST).into_iter().collect();
        own.extend(magazine.take(1).map(|at| Kept { at, len: 1 }));
        let got = other.join().unwrap();
        each_is_got_once(&magazine, [own, got, Vec::new()], &BLOCKS);
    });
}

/// A count that others have made wrong is put right, and nothing hides from whoever looks last.
#[test]
fn p8_a_full_magazine_counts_again_and_loses_nothing() {
    model(|| {
        let magazine = Arc::new(Magazine::default());
        assert!(magazine.put(BLOCKS[1], 5));
        let other = {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        };
        let own = magazine.exchange(BLOCKS[0], 5).into_iter().collect();
        let got = other.join().unwrap();
        each_is_got_once(&magazine, [own, got, Vec::new()], &BLOCKS[..2]);
    });
}

#[allow(dead_code, reason = "the models use part of the core")]
#[path = "../src/credit.rs"]
mod credit;

#[test]
fn l1_two_payers_never_spend_more_than_there_is_and_nothing_is_lost() {
    model(|| {
        let credit = Arc::new(credit::Credit::new(3));
        let other = {
            let credit = credit.clone();
            thread::spawn(move || {
                let paid = credit.pay(1, 2).is_ok();
                if paid {
                    credit.refund(1, 2);
                }
                paid
            })
        };
        let paid = credit.pay(0, 1).is_ok();
        assert!(paid, "one fits, whatever the other does");
        other.join().unwrap();
        assert!(credit.pay(0, 2).is_ok() && credit.pay(1, 1).is_err(), "exact once the other is done");
    });
}
