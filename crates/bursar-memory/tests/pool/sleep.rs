//! Pools that sleep: what they give back, what is there again when they wake, and what is refused meanwhile.
#![allow(unsafe_code)]

use crate::common::Purse;
use crate::rig::{FRAME, Rig, small};
use bursar_conformance::sleep::Heap;
use bursar_core::leaf::DeviceFrames;
use bursar_core::{
    Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Holder, HostMemory, HostStore, Layer, Result,
    SleepReading, SleepRequest, SleepState, Sleeper, WakeRequest, interruptible, tag,
};
use bursar_memory::{GlobalDeviceBudget, GlobalDeviceBudgetResource, OnAccount, PagePool, PagePoolResource};
use bursar_sim::Sim;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn asleep(rig: &Rig) -> SleepState {
    rig.pool.sleep_reading().state
}

#[test]
fn z5_blocks_are_where_they_were_and_hold_what_they_held() {
    for seed in 0..8 {
        let rig = Rig::new(Sim::seeded(seed), 64, &PagePool::default());
        let (a, b) = (rig.stream(), rig.stream());
        let large = rig.allocate(5 * FRAME + 1000, a);
        let gone = rig.allocate(3 * FRAME, a);
        let small = rig.allocate(1000, b);
        rig.fill(&large, 7, a);
        rig.fill(&small, 9, b);
        rig.free(gone);
        let held = rig.pool.held();
        let report = rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
        assert_eq!((rig.pool.held(), rig.driver_held(), asleep(&rig)), (Bytes::ZERO, Bytes::ZERO, SleepState::Asleep));
        assert_eq!(rig.budget.charged_bytes(), Bytes::ZERO);
        assert!(report.released <= held && report.saved >= Bytes(5 * FRAME + 2000), "{report:?}");
        assert_eq!(rig.pool.bytes_outstanding(), large.granted().saturating_add(small.granted()));

        let woken = rig.pool.wake(&WakeRequest::default()).expect("awake");
        assert_eq!((woken.taken, woken.restored), (report.released, report.saved));
        assert_eq!((rig.pool.held(), asleep(&rig)), (report.released, SleepState::Awake));
        rig.expect(&large, 7, b);
        rig.expect(&small, 9, a);
        rig.context.synchronize(a).expect("the device works");
        rig.context.synchronize(b).expect("the device works");
        rig.free(large);
        rig.free(small);
        rig.finish();
    }
}

#[test]
fn z9_a_sleeping_pool_refuses_requests_by_name_and_remembers_frees() {
    let rig = Rig::new(Sim::seeded(3), 64, &small());
    let (a, b) = (rig.stream(), rig.stream());
    let [kept, freed, elsewhere] = [rig.allocate(FRAME, a), rig.allocate(1000, a), rig.allocate(3 * FRAME, a)];
    rig.fill(&kept, 1, a);
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    for bytes in [1000, FRAME] {
        let refused = rig.try_allocate(bytes, a).expect_err("it sleeps");
        assert!(matches!(refused, Error::Asleep { is_moving: false, .. }), "{refused}");
        assert!(refused.to_string().contains("asleep"), "{refused}");
    }
    rig.free(freed);
    rig.free_on(elsewhere, b);
    assert_eq!(rig.pool.bytes_outstanding(), kept.granted());
    assert_eq!((rig.pool.held(), asleep(&rig)), (Bytes::ZERO, SleepState::Asleep));
    rig.pool.wake(&WakeRequest::default()).expect("awake");
    rig.expect(&kept, 1, a);
    rig.free(kept);
    rig.context.synchronize(a).expect("the device works");
    rig.pool.trim(Bytes::ZERO);
    assert_eq!(rig.driver_held(), Bytes::ZERO, "what was freed meanwhile is free");
    rig.finish();
}

