//! P6 and P7: streams that end, and blocks that are not the pool's.
#![allow(unsafe_code)]

use crate::rig::{FRAME, Rig, small};
use bursar_core::leaf::DirectMemory;
use bursar_core::{
    AdoptedStream, BlockParts, Bytes, DeviceBlock, DeviceMemoryResource, Driver, Error, Gate, Holder, Layer, OwnerId,
    RawStream, tag,
};
use bursar_memory::GlobalDeviceBudgetResource;
use bursar_sim::Sim;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

/// A stream of somebody else, adopted.
fn adopt(rig: &Rig) -> (AdoptedStream, RawStream) {
    let raw = rig.sim.stream_create(rig.context.device(), 0).expect("a stream of somebody else");
    // SAFETY: the stream is destroyed by `end`, after its adoption has ended.
    (unsafe { rig.context.adopt_stream(raw) }.expect("room"), raw)
}

/// Ends an adoption, and the stream.
fn end(rig: &Rig, (adopted, raw): (AdoptedStream, RawStream)) {
    drop(adopted);
    // SAFETY: made by `adopt`, and its adoption has ended.
    unsafe { rig.sim.stream_destroy(rig.context.device(), raw) }.expect("the device works");
}

const SMALL: u64 = 30_000;

/// Blocks of both kinds, in magazines and in the stream's lane, all of them used and freed on it.
fn use_up(rig: &Rig, adopted: &AdoptedStream) {
    let stream = adopted.stream();
    let mut blocks: Vec<_> = (0..20).map(|_| rig.allocate(SMALL, stream)).collect();
    while let Ok(block) = rig.try_allocate(FRAME, stream) {
        blocks.push(block);
    }
    blocks.iter().for_each(|block| rig.fill(block, 1, stream));
    blocks.into_iter().for_each(|block| rig.free(block));
}

#[test]
fn p6_what_was_free_on_a_stream_that_ends_can_be_had_elsewhere() {
    for seed in 0..50 {
        let rig = Rig::new(Sim::seeded(seed), 8, &small());
        let stream = rig.stream();
        for round in 0..4 {
            let adopted = adopt(&rig);
            use_up(&rig, &adopted.0);
            end(&rig, adopted);
            let all = rig.allocate(8 * FRAME, stream);
            rig.fill(&all, 2, stream);
            assert_eq!(rig.pool.cached(), Bytes::ZERO, "seed {seed}, round {round}: all of it is here");
            rig.free(all);
        }
        rig.finish();
    }
}

#[test]
fn p6_what_other_threads_keep_for_a_stream_that_ends_is_not_stranded() {
    for seed in 0..50 {
        let rig = Rig::new(Sim::seeded(seed), 8, &small());
        let stream = rig.stream();
        let adopted = adopt(&rig);
        std::thread::scope(|scope| {
            let (rig, theirs) = (&rig, adopted.0.stream());
            scope.spawn(move || {
                let blocks: Vec<_> = (0..20).map(|_| rig.allocate(SMALL, theirs)).collect();
                blocks.iter().for_each(|block| rig.fill(block, 1, theirs));
                blocks.into_iter().for_each(|block| rig.free(block));
            });
        });
        end(&rig, adopted);
        let all = rig.allocate(8 * FRAME, stream);
        rig.fill(&all, 2, stream);
        rig.free(all);
        rig.finish();
    }
}

#[test]
fn p6_a_block_outlives_the_stream_it_was_allocated_on() {
    for seed in 0..50 {
        let rig = Rig::new(Sim::seeded(seed), 8, &small());
        let (stream, other) = (rig.stream(), rig.stream());
        let adopted = adopt(&rig);
        let block = rig.allocate(8 * FRAME, adopted.0.stream());
        rig.fill(&block, 1, adopted.0.stream());
        end(&rig, adopted);
        let next = adopt(&rig);
        rig.free_on(block, stream);
        let again = rig.allocate(8 * FRAME, other);
        rig.fill(&again, 2, other);
        rig.free(again);
        end(&rig, next);
        rig.finish();
    }
}

/// Streams end and others take their places while magazines are emptied: what was freed on one is never the next one's
/// without an order, and nothing is left where no stream is.
#[test]
fn p6_streams_may_end_while_magazines_are_emptied() {
    for seed in 0..6 {
        let rig = Rig::new(Sim::seeded(seed), 16, &small());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (rig, done) = (&rig, &done);
            let trimming = scope.spawn(move || {
                while !done.load(SeqCst) {
                    rig.pool.trim(Bytes::ZERO);
                }
            });
            for _ in 0..300 {
                let adopted = adopt(rig);
                let stream = adopted.0.stream();
                let blocks: Vec<_> = (0..4).map(|_| rig.allocate(SMALL, stream)).collect();
                blocks.iter().for_each(|block| rig.fill(block, 1, stream));
                blocks.into_iter().for_each(|block| rig.free(block));
                end(rig, adopted);
            }
            done.store(true, SeqCst);
            trimming.join().expect("no panic");
        });
        rig.sim.settle();
        rig.pool.reap().expect("the device works");
        assert_eq!(rig.pool.pending(), Bytes::ZERO, "seed {seed}: nothing lies where no stream is");
        rig.finish();
    }
}

