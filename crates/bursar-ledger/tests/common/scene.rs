//! A ledger in the middle of its life, everything that can happen to it, and what must be true after a death.

use super::{LAYOUT, Memory, PATIENCE, Steps, View, arrive};
use bursar_ledger::book::{Book, Entry, Key, Most, Wanting};
use bursar_ledger::format::node;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const LIMIT: u64 = 1000;

/// Three processes with something each: the first will do things and die, the second survives, the third is dead already.
pub(crate) struct Scene {
    pub(crate) memory: Arc<Memory>,
    pub(crate) actor: Book<View>,
    pub(crate) survivor: Book<View>,
    tenant: usize,
    account: Key,
    reservation: Key,
    delegated: Key,
    drawing: Key,
    others: Key,
    waiting: Entry,
    granted: Entry,
}

fn wanting(tenant: usize, bytes: u64) -> Wanting {
    Wanting { tenant, bytes, priority: 1, since: 0 }
}

pub(crate) fn scene() -> Scene {
    let memory = Memory::new(LIMIT);
    let (actor, survivor, dead) = (memory.process(1), memory.process(2), memory.process(3));
    for book in [&actor, &survivor, &dead] {
        arrive(book);
    }
    let (account, tenant, reservation, drawing, delegated, granted) = {
        let mut desk = actor.lock(PATIENCE).unwrap();
        let tenant = desk.tenant("").unwrap();
        let account = desk.open_account(tenant).unwrap();
        desk.charge(account, 40, 20).unwrap();
        let reservation = desk.reserve(tenant, 100).unwrap();
        desk.charge(reservation, 30, 0).unwrap();
        let delegated = desk.reserve(tenant, 60).unwrap();
        let drawing = desk.open_account(delegated.node).unwrap();
        desk.charge(drawing, 5, 0).unwrap();
        let granted = desk.enqueue(wanting(tenant, 50)).unwrap();
        (account, tenant, reservation, drawing, delegated, granted)
    };
    let others = {
        let mut desk = survivor.lock(PATIENCE).unwrap();
        let others = desk.open_account(tenant).unwrap();
        desk.charge(others, 200, 10).unwrap();
        desk.open_account(delegated.node).unwrap();
        others
    };
    {
        let mut desk = dead.lock(PATIENCE).unwrap();
        let left_behind = desk.open_account(tenant).unwrap();
        desk.charge(left_behind, 90, 7).unwrap();
        let drawn = desk.open_account(delegated.node).unwrap();
        desk.charge(drawn, 11, 3).unwrap();
    }
    let waiting = actor.lock(PATIENCE).unwrap().enqueue(wanting(tenant, 700)).unwrap();
    memory.kill(3);
    Scene { memory, actor, survivor, tenant, account, reservation, delegated, drawing, others, waiting, granted }
}