/// A block that is freed before any driver call of a sleep and a wake, while contents are copied too, is free once it is awake,
/// and others hold what they held.
#[test]
fn z9_a_block_that_is_freed_at_any_moment_of_a_sleep_and_a_wake_is_free_when_it_wakes() {
    let mut freed_asleep = 0;
    for nth in 1.. {
        let (rig, hooked) = Rig::hooked(nth, 64, &small());
        let stream = rig.stream();
        let [kept, freed] = [FRAME / 2, 2 * FRAME + FRAME / 4].map(|bytes| rig.allocate(bytes, stream));
        [&kept, &freed].into_iter().for_each(|block| rig.fill(block, 6, stream));
        let (left, calls) = (Mutex::new(Some(freed)), AtomicU64::new(0));
        let (free, pool) = (Arc::new(left), Arc::downgrade(&rig.pool));
        hooked.set({
            let free = free.clone();
            move |call| {
                if call == "note" || calls.fetch_add(1, SeqCst) + 1 != nth {
                    return;
                }
                let block = free.lock().expect("nobody panics").take();
                if let (Some(pool), Some(block)) = (pool.upgrade(), block) {
                    pool.deallocate(block, stream).expect("its own");
                }
            }
        });
        rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
        freed_asleep += u64::from(free.lock().expect("nobody panics").is_none());
        rig.pool.wake(&WakeRequest::default()).expect("awake");
        rig.expect(&kept, 6, stream);
        let left = free.lock().expect("nobody panics").take();
        let is_over = left.is_some();
        left.into_iter().chain([kept]).for_each(|block| rig.free(block));
        rig.context.synchronize(stream).expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!((rig.pool.bytes_outstanding(), rig.driver_held()), (Bytes::ZERO, Bytes::ZERO), "call {nth}");
        drop(hooked);
        rig.finish();
        if is_over {
            assert!(nth - freed_asleep > 5, "it was freed during the wake too");
            break;
        }
    }
    assert!(freed_asleep > 5, "{freed_asleep} calls of a sleep");
}

#[test]
fn z6_the_charge_is_back_while_a_pool_sleeps_and_nobody_else_gets_its_addresses() {
    let purse = Purse::of(Bytes::mib(64));
    let context = crate::common::context(Sim::seeded(1));
    let (one, other) = (on_purse(&context, &purse), on_purse(&context, &purse));
    let stream = context.create_stream(0).expect("a stream");
    let block = one.allocate(48 << 20, 256, stream, tag!("one")).expect("room");
    assert!(other.allocate(48 << 20, 256, stream, tag!("other")).is_err());
    one.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    assert_eq!(purse.held(), Bytes::ZERO);
    let taken = other.allocate(48 << 20, 256, stream, tag!("other")).expect("room, now that the first sleeps");
    let (first, second) = (block.ptr().0, taken.ptr().0);
    assert!(first + (48 << 20) <= second || second + (48 << 20) <= first);
    let refused = one.wake(&WakeRequest::default()).expect_err("no room");
    assert!(refused.is_capacity(), "{refused}");
    assert_eq!((one.sleep_reading().state, one.held()), (SleepState::Asleep, Bytes::ZERO));
    other.deallocate(taken, stream).expect("its own");
    context.synchronize(stream).expect("the device works");
    other.trim(Bytes::ZERO);
    one.wake(&WakeRequest::default()).expect("room again");
    assert_eq!(purse.held(), one.held());
    one.deallocate(block, stream).expect("its own");
}

/// A pool that pays from a purse, on a context of its own.
fn on_purse(
    context: &Arc<DeviceContext>,
    purse: &Arc<Purse>,
) -> Arc<PagePoolResource<GlobalDeviceBudgetResource<DeviceFrames, OnAccount>>> {
    let budget = GlobalDeviceBudget::shared(purse.clone()).layer(DeviceFrames::new(context.clone()));
    PagePool::default().layer(budget.expect("an account")).expect("addresses")
}

