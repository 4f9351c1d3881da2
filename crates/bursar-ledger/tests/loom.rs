//! The lock and its journal, credit and its revocation, and the queue, under every interleaving that the memory model
//! allows: the real code on loom's atomics. Built with `--cfg loom`.
#![cfg(loom)]

use bursar_ledger::book::{Book, CreditLimit, NodeKey, QueueRequest};
use bursar_ledger::format::{LedgerLayout, Words, attempt_with, header, node, process, unsealed, update_with, waiter};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Plain, Ordering::SeqCst};
use std::time::Duration;

const LAYOUT: LedgerLayout = LedgerLayout::SMALL;
const LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

/// The words that are changed without the lock are loom's. The others are plain: the lock keeps others from changing
/// them meanwhile.
struct Memory {
    shared: Vec<(usize, AtomicU64)>,
    guarded: Vec<Plain>,
    dead: Vec<AtomicBool>,
}

impl Memory {
    fn new(total: u64) -> Arc<Self> {
        let mut shared = vec![header::LOCK];
        let of_nodes = [node::BALANCE, node::RETURNED, node::CLOSED];
        shared.extend((1..5).flat_map(|at| of_nodes.map(|field| LAYOUT.node_at(at) + field)));
        shared.extend([waiter::STATE, waiter::ABANDONED].map(|field| LAYOUT.waiter_at(0) + field));
        let memory = Arc::new(Self {
            shared: shared.into_iter().map(|at| (at, AtomicU64::new(0))).collect(),
            guarded: (0..LAYOUT.words()).map(|_| Plain::new(0)).collect(),
            dead: (0..LAYOUT.processes).map(|_| AtomicBool::new(false)).collect(),
        });
        memory.process(0).initialize(total);
        memory
    }

    fn process(self: &Arc<Self>, slot: usize) -> Book<View> {
        Book::new(View(Arc::clone(self), None), LAYOUT, slot)
    }

    /// A process that dies before its nth write from now on.
    fn dying(self: &Arc<Self>, slot: usize, nth: u64) -> Book<View> {
        Book::new(View(Arc::clone(self), Some((slot, Plain::new(nth)))), LAYOUT, slot)
    }
}

struct View(Arc<Memory>, Option<(usize, Plain)>);

impl View {
    fn shared(&self, at: usize) -> Option<&AtomicU64> {
        self.0.shared.iter().find(|(shared, _)| *shared == at).map(|(_, word)| word)
    }

    /// Returns whether the process is alive. A dead process writes nothing; what it still computes matters to nobody.
    fn lives(&self) -> bool {
        let Some((slot, left)) = &self.1 else { return true };
        let lives = left.load(SeqCst) > 0;
        if lives {
            left.fetch_sub(1, SeqCst);
        } else {
            self.0.dead[*slot].store(true, SeqCst);
        }
        lives
    }
}

impl Words for View {
    fn load(&self, at: usize) -> u64 {
        let dead = self.1.as_ref().is_some_and(|(_, left)| left.load(SeqCst) == 0);
        match self.shared(at) {
            // Otherwise dead processes could wait for each other's notes for ever.
            _ if dead && at == header::LOCK => 0,
            Some(word) => word.load(Acquire),
            None => self.0.guarded[at].load(SeqCst),
        }
    }
    fn store(&self, at: usize, value: u64) {
        if self.lives() {
            match self.shared(at) {
                Some(word) => word.store(value, Release),
                None => self.0.guarded[at].store(value, SeqCst),
            }
        }
    }
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        if !self.lives() {
            return Ok(current);
        }
        match self.shared(at) {
            Some(word) => word.compare_exchange(current, new, SeqCst, SeqCst),
            None => self.0.guarded[at].compare_exchange(current, new, SeqCst, SeqCst),
        }
    }
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        update_with(self, at, change)
    }
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        attempt_with(self, at, change)
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        if !self.lives() {
            return 0;
        }
        match self.shared(at) {
            Some(word) => word.fetch_add(value, SeqCst),
            None => self.0.guarded[at].fetch_add(value, SeqCst),
        }
    }
    fn wait(&self, _: usize, _: u64, _: Option<Duration>) {
        thread::yield_now();
    }
    fn wake(&self, _: usize, _: u32) {}
    fn alive(&self, slot: usize) -> bool {
        !self.0.dead.get(slot).is_some_and(|dead| dead.load(SeqCst))
    }
}

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(f);
}

/// Two processes with an account each.
fn two(total: u64) -> (Arc<Memory>, NodeKey, NodeKey) {
    let memory = Memory::new(total);
    let open = |slot| {
        let book = memory.process(slot);
        let mut locked = book.lock_as_newcomer(LOCK_TIMEOUT).unwrap();
        locked.register_process(slot as u64, "model", 0);
        let tenant = locked.find_or_add_tenant("").unwrap();
        locked.open_account(tenant).unwrap()
    };
    let keys = (open(0), open(1));
    (memory, keys.0, keys.1)
}

fn charge(book: &Book<View>, key: NodeKey, bytes: u64, credit: u64) -> bool {
    book.charge_balance(key, bytes) || book.charge(key, bytes, credit, LOCK_TIMEOUT).unwrap().is_ok()
}

fn release(book: &Book<View>, key: NodeKey, bytes: u64, keep: u64) {
    if !book.release_to_balance(key, bytes, CreditLimit::new(keep)) {
        book.release(key, bytes, keep);
    }
}

/// Returns the value of a word that only the holder of the lock changes.
fn value(memory: &Arc<Memory>, at: usize) -> u64 {
    unsealed(memory.guarded[at].load(SeqCst)).unwrap()
}

fn charged(memory: &Arc<Memory>) -> u64 {
    value(memory, LAYOUT.node_at(0) + node::TOTAL)
}

