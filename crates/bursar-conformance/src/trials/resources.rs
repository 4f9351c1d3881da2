//! R: the promises of every memory resource.

use crate::StackRig;
use bursar_core::{
    Bytes, DeviceContext, DeviceId, Error, Generation, MAX_ALIGN, MAX_SIZE, RawBlock, RawStream, StreamMisuse, tag,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

super::clauses! {
    Anything: r1_live_blocks_never_overlap_and_keep_their_bytes,
    Anything: r1_alignment_is_honoured_or_refused,
    Anything: r2_the_grant_is_known_beforehand_and_recorded,
    Anything: r2_a_reused_address_gets_a_new_generation,
    Anything: r3_a_foreign_block_comes_back_and_nothing_is_released,
    Anything: r3_raw_blocks_are_looked_up,
    Anything: r4_impossible_sizes_are_refused_and_named,
    Anything: r5_streams_of_others_are_refused,
    Capture: r5_a_captured_stream_is_refused,
    Device: r5_the_per_thread_stream_is_refused_by_name,
    Anything: r5_the_default_stream_is_a_stream_like_any_other,
    Anything: r7_outstanding_is_live_plus_retired_and_released_is_monotone,
    StreamOrder: r7_reap_does_not_wait,
    StreamOrder: r7_a_bounded_wait_ends,
    Lean: r8_completion_is_learned_with_at_most_one_event_in_32_frees,
    StreamOrder: s5_what_was_freed_on_an_adopted_stream_stays_accounted_for,
    Anything: s5_an_adoption_ends_while_a_free_on_it_waits_for_another_that_ends,
    Anything: r9_the_whole_stack_answers_as_one,
    Anything: r10_what_a_stack_shows_does_not_grow_with_what_it_holds,
}

fn r1_live_blocks_never_overlap_and_keep_their_bytes(rig: &StackRig) {
    let blocks: Vec<_> = (1..200u64).map(|n| rig.allocate(n * 37)).collect();
    let mut spans: Vec<_> =
        blocks.iter().map(|block| (block.base().0, block.base().0 + block.granted().get())).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two live blocks overlap");
    assert!(blocks.iter().all(|block| block.ptr().0 % 256 == 0));
    for (n, block) in blocks.iter().enumerate() {
        rig.fill(block, n as u8, rig.stream);
    }
    for (n, block) in blocks.iter().enumerate() {
        assert!(rig.read(block, rig.stream).iter().all(|&byte| byte == n as u8), "block {n} lost its bytes");
    }
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.drain();
}

fn r1_alignment_is_honoured_or_refused(rig: &StackRig) {
    for shift in 0..=21 {
        let align = 1 << shift;
        let block = rig.memory.allocate(1000, align, rig.stream, tag!("aligned")).expect("a legal alignment");
        assert_eq!(block.ptr().0 % align.max(256), 0);
        assert!(block.ptr().0 + 1000 <= block.base().0 + block.granted().get(), "the grant covers the block");
        rig.fill(&block, 1, rig.stream);
        rig.free(block);
    }
    for align in [0, 3, 257, 384, MAX_ALIGN * 2, u64::MAX] {
        let refused = rig.memory.allocate(1000, align, rig.stream, tag!("aligned"));
        assert_eq!(refused.err(), Some(Error::InvalidAlignment { align }));
    }
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r2_the_grant_is_known_beforehand_and_recorded(rig: &StackRig) {
    for (bytes, align) in [(1, 1), (255, 256), (256, 256), (257, 512), (1 << 20, 4096), (12_345, 1 << 21)] {
        let expected = rig.memory.granted_size(bytes, align).expect("a legal request");
        let block = rig.memory.allocate(bytes, align, rig.stream, tag!("granted")).expect("there is room");
        assert_eq!(rig.memory.granted_size(bytes, align), Ok(expected), "pure");
        assert_eq!(block.granted(), expected);
        assert_eq!(block.requested(), Bytes(bytes));
        assert_eq!((block.device(), block.stream(), block.tag()), (rig.context.device(), rig.stream, tag!("granted")));
        assert_eq!(rig.outstanding(), expected);
        rig.free(block);
        rig.drain();
    }
}

/// No driver promises when it reuses an address, so this goes on until one was reused; all drivers do so long before the
/// bound.
fn r2_a_reused_address_gets_a_new_generation(rig: &StackRig) {
    const ROUNDS_MAX: usize = 4096;
    let (mut lives, mut addresses) = (HashSet::new(), HashSet::new());
    let mut reused = 0;
    for round in 0.. {
        let block = rig.allocate(4096);
        assert!(lives.insert(block.generation()), "a generation came twice");
        reused += usize::from(!addresses.insert(block.ptr()));
        rig.free(block);
        rig.drain();
        if reused >= 8 {
            break;
        }
        assert!(round < ROUNDS_MAX, "{reused} addresses came again in {round} rounds: nothing was shown");
    }
}

fn r3_a_foreign_block_comes_back_and_nothing_is_released(rig: &StackRig) {
    let other = rig.stack.build(&rig.context).expect("a second stack");
    let block = rig.allocate(1000);
    let (ptr, released, outstanding) = (block.ptr(), rig.memory.released_total(), rig.outstanding());
    let refused = other.deallocate(block, rig.stream).expect_err("not its block");
    assert_eq!(refused.error, Error::ForeignBlock { device: rig.context.device(), ptr });
    assert_eq!((rig.memory.released_total(), rig.outstanding()), (released, outstanding));
    assert_eq!(other.bytes_outstanding(), Bytes::ZERO);
    rig.free(refused.block);
}

fn r3_raw_blocks_are_looked_up(rig: &StackRig) {
    let lent = rig.context.lent();
    let raw = lent.lend(rig.allocate(1000));
    let block = lent.take_back(raw).expect("lent above");
    assert!(matches!(lent.take_back(raw), Err(Error::UseAfterFree { ptr, .. }) if ptr == raw.ptr), "came back twice");
    let stranger = RawBlock { ptr: raw.ptr.offset(256), ..raw };
    assert!(matches!(lent.take_back_at(stranger.ptr), Err(Error::ForeignBlock { .. })), "never lent");
    rig.free(block);
    let newer = lent.lend(rig.allocate(1000));
    let outstanding = rig.outstanding();
    for generation in [raw.generation, Generation::next()] {
        let ptr = newer.ptr;
        match lent.take_back(RawBlock { ptr, generation }) {
            Err(Error::UseAfterFree { ptr: told, generation: of, .. }) => assert_eq!((told, of), (ptr, generation)),
            other => panic!("another life of the address: {other:?}"),
        }
    }
    assert_eq!((lent.len(), rig.outstanding()), (1, outstanding), "the live one is not touched");
    rig.free(lent.take_back(newer).expect("lent above"));
    assert!(lent.is_empty());
}

fn r4_impossible_sizes_are_refused_and_named(rig: &StackRig) {
    let refused =
        rig.memory.allocate(MAX_SIZE / 2, 256, rig.stream, tag!("too much")).expect_err("no device has as much");
    assert!(refused.is_capacity(), "{refused}");
    for requested in [0, MAX_SIZE + 1, 1 << 63, u64::MAX, u64::MAX - 255, u64::MAX - (1 << 20)] {
        let align = if requested == 0 { 256 } else { MAX_ALIGN };
        let refused = rig.memory.allocate(requested, align, rig.stream, tag!("impossible")).expect_err("impossible");
        assert_eq!(refused, Error::InvalidSize { requested });
        assert_eq!(rig.memory.granted_size(requested, align), Err(refused));
    }
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r5_streams_of_others_are_refused(rig: &StackRig) {
    let driver = rig.context.driver().clone();
    let elsewhere = DeviceId(driver.device_count() - 1);
    let other = DeviceContext::open(driver, elsewhere).expect("a device");
    let stream = other.create_stream(0).expect("a stream");
    let expected = if elsewhere == rig.context.device() {
        StreamMisuse::OtherContext
    } else {
        StreamMisuse::OtherDevice { device: elsewhere }
    };
    for stream in [stream, other.default_stream()] {
        match rig.memory.allocate(1000, 256, stream, tag!("misused")) {
            Err(Error::StreamMisuse { why, .. }) => assert_eq!(why, expected),
            other => panic!("{other:?}"),
        }
    }
    let refused = rig.memory.deallocate(rig.allocate(1000), stream).expect_err("not its stream");
    assert!(matches!(refused.error, Error::StreamMisuse { .. }));
    rig.free(refused.block);
}

fn r5_a_captured_stream_is_refused(rig: &StackRig) {
    let set_capturing = rig.set_capturing.as_ref().expect("the driver captures");
    let raw = rig.context.resolve(rig.stream).expect("live");
    let block = rig.allocate(1000);
    set_capturing(rig.context.device(), raw, true);
    let refused = rig.memory.allocate(1000, 256, rig.stream, tag!("captured")).expect_err("captured");
    assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }));
    let refused = rig.memory.deallocate(block, rig.stream).expect_err("captured");
    assert!(matches!(refused.error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }));
    set_capturing(rig.context.device(), raw, false);
    rig.free(refused.block);
}

