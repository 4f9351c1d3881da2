//! N2: a request that is given up leaks nothing, at whichever step it is.
//!
//! `BURSAR_CANCELLATIONS=N` gives up N requests in each of the two ways.

mod rig;

use bursar_host::{HostError, PinRequest, PinnedKind};
use bursar_sim::Random;
use rig::{Call, Latch, Rig};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BYTES: usize = 3 << 12;

fn rounds() -> u32 {
    std::env::var("BURSAR_CANCELLATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

/// A request that gives itself up at the nth moment: there is one before and one after each call of kernel, driver and
/// account.
#[derive(Clone, Default)]
struct Moments {
    request: Arc<Mutex<Option<PinRequest>>>,
    /// The moment at which the next request gives itself up.
    next: Arc<AtomicU32>,
    /// The moment of the request in progress, and the number of moments it has had.
    at: Arc<AtomicU32>,
    seen: Arc<AtomicU32>,
}

/// A moment that never comes.
const NEVER: u32 = u32::MAX;

impl Moments {
    fn watch(rig: &Rig) -> Self {
        let moments = Self::default();
        let of_kernel = moments.clone();
        rig.system.hook(move |call, is_over| {
            if call == Call::Limits && !is_over {
                of_kernel.begin();
            }
            // The worker is bound to its node once, before any request.
            if !matches!(call, Call::RunOn | Call::RunsOn) {
                of_kernel.pass();
            }
            None
        });
        let of_driver = moments.clone();
        rig.driver.hook(move |call, _| {
            // Releasing follows a request and is not a step of it.
            if matches!(call, "host_register" | "host_allocate") {
                of_driver.pass();
            }
            None
        });
        let of_account = moments.clone();
        *rig.account.hook.lock().unwrap() = Some(Box::new(move || of_account.pass()));
        moments
    }

    /// Waits until the worker begins with a request, which the test has put in its place.
    fn begin(&self) {
        let _in_place = self.request.lock().unwrap();
        self.at.store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        self.seen.store(0, Ordering::SeqCst);
    }

    fn pass(&self) {
        if self.seen.fetch_add(1, Ordering::SeqCst) == self.at.load(Ordering::SeqCst) {
            let request = self.request.lock().unwrap().take();
            assert!(request.is_some(), "a request is given up once");
            drop(request);
        }
    }

    /// Makes a request that is met, after everything requested before it. Returns the number of moments it had.
    fn meet(&self, rig: &Rig, kind: PinnedKind) -> u32 {
        self.next.store(NEVER, Ordering::SeqCst);
        drop(rig.workers.pin_with(&rig.context, BYTES, &rig.charged().kind(kind)).wait().expect("room"));
        self.seen.load(Ordering::SeqCst)
    }

    /// Makes a request that gives itself up at a moment; returns when it has.
    fn give_up_at(&self, rig: &Rig, kind: PinnedKind, at: u32) {
        let mut request = self.request.lock().unwrap();
        self.next.store(at, Ordering::SeqCst);
        *request = Some(rig.workers.pin_with(&rig.context, BYTES, &rig.charged().kind(kind)));
        drop(request);
        while self.request.lock().unwrap().is_some() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn n2_giving_up_at_any_moment_loses_nothing() {
    let rig = Rig::new();
    let moments = Moments::watch(&rig);
    for (kind, least) in [(PinnedKind::Registered, 13), (PinnedKind::WriteCombined, 7)] {
        let count = moments.meet(&rig, kind);
        assert!(count >= least, "{kind:?} has {count} moments");
        for round in 0..rounds() / 2 {
            moments.give_up_at(&rig, kind, round % count);
            if round % 64 == 0 {
                moments.meet(&rig, kind);
                rig.assert_nothing_is_held();
            }
        }
        moments.meet(&rig, kind);
        rig.assert_nothing_is_held();
    }
}

#[test]
fn n2_giving_up_from_another_thread_at_a_random_moment_loses_nothing() {
    let rig = Rig::new();
    let mut random = Random::new(1);
    for round in 0..rounds() {
        let request = rig.workers.pin_with(&rig.context, BYTES, &rig.charged());
        for _ in 0..random.below(4096) {
            std::hint::spin_loop();
        }
        // One in eight is waited for.
        match round % 8 {
            0 => drop(request.wait().expect("room")),
            _ => drop(request),
        }
    }
    drop(rig.workers.pin(&rig.context, BYTES).wait().expect("room"));
    rig.assert_nothing_is_held();
}

#[test]
fn n2_a_request_whose_caller_is_gone_is_not_started() {
    let rig = Rig::new();
    let (enter, entered) = std::sync::mpsc::channel();
    let gate = Latch::default();
    let wait = gate.0.clone();
    rig.system.hook(move |call, is_over| {
        if call == Call::Reserve && !is_over && !wait.is_open() {
            enter.send(()).expect("the test listens");
            wait.wait();
        }
        None
    });
    let first = rig.workers.pin_with(&rig.context, BYTES, &rig.charged());
    entered.recv().expect("the worker is busy");
    let (gone, late) = (
        rig.workers.pin_with(&rig.context, BYTES, &rig.charged()),
        rig.workers.pin_with(&rig.context, BYTES, &rig.charged().patience(Duration::ZERO)),
    );
    drop(gone);
    gate.0.open();
    assert!(matches!(late.wait(), Err(HostError::Deadline { .. })), "its deadline had passed in the queue");
    let buffer = first.wait().expect("room");
    drop(rig.workers.pin_with(&rig.context, BYTES, &rig.charged()).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 2, "neither of the others was begun");
    drop(buffer);
    rig.assert_nothing_is_held();
}
