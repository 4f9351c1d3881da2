//! Pools that end while something of them sleeps.

use crate::rig::FRAME;
use crate::sleep_rig::SleepRig;
use bursar_conformance::sleep::{Heap, with_each_failure};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, Holder, SleepRequest, Sleeper, Status, Stream, WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::{Call, Random};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Puts tags to sleep, or all of a pool, one after another, whatever frames they share and whether their places are kept or frames
/// refused, and frees all blocks at any time between.
fn sleep_and_free_all(rig: &SleepRig, seed: u64) {
    let (mut random, tags) = (Random::new(seed), [tag!("one"), tag!("two"), tag!("three")]);
    let streams = [rig.stream(), rig.stream()];
    let mut blocks: Vec<DeviceBlock> = Vec::new();
    for nth in 0..10u8 {
        let (stream, tag) = (streams[random.below(2) as usize], tags[random.below(3) as usize]);
        let block = rig.pool.allocate(1 + random.below(FRAME), 256, stream, tag).expect("room");
        rig.fill(&block, nth, stream);
        blocks.push(block);
    }
    let free_some = |blocks: &mut Vec<DeviceBlock>, random: &mut Random, number: u64| {
        for _ in 0..number.min(blocks.len() as u64) {
            let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            rig.pool.deallocate(block, streams[random.below(2) as usize]).expect("its own");
        }
    };
    for _ in 0..1 + random.below(3) {
        let meant = tags[random.below(3) as usize];
        let range = |block: &DeviceBlock| block.ptr()..block.ptr().offset(block.granted().get());
        let of = |tag: AllocTag| blocks.iter().filter(|block| block.tag() == tag).map(range).collect::<Vec<_>>();
        let only = (!random.chance(4)).then(|| vec![(meant, of(meant))]);
        rig.refusals.store(random.below(2), SeqCst);
        let request = SleepRequest { only, keep_place: random.chance(2), ..SleepRequest::default() };
        rig.pool.sleep(&Heap, &request).expect("room on the host");
        rig.refusals.store(0, SeqCst);
        let number = random.below(5);
        free_some(&mut blocks, &mut random, number);
    }
    let all = blocks.len() as u64;
    free_some(&mut blocks, &mut random, all);
}

fn rig(seed: u64) -> SleepRig {
    SleepRig::new(seed, 64, &PagePool::default().largest_frame(Bytes(2 * FRAME)), None)
}

/// Whatever of it sleeps, a pool that ends with no block outside gives everything back: memory, addresses, charge and places.
#[test]
fn z6_a_pool_that_ends_while_something_of_it_sleeps_leaves_nothing() {
    for seed in 0..200 {
        let rig = rig(seed);
        sleep_and_free_all(&rig, seed);
        rig.finish();
    }
}

/// Memory that the driver does not take at the end of such a pool is kept and counted, until it does.
#[test]
fn z7_what_the_driver_refuses_at_the_end_of_a_pool_that_sleeps_is_kept_and_counted() {
    let mut survived = 0;
    for seed in 0..12 {
        let counted = rig(seed);
        sleep_and_free_all(&counted, seed);
        counted.faults.reset_counts();
        let SleepRig { faults, pool, .. } = counted;
        drop(pool);
        let (_, failures) = with_each_failure(&faults, 4, |call, nth| {
            let rig = rig(seed);
            sleep_and_free_all(&rig, seed);
            rig.faults.reset_counts();
            rig.faults.fail_nth(call, nth, Status::InvalidValue);
            let SleepRig { sim, faults, context, purse, budget, pool, .. } = rig;
            drop(pool);
            let held = faults.held(context.device());
            assert_eq!((budget.charged_bytes(), purse.held()), (held, held), "seed {seed}, {call:?} {nth}");
            faults.heal();
            drop(budget);
            context.trim();
            let left = (faults.held(context.device()), purse.held());
            assert_eq!(left, (Bytes::ZERO, Bytes::ZERO), "seed {seed}, {call:?} {nth}");
            drop((context, faults));
            sim.assert_clean();
            assert!(sim.leaks().is_empty(), "seed {seed}, {call:?} {nth}: {}", sim.leaks());
        });
        survived += failures;
    }
    assert!(survived > 50, "{survived}");
}

