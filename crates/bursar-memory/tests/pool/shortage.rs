//! P4: what is done before a request is refused, and what the refusal says.

use crate::hooked::Hooked;
use crate::rig::{FRAME, Rig, small};
use bursar_core::leaf::DeviceFrames;
use bursar_core::{
    Advice, Build, Bytes, DeviceMemoryResource, Error, Holder, Holding, Layer, Shortage, Stack, leaf, tag,
};
use bursar_memory::Statistics;
use bursar_sim::{Faults, Sim};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn shortage(refused: Error) -> Shortage {
    refused.shortage().cloned().unwrap_or_else(|| panic!("a refusal explains itself: {refused:?}"))
}

/// Frees every second of six blocks of one frame while their stream is stalled; returns the others.
fn free_every_second(rig: &Rig, stream: bursar_core::Stream) -> Vec<bursar_core::DeviceBlock> {
    let blocks: Vec<_> = (0..6).map(|_| rig.allocate(FRAME, stream)).collect();
    let mut live = Vec::new();
    for (nth, block) in blocks.into_iter().enumerate() {
        if nth % 2 == 0 {
            live.push(block);
            continue;
        }
        rig.fill(&block, 1, stream);
        rig.free(block);
    }
    live
}

/// The gate opens when the request asks about it again and again: it waits then.
#[test]
fn p4_a_pending_free_is_waited_for_and_then_granted() {
    let rig = Rig::new(Sim::seeded(1), 6, &small().patience(Duration::from_secs(600)));
    let (a, b) = (rig.stream(), rig.stream());
    let stall = rig.stall(a);
    let live = free_every_second(&rig, a);
    let (rig, stall, before) = (&rig, &stall, rig.faults.total_calls());
    let block = std::thread::scope(|scope| {
        let waits = scope.spawn(move || rig.allocate(3 * FRAME, b));
        while !waits.is_finished() && rig.faults.total_calls() < before + 100 {
            std::thread::yield_now();
        }
        stall.open();
        waits.join().expect("granted")
    });
    rig.fill(&block, 2, b);
    assert_eq!(rig.driver_held(), Bytes(6 * FRAME));
    live.into_iter().chain([block]).for_each(|block| rig.free(block));
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    rig.sim.assert_clean();
}

#[test]
fn p4_a_refusal_says_how_it_stands() {
    let statistics = Statistics::default();
    let faults = Faults::new(Sim::seeded(2));
    let context = crate::common::context(faults.clone());
    let recipe = small().patience(Duration::from_millis(1));
    let limit = bursar_memory::GlobalDeviceBudget::of(Bytes(10 * FRAME));
    let stack = Stack::new().observe(statistics).layer(recipe).layer(limit).over(leaf::Frames);
    let memory = stack.build(&context).expect("a stack");
    let (a, b) = (context.create_stream(0).expect("a stream"), context.create_stream(0).expect("a stream"));
    let weights: Vec<_> =
        (0..3).map(|_| memory.allocate(2 * FRAME, 256, a, tag!("weights")).expect("there is room")).collect();
    let batch = memory.allocate(FRAME, 256, a, tag!("batch")).expect("there is room");
    let done = memory.allocate(FRAME, 256, b, tag!("done")).expect("there is room");
    let [first, second, third]: [_; 3] = weights.try_into().expect("three");
    let stall = crate::common::stall(&faults, &context, a);
    memory.deallocate(second, a).expect("its own");
    memory.deallocate(done, b).expect("its own");
    let free = context.driver().memory(context.device()).expect("the device works").free;
    let refused = shortage(memory.allocate(5 * FRAME, 256, b, tag!("too much")).expect_err("five are in use"));
    assert_eq!((refused.device, refused.requested), (context.device(), Bytes(5 * FRAME)));
    // The frame that was done with went back to the driver before the last attempt.
    assert_eq!(refused.free, Some(Bytes(free.get() + FRAME)));
    assert_eq!((refused.limit, refused.held), (Some(Bytes(10 * FRAME)), Some(Bytes(7 * FRAME))));
    assert_eq!((refused.cached, refused.pending), (Some(Bytes(2 * FRAME)), Some(Bytes(2 * FRAME))));
    assert_eq!(refused.largest_free_run, Some(Bytes(2 * FRAME)));
    let holders = [
        Holding { tag: tag!("weights"), bytes: Bytes(4 * FRAME), blocks: 2 },
        Holding { tag: tag!("batch"), bytes: Bytes(FRAME), blocks: 1 },
    ];
    assert_eq!(refused.holders, holders);
    assert_eq!(refused.advice, Advice::Wait, "two frames are missing, and two are pending");
    drop(stall);
    context.synchronize(a).expect("the device works");
    let granted = memory.allocate(5 * FRAME, 256, b, tag!("enough")).expect("now it fits");
    for block in [first, third, batch, granted] {
        let stream = block.stream();
        memory.deallocate(block, stream).expect("its own");
    }
}