pub(crate) type Operation = (&'static str, fn(&Scene));

/// What an operation answers is not looked at.
fn done<T>(_: T) {}

/// Every way in which a ledger changes.
pub(crate) const OPERATIONS: &[Operation] = &[
    ("arrive at the place of a predecessor", |s| arrive(&s.actor)),
    ("tenant", |s| done(s.actor.lock(PATIENCE).unwrap().tenant("batch").unwrap())),
    ("configure", |s| s.actor.lock(PATIENCE).unwrap().configure(s.tenant, 10, 900)),
    ("limit, which serves", |s| s.actor.lock(PATIENCE).unwrap().set_limit(1000)),
    ("unmanaged", |s| s.actor.lock(PATIENCE).unwrap().set_unmanaged(17)),
    ("account", |s| done(s.actor.lock(PATIENCE).unwrap().open_account(s.tenant).unwrap())),
    ("charge left", |s| done(s.actor.charge_left(s.reservation, 9))),
    ("release left", |s| done(s.actor.release_left(s.reservation, 9, Most::new(LIMIT)))),
    ("charge what is left", |s| s.actor.charge(s.reservation, 9, 0, PATIENCE).unwrap().unwrap()),
    ("charge and be refused", |s| done(s.actor.charge(s.account, 900, 0, PATIENCE).unwrap().unwrap_err())),
    ("charge without who waits", |s| {
        s.actor.lock(PATIENCE).unwrap().cancel(s.waiting);
        s.actor.charge(s.account, 30, 20, PATIENCE).unwrap().unwrap();
    }),
    ("charge, calling in credit", |s| {
        s.actor.lock(PATIENCE).unwrap().cancel(s.waiting);
        s.actor.charge(s.account, 480, 20, PATIENCE).unwrap().unwrap();
    }),
    ("draw", |s| s.actor.charge(s.drawing, 10, 5, PATIENCE).unwrap().unwrap()),
    ("release to a tenant", |s| s.actor.release(s.account, 40, 0)),
    ("release to a reservation", |s| s.actor.release(s.reservation, 30, 0)),
    ("release what was drawn", |s| s.actor.release(s.drawing, 5, 0)),
    ("reserve", |s| {
        s.actor.lock(PATIENCE).unwrap().cancel(s.waiting);
        done(s.actor.lock(PATIENCE).unwrap().reserve(s.tenant, 470).unwrap());
    }),
    ("reserve and be refused", |s| done(s.actor.lock(PATIENCE).unwrap().reserve(s.tenant, 999).unwrap_err())),
    ("split", |s| done(s.actor.lock(PATIENCE).unwrap().split(s.reservation, 20).unwrap())),
    ("split what is drawn on", |s| done(s.actor.lock(PATIENCE).unwrap().split(s.drawing, 20).unwrap())),
    ("shrink", |s| s.actor.lock(PATIENCE).unwrap().shrink(s.reservation, 50).unwrap()),
    ("close with something held", |s| s.actor.lock(PATIENCE).unwrap().close(s.reservation)),
    ("close what others draw on", |s| s.actor.lock(PATIENCE).unwrap().close(s.delegated)),
    ("close what is empty", |s| {
        s.actor.release(s.drawing, 5, 0);
        s.actor.lock(PATIENCE).unwrap().close(s.drawing);
    }),
    ("enqueue", |s| done(s.actor.lock(PATIENCE).unwrap().enqueue(wanting(s.tenant, 30)).unwrap())),
    ("enqueue and be served", |s| {
        let urgent = Wanting { priority: 9, ..wanting(s.tenant, 20) };
        let entry = s.actor.lock(PATIENCE).unwrap().enqueue(urgent).unwrap();
        assert!(s.actor.has_left_the_queue(entry));
    }),
    ("cancel", |s| s.actor.lock(PATIENCE).unwrap().cancel(s.waiting)),
    ("cancel what was granted", |s| s.actor.lock(PATIENCE).unwrap().cancel(s.granted)),
    ("collect", |s| done(s.actor.lock(PATIENCE).unwrap().collect(s.granted).unwrap())),
    ("bury the dead", |s| done(s.actor.lock(PATIENCE).unwrap().bury_the_dead())),
    ("ask back", |s| done(s.actor.lock(PATIENCE).unwrap().ask_back(10))),
    ("depart", |s| done(s.actor.lock(PATIENCE).unwrap().depart())),
    ("clear", |s| s.actor.lock(PATIENCE).unwrap().clear(LIMIT)),
];

impl Scene {
    /// The same scene, where the words are those of `memory`.
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
    // What needs no lock is a step by itself.
    steps.push((writes, scene.memory.state()));
    (steps, writes)
}

/// Has the survivor of a death before the `nth` write repair the ledger, and looks at everything.
pub(crate) fn repaired(scene: &Scene, what: &str, nth: u64, steps: &Steps) {
    let memory = &scene.memory;
    let survivors = |memory: &Memory| memory.value(LAYOUT.node_at(scene.others.node) + node::TOTAL);
    let before = survivors(memory);

    // Whoever sits down next finds the last step that was finished, exactly.
    assert_eq!(scene.survivor.lock(PATIENCE).unwrap().contradiction(), None, "{what}, write {nth}");
    assert_eq!(memory.frozen(), 0, "{what}, write {nth}: a node was left frozen");
    let (_, finished) = steps.iter().rev().find(|(writes, _)| *writes <= nth).unwrap();
    assert!(memory.state() == *finished, "{what}, write {nth}: {:?} instead of {finished:?}", memory.state());

    // And once the dead are buried, the figures agree and nothing of theirs is left.
    let mut desk = scene.survivor.lock(PATIENCE).unwrap();
    desk.bury_the_dead();
    assert_eq!(desk.contradiction(), None, "{what}, write {nth}");
    drop(desk);
    assert_eq!((memory.of_place(1), memory.of_place(3)), (0, 0), "{what}, write {nth}");
    if what != "clear" {
        let after = survivors(memory);
        assert!(after <= before && after >= 200, "{what}, write {nth}: the survivor's own changed");
    }
    // The ledger works on.
    let mut desk = scene.survivor.lock(PATIENCE).unwrap();
    let tenant = desk.tenant("").unwrap();
    let reserved = desk.reserve(tenant, 400).unwrap();
    desk.close(reserved);
    assert_eq!(desk.contradiction(), None, "{what}, write {nth}");
}
