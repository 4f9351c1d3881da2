//! Notes: what is given up while another process has the lock, wherever that process is, and wherever it dies (L4, L6).

mod common;

use bursar_ledger::book::{Book, NodeKey, QueueEntry, QueueRequest};
use common::{LOCK_TIMEOUT, Memory, View, register, silence_kill_panics, survives};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const LIMIT: u64 = 1000;

/// The first process gives something up, the second has the lock, the third takes over and looks.
struct Stage {
    memory: Arc<Memory>,
    busy: Book<View>,
    heir: Book<View>,
    tenant: usize,
    account: NodeKey,
    reservation: NodeKey,
    waiting: QueueEntry,
    granted: QueueEntry,
    blocker: NodeKey,
}

fn wanting(tenant: usize, bytes: u64, priority: u64) -> QueueRequest {
    QueueRequest { tenant, bytes, priority, since: 0, kept: 0 }
}

fn stage() -> Stage {
    let memory = Memory::new(LIMIT);
    let (actor, busy, heir) = (memory.process(1), memory.process(2), memory.process(3));
    [&actor, &busy, &heir].into_iter().for_each(register);
    let mut locked = actor.lock(LOCK_TIMEOUT).unwrap();
    let tenant = locked.find_or_add_tenant("").unwrap();
    let account = locked.open_account(tenant).unwrap();
    locked.charge(account, 100, 0).unwrap();
    let reservation = locked.reserve(tenant, 200).unwrap();
    let granted = locked.enqueue(wanting(tenant, 50, 1)).unwrap();
    drop(locked);
    let mut locked = busy.lock(LOCK_TIMEOUT).unwrap();
    let blocker = locked.reserve(tenant, 600).unwrap();
    drop(locked);
    let waiting = actor.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting(tenant, 300, 1)).unwrap();
    Stage { memory, busy, heir, tenant, account, reservation, waiting, granted, blocker }
}

type GiveUp = fn(&Book<View>, &Stage);

/// Every way to give something up, and how much of the device is free once it and the blocker are gone, with the request
/// that waits granted unless it was given up.
const WAYS: &[(&str, GiveUp, u64)] = &[
    ("release", |book, stage| book.release(stage.account, 100, 0), LIMIT - 200 - 50 - 300),
    ("close", |book, stage| book.close(stage.reservation), LIMIT - 100 - 50 - 300),
    ("abandon what waits", |book, stage| book.cancel(stage.waiting), LIMIT - 100 - 200 - 50),
    ("abandon what was granted", |book, stage| book.cancel(stage.granted), LIMIT - 100 - 200 - 300),
    ("depart with something held", |book, _| assert!(!book.unregister_process(Duration::ZERO)), LIMIT - 100),
];

/// The work of the busy process: it releases, grants requests, and recalls credit.
fn work(stage: &Stage) {
    let mut locked = stage.busy.lock(LOCK_TIMEOUT).unwrap();
    locked.close(stage.blocker);
    locked.recall_credit(stage.tenant);
}

/// Has the first process give up just before the busy one's `at`th write, and the busy one die before its `dies`th. Returns
/// how many writes there were.
fn run(what: &str, way: GiveUp, free: u64, at: u64, dies: u64) -> u64 {
    let stage = Arc::new(stage());
    let began = stage.busy.words().writes.load(SeqCst);
    stage.busy.words().dies_at.store(began.saturating_add(dies), SeqCst);
    let (actor, seen, given_up) = (stage.memory.process(1), Arc::downgrade(&stage), Arc::new(AtomicBool::new(false)));
    let gives = Arc::clone(&given_up);
    *stage.busy.words().hook.lock().unwrap() = Some(Box::new(move |write| {
        if write == began + at && !gives.swap(true, SeqCst) {
            way(&actor, &seen.upgrade().unwrap());
        }
    }));
    survives(|| work(&stage));
    // The other process was done before, so the lock is free.
    if !given_up.load(SeqCst) {
        way(&stage.memory.process(1), &stage);
    }
    *stage.busy.words().hook.lock().unwrap() = None;
    let writes = stage.busy.words().writes.load(SeqCst) - began;
    let mut locked = stage.heir.lock(LOCK_TIMEOUT).unwrap();
    locked.reclaim_dead_processes();
    locked.recall_credit(stage.tenant);
    let (found, room) = (locked.find_inconsistency(), locked.available());
    drop(locked);
    assert_eq!((found, room), (None, free), "{what} before write {at}, death before write {dies}");
    assert_eq!(stage.memory.frozen(), 0, "{what} before write {at}, death before write {dies}");
    writes
}

#[test]
fn l4_what_is_given_up_at_any_moment_of_another_is_given_back() {
    for &(what, way, free) in WAYS {
        let writes = run(what, way, free, 1, u64::MAX);
        assert!(writes > 20, "{writes} writes are too few to mean anything");
        for at in 0..writes {
            run(what, way, free, at, u64::MAX);
        }
    }
}

