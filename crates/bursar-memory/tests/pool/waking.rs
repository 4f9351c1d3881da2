//! Z14: waking takes memory for the pages that blocks are in, and what is free elsewhere goes back before it is refused.

use crate::rig::{FRAME, Rig, small};
use crate::sleep_rig::SleepRig;
use bursar_conformance::sleep::Heap;
use bursar_core::{
    Account, Bytes, DeviceBlock, DeviceMemoryResource, DevicePtr, SleepReading, SleepRequest, SleepState, Sleeper,
    Stream, WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Sim;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

fn range_of(block: &DeviceBlock) -> Range<DevicePtr> {
    block.ptr()..block.ptr().offset(block.granted().get())
}

/// A request to have some blocks sleep, by the tag "some".
fn only(blocks: &[&DeviceBlock], keep_place: bool) -> SleepRequest {
    let blocks = blocks.iter().map(|block| range_of(block)).collect();
    SleepRequest { only: Some(vec![(tag!("some"), blocks)]), keep_place, ..SleepRequest::default() }
}

fn allocate<const N: usize>(rig: &SleepRig, frames: [u64; N], stream: Stream) -> [DeviceBlock; N] {
    frames.map(|frames| rig.pool.allocate(frames * FRAME, 256, stream, tag!("some")).expect("room"))
}

#[test]
fn z14_what_was_freed_asleep_is_not_taken_back_and_its_place_is_given_up() {
    for keep_place in [false, true] {
        let rig = SleepRig::new(1, 16, &PagePool::default(), None);
        let stream = rig.stream();
        let [first, gone, last] = allocate(&rig, [3, 8, 2], stream);
        [&first, &last].into_iter().for_each(|block| rig.fill(block, 7, stream));
        let request = SleepRequest { keep_place, ..SleepRequest::default() };
        let report = rig.pool.sleep(&Heap, &request).expect("asleep");
        assert_eq!(report.released, Bytes(13 * FRAME));
        rig.pool.deallocate(gone, stream).expect("its own");
        // Somebody has all but what the blocks need, and all but the place that is kept.
        let others = Bytes(if keep_place { 3 } else { 11 } * FRAME);
        rig.purse.charge(others).expect("room");
        let woken = rig.pool.wake(&WakeRequest::default()).expect("room for the blocks that are left");
        assert_eq!((woken.taken, woken.restored), (Bytes(5 * FRAME), Bytes(5 * FRAME)));
        rig.purse.release(others);
        rig.assert_charged(Bytes::ZERO);
        [&first, &last].into_iter().for_each(|block| rig.expect(block, 7, stream));
        [first, last].into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
        rig.finish();
    }
}

/// A frame of which a part is in use is taken back as the pages that are, with what they hold.
#[test]
fn z14_pages_of_a_frame_that_nothing_is_in_use_of_are_not_taken_back() {
    let rig = Rig::new(Sim::seeded(3), 64, &PagePool::default());
    let stream = rig.stream();
    let whole = rig.allocate(16 * FRAME, stream);
    let at = whole.ptr();
    let stall = rig.stall(stream);
    rig.free(whole);
    // The stream reuses the frame before its work has run, so it cannot be split.
    let blocks: Vec<_> = (0..16).map(|_| rig.allocate(FRAME, stream)).collect();
    assert!(blocks.iter().all(|block| (at..at.offset(16 * FRAME)).contains(&block.ptr())), "all lie in the frame");
    for (value, block) in blocks.iter().enumerate() {
        rig.fill(block, value as u8, stream);
    }
    let is_kept = |nth: usize| nth % 5 == 1 || nth % 5 == 2;
    let (mut kept, mut before, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, block) in blocks.into_iter().enumerate() {
        match nth {
            _ if is_kept(nth) => kept.push((nth as u8, block)),
            0..8 => before.push(block),
            _ => asleep.push(block),
        }
    }
    before.into_iter().for_each(|block| rig.free(block));
    drop(stall);
    let report = rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    assert_eq!(report.released, Bytes(16 * FRAME), "the frame sleeps whole");
    asleep.into_iter().for_each(|block| rig.free(block));
    let woken = rig.pool.wake(&WakeRequest::default()).expect("awake");
    let bytes = Bytes(kept.len() as u64 * FRAME);
    assert_eq!((woken.taken, woken.restored, rig.pool.held()), (bytes, bytes, bytes));
    kept.iter().for_each(|(value, block)| rig.expect(block, *value, stream));
    // The addresses between are anyone's.
    let more: Vec<_> = (0..40).map(|_| rig.allocate(FRAME, stream)).collect();
    more.iter().for_each(|block| rig.fill(block, 99, stream));
    kept.iter().for_each(|(value, block)| rig.expect(block, *value, stream));
    more.into_iter().chain(kept.into_iter().map(|(_, block)| block)).for_each(|block| rig.free(block));
    rig.finish();
}

/// Pages that do not wake are abandoned, whether or not the rest can wake: others may be put there while the rest sleeps, and are
/// awake.
#[test]
fn z14_addresses_that_nothing_wakes_at_are_used_while_the_rest_sleeps() {
    let rig = SleepRig::new(5, 8, &small(), None);
    let stream = rig.stream();
    let [gone, kept] = allocate(&rig, [4, 4], stream);
    rig.fill(&kept, 3, stream);
    let (gone_at, kept_at) = (range_of(&gone), range_of(&kept));
    rig.pool.sleep(&Heap, &only(&[&gone, &kept], false)).expect("asleep");
    rig.pool.deallocate(gone, stream).expect("its own");
    rig.purse.charge(Bytes(5 * FRAME)).expect("room");
    let refused = rig.pool.wake(&WakeRequest::default()).expect_err("no room for 4");
    assert!(refused.is_capacity(), "{refused}");
    assert_eq!((rig.state(), rig.pool.sleep_reading().asleep), (SleepState::Partly, Bytes(4 * FRAME)));
    rig.purse.release(Bytes(5 * FRAME));
    let fresh: Vec<_> =
        (0..4).map(|_| rig.pool.allocate(FRAME, 256, stream, tag!("fresh")).expect("room for 4")).collect();
    for block in &fresh {
        assert!(!kept_at.contains(&block.ptr()), "that is somebody's");
        rig.context.check_awake(block.ptr()).expect("it is awake");
        rig.fill(block, 9, stream);
    }
    assert!(rig.context.check_awake(kept_at.start).is_err(), "it sleeps");
    assert!(rig.context.check_awake(gone_at.start).is_ok(), "nothing sleeps there any more");
    rig.pool.wake(&WakeRequest::default()).expect("room for 4 and 4");
    rig.expect(&kept, 3, stream);
    fresh.iter().for_each(|block| rig.expect(block, 9, stream));
    fresh.into_iter().chain([kept]).for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.finish();
}

/// A block that reaches into addresses that nothing woke at is freed like any other while the rest sleeps.
#[test]
fn z14_a_block_at_such_addresses_is_freed_while_the_rest_sleeps() {
    let rig = SleepRig::new(9, 16, &small(), None);
    let stream = rig.stream();
    let [beside, before] =
        [FRAME / 2, FRAME / 2].map(|bytes| rig.pool.allocate(bytes, 256, stream, tag!("awake")).expect("room"));
    let [gone, kept] = allocate(&rig, [4, 4], stream);
    let gone_at = range_of(&gone);
    rig.pool.sleep(&Heap, &only(&[&gone, &kept], false)).expect("asleep");
    [gone, before].into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.purse.charge(Bytes(13 * FRAME)).expect("room");
    assert!(rig.pool.wake(&WakeRequest::default()).is_err_and(|refused| refused.is_capacity()));
    for _ in 0..4 {
        // There is room for one at a time, half of it in the page that is free by half.
        let block = rig.pool.allocate(2 * FRAME, 256, stream, tag!("fresh")).expect("room for 2");
        let Range { start, end } = range_of(&block);
        assert!(start < gone_at.start && gone_at.start < end, "it reaches into what was freed");
        rig.pool.deallocate(block, stream).expect("its own");
    }
    rig.purse.release(Bytes(13 * FRAME));
    rig.pool.wake(&WakeRequest::default()).expect("room");
    [beside, kept].into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.finish();
}

/// Whatever of it there is room for, several tags wake together or not at all, whether a limit or the device refuses.
#[test]
fn z7_a_wake_of_several_tags_that_is_refused_wakes_none() {
    for (seed, first, refuses) in [(1, 1, "limit"), (2, 4, "limit"), (3, 1, "device"), (4, 4, "device")] {
        let rig = SleepRig::new(seed, 8, &small(), None);
        let stream = rig.stream();
        let tags = [tag!("one"), tag!("two")];
        let blocks = [(first, tags[0]), (5 - first, tags[1])]
            .map(|(frames, tag)| rig.pool.allocate(frames * FRAME, 256, stream, tag).expect("room"));
        blocks.iter().zip(1..).for_each(|(block, value)| rig.fill(block, value, stream));
        for (block, tag) in blocks.iter().zip(tags) {
            let only = Some(vec![(tag, vec![range_of(block)])]);
            rig.pool.sleep(&Heap, &SleepRequest { only, ..SleepRequest::default() }).expect("asleep");
        }
        match refuses {
            "limit" => rig.purse.charge(Bytes(4 * FRAME)).expect("room"),
            _ => rig.faults.out_of_memory_at(Bytes(4 * FRAME)),
        }
        for only in [vec![], tags.to_vec(), vec![tags[1], tags[0]]] {
            let request = WakeRequest { only, ..WakeRequest::default() };
            assert!(rig.pool.wake(&request).is_err_and(|refused| refused.is_capacity()));
            let reading = rig.pool.sleep_reading();
            assert_eq!((reading.state, reading.asleep), (SleepState::Partly, Bytes(5 * FRAME)), "{request:?}");
            assert!(blocks.iter().all(|block| rig.context.check_awake(block.ptr()).is_err()));
            assert_eq!(rig.pool.held(), Bytes::ZERO);
        }
        rig.pool.wake(&WakeRequest { only: vec![tags[1]], ..WakeRequest::default() }).expect("room for one");
        rig.expect(&blocks[1], 2, stream);
        rig.faults.heal();
        if refuses == "limit" {
            rig.purse.release(Bytes(4 * FRAME));
        }
        rig.pool.wake(&WakeRequest::default()).expect("room");
        rig.expect(&blocks[0], 1, stream);
        blocks.into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
        rig.finish();
    }
}

/// Where there is room for a part only, it is the part that all of the pool needs to be awake.
#[test]
fn z7_what_all_of_the_pool_needs_wakes_before_tags_that_slept_by_themselves() {
    let rig = SleepRig::new(10, 8, &small(), None);
    let stream = rig.stream();
    let [of_a_tag, other] = allocate(&rig, [3, 4], stream);
    rig.pool.sleep(&Heap, &only(&[&of_a_tag], false)).expect("asleep");
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    rig.purse.charge(Bytes(3 * FRAME)).expect("room");
    assert!(rig.pool.wake(&WakeRequest::default()).is_err_and(|refused| refused.is_capacity()));
    assert_eq!((rig.state(), rig.pool.held()), (SleepState::Partly, Bytes(4 * FRAME)));
    rig.context.check_awake(other.ptr()).expect("it is awake");
    rig.purse.release(Bytes(3 * FRAME));
    rig.pool.wake(&WakeRequest::default()).expect("room");
    [of_a_tag, other].into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.finish();
}

/// A block of a tag that is freed while all of the pool sleeps too is in neither's way.
#[test]
fn z14_a_block_that_is_freed_in_two_sleeps_does_not_wake() {
    let rig = SleepRig::new(6, 6, &small(), None);
    let stream = rig.stream();
    let bytes = 2 * FRAME + FRAME / 2;
    let [gone, beside] = [bytes, bytes].map(|bytes| rig.pool.allocate(bytes, 256, stream, tag!("some")).expect("room"));
    rig.fill(&beside, 5, stream);
    let report = rig.pool.sleep(&Heap, &only(&[&gone], false)).expect("asleep");
    assert_eq!((report.released, report.kept), (Bytes(2 * FRAME), Bytes(FRAME / 2)), "they share a page");
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    assert_eq!(rig.pool.held(), Bytes::ZERO);
    rig.pool.deallocate(gone, stream).expect("its own");
    rig.purse.charge(Bytes(3 * FRAME)).expect("room");
    let woken = rig.pool.wake(&WakeRequest::default()).expect("room for 3");
    assert_eq!((woken.taken, rig.state()), (Bytes(3 * FRAME), SleepState::Awake));
    rig.purse.release(Bytes(3 * FRAME));
    rig.expect(&beside, 5, stream);
    let more = allocate(&rig, [1, 1, 1], stream);
    more.iter().for_each(|block| rig.fill(block, 1, stream));
    more.into_iter().chain([beside]).for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.finish();
}

/// Free frames of the part of a pool that is awake go back before a limit refuses the rest, and, with patience, also those that
/// work must have passed first.
#[test]
fn z14_what_is_free_in_the_part_that_is_awake_goes_back_first() {
    for is_pending in [false, true] {
        let rig = SleepRig::new(7, 8, &small(), None);
        let stream = rig.stream();
        let [asleep] = allocate(&rig, [6], stream);
        rig.fill(&asleep, 4, stream);
        rig.pool.sleep(&Heap, &only(&[&asleep], false)).expect("asleep");
        let [meanwhile] = allocate(&rig, [8], stream);
        let stall = is_pending.then(|| rig.stall(stream));
        rig.pool.deallocate(meanwhile, stream).expect("its own");
        if let Some(stall) = stall {
            assert!(rig.pool.wake(&WakeRequest::default()).is_err_and(|refused| refused.is_capacity()));
            let request = WakeRequest { patience: Duration::from_secs(10), ..WakeRequest::default() };
            std::thread::scope(|scope| {
                let waking = scope.spawn(|| rig.pool.wake(&request));
                while rig.state() != SleepState::Moving {
                    std::thread::yield_now();
                }
                drop(stall);
                waking.join().expect("no panic").expect("room once the work has run");
            });
        } else {
            rig.context.synchronize(stream).expect("the device works");
            rig.pool.wake(&WakeRequest::default()).expect("room");
        }
        rig.expect(&asleep, 4, stream);
        rig.pool.deallocate(asleep, stream).expect("its own");
        rig.finish();
    }
}

#[test]
fn z14_what_is_free_in_the_part_that_is_awake_goes_back_before_the_device_refuses() {
    let rig = SleepRig::new(8, 64, &small(), None);
    let stream = rig.stream();
    rig.faults.out_of_memory_at(Bytes(8 * FRAME));
    let [asleep] = allocate(&rig, [6], stream);
    rig.fill(&asleep, 4, stream);
    rig.pool.sleep(&Heap, &only(&[&asleep], false)).expect("asleep");
    let [meanwhile, other] = allocate(&rig, [6, 2], stream);
    rig.pool.deallocate(meanwhile, stream).expect("its own");
    rig.context.synchronize(stream).expect("the device works");
    rig.pool.wake(&WakeRequest::default()).expect("6 are free");
    rig.expect(&asleep, 4, stream);
    [asleep, other].into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
    rig.finish();
}

/// A pool that is never used again, because another replaces it, leaves nothing of its sleep behind.
#[test]
fn z14_a_pool_that_is_retired_asleep_gives_up_its_place_and_its_host_memory_and_sleeps_no_more() {
    for (keep_place, is_tagged) in [(false, false), (true, false), (false, true), (true, true)] {
        let recipe = PagePool::default();
        let rig = SleepRig::new(1, 16, &recipe, None);
        let stream = rig.stream();
        let blocks = allocate(&rig, [3, 8], stream);
        let request = match is_tagged {
            true => only(&blocks.each_ref(), keep_place),
            false => SleepRequest { keep_place, ..SleepRequest::default() },
        };
        rig.pool.sleep(&Heap, &request).expect("asleep");
        assert!(!recipe.retire(), "it has blocks");
        assert_eq!((rig.pool.sleep_reading().asleep, rig.context.sleepers().len()), (Bytes(11 * FRAME), 1));
        blocks.into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
        assert!(recipe.retire());
        assert_eq!(rig.pool.sleep_reading(), SleepReading::default());
        assert!(rig.context.sleepers().is_empty());
        rig.assert_charged(Bytes::ZERO);
        rig.purse.charge(rig.limit).expect("nothing is charged, nor kept");
        rig.purse.release(rig.limit);
    }
}

/// A block that a pool grants can be used, unless another sleep has begun since: one that was asked for asleep is granted once its pool
/// is awake for uses, too.
#[test]
fn z9_a_block_that_is_granted_while_a_pool_wakes_can_be_used() {
    const SLEEPS: u64 = 100;
    let rig = SleepRig::new(1, 64, &PagePool::default(), None);
    let (stream, is_over) = (rig.stream(), AtomicBool::new(false));
    let [begun, asleep, granted] = [0; 3].map(AtomicU64::new);
    let held = rig.pool.allocate(FRAME, 256, stream, tag!("held")).expect("room");
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                // Of a sleep that has begun and is not counted here yet, a grant may be from before.
                let before = asleep.load(SeqCst);
                let Ok(block) = rig.pool.allocate(1000, 256, stream, tag!("asked")) else { continue };
                let is_awake = rig.context.check_awake(block.ptr()).is_ok();
                let has_begun_another = begun.load(SeqCst) != before;
                rig.pool.deallocate(block, stream).expect("its own");
                assert!(is_awake || has_begun_another, "it was granted after sleep {before}, and none has begun since");
                granted.fetch_add(1, SeqCst);
            }
        });
        for _ in 0..SLEEPS {
            begun.fetch_add(1, SeqCst);
            rig.pool.sleep(&Heap, &SleepRequest { discard_all: true, ..SleepRequest::default() }).expect("at rest");
            asleep.fetch_add(1, SeqCst);
            rig.pool.wake(&WakeRequest::default()).expect("room");
            let so_far = granted.load(SeqCst);
            while granted.load(SeqCst) == so_far && !asker.is_finished() {
                std::thread::yield_now();
            }
        }
        is_over.store(true, SeqCst);
    });
    assert!(granted.into_inner() >= SLEEPS);
    rig.pool.deallocate(held, stream).expect("its own");
    rig.finish();
}

