//! A bit that changes by itself, anywhere in a ledger in use, is noticed or changes nothing (L7): nobody is granted what is not
//! there, nothing panics and nothing waits for ever.

mod common;

use bursar_ledger::RefusalReason;
use bursar_ledger::book::{
    Book, BookError, CreditLimit, LockError, LockedBook, NodeKey, PublishedUsage, QueueEntry, QueueRequest, Shortfall,
};
use bursar_ledger::format::{header, node};
use common::{LAYOUT, Memory, View, register};
use std::sync::Arc;
use std::time::Duration;

/// The variable for how many bits are flipped: every nth, 1 for all of them.
const EVERY: &str = "BURSAR_LEDGER_FLIPS_EVERY";
const LIMIT: u64 = 1000;

/// The ledger was found damaged.
#[derive(Debug)]
struct Corrupt;

impl From<LockError> for Corrupt {
    fn from(why: LockError) -> Self {
        assert!(matches!(why, LockError::Damaged { .. }), "nobody has the lock, and {why:?}");
        Self
    }
}

/// The outcome of an act, in numbers.
type Outcomes = Result<Vec<u64>, Corrupt>;

/// Three processes with a ledger in the middle of its life, one of which is dead, and what they have handles of.
struct World {
    memory: Arc<Memory>,
    one: Book<View>,
    other: Book<View>,
    mine: NodeKey,
    others: NodeKey,
    aside: NodeKey,
    drawn: NodeKey,
    waiting: QueueEntry,
    lent: Option<NodeKey>,
}

fn request(tenant: usize, bytes: u64) -> QueueRequest {
    QueueRequest { tenant, bytes, priority: 1, since: 0, kept: 0 }
}

fn world() -> World {
    let memory = Memory::new(LIMIT);
    let (one, other, dead) = (memory.process(0), memory.process(1), memory.process(2));
    [&one, &other, &dead].into_iter().for_each(register);
    let timeout = Duration::from_secs(5);
    let mut locked = one.lock(timeout).unwrap();
    let (tenant, narrow) = (locked.find_or_add_tenant("").unwrap(), locked.find_or_add_tenant("narrow").unwrap());
    locked.configure(narrow, 50, 100);
    let mine = locked.open_account(tenant).unwrap();
    locked.charge(mine, 40, 20).unwrap();
    let aside = locked.reserve(narrow, 60).unwrap();
    locked.charge(aside, 30, 0).unwrap();
    drop(locked);
    let mut locked = dead.lock(timeout).unwrap();
    let left_behind = locked.open_account(tenant).unwrap();
    locked.charge(left_behind, 90, 0).unwrap();
    drop(locked);
    let mut locked = other.lock(timeout).unwrap();
    let others = locked.open_account(tenant).unwrap();
    locked.charge(others, 300, 10).unwrap();
    let drawn = locked.open_account(aside.node).unwrap();
    locked.charge(drawn, 5, 5).unwrap();
    drop(locked);
    let waiting = one.lock(timeout).unwrap().enqueue(request(narrow, 90)).unwrap();
    memory.kill(2);
    World { memory, one, other, mine, others, aside, drawn, waiting, lent: None }
}

impl World {
    /// Copies the world, over words of its own.
    fn copied(&self) -> Self {
        let memory = self.memory.copied();
        let (one, other) = (memory.process(0), memory.process(1));
        memory.kill(2);
        Self { memory, one, other, ..*self }
    }
}