/// One thread ends a stream; before what it was given is in order, another frees a block of it.
#[test]
fn p6_a_free_comes_after_a_stream_that_is_just_ending() {
    let (rig, hooked) = Rig::hooked(1, 8, &small());
    let stream = rig.stream();
    let adopted = adopt(&rig);
    let block = rig.allocate(8 * FRAME, adopted.0.stream());
    rig.fill(&block, 1, adopted.0.stream());
    let (entered, leave, ender) = (Gate::default(), Gate::default(), Arc::new(OnceLock::<ThreadId>::new()));
    let (has_entered, may_leave, who) = (entered.clone(), leave.clone(), ender.clone());
    hooked.set(move |call| {
        if call == "event_record" && who.get() == Some(&std::thread::current().id()) {
            has_entered.open();
            may_leave.wait();
        }
    });
    std::thread::scope(|scope| {
        let (rig, ender) = (&rig, &ender);
        scope.spawn(move || {
            ender.set(std::thread::current().id()).expect("the first");
            end(rig, adopted);
        });
        entered.wait();
        let freeing = scope.spawn(move || {
            rig.free_on(block, stream);
            let again = rig.allocate(8 * FRAME, stream);
            rig.fill(&again, 2, stream);
            rig.free(again);
        });
        // It waits, or else it is wrong and soon done.
        for _ in 0..10_000 {
            if freeing.is_finished() {
                break;
            }
            std::thread::yield_now();
        }
        leave.open();
        freeing.join().expect("no panic");
    });
    drop(hooked);
    rig.finish();
}

#[test]
fn p7_a_block_of_somebody_else_comes_back() {
    let rig = Rig::new(Sim::seeded(1), 8, &small());
    let stream = rig.stream();
    let other = small()
        .layer(GlobalDeviceBudgetResource::new(
            bursar_core::leaf::DeviceFrames::new(rig.context.clone()),
            Bytes(8 * FRAME),
        ))
        .expect("addresses are plenty");
    let direct = DirectMemory::new(rig.context.clone());
    let (pooled, plain) = (
        other.allocate(1000, 256, stream, tag!("theirs")).expect("there is room"),
        direct.allocate(1000, 256, stream, tag!("theirs")).expect("there is room"),
    );
    let mine = rig.allocate(1000, stream);
    let before = (rig.pool.bytes_outstanding(), rig.pool.cached());
    let pooled = refuse(&rig, pooled);
    let plain = refuse(&rig, plain);
    assert_eq!((rig.pool.bytes_outstanding(), rig.pool.cached()), before);
    other.deallocate(pooled, stream).expect("its own");
    direct.deallocate(plain, stream).expect("its own");
    let mine = other.deallocate(mine, stream).expect_err("not that pool's").block;
    rig.free(mine);
    drop((other, direct));
    rig.finish();
}

fn refuse(rig: &Rig, block: DeviceBlock) -> DeviceBlock {
    let (ptr, stream) = (block.ptr(), block.stream());
    let refused = rig.pool.deallocate(block, stream).expect_err("not one of the pool's");
    assert_eq!(refused.error, Error::ForeignBlock { device: rig.context.device(), ptr });
    refused.block
}

/// Tokens that are wrong in one thing, as those from beyond a raw boundary may be.
#[test]
fn p7_sizes_and_addresses_are_checked() {
    let rig = Rig::new(Sim::seeded(2), 8, &small());
    let stream = rig.stream();
    let block = rig.allocate(4096, stream);
    let (ptr, owner) = (block.ptr(), block.owner());
    let before = (rig.pool.bytes_outstanding(), rig.pool.cached());
    let forge = |ptr, granted, owner| {
        let parts = BlockParts { ptr, requested: granted, granted, tag: tag!("forged"), owner, offset: 0 };
        // SAFETY: broken on purpose, to be refused; the token is never used.
        unsafe { DeviceBlock::from_parts(parts, stream) }
    };
    for (ptr, granted) in [(ptr.offset(1), 4096), (ptr, 4095), (ptr, 0), (bursar_core::DevicePtr(4096), FRAME)] {
        drop(refuse(&rig, forge(ptr, granted, owner)));
    }
    drop(refuse(&rig, forge(ptr, 4096, OwnerId::unique())));
    assert_eq!((rig.pool.bytes_outstanding(), rig.pool.cached()), before);
    rig.free(block);
    rig.finish();
}

