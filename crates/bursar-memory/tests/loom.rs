//! The lock-free parts under every interleaving that the memory model allows: the charge of a budget, and the magazines of
//! a pool. Built with `--cfg loom`.
#![cfg(loom)]

#[allow(dead_code, reason = "the models use part of the core")]
#[path = "../src/budget/account_charge.rs"]
mod account_charge;
#[path = "../src/budget/backoff.rs"]
mod backoff;
#[allow(dead_code, reason = "the models use part of the core")]
#[path = "../src/budget/charge.rs"]
mod charge;
#[path = "../src/pool/extent.rs"]
mod extent;
#[allow(dead_code, reason = "the models use part of it")]
#[path = "../src/pool/magazine.rs"]
mod magazine;

use account_charge::{AccountCharge, AccountError};
use charge::Charge;
use extent::Extent;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use magazine::Magazine;

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
            self.charge.confirm(bytes);
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
        below.charge.confirm(1);
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

/// Memory that frees at once below a budget that pays from an account of `limit`: the account is a word.
struct BelowAccount {
    totals: AccountCharge,
    limit: u64,
    charged: AtomicU64,
    released: AtomicU64,
}

impl BelowAccount {
    fn new(limit: u64) -> Arc<Self> {
        let [charged, released] = [0, 0].map(AtomicU64::new);
        Arc::new(Self { totals: AccountCharge::new(0, 0), limit, charged, released })
    }

    fn charge(&self, bytes: u64) -> Result<(), AccountError<()>> {
        let mut charged = self.charged.load(Ordering::Acquire);
        loop {
            if charged + bytes > self.limit {
                return Err(AccountError::Full { remaining: self.limit - charged, limit: self.limit, error: () });
            }
            match self.charged.compare_exchange(charged, charged + bytes, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(current) => charged = current,
            }
        }
    }

    fn release(&self, bytes: u64) {
        assert!(self.charged.fetch_sub(bytes, Ordering::AcqRel) >= bytes, "more is paid back than was charged");
    }

    fn admit(&self, bytes: u64) -> bool {
        let reap = || {
            self.pay_back();
            Ok(())
        };
        self.totals.admit(bytes, || self.charge(bytes), || self.released.load(Ordering::Acquire), reap).is_ok()
    }

    fn pay_back(&self) {
        self.totals.pay_back(|| self.released.load(Ordering::Acquire), |bytes| self.release(bytes));
    }

    fn roll_back(&self, bytes: u64) {
        self.totals.roll_back(bytes, |bytes| self.release(bytes));
    }

    fn give(&self, bytes: u64) {
        self.released.fetch_add(bytes, Ordering::Release);
        self.pay_back();
    }
}

#[test]
fn b9_what_two_threads_find_released_is_paid_back_once() {
    model(|| {
        let below = BelowAccount::new(3);
        assert!(below.admit(3));
        below.totals.confirm(3);
        let other = {
            let below = below.clone();
            thread::spawn(move || below.give(1))
        };
        below.give(2);
        other.join().unwrap();
        below.pay_back();
        assert_eq!(below.charged.load(Ordering::Acquire), 0);
    });
}

#[test]
fn b3_a_charge_on_account_that_is_rolled_back_refuses_nobody() {
    model(|| {
        let below = BelowAccount::new(2);
        let failing = {
            let below = below.clone();
            thread::spawn(move || {
                if below.admit(2) {
                    below.roll_back(2);
                }
            })
        };
        assert!(below.admit(1), "refused for a charge that was rolled back");
        below.totals.confirm(1);
        failing.join().unwrap();
        assert_eq!(below.charged.load(Ordering::Acquire), 1);
        assert!(!below.admit(2), "one of two is held");
    });
}

#[test]
fn b3_threads_on_one_account_that_stay_within_their_share_are_never_refused() {
    model(|| {
        let below = BelowAccount::new(2);
        let churn = |below: &BelowAccount| {
            for _ in 0..2 {
                assert!(below.admit(1), "refused although there was room");
                below.totals.confirm(1);
                below.give(1);
            }
        };
        let other = {
            let below = below.clone();
            thread::spawn(move || churn(&below))
        };
        churn(&below);
        other.join().unwrap();
        assert_eq!(below.charged.load(Ordering::Acquire), 0);
    });
}

/// Returns what a thread that is not the magazine's own takes out.
fn drain(magazine: &Magazine) -> Vec<Extent> {
    let mut out = Vec::new();
    magazine.drain(&mut out);
    out
}

