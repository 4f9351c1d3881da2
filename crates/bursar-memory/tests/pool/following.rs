//! P3 on a stream that is behind: what it freed follows it to where it is needed, before its work has run.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock, Holder, Status, Stream};
use bursar_sim::{Call, Random, Sim, Stall};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Blocks on one stream that is stalled, every other of which was freed behind work on it.
struct Behind {
    rig: Rig,
    stream: Stream,
    stall: Stall,
    kept: Vec<DeviceBlock>,
    freed: u64,
}

impl Behind {
    fn new(seed: u64, frames: u64) -> Self {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), frames, &small().patience(Duration::from_millis(1)));
        let stream = rig.stream();
        let stall = rig.stall(stream);
        let (mut kept, mut freed, mut left) = (Vec::new(), 0, frames);
        let mut blocks = Vec::new();
        while left > 0 {
            let len = (1 + random.below(4)).min(left);
            left -= len;
            let block = rig.allocate(len * FRAME, stream);
            rig.fill(&block, 1, stream);
            blocks.push(block);
        }
        for block in blocks {
            if random.below(2) == 0 {
                freed += block.granted().get();
                rig.free(block);
            } else {
                kept.push(block);
            }
        }
        Self { rig, stream, stall, kept, freed }
    }

    /// Ends everything, once the stream went on.
    fn finish(self) {
        let Self { rig, stall, kept, .. } = self;
        drop(stall);
        for block in kept {
            rig.expect(&block, 1, block.stream());
            rig.free(block);
        }
        rig.sim.settle();
        rig.pool.reap().expect("the device works");
        assert_eq!(rig.pool.trim(Bytes::ZERO), rig.budget.limit(), "nothing is mapped where it was");
        assert_eq!((rig.driver_held(), rig.budget.charged_bytes()), (Bytes::ZERO, Bytes::ZERO));
        rig.finish();
    }
}

#[test]
fn p3_what_a_stream_freed_follows_it_before_its_work_has_run() {
    for seed in 0..200 {
        let mut behind = Behind::new(seed, 48);
        if behind.freed > 0 {
            let (rig, stream) = (&behind.rig, behind.stream);
            let held = rig.pool.held();
            let block = rig.allocate(behind.freed, stream);
            assert_eq!(rig.pool.held(), held, "seed {seed}: nothing more is held for it");
            assert!(!behind.stall.is_open(), "seed {seed}: nobody waited");
            rig.fill(&block, 2, stream);
            rig.expect(&block, 2, stream);
            rig.free(block);
        }
        behind.kept.reverse();
        behind.finish();
    }
}

/// What follows is of the stream alone: another gets it only once the first has passed it.
#[test]
fn p3_what_follows_a_stream_is_nobody_elses() {
    for seed in 0..200 {
        let behind = Behind::new(seed, 48);
        let mut random = Random::new(seed);
        let (rig, other) = (&behind.rig, behind.rig.stream());
        let mut others = Vec::new();
        for _ in 0..12 {
            let stream = if random.below(2) == 0 { behind.stream } else { other };
            let bytes = random.size(behind.freed.max(FRAME) / 2);
            let Ok(block) = rig.try_allocate(bytes, stream) else { continue };
            rig.fill(&block, 3, stream);
            others.push(block);
            if random.below(2) == 0 && !others.is_empty() {
                let block = others.swap_remove(random.below(others.len() as u64) as usize);
                rig.free(block);
            }
        }
        others.into_iter().for_each(|block| rig.free(block));
        behind.finish();
    }
}

/// What is left of the last frame that followed is of the stream alone, too.
#[test]
fn p3_the_rest_of_what_followed_a_stream_is_nobody_elses() {
    let rig = Rig::new(Sim::seeded(5), 6, &small().patience(Duration::from_millis(1)));
    let (a, b) = (rig.stream(), rig.stream());
    let mut blocks: Vec<_> = (0..6).map(|_| rig.allocate(FRAME, a)).collect();
    let stall = rig.stall(a);
    for nth in [4, 2, 0] {
        let block = blocks.remove(nth);
        rig.fill(&block, 1, a);
        rig.free(block);
    }
    let most = rig.allocate(2 * FRAME + FRAME / 2, a);
    assert_eq!(rig.faults.calls(Call::PagesUnmap), 0, "the work has not run");
    let rest = rig.allocate(FRAME / 4, b);
    rig.sim.poke(rest.ptr(), &[0]);
    rig.fill(&rest, 3, b);
    rig.sim.settle();
    assert_ne!(rig.sim.peek(rest.ptr(), 1), [3], "the other stream waits for the first");
    drop(stall);
    rig.sim.settle();
    assert_eq!(rig.sim.peek(rest.ptr(), 1), [3]);
    assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes(6 * FRAME), Bytes(6 * FRAME)));
    [most, rest].into_iter().chain(blocks).for_each(|block| rig.free(block));
    rig.finish();
}