/// Blocks that are outside when their pool ends keep no memory that is away, and no place for it.
#[test]
fn z6_blocks_outside_keep_nothing_of_a_pool_that_ended_asleep() {
    for (keep_place, refusals) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
        let rig = rig(7);
        let stream = rig.stream();
        let blocks = [1000, FRAME, 3 * FRAME].map(|bytes| rig.pool.allocate(bytes, 256, stream, tag!("some")));
        let [first, second, _third] = blocks.map(|block| block.expect("room"));
        rig.refusals.store(refusals, SeqCst);
        rig.pool.sleep(&Heap, &SleepRequest { keep_place, ..SleepRequest::default() }).expect("room on the host");
        rig.pool.deallocate(second, stream).expect("its own");
        drop(first);
        rig.finish();
    }
}

/// Memory that was freed on a stream of somebody else which ends while the pool sleeps can be had afterwards, and goes back with the
/// rest: also where nothing could be ordered after that stream when it ended.
#[test]
fn p6_a_stream_that_ends_while_its_memory_sleeps_strands_nothing() {
    for seed in 0..200 {
        let (rig, mut random) = (rig(seed), Random::new(seed));
        let (own, adopted) = (rig.stream(), rig.adopt());
        let streams = [own, adopted.0.stream()];
        let mut blocks: Vec<DeviceBlock> = Vec::new();
        for nth in 0..8u8 {
            let longest = [FRAME, 40_000][random.index(2)];
            let bytes = 1 + random.below(longest);
            let block = rig.pool.allocate(bytes, 256, streams[random.index(2)], tag!("some")).expect("room");
            rig.fill(&block, nth, block.stream());
            blocks.push(block);
        }
        let free_some = |blocks: &mut Vec<DeviceBlock>, random: &mut Random, on: Option<Stream>| {
            let some: Vec<_> = blocks.extract_if(.., |_| random.chance(3)).collect();
            for block in some {
                let stream = on.unwrap_or(block.stream());
                rig.pool.deallocate(block, stream).expect("its own");
            }
        };
        free_some(&mut blocks, &mut random, None);
        let range = |block: &DeviceBlock| block.ptr()..block.ptr().offset(block.granted().get());
        let only = random.chance(3).then(|| vec![(tag!("some"), blocks.iter().map(range).collect())]);
        let request = SleepRequest { only, ..SleepRequest::default() };
        rig.pool.sleep(&Heap, &request).expect("room on the host");
        free_some(&mut blocks, &mut random, None);
        if random.chance(2) {
            for call in [Call::EventRecord, Call::StreamSynchronize] {
                rig.faults.fail_always(call, Status::NotSupported);
            }
        }
        rig.end(adopted);
        rig.faults.heal();
        free_some(&mut blocks, &mut random, Some(own));
        rig.context.order_ended(Duration::MAX);
        // The failure is the next call's.
        let _reported = rig.pool.reap();
        rig.pool.wake(&WakeRequest::default()).expect("room");
        blocks.into_iter().for_each(|block| rig.pool.deallocate(block, own).expect("its own"));
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.pool.held(), Bytes::ZERO, "seed {seed}: all of it is free");
        rig.finish();
    }
}

/// Contents that may still be copied back, since the driver failed to say when they are, are waited for before their memory goes: at the
/// end of the pool, and when it wakes at last.
#[test]
fn z7_copies_back_that_could_not_be_waited_for_run_before_their_memory_goes() {
    for (seed, wakes) in [(0, false), (1, true)] {
        let rig = rig(seed);
        let stream = rig.stream();
        let block = rig.pool.allocate(3 * FRAME, 256, stream, tag!("some")).expect("room");
        rig.fill(&block, 7, stream);
        rig.pool.sleep(&Heap, &SleepRequest::default()).expect("room on the host");
        rig.faults.fail_always(Call::StreamSynchronize, Status::NotSupported);
        rig.pool.wake(&WakeRequest::default()).expect_err("nobody knows when it is awake");
        rig.faults.heal();
        // The failure is the next call's.
        let _reported = rig.pool.reap();
        if wakes {
            rig.pool.wake(&WakeRequest::default()).expect("room");
            rig.expect(&block, 7, stream);
        }
        rig.pool.deallocate(block, stream).expect("its own");
        rig.finish();
    }
}