fn r5_the_per_thread_stream_is_refused_by_name(rig: &StackRig) {
    let refused = adopt(rig, RawStream::PER_THREAD).expect_err("a different stream on each thread");
    assert!(refused.to_string().contains("CU_STREAM_PER_THREAD"));
}

#[allow(unsafe_code)]
fn adopt(rig: &StackRig, raw: RawStream) -> bursar_core::Result<bursar_core::AdoptedStream> {
    // SAFETY: callers give default streams, or streams that they destroy after the adoption has ended.
    unsafe { rig.context.adopt_stream(raw) }
}

fn r5_the_default_stream_is_a_stream_like_any_other(rig: &StackRig) {
    let default = rig.context.default_stream();
    let block = rig.allocate_on(1000, default);
    rig.fill(&block, 9, default);
    assert_eq!(rig.read(&block, default), [9; 1000]);
    rig.free_on(block, default);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r7_outstanding_is_live_plus_retired_and_released_is_monotone(rig: &StackRig) {
    let mut released = rig.memory.released_total();
    let (mut granted, mut live) = (0u64, Vec::new());
    for step in 0..200u64 {
        let block = rig.allocate(1 + step * 113 % 5000);
        granted += block.granted().get();
        live.push(block);
        if step % 3 != 0 {
            let block = live.swap_remove((step as usize * 7) % live.len());
            rig.free(block);
        }
        if step % 5 == 0 {
            rig.memory.reap().expect("the device works");
        }
        let now = rig.memory.released_total();
        assert!(now >= released, "released_total went back");
        released = now;
        assert_eq!(rig.outstanding().get(), granted - released);
        let live: u64 = live.iter().map(|block| block.granted().get()).sum();
        assert!(rig.outstanding().get() >= live, "a live block is not counted");
    }
    live.into_iter().for_each(|block| rig.free(block));
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
    assert_eq!(rig.memory.released_total(), granted);
}

fn r7_reap_does_not_wait(rig: &StackRig) {
    let block = rig.allocate(1 << 20);
    let granted = block.granted();
    let stall = rig.stall(rig.stream);
    rig.fill(&block, 1, rig.stream);
    rig.free(block);
    for _ in 0..100 {
        assert_eq!(rig.memory.reap(), Ok(Bytes::ZERO));
    }
    assert_eq!(rig.outstanding(), granted, "the stream has not passed the free");
    drop(stall);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r7_a_bounded_wait_ends(rig: &StackRig) {
    let block = rig.allocate(1 << 20);
    let stall = rig.stall(rig.stream);
    rig.free(block);
    assert_eq!(rig.memory.reap_blocking(Duration::from_millis(1)), Ok(Bytes::ZERO));
    drop(stall);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r8_completion_is_learned_with_at_most_one_event_in_32_frees(rig: &StackRig) {
    use bursar_sim::Call;
    let before = rig.faults.calls(Call::EventRecord);
    let stall = rig.stall(rig.stream);
    for _ in 0..320 {
        let block = rig.allocate(256);
        rig.free(block);
    }
    let recorded = rig.faults.calls(Call::EventRecord) - before;
    assert!((1..=10).contains(&recorded), "{recorded} events for 320 frees");
    drop(stall);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

#[allow(unsafe_code)]
fn s5_what_was_freed_on_an_adopted_stream_stays_accounted_for(rig: &StackRig) {
    let (driver, device) = (rig.context.driver().clone(), rig.context.device());
    let raw = driver.stream_create(device, 0).expect("a stream of somebody else");
    let adopted = adopt(rig, raw).expect("room");
    let stream = adopted.stream();
    let block = rig.allocate_on(1 << 20, stream);
    rig.fill(&block, 1, stream);
    let stall = rig.stall(stream);
    rig.free_on(block, stream);
    drop(adopted);
    assert!(matches!(
        rig.memory.allocate(256, 256, stream, tag!("late")),
        Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. })
    ));
    assert_ne!(rig.outstanding(), Bytes::ZERO, "the free has not run");
    drop(stall);
    // SAFETY: the stream was made above and its adoption has ended.
    unsafe { driver.stream_destroy(device, raw) }.expect("the device works");
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

/// A free that waits for the end of one adoption must not keep another from ending: they might wait for each other.
#[allow(unsafe_code)]
fn s5_an_adoption_ends_while_a_free_on_it_waits_for_another_that_ends(rig: &StackRig) {
    let (driver, device) = (rig.context.driver().clone(), rig.context.device());
    let raws = [(); 2].map(|()| driver.stream_create(device, 0).expect("a stream of somebody else"));
    let [frees, home] = raws.map(|raw| adopt(rig, raw).expect("room"));
    let (frees_on, allocated_on) = (frees.stream(), home.stream());
    let (block, memory, is_freeing) = (rig.allocate_on(1000, allocated_on), &*rig.memory, &AtomicBool::new(false));
    let held = rig.context.hold(allocated_on).expect("adopted");
    let freed = std::thread::scope(|scope| {
        scope.spawn(move || drop(home));
        while rig.context.hold(allocated_on).is_ok() {
            std::thread::yield_now();
        }
        let freed = scope.spawn(move || {
            is_freeing.store(true, SeqCst);
            memory.deallocate(block, frees_on)
        });
        while !is_freeing.load(SeqCst) {
            std::thread::yield_now();
        }
        (0..100).for_each(|_| std::thread::yield_now());
        drop(frees);
        drop(held);
        freed.join().expect("no panic")
    });
    if let Err(refused) = freed {
        assert!(matches!(refused.error, Error::StreamMisuse { why: StreamMisuse::Ended, .. }), "{}", refused.error);
        rig.free_on(refused.block, rig.stream);
    }
    for raw in raws {
        // SAFETY: the stream was made above and its adoption has ended.
        unsafe { driver.stream_destroy(device, raw) }.expect("the device works");
    }
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn r9_the_whole_stack_answers_as_one(rig: &StackRig) {
    assert_eq!(rig.memory.context().device(), rig.context.device());
    assert!(rig.memory.tracks_use());
    let block = rig.allocate(5000);
    assert_eq!(rig.outstanding(), block.granted());
    rig.free(block);
    rig.drain();
    assert_eq!(rig.memory.released_total(), rig.memory.granted_size(5000, 256).expect("legal").get());
}

/// Returns the number of blocks that are live meanwhile: fewer on a driver that checks every access.
fn many(rig: &StackRig) -> u64 {
    if rig.context.driver().listens() { 400 } else { 3000 }
}

fn r10_what_a_stack_shows_does_not_grow_with_what_it_holds(rig: &StackRig) {
    let mut blocks: Vec<_> = (0..many(rig)).map(|nth| rig.allocate(1 + nth % 700)).collect();
    for freed in blocks.extract_if(.., |block| block.ptr().0 / 256 % 2 == 0) {
        rig.free(freed);
    }
    for (what, shown) in [("stack", format!("{:?}", rig.memory)), ("context", format!("{:?}", rig.context))] {
        assert!(shown.len() < 1500, "the {what} takes {} characters", shown.len());
    }
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.drain();
}
