//! P5: what a pool gives back, and when.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{AllocTag, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Holder, Stack, leaf};
use bursar_sim::{LeakKind, Random, Sim};
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

#[test]
fn p5_a_trim_keeps_what_it_is_told_to_keep() {
    let rig = Rig::new(Sim::seeded(1), 64, &small());
    let stream = rig.stream();
    let block = rig.allocate(32 * FRAME, stream);
    assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes::ZERO, "all of it is in use");
    rig.free(block);
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    for keep in [40, 32, 10, 9, 1, 0] {
        let before = rig.pool.cached();
        let gone = rig.pool.trim(Bytes(keep * FRAME));
        let kept = Bytes(keep * FRAME).min(before);
        assert_eq!((gone, rig.pool.cached()), (before.saturating_sub(kept), kept));
        assert_eq!([rig.pool.held(), rig.driver_held(), rig.budget.charged_bytes()], [kept; 3]);
    }
    rig.finish();
}

#[test]
fn p5_what_has_not_run_is_not_given_back() {
    let rig = Rig::new(Sim::seeded(2), 64, &small());
    let stream = rig.stream();
    let stall = rig.stall(stream);
    let block = rig.allocate(4 * FRAME, stream);
    rig.fill(&block, 1, stream);
    rig.free(block);
    assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes::ZERO);
    drop(stall);
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes(4 * FRAME));
    rig.finish();
}

/// After a trim a pool holds the frames that live blocks lie in, and no other.
#[test]
fn p5_a_trim_of_all_leaves_the_frames_of_live_blocks() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 200, &small());
        let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
        let all: Vec<_> =
            (0..120).map(|_| rig.allocate(random.size(3 * FRAME), streams[random.below(3) as usize])).collect();
        let (mut live, mut gone) = (Vec::new(), Vec::new());
        all.into_iter().for_each(|block| if random.below(8) == 0 { live.push(block) } else { gone.push(block) });
        gone.into_iter().for_each(|block| rig.free(block));
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        let pages = |block: &bursar_core::DeviceBlock| {
            let (from, end) = (block.ptr().0, block.ptr().0 + block.granted().get());
            from / FRAME..end.div_ceil(FRAME)
        };
        let touched: BTreeSet<_> = live.iter().flat_map(pages).collect();
        assert_eq!(rig.pool.held(), Bytes(touched.len() as u64 * FRAME), "seed {seed}");
        assert_eq!(rig.driver_held(), rig.pool.held(), "seed {seed}");
        live.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// The other threads are alive, and so are their magazines.
#[test]
fn p5_a_pool_that_is_dropped_returns_every_byte() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 200, &small());
        let Rig { sim, faults, context, budget, pool } = rig;
        let (freed, dropped) = (Arc::new(Barrier::new(5)), Arc::new(Barrier::new(5)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let rig = Rig {
                    sim: sim.clone(),
                    faults: faults.clone(),
                    context: context.clone(),
                    budget: budget.clone(),
                    pool: pool.clone(),
                };
                let (freed, dropped) = (freed.clone(), dropped.clone());
                let sizes: Vec<_> = (0..20).map(|_| random.size(FRAME)).collect();
                std::thread::spawn(move || {
                    let stream = rig.stream();
                    let blocks: Vec<_> = sizes.iter().map(|&bytes| rig.allocate(bytes, stream)).collect();
                    for block in blocks {
                        rig.fill(&block, 1, stream);
                        rig.free(block);
                    }
                    drop(rig);
                    freed.wait();
                    dropped.wait();
                })
            })
            .collect();
        freed.wait();
        assert!(pool.cached() > Bytes::ZERO);
        drop((pool, budget));
        assert_eq!(faults.held(context.device()), Bytes::ZERO, "seed {seed}");
        dropped.wait();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        drop((context, faults));
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