#[test]
fn z8_whoever_keeps_his_place_wakes_without_being_refused_and_others_wait() {
    let purse = Purse::of(Bytes::mib(64));
    let context = crate::common::context(Sim::seeded(2));
    let (one, other) = (on_purse(&context, &purse), on_purse(&context, &purse));
    let stream = context.create_stream(0).expect("a stream");
    let block = one.allocate(48 << 20, 256, stream, tag!("one")).expect("room");
    let request = SleepRequest { keep_place: true, ..SleepRequest::default() };
    one.sleep(&Heap, &request).expect("asleep");
    assert_eq!((purse.held(), one.held()), (Bytes::mib(48), Bytes::ZERO), "the place is kept, the memory is not");
    assert!(other.allocate(32 << 20, 256, stream, tag!("other")).is_err_and(|error| error.is_capacity()));
    one.wake(&WakeRequest::default()).expect("its place");
    assert_eq!((purse.held(), one.held()), (Bytes::mib(48), Bytes::mib(48)), "charged once");

    one.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    let taken = other.allocate(32 << 20, 256, stream, tag!("other")).expect("room");
    let sleeping = one.sleep_reading();
    std::thread::scope(|scope| {
        let waking =
            scope.spawn(|| one.wake(&WakeRequest { patience: Duration::from_secs(60), ..WakeRequest::default() }));
        while one.sleep_reading().state != SleepState::Moving {
            std::thread::yield_now();
        }
        assert_eq!(one.sleep_reading(), SleepReading { state: SleepState::Moving, ..sleeping });
        other.deallocate(taken, stream).expect("its own");
        context.synchronize(stream).expect("the device works");
        other.trim(Bytes::ZERO);
        waking.join().expect("no panic").expect("room in the end");
    });
    assert_eq!(purse.held(), Bytes::mib(48));
    one.deallocate(block, stream).expect("its own");
    drop((one, other));
    assert_eq!(purse.held(), Bytes::ZERO);
}

#[test]
fn z8_a_place_is_kept_under_a_limit_of_ones_own_too() {
    let rig = Rig::new(Sim::seeded(2), 16, &PagePool::default());
    let stream = rig.stream();
    let [kept, other] = [rig.allocate(8 * FRAME, stream), rig.allocate(4 * FRAME, stream)];
    let only = Some(vec![(tag!("kept"), vec![kept.ptr()..kept.ptr().offset(8 * FRAME)])]);
    let request = SleepRequest { only, keep_place: true, ..SleepRequest::default() };
    let report = rig.pool.sleep(&Heap, &request).expect("asleep");
    assert_eq!((report.released, report.kept), (Bytes(8 * FRAME), Bytes::ZERO));
    assert_eq!(rig.pool.sleep_reading().state, SleepState::Partly);
    let more = rig.allocate(4 * FRAME, stream);
    assert!(rig.try_allocate(FRAME, stream).is_err(), "the place is somebody's");
    rig.pool.wake(&WakeRequest { only: vec![tag!("kept")], ..WakeRequest::default() }).expect("its place");
    assert_eq!(rig.budget.charged_bytes(), Bytes(16 * FRAME));
    [kept, other, more].into_iter().for_each(|block| rig.free(block));
    rig.finish();
}

