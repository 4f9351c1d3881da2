//! P1: streams run apart while there is memory, and wait for each other before a request is refused.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Action, Actions, Bytes, DeviceBlock, DeviceId, Holding, Observer, Record};
use bursar_memory::PagePool;
use bursar_sim::{Call, Random, Sim};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The frames that a stream frees before it is held.
const THEIRS: u64 = 128;

/// Frees 256 MiB on a stream that is held from before the free on.
fn free_on_held_stream(rig: &Rig) -> bursar_sim::Stall {
    let held = rig.stream();
    let theirs: Vec<_> = (0..THEIRS / 8).map(|_| rig.allocate(8 * FRAME, held)).collect();
    theirs.iter().for_each(|block| rig.touch(block, held));
    let stall = rig.stall(held);
    theirs.into_iter().for_each(|block| rig.free(block));
    stall
}

#[test]
fn p1_a_stream_that_is_held_holds_no_other_while_the_pool_may_grow() {
    for seed in 0..2 {
        let (rig, mut random) = (Rig::new(Sim::seeded(seed), 4 * THEIRS, &small()), Random::new(seed));
        let own = rig.stream();
        let stall = free_on_held_stream(&rig);
        let mut live: Vec<DeviceBlock> = Vec::new();
        for _ in 0..10_000 {
            while live.iter().map(|block| block.granted().get()).sum::<u64>() > 64 * FRAME {
                rig.free(live.swap_remove(random.below(live.len() as u64) as usize));
            }
            let block = rig.allocate(random.size(6 * FRAME), own);
            rig.touch(&block, own);
            live.push(block);
        }
        rig.sim.settle();
        let has_run = rig.context.has_run(own, Duration::ZERO).expect("the device works");
        assert!(has_run, "seed {seed}: its work runs while the other stream is held");
        assert_eq!(rig.faults.calls(Call::StreamWait), 0, "seed {seed}");
        live.into_iter().for_each(|block| rig.free(block));
        drop(stall);
        rig.finish();
    }
}

#[derive(Clone, Debug, Default)]
struct Refusals(Arc<Mutex<Vec<Bytes>>>);

impl Refusals {
    fn listen_to(&self, rig: &Rig) {
        let observer: Arc<dyn Observer> = Arc::new(self.clone());
        rig.context.sink().subscribe(&observer).expect("room");
    }
}

impl Observer for Refusals {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Refuse])
    }
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    fn record(&self, record: &Record<'_>) {
        assert!(record.error.is_some(), "a refusal says why");
        self.0.lock().expect("no panic").push(record.asked);
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

/// With the limit reached, what the other stream has not finished with is granted behind a wait, and no refusal is told
/// of. A request that fails is told of once.
#[test]
fn p1_a_request_that_would_be_refused_waits_for_a_stream_that_is_held() {
    let rig = Rig::new(Sim::seeded(5), THEIRS, &small().patience(Duration::ZERO));
    let refusals = Refusals::default();
    refusals.listen_to(&rig);
    let own = rig.stream();
    let stall = free_on_held_stream(&rig);
    let blocks: Vec<_> = (0..THEIRS / 8).map(|_| rig.allocate(8 * FRAME, own)).collect();
    assert!(rig.faults.calls(Call::StreamWait) > 0, "there is no other memory");
    for block in &blocks {
        rig.sim.poke(block.ptr(), &[0]);
        rig.fill(block, 2, own);
    }
    rig.sim.settle();
    assert!(blocks.iter().all(|block| rig.sim.peek(block.ptr(), 1) == [0]), "nothing is touched early");
    assert_eq!(*refusals.0.lock().expect("no panic"), [], "every request was granted");
    rig.try_allocate(FRAME, own).expect_err("all of it is in use");
    assert_eq!(*refusals.0.lock().expect("no panic"), [Bytes(FRAME)]);
    drop(stall);
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.finish();
}

/// Slack that a limit has no room for is nobody's refusal.
#[test]
fn b10_what_is_granted_leaves_no_record_of_a_refusal() {
    let rig = Rig::new(Sim::seeded(6), 100, &small());
    let refusals = Refusals::default();
    refusals.listen_to(&rig);
    let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
    streams.iter().for_each(|&stream| rig.free(rig.allocate(FRAME, stream)));
    let live: Vec<_> = (0..100).map(|nth| rig.allocate(FRAME, streams[nth % 3])).collect();
    assert_eq!(*refusals.0.lock().expect("no panic"), []);
    live.into_iter().for_each(|block| rig.free(block));
    rig.finish();
}

#[test]
fn p1_a_pool_that_waits_before_it_grows_holds_less() {
    let held = |recipe: &PagePool| {
        let rig = Rig::new(Sim::seeded(7), 4 * THEIRS, recipe);
        let own = rig.stream();
        let stall = free_on_held_stream(&rig);
        let block = rig.allocate(8 * FRAME, own);
        rig.fill(&block, 2, own);
        let held = (rig.pool.held().get() / FRAME, rig.faults.calls(Call::StreamWait));
        drop(stall);
        rig.free(block);
        rig.finish();
        held
    };
    assert_eq!(held(&small().wait_before_growing()), (THEIRS, 1));
    let (frames, waits) = held(&small());
    assert!(frames >= THEIRS + 8 && waits == 0, "{frames} frames, {waits} waits");
}