/// Credit against its recall: each takes half of what there is and gives it back. Neither is ever refused, whatever
/// credit the other has.
#[test]
fn l9_credit_in_anothers_hand_refuses_nobody() {
    model(2, || {
        let (memory, mine, others) = two(4);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let book = memory.process(1);
                assert!(charge(&book, others, 2, 2), "the other was refused its half");
                release(&book, others, 2, 4);
            })
        };
        let book = memory.process(0);
        assert!(charge(&book, mine, 2, 0), "one was refused its half");
        release(&book, mine, 2, 4);
        other.join().unwrap();
        let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
        assert_eq!((locked.settle_held(mine.node), locked.settle_held(others.node)), (0, 0));
        assert_eq!(locked.find_inconsistency(), None);
    });
}

/// One process releases while another decides whether there is enough: the decision is right at some moment between.
#[test]
fn l9_a_release_meets_a_revocation() {
    model(3, || {
        let (memory, mine, others) = two(2);
        assert!(charge(&memory.process(1), others, 2, 0));
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || release(&memory.process(1), others, 2, 2))
        };
        let book = memory.process(0);
        let early = charge(&book, mine, 2, 0);
        other.join().unwrap();
        assert!(early || charge(&book, mine, 2, 0), "what was given back is gone");
        assert_eq!(charged(&memory), 2);
    });
}

/// A process dies at its nth write, in the lock or out of it, while another wants what it has.
#[test]
fn l6_a_lock_and_its_journal_are_taken_over() {
    for nth in 0..40 {
        model(2, move || {
            let (memory, mine, others) = two(4);
            let other = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let book = memory.dying(1, nth);
                    if let Ok(mut locked) = book.lock(LOCK_TIMEOUT) {
                        let _ = locked.charge(others, 3, 1);
                    }
                })
            };
            let book = memory.process(0);
            let early = charge(&book, mine, 2, 0);
            other.join().unwrap();
            memory.dead[1].store(true, SeqCst);
            assert!(early || charge(&book, mine, 2, 0), "nobody else has anything");
            let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
            locked.reclaim_dead_processes();
            assert_eq!((locked.settle_held(mine.node), locked.find_inconsistency()), (2, None));
            drop(locked);
            assert_eq!(charged(&memory), 2);
        });
    }
}

/// One waits while the other releases, and leaves the queue or takes what it was granted: nothing is lost either way.
#[test]
fn l4_a_grant_meets_a_release_and_a_cancellation() {
    for cancels in [false, true] {
        model(2, move || {
            let (memory, mine, others) = two(2);
            assert!(charge(&memory.process(1), others, 2, 0));
            let other = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || release(&memory.process(1), others, 2, 2))
            };
            let book = memory.process(0);
            let tenant = value(&memory, LAYOUT.node_at(mine.node) + node::PARENT) as usize;
            let wanting = QueueRequest { tenant, bytes: 2, priority: 0, since: 0, kept: 0 };
            let entry = book.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting).unwrap();
            if cancels {
                book.lock(LOCK_TIMEOUT).unwrap().cancel(entry);
                other.join().unwrap();
                let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
                locked.recall_credit(tenant);
                drop(locked);
                assert_eq!(charged(&memory), 0);
            } else {
                while !book.has_left_queue(entry) {
                    thread::yield_now();
                }
                assert!(book.lock(LOCK_TIMEOUT).unwrap().take_grant(entry).is_some());
                other.join().unwrap();
                assert_eq!(charged(&memory), 2);
            }
            assert_eq!(book.lock(LOCK_TIMEOUT).unwrap().find_inconsistency(), None);
            let waiting = LAYOUT.process_at(0) + process::RETURN_REQUESTED;
            assert_eq!(memory.guarded[waiting].load(SeqCst), 0);
        });
    }
}

/// One gives up, without waiting, what the other may just be granting it.
#[test]
fn l4_a_request_given_up_without_the_lock_meets_its_grant() {
    model(2, || {
        let (memory, mine, others) = two(2);
        assert!(charge(&memory.process(1), others, 2, 0));
        let book = memory.process(0);
        let tenant = value(&memory, LAYOUT.node_at(mine.node) + node::PARENT) as usize;
        let wanting = QueueRequest { tenant, bytes: 2, priority: 0, since: 0, kept: 0 };
        let entry = book.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting).unwrap();
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || release(&memory.process(1), others, 2, 0))
        };
        book.cancel(entry);
        other.join().unwrap();
        let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
        locked.recall_credit(tenant);
        assert_eq!((locked.find_inconsistency(), locked.queue().len()), (None, 0));
        drop(locked);
        assert_eq!(charged(&memory), 0);
    });
}

/// One gives a reservation up without waiting, while the other has the lock and may die with it at any write.
#[test]
fn l6_a_reservation_given_up_without_the_lock_returns_whoever_dies() {
    for nth in (0..40).chain([1000]) {
        model(2, move || {
            let (memory, mine, others) = two(4);
            let book = memory.process(0);
            let tenant = value(&memory, LAYOUT.node_at(mine.node) + node::PARENT) as usize;
            let reservation = book.lock(LOCK_TIMEOUT).unwrap().reserve(tenant, 2).unwrap();
            let other = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let book = memory.dying(1, nth);
                    if let Ok(mut locked) = book.lock(LOCK_TIMEOUT) {
                        let _ = locked.charge(others, 1, 0);
                    }
                })
            };
            book.close(reservation);
            other.join().unwrap();
            memory.dead[1].store(true, SeqCst);
            let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
            locked.reclaim_dead_processes();
            assert_eq!(locked.find_inconsistency(), None);
            drop(locked);
            assert_eq!(charged(&memory), 0);
        });
    }
}
