//! A ledger in use, every operation on it, and the checks after a death in the middle of one.

use super::{LAYOUT, LOCK_TIMEOUT, Memory, Steps, View, register};
use bursar_ledger::RefusalReason;
use bursar_ledger::book::{Book, CreditLimit, NodeKey, PublishedUsage, QueueEntry, QueueRequest, Shortfall};
use bursar_ledger::format::node;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const LIMIT: u64 = 1000;

/// Three processes with something each: the first runs operations and dies, the second survives, the third is dead
/// already.
pub(crate) struct Scene {
    pub(crate) memory: Arc<Memory>,
    pub(crate) actor: Book<View>,
    pub(crate) survivor: Book<View>,
    tenant: usize,
    account: NodeKey,
    reservation: NodeKey,
    delegated: NodeKey,
    drawing: NodeKey,
    others: NodeKey,
    waiting: QueueEntry,
    granted: QueueEntry,
}

fn wanting(tenant: usize, bytes: u64) -> QueueRequest {
    QueueRequest { tenant, bytes, priority: 1, since: 0, kept: 0 }
}

pub(crate) fn scene() -> Scene {
    let memory = Memory::new(LIMIT);
    let (actor, survivor, dead) = (memory.process(1), memory.process(2), memory.process(3));
    for book in [&actor, &survivor, &dead] {
        register(book);
    }
    let (account, tenant, reservation, drawing, delegated, granted) = {
        let mut locked = actor.lock(LOCK_TIMEOUT).unwrap();
        let tenant = locked.find_or_add_tenant("").unwrap();
        let account = locked.open_account(tenant).unwrap();
        locked.charge(account, 40, 20).unwrap();
        let reservation = locked.reserve(tenant, 100).unwrap();
        locked.charge(reservation, 30, 0).unwrap();
        let delegated = locked.reserve(tenant, 60).unwrap();
        let drawing = locked.open_account(delegated.node).unwrap();
        locked.charge(drawing, 5, 0).unwrap();
        let granted = locked.enqueue(wanting(tenant, 50)).unwrap();
        (account, tenant, reservation, drawing, delegated, granted)
    };
    let others = {
        let mut locked = survivor.lock(LOCK_TIMEOUT).unwrap();
        let others = locked.open_account(tenant).unwrap();
        locked.charge(others, 200, 10).unwrap();
        locked.open_account(delegated.node).unwrap();
        others
    };
    {
        let mut locked = dead.lock(LOCK_TIMEOUT).unwrap();
        let left_behind = locked.open_account(tenant).unwrap();
        locked.charge(left_behind, 90, 7).unwrap();
        let drawn = locked.open_account(delegated.node).unwrap();
        locked.charge(drawn, 11, 3).unwrap();
    }
    let waiting = actor.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting(tenant, 700)).unwrap();
    memory.kill(3);
    Scene { memory, actor, survivor, tenant, account, reservation, delegated, drawing, others, waiting, granted }
}

