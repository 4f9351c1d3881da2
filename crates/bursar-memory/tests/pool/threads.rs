//! P8 and what threads keep: nobody waits for a lock while another talks to the driver, and nothing stays with a thread
//! that is gone.

use crate::common::Dice;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock, DeviceMemoryResource, Gate, Holder};
use bursar_sim::{Call, Sim};
use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

/// Runs `body` on a thread of its own, so that a deadlock is a failure and not the end of all tests.
fn watched(body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        body();
        done.send(()).expect("somebody watches");
    });
    match is_done.recv_timeout(Duration::from_secs(300)) {
        Err(RecvTimeoutError::Timeout) => panic!("somebody waits for a lock that is held across a driver call"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Every driver call comes back to the pool first.
#[test]
fn p8_no_lock_is_held_across_a_driver_call() {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    watched(|| {
        for seed in 0..20 {
            let recipe = small().patience(Duration::from_millis(1));
            let (rig, hooked) = Rig::hooked(seed, 12, &recipe);
            let pool = Arc::downgrade(&rig.pool);
            hooked.set(move |_| {
                if !INSIDE.replace(true) {
                    if let Some(pool) = pool.upgrade() {
                        assert!(pool.cached() <= pool.held() && pool.pending() <= pool.held());
                        pool.trim(Bytes::ZERO);
                    }
                    recipe.readings();
                    INSIDE.set(false);
                }
            });
            let mut dice = Dice::new(seed);
            let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
            let mut live: Vec<DeviceBlock> = Vec::new();
            for _ in 0..200 {
                let stream = streams[dice.below(3) as usize];
                if dice.below(2) == 0
                    && let Ok(block) = rig.try_allocate(dice.size(5 * FRAME), stream)
                {
                    rig.fill(&block, 1, stream);
                    live.push(block);
                } else if !live.is_empty() {
                    rig.free_on(live.swap_remove(dice.below(live.len() as u64) as usize), stream);
                }
            }
            live.into_iter().for_each(|block| rig.free(block));
            drop(hooked);
            rig.finish();
        }
    });
}

/// While one thread grows the pool, which takes as long as the driver likes, another allocates and frees.
#[test]
fn p8_a_hit_does_not_wait_for_a_thread_that_grows_the_pool() {
    watched(|| {
        let (rig, hooked) = Rig::hooked(1, 64, &small());
        let (grows, hits) = (rig.stream(), rig.stream());
        let sizes = [1000, 100_000, FRAME, 3 * FRAME];
        let (entered, leave, grower) = (Gate::default(), Gate::default(), Arc::new(OnceLock::<ThreadId>::new()));
        let (has_entered, may_leave, who) = (entered.clone(), leave.clone(), grower.clone());
        hooked.set(move |call| {
            if call == "pages_create" && who.get() == Some(&std::thread::current().id()) {
                has_entered.open();
                may_leave.wait();
            }
        });
        std::thread::scope(|scope| {
            let (rig, grower) = (&rig, &grower);
            let growing = scope.spawn(move || {
                grower.set(std::thread::current().id()).expect("the first");
                rig.allocate(20 * FRAME, grows)
            });
            entered.wait();
            let pairs = || {
                let blocks: Vec<_> = sizes.iter().map(|&bytes| rig.allocate(bytes, hits)).collect();
                blocks.into_iter().for_each(|block| rig.free(block));
            };
            pairs();
            let calls = rig.faults.total_calls();
            (0..100).for_each(|_| pairs());
            let (made, is_growing) = (rig.faults.total_calls() - calls, !growing.is_finished());
            leave.open();
            rig.free(growing.join().expect("granted"));
            assert!(made == 0 && is_growing, "hits, which made {made} driver calls");
        });
        drop(hooked);
        rig.finish();
    });
}

/// Each of many threads, one after the other.
#[test]
fn p5_a_thread_that_ends_gives_back_what_it_kept() {
    let rig = Rig::new(Sim::seeded(2), 4, &small());
    let stream = rig.stream();
    for round in 0..40 {
        std::thread::scope(|scope| {
            let rig = &rig;
            let thread = scope.spawn(move || {
                let blocks: Vec<_> = (0..8).map(|_| rig.allocate(20_000, stream)).collect();
                blocks.into_iter().for_each(|block| rig.free(block));
                assert!(rig.pool.largest_free_run() < rig.pool.cached(), "the thread keeps some");
            });
            thread.join().expect("no panic");
        });
        assert_eq!(rig.pool.largest_free_run(), rig.pool.cached(), "round {round}: all of it is one piece again");
    }
    let calls = rig.faults.total_calls();
    let all = rig.allocate(rig.pool.cached().get(), stream);
    assert_eq!(rig.faults.total_calls(), calls);
    rig.free(all);
    rig.finish();
}

/// Blocks that lie in one thread's cache are no reason to refuse another.
#[test]
fn p4_what_threads_keep_is_found_before_anyone_is_refused() {
    let rig = Rig::new(Sim::seeded(3), 2, &small());
    let (kept, freed) = (Gate::default(), Gate::default());
    std::thread::scope(|scope| {
        let (rig, kept, freed) = (&rig, &kept, &freed);
        scope.spawn(move || {
            let stream = rig.stream();
            let blocks: Vec<_> = (1..=64).map(|units| rig.allocate(units * 256, stream)).collect();
            blocks.into_iter().for_each(|block| rig.free(block));
            kept.open();
            freed.wait();
        });
        kept.wait();
        let all = rig.allocate(2 * FRAME, rig.stream());
        rig.fill(&all, 1, all.stream());
        rig.free(all);
        freed.open();
    });
    rig.finish();
}

/// Frames that another thread has taken out, to give them back, are there again in a moment.
#[test]
fn p4_frames_that_are_being_given_back_are_no_reason_to_refuse() {
    watched(|| {
        let (rig, hooked) = Rig::hooked(4, 1000, &small());
        rig.faults.out_of_memory_at(Bytes(2 * FRAME));
        rig.free(rig.allocate(2 * FRAME, rig.stream()));
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        let (entered, leave, trimmer) = (Gate::default(), Gate::default(), Arc::new(OnceLock::<ThreadId>::new()));
        let (has_entered, may_leave, who) = (entered.clone(), leave.clone(), trimmer.clone());
        hooked.set(move |call| {
            if call == "pages_unmap" && who.get() == Some(&std::thread::current().id()) {
                has_entered.open();
                may_leave.wait();
            }
        });
        std::thread::scope(|scope| {
            let (rig, trimmer) = (&rig, &trimmer);
            scope.spawn(move || {
                trimmer.set(std::thread::current().id()).expect("the first");
                rig.pool.trim(Bytes::ZERO);
            });
            entered.wait();
            let asked = rig.faults.calls(Call::PagesCreate);
            let asking = scope.spawn(move || rig.try_allocate(2 * FRAME, rig.stream()));
            while !asking.is_finished() && rig.faults.calls(Call::PagesCreate) < asked + 10 {
                std::thread::yield_now();
            }
            leave.open();
            rig.free(asking.join().expect("no panic").expect("it fits"));
        });
        drop(hooked);
        rig.finish();
    });
}

const THREADS: u64 = 8;
const PAIRS: u64 = if cfg!(debug_assertions) { 4_000 } else { 40_000 };

/// Eight threads whose shares are the whole limit, in blocks of whole frames: whatever one asks for within its share is
/// free somewhere. The driver refuses the first byte beyond the limit.
#[test]
fn b3_eight_threads_within_their_share_of_a_pools_frames_are_never_refused() {
    for seed in 0..2 {
        let rig = Rig::new(Sim::immediate(), THREADS * 8, &small());
        rig.faults.out_of_memory_at(rig.budget.limit());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let rig = &rig;
                scope.spawn(move || {
                    let (mut dice, stream) = (Dice::new(seed * THREADS + thread), rig.stream());
                    let (mut live, mut held): (Vec<DeviceBlock>, u64) = (Vec::new(), 0);
                    for pair in 0..PAIRS {
                        let frames = 1 + dice.below(4);
                        while held + frames > 8 {
                            let block = live.swap_remove(dice.below(live.len() as u64) as usize);
                            held -= block.granted().get() / FRAME;
                            rig.free(block);
                        }
                        match rig.try_allocate(frames * FRAME, stream) {
                            Ok(block) => live.push(block),
                            Err(refused) => panic!("seed {seed}, thread {thread}, pair {pair}: {refused:#}"),
                        }
                        held += frames;
                    }
                    live.into_iter().for_each(|block| rig.free(block));
                });
            }
        });
        assert_eq!(rig.pool.cached(), rig.pool.held(), "seed {seed}");
        assert!(rig.driver_held() <= rig.budget.limit() && rig.driver_held() == rig.pool.held());
        rig.finish();
    }
}