#[test]
fn l6_what_is_given_up_survives_the_death_of_whoever_would_have_done_it() {
    silence_kill_panics();
    for &(what, way, free) in WAYS {
        // The note is written early, in the middle, and when nearly all is done; the death comes at any write after it.
        let writes = run(what, way, free, 1, u64::MAX);
        for at in [1, writes / 3, writes / 2, writes - 4, writes - 1] {
            for dies in at + 1..writes + 40 {
                run(what, way, free, at, dies);
            }
        }
    }
}

/// A late note of an earlier generation affects neither the present owner of the node or entry nor its note.
#[test]
fn l7_notes_of_what_was_cleared_by_force_mean_nothing() {
    let stage = stage();
    let late = stage.memory.process(1);
    stage.heir.lock(LOCK_TIMEOUT).unwrap().clear(LIMIT);
    let mut locked = stage.heir.lock(LOCK_TIMEOUT).unwrap();
    let tenant = locked.find_or_add_tenant("").unwrap();
    let keys: Vec<NodeKey> = (0..8).map(|_| locked.reserve(tenant, 10).unwrap()).collect();
    assert!(keys.iter().any(|key| key.node == stage.reservation.node), "its number is in use again");
    let all = locked.reserve(tenant, LIMIT - 80).unwrap();
    let again: Vec<QueueEntry> = (0..3).map(|_| locked.enqueue(wanting(tenant, 1, 1)).unwrap()).collect();
    drop(locked);
    let locked = stage.busy.lock(LOCK_TIMEOUT).unwrap();
    let own = keys.iter().find(|key| key.node == stage.reservation.node).unwrap();
    stage.heir.close(*own);
    late.close(stage.reservation);
    late.release(stage.account, 100, 0);
    late.cancel(stage.waiting);
    late.cancel(stage.granted);
    drop(locked);
    let mut locked = stage.heir.lock(LOCK_TIMEOUT).unwrap();
    assert_eq!(locked.find_inconsistency(), None);
    // What the owner's own note gave back went to the requests that wait.
    assert!(again.iter().all(|entry| locked.take_grant(*entry).is_some()));
    assert_eq!(locked.available(), 7);
    locked.close(all);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Charge(u64),
    Release(u64),
    Reserve(u64),
    Close(usize),
    Enqueue(u64),
    Cancel(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        2 => (0..400u64).prop_map(Act::Charge),
        2 => (0..400u64).prop_map(Act::Release),
        2 => (0..400u64).prop_map(Act::Reserve),
        2 => (0..6usize).prop_map(Act::Close),
        2 => (0..900u64).prop_map(Act::Enqueue),
        2 => (0..6usize).prop_map(Act::Cancel),
    ];
    prop::collection::vec(act, 0..60)
}

/// Runs a history of one process; `noted` says whether another has the lock whenever something is given up. Returns,
/// after each act, whether it was done and what is charged.
fn history(acts: &[Act], noted: bool) -> Vec<(bool, u64, usize)> {
    let memory = Memory::new(LIMIT);
    let (book, other) = (memory.process(1), memory.process(2));
    [&book, &other].into_iter().for_each(register);
    let tenant = book.lock(LOCK_TIMEOUT).unwrap().find_or_add_tenant("").unwrap();
    let account = book.lock(LOCK_TIMEOUT).unwrap().open_account(tenant).unwrap();
    let (mut held, mut keys, mut entries) = (0, Vec::new(), Vec::new());
    let give_up = |act: &dyn Fn()| {
        let busy = noted.then(|| other.lock(LOCK_TIMEOUT).unwrap());
        act();
        drop(busy);
    };
    let step = |act: &Act| {
        let done = match *act {
            Act::Charge(bytes) => {
                let charged = book.charge(account, bytes, 0, LOCK_TIMEOUT).unwrap().is_ok();
                held += if charged { bytes } else { 0 };
                charged
            }
            Act::Release(bytes) => {
                let bytes = bytes.min(held);
                held -= bytes;
                give_up(&|| book.release(account, bytes, 0));
                true
            }
            Act::Reserve(bytes) => {
                let key = book.lock(LOCK_TIMEOUT).unwrap().reserve(tenant, bytes);
                keys.extend(key);
                key.is_ok()
            }
            Act::Close(at) if at < keys.len() => {
                let key = keys.swap_remove(at);
                give_up(&|| book.close(key));
                true
            }
            Act::Enqueue(bytes) => {
                let entry = book.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting(tenant, bytes, 1));
                entries.extend(entry);
                entry.is_ok()
            }
            Act::Cancel(at) if at < entries.len() => {
                let entry = entries.swap_remove(at);
                give_up(&|| book.cancel(entry));
                true
            }
            Act::Close(_) | Act::Cancel(_) => false,
        };
        let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
        locked.recall_credit(tenant);
        assert_eq!(locked.find_inconsistency(), None, "{act:?}");
        (done, LIMIT - locked.available(), locked.queue().len())
    };
    acts.iter().map(step).collect()
}

proptest! {
    #[test]
    fn l4_a_history_of_notes_is_the_history_without(acts in acts()) {
        prop_assert_eq!(history(&acts, true), history(&acts, false));
    }
}