#[test]
fn z5_the_blocks_of_a_tag_sleep_while_others_are_used() {
    for seed in 0..4 {
        let rig = Rig::new(Sim::seeded(seed), 256, &PagePool::default());
        let stream = rig.stream();
        let [first, second, third] = [10 * FRAME + 4096, 1000, 6 * FRAME].map(|bytes| rig.allocate(bytes, stream));
        for (value, block) in [&first, &second, &third].into_iter().enumerate() {
            rig.fill(block, value as u8 + 1, stream);
        }
        let blocks = [&first, &third].map(|block| block.ptr()..block.ptr().offset(block.granted().get())).to_vec();
        let request = SleepRequest { only: Some(vec![(tag!("some"), blocks)]), ..SleepRequest::default() };
        let report = rig.pool.sleep(&Heap, &request).expect("asleep");
        assert!(report.released >= Bytes(15 * FRAME) && report.kept < Bytes(2 * FRAME), "{report:?}");
        rig.expect(&second, 2, stream);
        // What is granted meanwhile lies elsewhere, also where a block that sleeps was freed.
        let (at, len) = (third.ptr().0, third.granted().get());
        rig.free(third);
        let meanwhile: Vec<_> = (1..8).map(|n| rig.allocate(n * FRAME / 2, stream)).collect();
        for block in &meanwhile {
            let (start, end) = (block.ptr().0, block.ptr().0 + block.granted().get());
            assert!(end <= at || at + len <= start, "{block:?}");
            rig.fill(block, 99, stream);
        }
        rig.pool.wake(&WakeRequest::default()).expect("awake");
        rig.expect(&first, 1, stream);
        rig.expect(&second, 2, stream);
        meanwhile.iter().for_each(|block| rig.expect(block, 99, stream));
        meanwhile.into_iter().chain([first, second]).for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// Blocks that sleep already are not kept from it, whether they share frames with others or not.
#[test]
fn z6_what_sleeps_already_is_not_reported_as_kept() {
    let rig = Rig::new(Sim::seeded(5), 256, &PagePool::default());
    let stream = rig.stream();
    let [first, other, second] = [10 * FRAME, 1000, 6 * FRAME + 4096].map(|bytes| rig.allocate(bytes, stream));
    let range = |block: &DeviceBlock| block.ptr()..block.ptr().offset(block.granted().get());
    let request = SleepRequest {
        only: Some(vec![(tag!("some"), vec![range(&first), range(&second)])]),
        ..SleepRequest::default()
    };
    let once = rig.pool.sleep(&Heap, &request).expect("asleep");
    assert!(once.released >= Bytes(15 * FRAME) && once.kept < Bytes(2 * FRAME), "{once:?}");
    let again = rig.pool.sleep(&Heap, &request).expect("asleep");
    assert_eq!((again.released, again.saved, again.kept), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
    rig.pool.wake(&WakeRequest::default()).expect("awake");
    [first, other, second].into_iter().for_each(|block| rig.free(block));
    rig.finish();
}

/// Blocks of two tags in one frame: it goes once both sleep, in one call or two, and comes back with either.
#[test]
fn z6_a_frame_that_only_tags_asleep_share_goes_and_what_slept_before_is_saved() {
    for (together, discard_all) in [(true, false), (false, false), (false, true)] {
        let rig = Rig::new(Sim::seeded(5), 256, &PagePool::default());
        let stream = rig.stream();
        let blocks = [1000, 2000].map(|bytes| rig.allocate(bytes, stream));
        blocks.iter().zip([7, 9]).for_each(|(block, value)| rig.fill(block, value, stream));
        let of = |nth: usize| {
            let tag = [tag!("a"), tag!("b")][nth];
            (tag, vec![blocks[nth].ptr()..blocks[nth].ptr().offset(blocks[nth].granted().get())])
        };
        let held = rig.pool.held();
        let mut request = SleepRequest::default();
        if together {
            request.only = Some(vec![of(0), of(1)]);
        } else {
            request.only = Some(vec![of(0)]);
            let first = rig.pool.sleep(&Heap, &request).expect("asleep");
            assert_eq!((first.released, first.kept), (Bytes::ZERO, blocks[0].granted()));
            request = SleepRequest { only: Some(vec![of(1)]), discard_all, ..SleepRequest::default() };
        }
        let report = rig.pool.sleep(&Heap, &request).expect("asleep");
        assert_eq!((report.released, report.kept, rig.driver_held()), (held, Bytes::ZERO, Bytes::ZERO));
        rig.pool.wake(&WakeRequest { only: vec![tag!("a")], ..WakeRequest::default() }).expect("room");
        rig.expect(&blocks[0], 7, stream);
        let refused = rig.context.check_awake(blocks[1].ptr());
        assert!(matches!(refused, Err(Error::Asleep { .. })), "the other tag sleeps on");
        rig.pool.wake(&WakeRequest { only: vec![tag!("b")], ..WakeRequest::default() }).expect("room");
        assert_eq!(asleep(&rig), SleepState::Awake);
        if !discard_all {
            rig.expect(&blocks[1], 9, stream);
        }
        blocks.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// A store that panics when it is asked for the nth time.
#[derive(Debug)]
struct Panics(AtomicU64);

impl HostStore for Panics {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
        assert!(self.0.fetch_sub(1, SeqCst) > 1, "a store that panics");
        Heap.lend(bytes)
    }
}

#[test]
fn z7_a_pool_is_awake_after_a_store_has_panicked() {
    for nth in [1, 2] {
        let rig = Rig::new(Sim::seeded(nth), 64, &PagePool::default());
        let stream = rig.stream();
        let block = rig.allocate(5 * FRAME, stream);
        rig.fill(&block, 7, stream);
        let held = rig.pool.held();
        let pieces = SleepRequest { piece: Bytes(FRAME), ..SleepRequest::default() };
        rig.pool.sleep(&Panics(AtomicU64::new(nth)), &pieces).expect_err("the store panics");
        assert_eq!((asleep(&rig), rig.pool.held(), rig.budget.charged_bytes()), (SleepState::Awake, held, held));
        // As long as a piece may be.
        let longest = SleepRequest { piece: Bytes(u64::MAX), ..SleepRequest::default() };
        rig.pool.sleep(&Heap, &longest).expect("asleep");
        rig.pool.wake(&WakeRequest::default()).expect("awake");
        rig.expect(&block, 7, stream);
        rig.context.synchronize(stream).expect("the device works");
        rig.free(block);
        rig.finish();
    }
}

/// A place is taken when it is asked for of memory that sleeps without one; where it is refused, the memory sleeps on.
#[test]
fn z8_a_place_is_taken_for_what_sleeps_already() {
    for is_tagged in [false, true] {
        let purse = Purse::of(Bytes(16 * FRAME));
        let context = crate::common::context(Sim::seeded(1));
        let (one, other) = (on_purse(&context, &purse), on_purse(&context, &purse));
        let stream = context.create_stream(0).expect("a stream");
        let block = one.allocate(8 * FRAME, 256, stream, tag!("one")).expect("room");
        let range = block.ptr()..block.ptr().offset(8 * FRAME);
        let only = is_tagged.then(|| vec![(tag!("one"), vec![range])]);
        one.sleep(&Heap, &SleepRequest { only, ..SleepRequest::default() }).expect("asleep");
        let keep = SleepRequest { keep_place: true, ..SleepRequest::default() };
        let taken = other.allocate(12 * FRAME, 256, stream, tag!("other")).expect("room");
        let state = one.sleep_reading();
        assert!(one.sleep(&Heap, &keep).is_err_and(|refused| refused.is_capacity()), "there is no place");
        assert_eq!((one.sleep_reading(), purse.held()), (state, other.held()));
        other.deallocate(taken, stream).expect("its own");
        context.synchronize(stream).expect("the device works");
        other.trim(Bytes::ZERO);
        one.sleep(&Heap, &keep).expect("there is a place");
        assert_eq!(purse.held(), Bytes(8 * FRAME));
        assert!(other.allocate(12 * FRAME, 256, stream, tag!("other")).is_err(), "the place is somebody's");
        one.wake(&WakeRequest::default()).expect("its place");
        one.deallocate(block, stream).expect("its own");
    }
}

/// A tag that keeps its place keeps it in frames, too, that it shares with blocks which fall asleep later without one.
#[test]
fn z8_a_place_is_kept_in_frames_that_fall_asleep_later_with_the_blocks_of_others() {
    let (mine, theirs) = (tag!("mine"), tag!("theirs"));
    for (is_asked_later, is_woken_between, all) in
        [(false, false, false), (true, false, false), (false, true, false), (false, false, true), (true, true, true)]
    {
        let purse = Purse::of(Bytes(FRAME));
        let context = crate::common::context(Sim::seeded(1));
        let (one, other) = (on_purse(&context, &purse), on_purse(&context, &purse));
        let stream = context.create_stream(0).expect("a stream");
        let blocks = [mine, theirs].map(|tag| one.allocate(FRAME / 4, 256, stream, tag).expect("room"));
        let only = |block: &DeviceBlock, keep_place| SleepRequest {
            only: Some(vec![(block.tag(), vec![block.ptr()..block.ptr().offset(block.granted().get())])]),
            keep_place,
            ..SleepRequest::default()
        };
        let sleep = |request: &SleepRequest| one.sleep(&Heap, request).expect("asleep");
        if is_asked_later {
            sleep(&only(&blocks[0], false));
        }
        sleep(&only(&blocks[0], true));
        assert_eq!(one.held(), Bytes(FRAME), "the frame is shared");
        if is_woken_between {
            sleep(&only(&blocks[1], false));
            one.wake(&WakeRequest { only: vec![theirs], ..WakeRequest::default() }).expect("its place");
        }
        sleep(&if all { SleepRequest::default() } else { only(&blocks[1], false) });
        assert_eq!((one.held(), purse.held()), (Bytes::ZERO, Bytes(FRAME)), "the place is kept");
        assert!(other.allocate(FRAME, 256, stream, tag!("other")).is_err(), "the place is somebody's");
        one.wake(&WakeRequest { only: Vec::from_iter((!all).then_some(mine)), ..WakeRequest::default() })
            .expect("its place");
        one.wake(&WakeRequest::default()).expect("it is awake");
        assert_eq!((one.held(), purse.held()), (Bytes(FRAME), Bytes(FRAME)));
        // Once it is awake nothing is kept any more.
        sleep(&SleepRequest::default());
        assert_eq!(purse.held(), Bytes::ZERO);
        one.wake(&WakeRequest::default()).expect("room");
        blocks.into_iter().for_each(|block| one.deallocate(block, stream).expect("its own"));
    }
}

/// A child has copies of the pool's books: what it moved would be its parent's memory.
#[test]
fn z9_a_process_that_was_forked_off_moves_nothing() {
    let rig = Rig::new(Sim::immediate(), 64, &PagePool::default());
    let stream = rig.stream();
    let block = rig.allocate(FRAME, stream);
    // SAFETY: the child uses nothing but the pool, which no other thread knows, and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let slept = rig.pool.sleep(&Heap, &SleepRequest::default());
        let woken = rig.pool.wake(&WakeRequest::default());
        let is_refused =
            slept.is_err_and(|error| error == Error::Forked) && woken.is_err_and(|error| error == Error::Forked);
        // SAFETY: ends this process, which nobody else is in.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: the status is this function's own.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "it was not refused");
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    rig.pool.wake(&WakeRequest::default()).expect("awake");
    rig.free(block);
    rig.finish();
}

/// A tag that no block of the pool has: nobody sleeps by it, and nothing is waited for.
#[test]
fn z5_no_blocks_put_nothing_to_sleep() {
    let rig = Rig::new(Sim::seeded(3), 64, &PagePool::default());
    let stream = rig.stream();
    let block = rig.allocate(FRAME, stream);
    let request = SleepRequest { only: Some(vec![(tag!("nobody's"), Vec::new())]), ..SleepRequest::default() };
    let report = rig.pool.sleep(&Heap, &request).expect("nothing to do");
    assert_eq!((report.released, report.saved, report.kept), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
    assert_eq!(asleep(&rig), SleepState::Awake);
    rig.free(block);
    rig.finish();
}

/// Whoever waits without end for work to run can be called away, and nothing has changed.
#[test]
fn z6_a_sleep_that_is_interrupted_while_it_waits_leaves_everything_awake() {
    let rig = Rig::new(Sim::seeded(3), 64, &PagePool::default());
    let stream = rig.stream();
    let block = rig.allocate(FRAME, stream);
    rig.fill(&block, 7, stream);
    let stall = rig.stall(stream);
    let request = SleepRequest { patience: Duration::MAX, ..SleepRequest::default() };
    let looks = Cell::new(0);
    let is_interrupted = move || looks.replace(looks.get() + 1) >= 3;
    let slept = interruptible(is_interrupted, || rig.pool.sleep(&Heap, &request));
    assert!(matches!(slept, Err(Error::StillInUse { .. })), "{slept:?}");
    assert_eq!(asleep(&rig), SleepState::Awake);
    drop(stall);
    rig.expect(&block, 7, stream);
    rig.free(block);
    rig.finish();
}
