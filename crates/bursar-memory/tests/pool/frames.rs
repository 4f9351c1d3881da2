//! P3: frames are moved to where they are needed, and nothing is refused because it lies in pieces.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock, Holder};
use bursar_memory::PagePool;
use bursar_sim::{Call, Random, Sim};
use std::time::Duration;

/// Writes at both ends of a block, at this moment.
fn mark(rig: &Rig, block: &DeviceBlock, value: u8) {
    for at in ends(block) {
        rig.sim.poke(at, &[value; 32]);
    }
}

fn is_marked(rig: &Rig, block: &DeviceBlock, value: u8) -> bool {
    ends(block).into_iter().all(|at| rig.sim.peek(at, 32) == [value; 32])
}

fn ends(block: &DeviceBlock) -> [bursar_core::DevicePtr; 2] {
    [block.ptr(), block.ptr().offset(block.requested().get() - 32)]
}

/// Fills the pool with blocks of `frame` times one to `most`, frees each with a chance of a half, and asks for as much as
/// was freed in one piece.
fn fill_and_free(rig: &Rig, random: &mut Random, frame: u64, most: u64, seed: u64) {
    let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
    let any = |random: &mut Random| streams[random.below(3) as usize];
    let limit = rig.budget.limit().get();
    let (mut blocks, mut left) = (Vec::new(), limit);
    while left > 0 {
        let bytes = (frame * (1 + random.below(most))).min(left);
        left -= bytes;
        let (block, value) = (rig.allocate(bytes, any(random)), random.below(256) as u8);
        mark(rig, &block, value);
        blocks.push((block, value));
    }
    let (mut kept, mut freed) = (Vec::new(), 0);
    for (block, value) in blocks {
        if random.below(2) == 0 {
            freed += block.granted().get();
            rig.free_on(block, any(random));
        } else {
            kept.push((block, value));
        }
    }
    rig.sim.settle();
    let free = rig.driver_free();
    let pieces = rig.pool.largest_free_run();
    if freed > 0 {
        let whole = rig.allocate(freed, any(random));
        assert!(pieces <= whole.granted(), "seed {seed}");
        mark(rig, &whole, 7);
        kept.push((whole, 7));
    }
    assert_eq!(rig.driver_free(), free, "seed {seed}: nothing was taken for it");
    for (block, value) in kept {
        assert!(is_marked(rig, &block, value), "seed {seed}: {} at {}", block.granted(), block.ptr());
        rig.free(block);
    }
}

#[test]
fn p3_what_is_free_in_pieces_is_granted_in_one() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 8 + random.below(60), &small());
        fill_and_free(&rig, &mut random, FRAME, 4, seed);
        fill_and_free(&rig, &mut random, FRAME, 9, seed);
        rig.finish();
    }
}

/// A large pool has frames of more than one size.
#[test]
fn p3_frames_of_several_sizes_are_put_together() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::immediate(), 2500, &PagePool::default().largest_frame(Bytes(2 * FRAME)));
        fill_and_free(&rig, &mut random, 2 * FRAME, 1, seed);
        fill_and_free(&rig, &mut random, 2 * FRAME, 5, seed);
        rig.finish();
    }
}

/// Frames of sizes that do not divide each other: what stays is refused by nobody as long as whole frames suffice.
#[test]
fn p3_a_large_pool_that_is_wholly_free_can_be_had_in_one_piece() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::immediate(), 4000, &PagePool::default());
        let stream = rig.stream();
        for _ in 0..3 {
            let mut blocks = Vec::new();
            while let Ok(block) = rig.try_allocate(random.size(200 * FRAME), stream) {
                blocks.push(block);
            }
            while !blocks.is_empty() {
                rig.free(blocks.swap_remove(random.below(blocks.len() as u64) as usize));
            }
            let whole = rig.allocate(rig.budget.limit().get(), stream);
            assert_eq!(rig.pool.held(), rig.budget.limit(), "seed {seed}");
            rig.free(whole);
        }
        rig.finish();
    }
}

#[test]
fn p3_frames_whose_work_has_not_run_stay_where_they_are() {
    let rig = Rig::new(Sim::seeded(5), 6, &small().patience(Duration::from_millis(2)));
    let (a, b) = (rig.stream(), rig.stream());
    let mut blocks: Vec<_> = (0..6).map(|_| rig.allocate(FRAME, a)).collect();
    let stall = rig.stall(a);
    for nth in [4, 2, 0] {
        let block = blocks.remove(nth);
        rig.fill(&block, 1, a);
        rig.free(block);
    }
    for stream in [a, b] {
        let refused = rig.try_allocate(2 * FRAME, stream).expect_err("no two frames lie side by side");
        assert!(refused.is_capacity(), "{refused}");
    }
    assert_eq!(rig.faults.calls(Call::PagesUnmap), 0, "their work has not run");
    assert_eq!(rig.pool.pending(), Bytes(3 * FRAME));
    drop(stall);
    rig.context.synchronize(a).expect("the device works");
    let together = rig.allocate(3 * FRAME, b);
    rig.fill(&together, 2, b);
    assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes(6 * FRAME), Bytes(6 * FRAME)));
    rig.free(together);
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(rig.pool.pending(), Bytes::ZERO);
    rig.finish();
}