/// Runs `act` behind the lock, as a program would.
fn at<T>(book: &Book<View>, act: impl FnOnce(&mut LockedBook<'_, View>) -> T) -> Result<T, Corrupt> {
    let mut locked = book.lock(Duration::ZERO)?;
    let done = act(&mut locked);
    locked.damage().map_or(Ok(done), |_| Err(Corrupt))
}

fn told<T>(done: Result<T, BookError>) -> Vec<u64> {
    match done {
        Ok(_) => vec![1],
        Err(BookError::Shortfall(shortfall)) => vec![0, shortfall.remaining, shortfall.limit],
        Err(_) => vec![2],
    }
}

fn charge(book: &Book<View>, key: NodeKey, bytes: u64) -> Outcomes {
    if book.charge_balance(key, bytes) {
        return Ok(vec![1]);
    }
    Ok(told(at(book, |locked| locked.charge(key, bytes, 10))?))
}

fn release(book: &Book<View>, key: NodeKey, bytes: u64) {
    if !book.release_to_balance(key, bytes, CreditLimit::new(20)) {
        book.release(key, bytes, 5);
    }
}

/// The acts of a program: each is granted or refused, and each reads what it depends on.
const ACTS: &[fn(&mut World) -> Outcomes] = &[
    |w| charge(&w.one, w.mine, 15),
    |w| charge(&w.one, w.mine, 2000),
    |w| {
        release(&w.one, w.mine, 30);
        charge(&w.one, w.mine, 7)
    },
    |w| charge(&w.other, w.others, 60),
    |w| charge(&w.other, w.drawn, 12),
    |w| charge(&w.other, w.drawn, 200),
    |w| {
        let lent = at(&w.other, |locked| {
            let tenant = locked.find_tenant("").unwrap_or(0);
            locked.reserve(tenant, 90)
        })?;
        w.lent = lent.ok();
        Ok(told(lent))
    },
    |w| {
        Ok(told(at(&w.one, |locked| {
            locked.find_or_add_tenant("narrow").map_or(Err(BookError::TableFull), |narrow| locked.reserve(narrow, 41))
        })?))
    },
    |w| {
        // Notes: both give up while another has the lock.
        let busy = w.other.lock(Duration::ZERO)?;
        w.one.release(w.mine, 9, 0);
        w.one.cancel(w.waiting);
        drop(busy);
        at(&w.one, |locked| vec![locked.settle_held(w.mine.node), locked.queue().len() as u64])
    },
    |w| {
        let tenant = at(&w.one, |locked| locked.find_tenant("").unwrap_or(0))?;
        let entry = at(&w.one, |locked| locked.enqueue(request(tenant, 700)))?;
        let Ok(entry) = entry else { return Ok(vec![9]) };
        let waits = !w.one.has_left_queue(entry);
        release(&w.other, w.others, 340);
        let granted = at(&w.one, |locked| locked.take_grant(entry))?;
        if let Some(key) = granted {
            at(&w.one, |locked| locked.close(key))?;
        }
        Ok(vec![waits.into(), granted.is_some().into()])
    },
    |w| {
        let Some(lent) = w.lent else { return Ok(vec![9]) };
        let split = at(&w.other, |locked| locked.split(lent, 30))?;
        at(&w.other, |locked| locked.shrink(lent, 20).map_err(|_| ()))?.ok();
        w.other.close(lent);
        Ok(told(split))
    },
    |w| {
        at(&w.one, |locked| {
            locked.set_unmanaged(100);
            locked.set_limit(950);
            let tenant = locked.find_tenant("").unwrap_or(0);
            told(locked.reserve(tenant, 2000))
        })
    },
    |w| {
        w.one.count_refusal(w.mine, RefusalReason::Limit);
        w.one.count_wait(w.mine, 1200);
        let shortfall = Shortfall { remaining: 7, limit: 950, reason: RefusalReason::Limit };
        at(&w.one, |locked| {
            locked.enter_refusal(w.mine, 5, 2000, shortfall);
            let holders = vec![("weights".to_owned(), 70), ("kv-cache".to_owned(), 20)];
            locked.publish_usage(&PublishedUsage { when: 6, live: Some(90), cached: 3, peak: 100, holders });
            let (counts, waits) = (locked.refusal_counts(), locked.wait_histogram());
            let mut figures = vec![counts.total(), waits.count(), waits.sum().as_millis() as u64];
            figures.extend(locked.last_refusals().iter().flat_map(|last| [last.when, last.requested, last.limit]));
            let usage = locked.published_usage(0).unwrap_or_default();
            figures.extend([usage.when, usage.live.unwrap_or(0), usage.cached, usage.peak]);
            figures.extend(usage.holders.iter().map(|(tag, bytes)| bytes * tag.len() as u64));
            figures
        })
    },
    |w| Ok(vec![w.other.unregister_process(Duration::ZERO).into()]),
    |w| {
        at(&w.one, |locked| {
            locked.reclaim_dead_processes();
            let (charged, undrawn) = locked.charged_and_undrawn();
            let mut figures =
                vec![charged, undrawn, locked.available(), locked.effective_limit(), locked.queue().len() as u64];
            figures.extend([locked.settle_held(w.mine.node), locked.settle_held(w.aside.node)]);
            figures
        })
    },
];

/// Does every act, with a bit flipped before the `nth`. Returns the outcome of each, up to the first that found the
/// damage.
fn outcomes(mut world: World, change: Option<(usize, usize, u32)>) -> (Vec<Vec<u64>>, bool) {
    let mut said = Vec::new();
    for (number, act) in ACTS.iter().enumerate() {
        if let Some((_, word, bit)) = change.filter(|(nth, ..)| *nth == number) {
            world.memory.flip(word, bit);
        }
        match act(&mut world) {
            Ok(outcome) => said.push(outcome),
            Err(Corrupt) => return (said, true),
        }
    }
    (said, false)
}

/// The words of everything in use, and of one more of each that is not.
fn words() -> impl Iterator<Item = usize> {
    let behind_the_checksum = header::CHECKSUM + 1..LAYOUT.process_at(4);
    let tables = behind_the_checksum.chain(LAYOUT.waiter_at(0)..LAYOUT.waiter_at(3));
    tables.chain(LAYOUT.refusal_at(0)..LAYOUT.refusal_at(2)).chain(LAYOUT.node_at(0)..LAYOUT.node_at(11))
}

fn every() -> usize {
    std::env::var(EVERY).ok().and_then(|every| every.parse().ok()).unwrap_or(3)
}

fn all_bits() -> impl Iterator<Item = (usize, u32)> {
    words().flat_map(|word| (0..64).map(move |bit| (word, bit))).step_by(every())
}

#[test]
fn l7_a_bit_that_changes_while_in_use_is_noticed_or_changes_nothing() {
    let world = world();
    let (expected, damaged) = outcomes(world.copied(), None);
    assert!(!damaged && expected.len() == ACTS.len());
    assert!(expected.iter().filter(|outcome| outcome[0] == 1).count() > 4, "{expected:?}");
    let (mut noticed, mut harmless) = (0, 0);
    for (number, (word, bit)) in all_bits().enumerate() {
        for nth in [0, 1 + number % (ACTS.len() - 1)] {
            let (said, damaged) = outcomes(world.copied(), Some((nth, word, bit)));
            let what = LAYOUT.name_of(word);
            assert_eq!(said, expected[..said.len()], "bit {bit} of {what} changed before act {nth}");
            if damaged { noticed += 1 } else { harmless += 1 }
        }
    }
    assert!(noticed > harmless / 4, "{noticed} changes were noticed, {harmless} changed nothing");
}

#[test]
fn l7_a_bit_that_changed_is_noticed_by_whoever_opens_the_ledger_or_changes_nothing() {
    let world = world();
    let (expected, _) = outcomes(world.copied(), None);
    for (word, bit) in all_bits() {
        let world = world.copied();
        world.memory.flip(word, bit);
        let newcomer = world.memory.process(4);
        let found = newcomer.lock_as_newcomer(Duration::ZERO).map(|locked| locked.find_inconsistency());
        if matches!(found, Ok(None)) {
            let (said, _) = outcomes(world, None);
            let what = LAYOUT.name_of(word);
            assert_eq!(said, expected[..said.len()], "bit {bit} of {what} was believed");
        }
    }
}

/// A bit of the journal that changes before the next process undoes a dead one's step.
#[test]
fn l7_a_damaged_journal_is_not_undone() {
    common::silence_kill_panics();
    let world = world();
    let words = world.one.words();
    let began = words.writes.load(std::sync::atomic::Ordering::SeqCst);
    words.dies_at.store(began + 14, std::sync::atomic::Ordering::SeqCst);
    let split = || world.one.lock(Duration::ZERO).unwrap().split(world.aside, 3).is_ok();
    assert!(!common::survives(|| assert!(split())), "it dies in the middle of a step");
    let repaired = world.copied();
    repaired.memory.kill(0);
    assert_eq!(repaired.other.lock(Duration::ZERO).unwrap().find_inconsistency(), None);
    let expected = repaired.memory.state();
    let mut noticed = 0;
    for word in std::iter::once(header::JOURNAL).chain(LAYOUT.journal_at(0)..LAYOUT.journal_at(4)) {
        for bit in 0..64 {
            let world = world.copied();
            world.memory.kill(0);
            world.memory.flip(word, bit);
            match world.other.lock(Duration::ZERO) {
                Err(why) => {
                    assert!(matches!(why, LockError::Damaged { .. }), "{why:?}");
                    noticed += 1;
                }
                Ok(locked) => {
                    drop(locked);
                    assert!(world.memory.state() == expected, "bit {bit} of {} was believed", LAYOUT.name_of(word));
                }
            }
        }
    }
    assert!(noticed >= 64 * 5, "{noticed} changes of the count and of two entries were noticed");
}

/// To a stale key the balance looks damaged: the slow path reports that the ledger was cleared.
#[test]
fn l7_a_key_of_another_life_finds_no_word_of_its_own() {
    let world = world();
    at(&world.one, |locked| locked.clear(LIMIT)).unwrap();
    for _ in 0..300 {
        assert!(
            !world.one.charge_balance(world.mine, 0)
                && !world.one.release_to_balance(world.mine, 0, CreditLimit::new(LIMIT))
        );
        let again = at(&world.one, |locked| {
            let tenant = locked.find_or_add_tenant("").unwrap();
            let all: Vec<NodeKey> = (0..10).map(|_| locked.reserve(tenant, 10).unwrap()).collect();
            let found = all.iter().any(|key| key.node == world.mine.node);
            all.into_iter().for_each(|key| locked.close(key));
            found
        });
        assert!(again.unwrap(), "its number is in use again");
    }
    assert_eq!(world.memory.value(LAYOUT.node_at(0) + node::TOTAL), 0);
}