/// What several frames left side by side is unmapped in one call, since that costs less.
#[test]
fn p3_addresses_that_were_left_side_by_side_are_unmapped_at_once() {
    for (freed, ranges) in [(vec![1, 2, 3], 1), (vec![3, 1, 2], 1), (vec![1, 2, 4, 5], 2), (vec![1, 3, 5], 3)] {
        let rig = Rig::new(Sim::seeded(3), 12, &small());
        let stream = rig.stream();
        let mut blocks: Vec<_> = (0..7).map(|_| Some(rig.allocate(FRAME, stream))).collect();
        let stall = rig.stall(stream);
        for &nth in &freed {
            rig.free(blocks[nth].take().expect("it is freed once"));
        }
        let block = rig.allocate((freed.len() as u64 + 1) * FRAME, stream);
        assert_eq!(rig.faults.calls(Call::PagesUnmap), 0, "the work has not run");
        drop(stall);
        rig.sim.settle();
        rig.pool.reap().expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.faults.calls(Call::PagesUnmap), ranges, "{freed:?}");
        blocks.into_iter().flatten().chain([block]).for_each(|block| rig.free(block));
        rig.pool.reap().expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.driver_held(), Bytes::ZERO);
        rig.finish();
    }
}

/// One thread unmaps addresses that frames have left, while another trims: the frames are mapped in two places until the first has.
#[test]
fn p3_a_frame_goes_back_only_once_no_thread_has_it_mapped_elsewhere() {
    let (rig, hooked) = Rig::hooked(4, 12, &small());
    let stream = rig.stream();
    let mut blocks: Vec<_> = (0..7).map(|_| Some(rig.allocate(FRAME, stream))).collect();
    let stall = rig.stall(stream);
    for nth in [1, 3, 5] {
        rig.free(blocks[nth].take().expect("it is freed once"));
    }
    rig.free(rig.allocate(3 * FRAME, stream));
    drop(stall);
    rig.sim.settle();
    let (tell, told) = channel();
    let (end, ended) = channel();
    let (ended, faults) = (Mutex::new(ended), rig.faults.clone());
    let released = Arc::new(OnceLock::new());
    hooked.set({
        let (released, is_first) = (released.clone(), AtomicBool::new(true));
        move |call| {
            if call == "pages_unmap" && is_first.swap(false, SeqCst) {
                tell.send(()).expect("somebody listens");
                // Whoever waits for this does not end.
                _ = ended.lock().expect("no panic").recv_timeout(Duration::from_millis(300));
                released.set(faults.calls(Call::PagesRelease)).expect("it is the first");
            }
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| rig.pool.reap().expect("the device works"));
        told.recv().expect("it unmaps");
        rig.pool.trim(Bytes::ZERO);
        _ = end.send(());
    });
    assert_eq!(released.get(), Some(&0), "frames that are mapped in two places");
    blocks.into_iter().flatten().for_each(|block| rig.free(block));
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    rig.pool.trim(Bytes::ZERO);
    assert_eq!(rig.driver_held(), Bytes::ZERO);
    drop(hooked);
    rig.finish();
}