pub(crate) type Operation = (&'static str, fn(&Scene));

/// Ignores the result of an operation.
fn done<T>(_: T) {}

/// Every way in which a ledger changes.
pub(crate) const OPERATIONS: &[Operation] = &[
    ("register in the slot of a predecessor", |s| register(&s.actor)),
    ("tenant", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().find_or_add_tenant("batch").unwrap())),
    ("configure", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().configure(s.tenant, 10, 900)),
    ("limit, which serves", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().set_limit(1000)),
    ("unmanaged", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().set_unmanaged(17)),
    ("account", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().open_account(s.tenant).unwrap())),
    ("charge left", |s| done(s.actor.charge_balance(s.reservation, 9))),
    ("release left", |s| done(s.actor.release_to_balance(s.reservation, 9, CreditLimit::new(LIMIT)))),
    ("charge what is left", |s| s.actor.charge(s.reservation, 9, 0, LOCK_TIMEOUT).unwrap().unwrap()),
    ("charge and be refused", |s| done(s.actor.charge(s.account, 900, 0, LOCK_TIMEOUT).unwrap().unwrap_err())),
    ("charge without who waits", |s| {
        s.actor.lock(LOCK_TIMEOUT).unwrap().cancel(s.waiting);
        s.actor.charge(s.account, 30, 20, LOCK_TIMEOUT).unwrap().unwrap();
    }),
    ("charge, calling in credit", |s| {
        s.actor.lock(LOCK_TIMEOUT).unwrap().cancel(s.waiting);
        s.actor.charge(s.account, 480, 20, LOCK_TIMEOUT).unwrap().unwrap();
    }),
    ("draw", |s| s.actor.charge(s.drawing, 10, 5, LOCK_TIMEOUT).unwrap().unwrap()),
    ("release to a tenant", |s| s.actor.release(s.account, 40, 0)),
    ("release to a reservation", |s| s.actor.release(s.reservation, 30, 0)),
    ("release what was drawn", |s| s.actor.release(s.drawing, 5, 0)),
    ("reserve", |s| {
        s.actor.lock(LOCK_TIMEOUT).unwrap().cancel(s.waiting);
        done(s.actor.lock(LOCK_TIMEOUT).unwrap().reserve(s.tenant, 470).unwrap());
    }),
    ("reserve and be refused", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().reserve(s.tenant, 999).unwrap_err())),
    ("split", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().split(s.reservation, 20).unwrap())),
    ("split what is drawn on", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().split(s.drawing, 20).unwrap())),
    ("shrink", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().shrink(s.reservation, 50).unwrap()),
    ("close with something held", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().close(s.reservation)),
    ("close what others draw on", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().close(s.delegated)),
    ("close what is empty", |s| {
        s.actor.release(s.drawing, 5, 0);
        s.actor.lock(LOCK_TIMEOUT).unwrap().close(s.drawing);
    }),
    ("enqueue", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().enqueue(wanting(s.tenant, 30)).unwrap())),
    ("enqueue and be served", |s| {
        let urgent = QueueRequest { priority: 9, ..wanting(s.tenant, 20) };
        let entry = s.actor.lock(LOCK_TIMEOUT).unwrap().enqueue(urgent).unwrap();
        assert!(s.actor.has_left_queue(entry));
    }),
    ("cancel", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().cancel(s.waiting)),
    ("cancel what was granted", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().cancel(s.granted)),
    ("take a grant", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().take_grant(s.granted).unwrap())),
    ("reclaim from the dead", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().reclaim_dead_processes())),
    ("request a return", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().request_return(10))),
    ("enter refusals", |s| {
        let mut locked = s.actor.lock(LOCK_TIMEOUT).unwrap();
        for requested in 0..6 {
            let shortfall = Shortfall { remaining: 1, limit: LIMIT, reason: RefusalReason::Share };
            locked.enter_refusal(s.drawing, 5, requested, shortfall);
        }
    }),
    ("count a refusal and a wait", |s| {
        s.actor.count_refusal(s.account, RefusalReason::Limit);
        s.actor.count_wait(s.account, 1200);
    }),
    ("publish twice", |s| {
        let mut locked = s.actor.lock(LOCK_TIMEOUT).unwrap();
        for live in [5, 6] {
            let holders = (0..live).map(|at| (format!("tag {at}"), live)).collect();
            locked.publish_usage(&PublishedUsage { when: live, live: Some(live), cached: 1, peak: 9, holders });
        }
    }),
    ("unregister", |s| done(s.actor.lock(LOCK_TIMEOUT).unwrap().unregister_process())),
    ("clear", |s| s.actor.lock(LOCK_TIMEOUT).unwrap().clear(LIMIT)),
];

impl Scene {
    /// Returns the scene over the words of `memory`.
    pub(crate) fn with(self, memory: &Arc<Memory>) -> Self {
        Self { memory: Arc::clone(memory), actor: memory.process(1), survivor: memory.process(2), ..self }
    }
}

/// The state after each finished step of an operation, by the number of writes up to there, and the number of all.
pub(crate) fn steps_of(run: fn(&Scene)) -> (Steps, u64) {
    let scene = scene();
    let words = scene.actor.words();
    let (began, first) = (words.writes.load(SeqCst), scene.memory.state());
    *words.steps.lock().unwrap() = Some(Vec::new());
    run(&scene);
    let writes = words.writes.load(SeqCst) - began;
    let taken = words.steps.lock().unwrap().take().unwrap();
    let mut steps = vec![(0, first)];
    steps.extend(taken.into_iter().map(|(writes, state)| (writes - began, state)));
    // An operation without the lock is a step by itself.
    steps.push((writes, scene.memory.state()));
    (steps, writes)
}

/// Has the survivor of a death before the `nth` write repair the ledger, and checks the state.
pub(crate) fn repaired(scene: &Scene, what: &str, nth: u64, steps: &Steps) {
    let memory = &scene.memory;
    let survivors = |memory: &Memory| memory.value(LAYOUT.node_at(scene.others.node) + node::TOTAL);
    let before = survivors(memory);

    // The next owner of the lock finds the last finished step, exactly.
    assert_eq!(scene.survivor.lock(LOCK_TIMEOUT).unwrap().find_inconsistency(), None, "{what}, write {nth}");
    assert_eq!(memory.frozen(), 0, "{what}, write {nth}: a node was left frozen");
    let (_, finished) = steps.iter().rev().find(|(writes, _)| *writes <= nth).unwrap();
    assert!(memory.state() == *finished, "{what}, write {nth}: {:?} instead of {finished:?}", memory.state());

    // And once the dead are reclaimed, the figures agree and nothing of theirs is left.
    let mut locked = scene.survivor.lock(LOCK_TIMEOUT).unwrap();
    locked.reclaim_dead_processes();
    assert_eq!(locked.find_inconsistency(), None, "{what}, write {nth}");
    drop(locked);
    assert_eq!((memory.total_of_slot(1), memory.total_of_slot(3)), (0, 0), "{what}, write {nth}");
    if what != "clear" {
        let after = survivors(memory);
        assert!(after <= before && after >= 200, "{what}, write {nth}: the survivor's own changed");
    }
    // The ledger still works.
    let mut locked = scene.survivor.lock(LOCK_TIMEOUT).unwrap();
    let tenant = locked.find_or_add_tenant("").unwrap();
    let reserved = locked.reserve(tenant, 400).unwrap();
    locked.close(reserved);
    assert_eq!(locked.find_inconsistency(), None, "{what}, write {nth}");
}