/// Every block of `blocks` is in one of `got` or still in the magazine, once.
fn each_is_got_once(magazine: &Magazine, got: [Vec<Extent>; 3], blocks: &[Extent]) {
    let mut all: Vec<_> =
        got.into_iter().flatten().chain(drain(magazine)).map(|extent| (extent.at, extent.len)).collect();
    all.sort_unstable();
    let expected: Vec<_> = blocks.iter().map(|extent| (extent.at, extent.len)).collect();
    assert_eq!(all, expected, "each block is got exactly once");
    assert_eq!(magazine.units(), 0);
}

const MOST: u64 = 100;
const BLOCKS: [Extent; 3] = [Extent { at: 2, len: 1 }, Extent { at: 3, len: 5 }, Extent { at: 4, len: 1 }];

#[test]
fn p8_a_kept_block_is_got_once_by_its_thread_or_by_one_of_two_others() {
    model(|| {
        let magazine = Arc::new(Magazine::new(MOST));
        assert!(magazine.put(BLOCKS[0]));
        let others = [(); 2].map(|()| {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        });
        let mut own = Vec::new();
        assert!(magazine.put(BLOCKS[1]), "there is an entry for two");
        own.extend(magazine.take(1).map(|at| Extent { at, len: 1 }));
        let [first, second] = others.map(|other| other.join().unwrap());
        each_is_got_once(&magazine, [own, first, second], &BLOCKS[..2]);
    });
}

/// Others empty an entry, and its thread fills it again while one of them is still there.
#[test]
fn p8_an_entry_that_others_emptied_is_filled_again_and_loses_nothing() {
    model(|| {
        let magazine = Arc::new(Magazine::new(MOST));
        assert!(magazine.put(BLOCKS[0]) && magazine.put(BLOCKS[1]));
        let others = [(); 2].map(|()| {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        });
        let own = if magazine.put(BLOCKS[2]) { Vec::new() } else { vec![BLOCKS[2]] };
        let [first, second] = others.map(|other| other.join().unwrap());
        each_is_got_once(&magazine, [own, first, second], &BLOCKS);
    });
}

/// The smallest form of what loom gets wrong, and the reason why the magazine puts a block in with a swap here and with a store
/// everywhere else.
///
/// Two threads swap; a third reads what the first of them wrote, and stores. In the order of changes to the word, the second
/// swap follows at once what it read, so a store that is after the first swap is after the second too, or is what the second
/// swap got. Loom only puts the store after what its thread has read, lets it and the second swap stand side by side, and then
/// has the last swap follow either: what was stored is lost. A swap in the place of the store is ordered as the store is in
/// truth, and shows besides that the entry was empty. Once loom knows better this test fails, and the store can be modelled as
/// it is.
#[test]
#[should_panic(expected = "the store is lost")]
fn loom_lets_a_store_fall_between_the_halves_of_a_swap() {
    model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let others = [(); 2].map(|()| {
            let word = word.clone();
            thread::spawn(move || word.swap(1, Ordering::AcqRel))
        });
        let stores = word.load(Ordering::Relaxed) == 1;
        if stores {
            word.store(2, Ordering::Release);
        }
        let got = others.map(|other| other.join().unwrap());
        let last = word.swap(1, Ordering::AcqRel);
        assert!(!stores || last == 2 || got.contains(&2), "the store is lost");
    });
}

#[test]
fn p8_a_block_that_takes_the_place_of_another_loses_neither() {
    model(|| {
        let magazine = Arc::new(Magazine::new(MOST));
        assert!(magazine.put(BLOCKS[0]) && magazine.put(BLOCKS[1]));
        let other = {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        };
        let mut own: Vec<_> = magazine.exchange(BLOCKS[2]).into_iter().collect();
        own.extend(magazine.take(1).map(|at| Extent { at, len: 1 }));
        let got = other.join().unwrap();
        each_is_got_once(&magazine, [own, got, Vec::new()], &BLOCKS);
    });
}

/// A count that others have made wrong is put right, and nothing hides from whoever looks last.
#[test]
fn p8_a_full_magazine_counts_again_and_loses_nothing() {
    model(|| {
        let magazine = Arc::new(Magazine::new(5));
        assert!(magazine.put(BLOCKS[1]));
        let other = {
            let magazine = magazine.clone();
            thread::spawn(move || drain(&magazine))
        };
        let own = magazine.exchange(BLOCKS[0]).into_iter().collect();
        let got = other.join().unwrap();
        each_is_got_once(&magazine, [own, got, Vec::new()], &BLOCKS[..2]);
    });
}

#[allow(dead_code, reason = "the models use part of the core")]
#[path = "../src/quota/credit.rs"]
mod credit;

#[test]
fn b12_two_payers_never_spend_more_than_there_is_and_nothing_is_lost() {
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