/// One thread maps frames where they are needed, while another could unmap them where they were before: it waits, or is waited for.
#[test]
fn p3_no_frame_is_mapped_and_unmapped_at_once() {
    for pause_at in ["pages_create", "pages_map"] {
        let (rig, hooked) = Rig::hooked(4, 16, &small());
        let stream = rig.stream();
        let mut blocks: Vec<_> = (0..7).map(|_| Some(rig.allocate(FRAME, stream))).collect();
        let stall = rig.stall(stream);
        let free = |block: Option<DeviceBlock>| rig.free(block.expect("it is freed once"));
        [1, 3, 5].into_iter().for_each(|nth| free(blocks[nth].take()));
        rig.free(rig.allocate(3 * FRAME, stream));
        [0, 2, 4].into_iter().for_each(|nth| free(blocks[nth].take()));
        let calls = Arc::new(Overlaps::default());
        let (pass, passed) = channel();
        hooked.set({
            let (calls, sim, stall) = (calls.clone(), rig.sim.clone(), Mutex::new(Some(stall)));
            move |call| {
                // The growth is planned: only now its stream passes where the frames were.
                if call == pause_at
                    && let Some(stall) = stall.lock().expect("no panic").take()
                {
                    drop(stall);
                    sim.settle();
                    pass.send(()).expect("somebody listens");
                    if call == "pages_create" {
                        calls.wait_for("pages_unmap");
                    }
                }
                match call {
                    "pages_map" => calls.enter(call, "pages_unmap"),
                    "pages_unmap" => calls.enter(call, "pages_map"),
                    _ => {}
                }
            }
        });
        let most = std::thread::scope(|scope| {
            let pool = &rig.pool;
            scope.spawn(move || {
                passed.recv().expect("the growth begins");
                pool.reap().expect("the device works");
            });
            rig.allocate(7 * FRAME, stream)
        });
        assert!(calls.is_entered("pages_unmap"), "it was not tried");
        assert!(!calls.met.load(SeqCst), "paused at {pause_at}");
        blocks.into_iter().flatten().chain([most]).for_each(|block| rig.free(block));
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.driver_held(), Bytes::ZERO);
        drop(hooked);
        rig.finish();
    }
}

/// Calls of several threads, each of which waits a moment for the one that must not meet it.
#[derive(Default)]
struct Overlaps {
    now: Mutex<Vec<&'static str>>,
    ever: Mutex<Vec<&'static str>>,
    changed: Condvar,
    met: AtomicBool,
}

impl Overlaps {
    fn enter(&self, call: &'static str, other: &'static str) {
        let is_first = !self.is_entered(call);
        self.now.lock().expect("no panic").push(call);
        self.ever.lock().expect("no panic").push(call);
        self.changed.notify_all();
        let patience = if is_first { Duration::from_millis(300) } else { Duration::ZERO };
        let now = self.now.lock().expect("no panic");
        let is_alone = |now: &mut Vec<&str>| !now.contains(&other);
        let (mut now, _) = self.changed.wait_timeout_while(now, patience, is_alone).expect("no panic");
        self.met.fetch_or(now.contains(&other), SeqCst);
        now.retain(|&entered| entered != call);
    }

    fn is_entered(&self, call: &str) -> bool {
        self.ever.lock().expect("no panic").contains(&call)
    }

    fn wait_for(&self, call: &str) {
        while !self.is_entered(call) {
            std::thread::yield_now();
        }
    }
}

/// Whichever call of a growth fails, and whichever fails while that is undone, nothing is lost.
#[test]
fn p3_a_growth_that_follows_and_fails_is_undone() {
    let calls = [Call::PagesMap, Call::PagesAllow, Call::PagesUnmap];
    for seed in 0..20 {
        for failing in 1..12 {
            for call in calls {
                for is_undone in [true, false] {
                    let mut behind = Behind::new(seed, 24);
                    if behind.freed == 0 {
                        behind.finish();
                        continue;
                    }
                    let (rig, stream) = (&behind.rig, behind.stream);
                    rig.faults.fail_nth(call, failing, Status::Unavailable);
                    if !is_undone {
                        rig.faults.fail_always(Call::PagesUnmap, Status::Unavailable);
                    }
                    let first = rig.try_allocate(behind.freed, stream).ok();
                    rig.faults.heal();
                    // What failed is told once.
                    _ = rig.context.fault().check();
                    _ = rig.pool.reap();
                    let held = rig.pool.held();
                    let block = match first {
                        Some(block) => block,
                        None => rig.allocate(behind.freed, stream),
                    };
                    assert_eq!(rig.pool.held(), held, "seed {seed}: {call:?} number {failing}");
                    rig.fill(&block, 2, stream);
                    rig.free(block);
                    behind.kept.reverse();
                    behind.finish();
                }
            }
        }
    }
}
