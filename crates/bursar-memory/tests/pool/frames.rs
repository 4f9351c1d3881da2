//! P3: frames are moved to where they are needed, and nothing is refused because it lies in pieces.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock, DeviceMemoryResource, Holder, tag};
use bursar_memory::PagePool;
use bursar_sim::{Call, Random, Sim};
use std::collections::HashSet;
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

/// Between two free runs only what is missing there is mapped.
#[test]
fn p3_a_block_is_put_where_least_has_to_be_mapped() {
    let rig = Rig::new(Sim::immediate(), 8, &small());
    let stream = rig.stream();
    let mut blocks: Vec<_> = (0..8).map(|_| Some(rig.allocate(FRAME, stream))).collect();
    let mut free = |nth: usize| rig.free(blocks[nth].take().expect("it is freed once"));
    [3, 6].into_iter().for_each(&mut free);
    // Both frames move behind the last, and leave gaps.
    let moved = rig.allocate(2 * FRAME, stream);
    [2, 4, 7].into_iter().for_each(&mut free);
    rig.faults.reset_counts();
    let across = rig.allocate(3 * FRAME, stream);
    assert_eq!((rig.faults.calls(Call::PagesMap), rig.faults.calls(Call::PagesUnmap)), (1, 1), "the gap, by one frame");
    assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes(8 * FRAME), Bytes(8 * FRAME)));
    mark(&rig, &across, 9);
    for block in blocks.into_iter().flatten().chain([moved]) {
        rig.free(block);
    }
    assert!(is_marked(&rig, &across, 9));
    rig.free(across);
    rig.finish();
}

#[test]
fn p3_frames_that_another_stream_is_not_done_with_stay_where_they_are() {
    let rig = Rig::new(Sim::seeded(5), 6, &small().patience(Duration::from_millis(2)));
    let (a, b) = (rig.stream(), rig.stream());
    let mut blocks: Vec<_> = (0..6).map(|_| rig.allocate(FRAME, a)).collect();
    let stall = rig.stall(a);
    for nth in [4, 2, 0] {
        let block = blocks.remove(nth);
        rig.fill(&block, 1, a);
        rig.free(block);
    }
    let refused = rig.try_allocate(2 * FRAME, b).expect_err("no two frames lie side by side");
    assert!(refused.is_capacity(), "{refused}");
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

/// Returns how many pages of a pool's limit no block touches.
fn untouched_pages(rig: &Rig, blocks: &[DeviceBlock]) -> u64 {
    let pages = |block: &DeviceBlock| {
        let first = block.ptr().0;
        first / FRAME..(first + block.granted().get()).div_ceil(FRAME)
    };
    let touched: HashSet<_> = blocks.iter().flat_map(pages).collect();
    rig.budget.limit().get() / FRAME - touched.len() as u64
}

/// Blocks of any length come and go; at any moment all but a twentieth of the pages that none of them touches can be had
/// in one piece.
#[test]
fn p3_a_request_is_refused_for_fragmentation_only_if_whole_pages_would_not_suffice() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let frames = 20 + random.below(400);
        let rig = Rig::new(Sim::seeded(seed), frames, &PagePool::default().patience(Duration::ZERO));
        let streams: Vec<_> = (0..1 + seed % 3).map(|_| rig.stream()).collect();
        let mut blocks: Vec<DeviceBlock> = Vec::new();
        for round in 0..12 {
            for _ in 0..1 + random.below(120) {
                let stream = streams[random.below(streams.len() as u64) as usize];
                if random.below(5) < 3 {
                    blocks.extend(rig.try_allocate(random.size(frames * FRAME / 4), stream).ok());
                } else if !blocks.is_empty() {
                    rig.free(blocks.swap_remove(random.below(blocks.len() as u64) as usize));
                }
            }
            rig.sim.settle();
            let pages = untouched_pages(&rig, &blocks);
            let wanted = pages - pages.div_ceil(20);
            if wanted > 0 {
                let whole = rig.try_allocate(wanted * FRAME, streams[0]);
                assert!(whole.is_ok(), "seed {seed}, round {round}: {wanted} of {pages} pages, of {frames}: {whole:?}");
                whole.into_iter().for_each(|block| rig.free(block));
                rig.sim.settle();
            }
        }
        blocks.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// What fits at the least alignment fits at every other, in a pool that is empty and in one that is wholly free.
#[test]
fn p3_an_exact_fit_fits_at_every_alignment() {
    for pages in [1, 3, 4, 40] {
        for bytes in [pages * FRAME, pages * FRAME - 300, (pages - 1) * FRAME + 1] {
            for shift in 8..=21 {
                let rig = Rig::new(Sim::immediate(), pages, &PagePool::default().patience(Duration::ZERO));
                let stream = rig.stream();
                let granted = |align| rig.pool.allocate(bytes, align, stream, tag!("exact"));
                let block = granted(1 << shift).unwrap_or_else(|e| panic!("{bytes} at {}: {e}", 1u64 << shift));
                assert!(block.ptr().0.is_multiple_of(1 << shift));
                assert_eq!(rig.pool.held(), Bytes(pages * FRAME), "{bytes} at {}", 1u64 << shift);
                rig.free(block);
                (0..2 * pages).for_each(|_| rig.free(rig.allocate(FRAME / 2, stream)));
                let again = granted(1 << (29 - shift)).expect("as much is free");
                rig.free(again);
                rig.finish();
            }
        }
    }
}

/// Frames follow the request: few for a large block, and none that a small one shares with much that is free.
#[test]
fn p3_a_large_block_takes_few_frames() {
    let rig = Rig::new(Sim::immediate(), 4000, &PagePool::default());
    let stream = rig.stream();
    let block = rig.allocate(1 << 30, stream);
    assert_eq!(rig.faults.calls(Call::PagesCreate), 16);
    rig.free(block);
    let small = rig.allocate(2 * FRAME, stream);
    rig.context.synchronize(stream).expect("the device works");
    assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes((1 << 30) - 2 * FRAME), "nothing is kept by the small block");
    rig.free(small);
    rig.finish();
}

/// Under a limit that was lowered, what was given back could not be had again: what is cached is granted as it lies.
#[test]
fn p3_a_lowered_limit_does_not_cost_what_is_cached() {
    let rig = Rig::new(Sim::immediate(), 512, &PagePool::default().patience(Duration::ZERO));
    let stream = rig.stream();
    let (cached, live) = (rig.allocate(161 * FRAME, stream), rig.allocate(168 * FRAME, stream));
    rig.budget.set_limit(Bytes(170 * FRAME));
    rig.free(cached);
    let block = rig.allocate(80 * FRAME, stream);
    rig.free(block);
    rig.free(live);
    rig.finish();
}