/// A second free of the same block, as a raw boundary could bring it, changes nothing.
#[test]
fn p7_what_is_free_already_is_not_freed_again() {
    let rig = Rig::new(Sim::seeded(3), 8, &small());
    let (a, b) = (rig.stream(), rig.stream());
    let (first, neighbour) = (rig.allocate(FRAME, a), rig.allocate(FRAME, b));
    assert_eq!(first.ptr().offset(FRAME), neighbour.ptr());
    let (ptr, owner) = (first.ptr(), first.owner());
    let stall = rig.stall(a);
    rig.free(first);
    rig.free(neighbour);
    rig.context.synchronize(b).expect("the device works");
    rig.pool.reap().expect("the device works");
    let before = (rig.pool.bytes_outstanding(), rig.pool.cached(), rig.pool.pending());
    let parts = BlockParts { ptr, requested: FRAME, granted: FRAME, tag: tag!("twice"), owner, offset: 0 };
    // SAFETY: broken on purpose, to be refused; the token is never used.
    let twice = unsafe { DeviceBlock::from_parts(parts, a) };
    let refused = rig.pool.deallocate(twice, a).expect_err("it is free");
    assert!(matches!(refused.error, Error::UseAfterFree { .. }), "{}", refused.error);
    assert_eq!((rig.pool.bytes_outstanding(), rig.pool.cached(), rig.pool.pending()), before);
    drop(stall);
    assert_eq!(rig.sim.take_hazards().len(), 1, "the simulator was told of both frees");
    rig.finish();
}

/// What was freed on a stream that is being captured waits until that is over: nothing may be asked of it meanwhile.
#[test]
fn p6_a_stream_that_is_being_captured_is_left_alone() {
    let rig = Rig::new(Sim::seeded(1), 64, &small());
    let (a, b) = (rig.stream(), rig.stream());
    rig.free(rig.allocate(4 * FRAME, a));
    let raw = rig.context.resolve(a).expect("live");
    rig.sim.begin_capture(rig.context.device(), raw).expect("not captured yet");
    let block = rig.allocate(2 * FRAME, b);
    rig.pool.trim(Bytes::ZERO);
    rig.pool.reap().expect("the device works");
    rig.sim.end_capture(rig.context.device(), raw).expect("nothing has spoilt the capture");
    rig.free(block);
    rig.finish();
}

/// A call that has begun on an adopted stream comes to its end, however far another thread is with ending the adoption: a
/// driver that listens hears of the block, and of its free.
#[test]
fn p6_a_call_that_meets_the_end_of_its_stream_is_told_to_the_driver() {
    for meets_free in [false, true] {
        let (rig, hooked) = Rig::hooked(7, 8, &small());
        let (adopted, raw) = adopt(&rig);
        let stream = adopted.stream();
        let (ending, ended, notes) =
            (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
        let (next, thread, heard, context) =
            (ending.clone(), ended.clone(), notes.clone(), Arc::downgrade(&rig.context));
        hooked.set(move |call| match call {
            "note" => _ = heard.fetch_add(1, SeqCst),
            // The first call that is made while the stream is held.
            "stream_is_capturing" => {
                let Some(adopted) = next.lock().expect("no panic").take() else { return };
                let drops = std::thread::spawn(move || drop::<AdoptedStream>(adopted));
                *thread.lock().expect("no panic") = Some(drops);
                let context = context.upgrade().expect("the call is its own");
                while context.hold(stream).is_ok() {
                    std::thread::yield_now();
                }
            }
            _ => {}
        });
        let end_with_next_call = |adopted| *ending.lock().expect("no panic") = Some(adopted);
        let block = match meets_free {
            true => {
                let block = rig.allocate(FRAME, stream);
                end_with_next_call(adopted);
                rig.pool.deallocate(block, stream).expect("it had begun");
                None
            }
            false => {
                end_with_next_call(adopted);
                Some(rig.pool.allocate(FRAME, 256, stream, tag!("meets the end")).expect("it had begun"))
            }
        };
        assert_eq!(notes.load(SeqCst), 1 + u64::from(meets_free), "the driver knows");
        let thread = ended.lock().expect("no panic").take().expect("the adoption ended meanwhile");
        thread.join().expect("no panic");
        let heir = rig.context.heir().expect("a stream");
        block.into_iter().for_each(|block| rig.pool.deallocate(block, heir).expect("its own"));
        // SAFETY: its adoption has ended.
        unsafe { rig.sim.stream_destroy(rig.context.device(), raw) }.expect("the simulator works");
        rig.finish();
    }
}