/// Blocks of all sizes: each lies in at most two frames, and for that many there is room.
#[test]
fn b3_eight_threads_with_blocks_of_all_sizes_are_never_refused() {
    const LIVE: u64 = 4;
    for seed in 0..2 {
        let rig = Rig::new(Sim::immediate(), THREADS * (LIVE + 1) * 2, &small());
        rig.faults.out_of_memory_at(rig.budget.limit());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let rig = &rig;
                scope.spawn(move || {
                    let (mut dice, stream) = (Dice::new(seed * THREADS + thread), rig.stream());
                    let mut live: Vec<DeviceBlock> = Vec::new();
                    for pair in 0..PAIRS {
                        if live.len() as u64 == LIVE {
                            rig.free(live.swap_remove(dice.below(LIVE) as usize));
                        }
                        match rig.pool.allocate(dice.size(FRAME), 256, stream, bursar_core::tag!("fire")) {
                            Ok(block) => live.push(block),
                            Err(refused) => panic!("seed {seed}, thread {thread}, pair {pair}: {refused:#}"),
                        }
                    }
                    live.into_iter().for_each(|block| rig.free(block));
                });
            }
        });
        assert_eq!(rig.pool.cached(), rig.pool.held(), "seed {seed}");
        rig.finish();
    }
}