/// The numbers are those of the whole request, however many frames it was to be made of.
#[test]
fn p4_what_is_missing_is_said_of_the_whole_request() {
    let recipe = small().patience(Duration::ZERO);
    let limited = Rig::new(Sim::seeded(3), 32, &recipe);
    let device = Rig::new(Sim::builder().seed(3).device(Bytes(32 * FRAME)).build(), 1000, &recipe);
    for rig in [limited, device] {
        let stream = rig.stream();
        let held = rig.allocate(30 * FRAME, stream);
        let error = rig.try_allocate(16 * FRAME, stream).expect_err("two are left");
        let refused = shortage(error.clone());
        assert_eq!(refused.requested, Bytes(16 * FRAME));
        assert_eq!(refused.free, Some(rig.driver_free()));
        let (requested, room) = match error {
            Error::OutOfBudget { requested, remaining, .. } => (requested, remaining),
            Error::OutOfMemory { requested, free, .. } => (requested, free),
            ref other => panic!("{other}"),
        };
        assert_eq!((requested, room), (Bytes(16 * FRAME), Bytes(2 * FRAME)), "{error}");
        assert_eq!(refused.advice, Advice::AtLeast { missing: Bytes(14 * FRAME), listed: None });
        rig.free(held);
        rig.finish();
    }
}

/// Two pools of one device that has eight frames, and what the driver was asked in between.
#[test]
fn p4_pending_frees_come_first_then_a_trim_here_then_one_elsewhere() {
    let (sim, log) = (Sim::seeded(4), Arc::new(Mutex::new(Vec::new())));
    let (faults, seen) = (Faults::new(sim.clone()), log.clone());
    let hooked = Hooked::new(faults.clone());
    hooked.set(move |call| {
        let call = if call.ends_with("_query") { "query" } else { call };
        if ["query", "pages_create", "pages_unmap", "pages_release"].contains(&call) {
            let mut seen = seen.lock().expect("no panic");
            if seen.last() != Some(&call) {
                seen.push(call);
            }
        }
    });
    let recipe = small().patience(Duration::from_millis(1));
    let rig = Rig::over(hooked, sim, faults.clone(), 1000, &recipe);
    let other = recipe.layer(DeviceFrames::new(rig.context.clone())).expect("addresses are plenty");
    faults.out_of_memory_at(Bytes(8 * FRAME));
    let (a, b) = (rig.stream(), rig.stream());
    let theirs = other.allocate(2 * FRAME, 256, b, tag!("theirs")).expect("there is room");
    other.deallocate(theirs, b).expect("its own");
    rig.context.synchronize(b).expect("the device works");
    let (live, pending) = (rig.allocate(FRAME, a), rig.allocate(FRAME, a));
    let stall = rig.stall(a);
    rig.free(pending);
    log.lock().expect("no panic").clear();
    let block = rig.allocate(6 * FRAME, b);
    let calls = std::mem::take(&mut *log.lock().expect("no panic"));
    let expected = [
        // Who has any of it?
        "query",
        // Four are left, and six are needed.
        "pages_create",
        // Waits for what is pending, which is nothing; then nothing here can be given back, and the other pool has two.
        "query",
        "pages_unmap",
        "pages_release",
        "pages_create",
    ];
    assert_eq!(calls, expected);
    assert_eq!((rig.pool.held(), other.held()), (Bytes(8 * FRAME), Bytes::ZERO));
    assert!(rig.try_allocate(FRAME, b).is_ok_and(|block| rig.pool.deallocate(block, b).is_ok()), "after the stall");
    drop(stall);
    rig.free(live);
    rig.free(block);
    drop(other);
    rig.finish();
}
