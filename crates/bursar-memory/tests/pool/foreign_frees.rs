//! P9: blocks that are freed on another stream than their own.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_core::{BlockParts, Bytes, DeviceBlock, DeviceMemoryResource, Error, Holder, Stream, tag};
use bursar_sim::{Call, Random, Sim};
use std::time::Duration;

const SIZES: [u64; 6] = [1, 4000, 100_000, 300 << 10, FRAME, 3 * FRAME + 1];

/// Allocates blocks on one stream, uses them there, and frees them on another.
fn free_elsewhere(rig: &Rig, home: Stream, stream: Stream, sizes: &[u64]) {
    let blocks: Vec<_> = sizes.iter().map(|&bytes| rig.allocate(bytes, home)).collect();
    blocks.iter().for_each(|block| rig.touch(block, home));
    let calls = rig.faults.total_calls();
    blocks.into_iter().for_each(|block| rig.free_on(block, stream));
    assert_eq!(rig.faults.total_calls(), calls, "a free calls no driver");
}

#[test]
fn p9_a_free_on_another_stream_costs_no_driver_call() {
    for seed in 0..20 {
        let rig = Rig::new(Sim::seeded(seed), 1000, &small());
        let (a, b) = (rig.stream(), rig.stream());
        let stalls = [rig.stall(a), rig.stall(b)];
        free_elsewhere(&rig, a, b, &SIZES);
        assert_eq!(rig.pool.pending(), rig.pool.cached(), "seed {seed}: nobody has passed anything");
        drop(stalls);
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        assert_eq!((rig.pool.pending(), rig.pool.cached()), (Bytes::ZERO, rig.pool.held()), "seed {seed}");
        rig.finish();
    }
}

/// The stream that has not been held gets what the other has passed, and nobody else does.
#[test]
fn p9_what_one_of_two_streams_has_passed_is_the_others() {
    for (held_is_home, seed) in [(false, 1), (true, 2)] {
        let rig = Rig::new(Sim::seeded(seed), 64, &small());
        let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
        let block = rig.allocate(8 * FRAME, a);
        let (at, held) = (block.ptr(), if held_is_home { a } else { b });
        let stall = rig.stall(held);
        rig.touch(&block, a);
        rig.free_on(block, b);
        rig.sim.settle();
        let theirs = rig.allocate(8 * FRAME, c);
        assert_ne!(theirs.ptr(), at, "one of the two is held");
        let again = rig.allocate(8 * FRAME, held);
        assert_eq!(again.ptr(), at, "the other has passed it");
        assert_eq!(rig.faults.calls(Call::StreamWait), 0);
        rig.touch(&again, held);
        drop(stall);
        [theirs, again].into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// With the limit reached, a stream gets what is in limbo behind a wait for both others.
#[test]
fn p9_what_neither_has_passed_is_granted_behind_a_wait_for_both() {
    for seed in 0..20 {
        let rig = Rig::new(Sim::seeded(seed), 8, &small().patience(Duration::ZERO));
        let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
        let block = rig.allocate(8 * FRAME, a);
        let mut stalls = vec![rig.stall(a), rig.stall(b)];
        rig.touch(&block, a);
        rig.free_on(block, b);
        let again = rig.allocate(8 * FRAME, c);
        assert_eq!(rig.faults.calls(Call::StreamWait), 2, "seed {seed}");
        rig.touch(&again, c);
        for left in [1, 0] {
            rig.sim.settle();
            assert!(!rig.context.has_run(c, Duration::ZERO).expect("the device works"), "seed {seed}: {left} left");
            stalls.pop();
        }
        rig.sim.settle();
        assert!(rig.context.has_run(c, Duration::ZERO).expect("the device works"), "seed {seed}");
        rig.free(again);
        rig.finish();
    }
}

/// However many blocks were freed, one question to each stream settles them all.
#[test]
fn p9_one_question_settles_everything_that_was_freed_until_then() {
    let rig = Rig::new(Sim::immediate(), 1000, &small().magazine(Bytes::ZERO));
    let streams: Vec<_> = (0..4).map(|_| rig.stream()).collect();
    let mut random = Random::new(1);
    let mut block = |stream| rig.allocate(random.size(FRAME), stream);
    let blocks: Vec<_> = (0..2000).map(|nth| block(streams[nth % 4])).collect();
    for (nth, block) in blocks.into_iter().enumerate() {
        rig.free_on(block, streams[nth / 4 % 4]);
    }
    rig.faults.reset_counts();
    assert!(rig.pool.pending() > Bytes::ZERO);
    rig.free(rig.allocate(rig.pool.held().get(), streams[0]));
    assert!(rig.faults.calls(Call::StreamQuery) <= 8, "{} questions", rig.faults.calls(Call::StreamQuery));
    assert_eq!(rig.faults.calls(Call::EventRecord) + rig.faults.calls(Call::StreamWait), 0);
    rig.finish();
}

/// A second free of the same block, as a raw boundary could bring it, changes nothing, whether the first is in limbo or
/// settled.
#[test]
#[allow(unsafe_code)]
fn p7_what_was_freed_elsewhere_is_not_freed_again() {
    for settles in [false, true] {
        let rig = Rig::new(Sim::seeded(3), 8, &small());
        let (a, b) = (rig.stream(), rig.stream());
        let block = rig.allocate(FRAME, a);
        let (ptr, owner) = (block.ptr(), block.owner());
        let stall = rig.stall(b);
        rig.free_on(block, b);
        if settles {
            rig.sim.settle();
            rig.pool.trim(Bytes(u64::MAX));
        }
        let before = (rig.pool.cached(), rig.pool.pending());
        let parts = BlockParts { ptr, requested: FRAME, granted: FRAME, tag: tag!("twice"), owner, offset: 0 };
        // SAFETY: broken on purpose, to be refused; the token is never used.
        let twice = unsafe { DeviceBlock::from_parts(parts, a) };
        let refused = rig.pool.deallocate(twice, b).expect_err("it is free");
        assert!(matches!(refused.error, Error::UseAfterFree { .. }), "{}", refused.error);
        assert_eq!((rig.pool.cached(), rig.pool.pending()), before);
        drop(stall);
        assert_eq!(rig.sim.take_hazards().len(), 1, "the simulator was told of both frees");
        rig.finish();
    }
}