/// Memory that is freed of a tag that sleeps, in frames that stayed awake because others share them, is free like any other: it goes back
/// with a trim, and before waking is refused.
#[test]
fn z14_what_is_freed_asleep_in_frames_that_are_awake_goes_back() {
    for wakes in [false, true] {
        let rig = SleepRig::new(11, 8, &small(), None);
        let stream = rig.stream();
        let asleep = rig.pool.allocate(4 * FRAME, 256, stream, tag!("asleep")).expect("room");
        let shared: Vec<_> = (0..4)
            .flat_map(|_| [(tag!("asleep"), FRAME - 4096), (tag!("awake"), 4096)])
            .map(|(tag, bytes)| rig.pool.allocate(bytes, 256, stream, tag).expect("room"))
            .collect();
        let (of_tag, awake): (Vec<_>, Vec<_>) = shared.into_iter().partition(|block| block.tag() == tag!("asleep"));
        rig.fill(&asleep, 5, stream);
        let ranges = of_tag.iter().chain([&asleep]).map(range_of).collect();
        let only = Some(vec![(tag!("asleep"), ranges)]);
        let report = rig.pool.sleep(&Heap, &SleepRequest { only, ..SleepRequest::default() }).expect("asleep");
        assert_eq!((report.released, rig.pool.held()), (Bytes(4 * FRAME), Bytes(4 * FRAME)));
        let at: Vec<_> = of_tag.iter().map(range_of).collect();
        of_tag.into_iter().chain(awake).for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
        rig.purse.charge(Bytes(4 * FRAME)).expect("room");
        if wakes {
            rig.pool.wake(&WakeRequest::default()).expect("4 are free");
            rig.expect(&asleep, 5, stream);
        } else {
            rig.context.synchronize(stream).expect("the device works");
            assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes(4 * FRAME));
            assert_eq!(rig.pool.held(), Bytes::ZERO);
            assert!(
                at.iter().all(|range| rig.context.check_awake(range.start).is_ok()),
                "nothing sleeps there any more"
            );
            let again = rig.pool.allocate(4 * FRAME, 256, stream, tag!("again")).expect("room");
            rig.fill(&again, 1, stream);
            rig.pool.deallocate(again, stream).expect("its own");
        }
        rig.purse.release(Bytes(4 * FRAME));
        rig.pool.wake(&WakeRequest::default()).expect("room");
        rig.expect(&asleep, 5, stream);
        rig.pool.deallocate(asleep, stream).expect("its own");
        rig.finish();
    }
}
