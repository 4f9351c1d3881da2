//! Uses of memory that may fall asleep: those that are declared are waited for and refused, and raw ones are named.

use crate::common::RandomSize;
use crate::rig::FRAME;
use crate::sleep_programs::{Says, recipe, seeds};
use crate::sleep_rig::SleepRig;
use bursar_conformance::sleep::Heap;
use bursar_core::{
    Access, Bytes, DeviceMemoryResource, Error, Holder, Pattern, Result, SleepRequest, SleepState, Sleeper, Submission,
    TrackedBlock, WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Random;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Threads that use what they allocate by declaring it, while another puts everything to sleep and wakes it.
#[test]
fn z9_threads_that_declare_their_uses_meet_no_sleeping_memory() {
    for seed in seeds(12).take(100) {
        let _says = Says(seed);
        let mut random = Random::new(!seed);
        let rig = SleepRig::new(seed, 64, &recipe(&mut random).0, None);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn({
                        let rig = &rig;
                        move || declared_uses(rig, seed * 3 + thread)
                    })
                })
                .collect();
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("uses end");
                    std::thread::yield_now();
                    rig.pool.wake(&WakeRequest::default()).expect("there is room");
                    std::thread::yield_now();
                }
            });
            for worker in workers {
                worker.join().expect("no panic");
            }
            is_over.store(true, SeqCst);
        });
        rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        assert_eq!(rig.pool.bytes_outstanding(), Bytes::ZERO);
        rig.assert_charged(Bytes::ZERO);
        rig.finish();
    }
}

/// Allocates, writes, reads and frees; what is refused because it sleeps is tried again.
fn declared_uses(rig: &SleepRig, seed: u64) {
    let (mut random, streams) = (Random::new(seed), [rig.stream(), rig.stream()]);
    let mut live: Vec<(TrackedBlock, u8)> = Vec::new();
    let awake = |outcome: Result<()>| match outcome {
        Ok(()) => true,
        Err(Error::Asleep { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    for _ in 0..60 {
        let stream = streams[random.below(2) as usize];
        match random.below(3) {
            0 => match rig.pool.allocate(random.size(FRAME), 256, stream, tag!("declared")) {
                Ok(block) => {
                    let (mut block, value) = (TrackedBlock::new(&*rig.pool, block), random.below(256) as u8);
                    let bytes = block.block().requested().get();
                    while !awake(Submission::new(&rig.context, stream).fill(&mut block, 0, Pattern::U8(value), bytes)) {
                        std::thread::yield_now();
                    }
                    live.push((block, value));
                }
                Err(Error::Asleep { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            },
            1 if !live.is_empty() => {
                let nth = random.below(live.len() as u64) as usize;
                let (block, value) = &live[nth];
                let bytes = block.block().requested().get().min(64) as usize;
                match block.copy_to_host_async(&rig.context, 0, vec![0u8; bytes], stream) {
                    Ok(copy) => assert_eq!(copy.wait().expect("the device works"), vec![*value; bytes]),
                    Err(refused) => assert!(matches!(refused.error, Error::Asleep { .. }), "{}", refused.error),
                }
            }
            _ if !live.is_empty() => {
                let nth = random.below(live.len() as u64) as usize;
                let (block, _) = live.swap_remove(nth);
                block.free(&*rig.pool, stream).expect("frees are remembered");
            }
            _ => {}
        }
    }
    for (block, _) in live {
        block.free(&*rig.pool, streams[0]).expect("frees are remembered");
    }
}

#[test]
fn z9_a_use_that_is_open_is_waited_for_and_the_next_is_refused() {
    let rig = SleepRig::new(1, 64, &PagePool::default(), None);
    let stream = rig.stream();
    let block = TrackedBlock::new(&*rig.pool, rig.pool.allocate(FRAME, 256, stream, tag!("used")).expect("room"));
    let using = rig.context.prepare_block_use(&block, stream, Access::Write).expect("awake");
    let request = SleepRequest { patience: Duration::from_millis(5), ..SleepRequest::default() };
    let refused = rig.pool.sleep(&Heap, &request).expect_err("the use is open");
    assert!(matches!(refused, Error::StillInUse { waited_ms: 5.., .. }), "{refused}");
    assert_eq!(rig.state(), SleepState::Awake);
    drop(using);
    rig.pool.sleep(&Heap, &request).expect("nothing is used");
    let refused = rig.context.prepare_block_use(&block, stream, Access::Read).expect_err("it sleeps");
    assert!(matches!(refused, Error::Asleep { .. }), "{refused}");
    let refused = rig.context.record_block_use(&block, stream, Access::Read).expect_err("it sleeps");
    assert!(matches!(refused, Error::Asleep { .. }), "{refused}");
    let refused = rig.context.copy_to_host(block.block(), 0, &mut [0; 4], stream).expect_err("it sleeps");
    assert!(matches!(refused, Error::Asleep { .. }), "{refused}");
    rig.pool.wake(&WakeRequest::default()).expect("there is room");
    drop(rig.context.prepare_block_use(&block, stream, Access::Read).expect("awake"));
    block.free(&*rig.pool, stream).expect("its own");
    rig.finish();
}

#[test]
fn z9_a_raw_use_of_what_sleeps_is_named_by_the_simulator() {
    let rig = SleepRig::new(1, 64, &PagePool::default(), None);
    let stream = rig.stream();
    let block = rig.pool.allocate(FRAME, 256, stream, tag!("weights")).expect("room");
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    let look = bursar_sim::Launch::new("decode").reads(block.ptr(), 64);
    let raw = rig.context.hold(stream).expect("a live stream").raw();
    let _submitted = rig.sim.launch(rig.context.device(), raw, look);
    let hazards = rig.sim.take_hazards();
    assert!(hazards.iter().any(|hazard| hazard.kind == bursar_sim::HazardKind::NotMapped), "{hazards:?}");
    assert!(hazards[0].to_string().contains("\"weights\""), "{}", hazards[0]);
}