#[test]
fn p5_a_pool_dropped_before_a_block_leaves_that_blocks_frames_alone() {
    let rig = Rig::new(Sim::seeded(3), 64, &small());
    let stream = rig.stream();
    let others: Vec<_> = (0..4).map(|_| rig.allocate(FRAME, stream)).collect();
    let block = rig.allocate(2 * FRAME, stream);
    let more = rig.allocate(5 * FRAME, stream);
    others.into_iter().chain([more]).for_each(|block| rig.free(block));
    let Rig { sim, faults, context, budget, pool } = rig;
    drop((pool, budget));
    assert_eq!(faults.held(context.device()), Bytes(2 * FRAME));
    sim.poke(block.ptr(), &[9; 64]);
    let raw = context.hold(stream).expect("live").raw();
    let (ptr, bytes) = (block.ptr(), block.requested().get());
    let look = bursar_sim::Launch::new("look").reads(ptr, bytes).body(move |memory| {
        assert_eq!(memory.read(ptr, 64), [9; 64]);
    });
    sim.launch(context.device(), raw, look).expect("the device works");
    context.synchronize(stream).expect("the device works");
    drop((context, faults));
    sim.assert_clean();
    let left: Vec<_> = sim.leaks().leaks.iter().map(|leak| (leak.kind, leak.count)).collect();
    assert_eq!(left, [(LeakKind::Block, 1), (LeakKind::Pages, 2), (LeakKind::Addresses, 1)]);
}

#[test]
fn p5_a_pool_can_be_dropped_while_its_frees_are_pending() {
    for seed in 0..50 {
        let rig = Rig::new(Sim::seeded(seed), 64, &small());
        let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
        for &stream in &streams {
            let block = rig.allocate(3 * FRAME, stream);
            rig.fill(&block, 1, stream);
            rig.free_on(block, streams[0]);
        }
        assert_eq!(rig.pool.bytes_outstanding(), Bytes::ZERO);
        rig.finish();
    }
}

/// A stream that is alone claims all there is; what it has not used since it waits for nobody.
#[test]
fn p5_what_a_busy_stream_gathered_and_never_used_is_given_back() {
    let rig = Rig::new(Sim::seeded(9), 64, &small());
    let stream = rig.stream();
    rig.free(rig.allocate(8 * FRAME, stream));
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    let stall = rig.stall(stream);
    let block = rig.allocate(FRAME, stream);
    rig.touch(&block, stream);
    assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes(7 * FRAME), "it is busy with one frame");
    drop(stall);
    rig.free(block);
    rig.finish();
}

/// More pools than a simulated device has addresses for, none of which is dropped.
#[test]
fn p5_a_pool_that_is_retired_gives_its_addresses_back_and_is_refused_memory() {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let (stream, all) = (context.default_stream(), context.driver().memory(DeviceId(0)).expect("it works").free);
    let mut kept = Vec::new();
    for _ in 0..600 {
        let pool = small();
        let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context).expect("addresses are there");
        let allocate = || memory.allocate(FRAME, 256, stream, AllocTag::UNTAGGED);
        let block = allocate().expect("room");
        assert!(!pool.retire(), "it has a block");
        memory.deallocate(allocate().expect("it is as it was"), stream).expect("its own");
        memory.deallocate(block, stream).expect("its own");
        assert!(pool.retire() && pool.retire());
        assert!(allocate().is_err() && pool.retire(), "it has no addresses");
        kept.push(memory);
    }
    assert_eq!(context.driver().memory(DeviceId(0)).expect("it works").free, all);
}

#[test]
fn p5_a_pool_that_is_retired_while_threads_use_it_loses_nothing() {
    for seed in 0..20 {
        let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
        let (stream, pool) = (context.default_stream(), small());
        let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context).expect("addresses");
        let all = context.driver().memory(DeviceId(0)).expect("it works").free;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (memory, mut random) = (&memory, Random::new(3 * seed + thread));
                // Every block is whole until it is freed, however the two meet.
                scope.spawn(move || {
                    while let Ok(block) = memory.allocate(random.size(3 * FRAME), 256, stream, AllocTag::UNTAGGED) {
                        memory.deallocate(block, stream).expect("its own");
                    }
                });
            }
            while !pool.retire() {
                std::thread::yield_now();
            }
        });
        assert_eq!(context.driver().memory(DeviceId(0)).expect("it works").free, all, "seed {seed}");
    }
}
