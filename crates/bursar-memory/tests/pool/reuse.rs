//! P1 and P2: what is reused, by whom, and what that costs.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock, DeviceMemoryResource, Holder, tag};
use bursar_sim::{Call, Random, Sim};
use std::time::Duration;

const SIZES: [u64; 8] = [1, 256, 4000, 100_000, 256 << 10, 300 << 10, FRAME, 7 * FRAME + 1];

#[test]
fn p1_reuse_on_the_same_stream_asks_the_driver_nothing() {
    for magazine in [Bytes::ZERO, Bytes::mib(1)] {
        let rig = Rig::new(Sim::seeded(1), 1000, &small().magazine(magazine));
        let (own, other) = (rig.stream(), rig.stream());
        let theirs: Vec<_> = (0..200).map(|nth| rig.allocate(1 + nth % 7 * 100_000, other)).collect();
        let stall = rig.stall(other);
        theirs.into_iter().for_each(|block| rig.free(block));
        let pairs = |value| {
            let blocks: Vec<_> = SIZES.iter().map(|&bytes| rig.allocate(bytes, own)).collect();
            blocks.iter().for_each(|block| rig.fill(block, value, own));
            blocks.into_iter().for_each(|block| rig.free(block));
        };
        // What the other stream has freed is asked about once.
        pairs(1);
        let (before, held) = (rig.faults.total_calls(), rig.pool.held());
        for round in 0..100 {
            pairs(2);
            assert_eq!(rig.faults.total_calls(), before, "round {round}, magazines of {magazine}");
        }
        assert_eq!((rig.faults.total_calls(), rig.pool.held()), (before, held));
        drop(stall);
        rig.finish();
    }
}

#[test]
fn p1_a_free_that_is_known_to_have_run_is_reused_elsewhere_without_a_wait() {
    for bytes in SIZES {
        let rig = Rig::new(Sim::seeded(2), bytes.div_ceil(FRAME), &small());
        let (a, b) = (rig.stream(), rig.stream());
        let whole = rig.budget.limit().get();
        let block = rig.allocate(whole, a);
        rig.fill(&block, 1, a);
        rig.free(block);
        rig.context.synchronize(a).expect("the device works");
        let again = rig.allocate(bytes, b);
        rig.fill(&again, 2, b);
        assert_eq!(rig.faults.calls(Call::StreamWait), 0);
        rig.free(again);
        rig.finish();
    }
}

#[test]
fn p1_a_free_that_has_not_run_is_reused_elsewhere_with_one_wait() {
    for bytes in SIZES {
        let rig = Rig::new(Sim::seeded(3), 8, &small());
        let (a, b) = (rig.stream(), rig.stream());
        let stall = rig.stall(a);
        let block = rig.allocate(8 * FRAME, a);
        rig.fill(&block, 1, a);
        rig.free(block);
        let again = rig.allocate(bytes, b);
        assert_eq!(rig.faults.calls(Call::StreamWait), 1, "{bytes} bytes");
        rig.fill(&again, 2, b);
        rig.sim.settle();
        assert_ne!(rig.sim.peek(again.ptr(), 1), [2], "it waits for the stream that is stalled");
        let more: Vec<_> = (0..3).map(|_| rig.allocate(256, b)).collect();
        assert_eq!(rig.faults.calls(Call::StreamWait), 1, "what was freed before that is waited for already");
        drop(stall);
        rig.sim.settle();
        assert_eq!(rig.sim.peek(again.ptr(), 1), [2]);
        more.into_iter().chain([again]).for_each(|block| rig.free(block));
        rig.finish();
    }
}

#[test]
fn p2_neighbours_freed_on_one_stream_become_one() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 64, &small());
        let stream = rig.stream();
        let whole = rig.allocate(64 * FRAME, stream);
        let from = whole.ptr();
        rig.free(whole);
        let mut blocks = Vec::new();
        while blocks.iter().map(|block: &DeviceBlock| block.granted().get()).sum::<u64>() < 60 * FRAME {
            blocks.push(rig.allocate(random.size(4 * FRAME), stream));
        }
        while !blocks.is_empty() {
            rig.free(blocks.swap_remove(random.below(blocks.len() as u64) as usize));
        }
        let stall = rig.stall(stream);
        let again = rig.allocate(64 * FRAME, stream);
        assert_eq!(again.ptr(), from, "seed {seed}: everything is one again");
        assert_eq!(rig.faults.calls(Call::PagesUnmap), 0, "seed {seed}: and nothing was moved for it");
        rig.free(again);
        drop(stall);
        rig.finish();
    }
}

#[test]
fn p2_neighbours_freed_on_several_streams_become_one_once_that_has_run() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 32, &small());
        let streams: Vec<_> = (0..4).map(|_| rig.stream()).collect();
        let whole = rig.allocate(32 * FRAME, streams[0]);
        rig.free(whole);
        let mut blocks = Vec::new();
        while blocks.iter().map(|block: &DeviceBlock| block.granted().get()).sum::<u64>() < 29 * FRAME {
            let block = rig.allocate(FRAME / 8 * (1 + random.below(20)), streams[0]);
            rig.fill(&block, 1, streams[0]);
            blocks.push(block);
        }
        while !blocks.is_empty() {
            let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            rig.free_on(block, streams[random.below(4) as usize]);
        }
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        assert_eq!(rig.pool.largest_free_run(), Bytes(32 * FRAME), "seed {seed}");
        let calls = rig.faults.calls(Call::PagesUnmap) + rig.faults.calls(Call::StreamWait);
        let again = rig.allocate(32 * FRAME, rig.stream());
        assert_eq!(rig.faults.calls(Call::PagesUnmap) + rig.faults.calls(Call::StreamWait), calls, "seed {seed}");
        rig.fill(&again, 2, again.stream());
        rig.free(again);
        rig.finish();
    }
}
#[test]
fn p1_an_aligned_block_is_reused_on_its_stream_without_asking_the_driver() {
    for align in [512, 4096, 64 << 10, FRAME] {
        let rig = Rig::new(Sim::seeded(4), 64, &small());
        let stream = rig.stream();
        let place = || rig.pool.allocate(FRAME, align, stream, tag!("aligned")).expect("there is room");
        let block = place();
        let rest = rig.pool.largest_free_run();
        let neighbour = (rest > Bytes::ZERO).then(|| rig.allocate(rest.get(), stream));
        rig.free(block);
        let calls = rig.faults.total_calls();
        let again = place();
        assert_eq!(rig.faults.total_calls(), calls, "aligned to {align}");
        rig.free(again);
        neighbour.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}
