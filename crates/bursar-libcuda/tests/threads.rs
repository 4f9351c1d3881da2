//! K1 on several threads: each has contexts and a default stream of its own, and all of them share the device.
#![allow(unsafe_code)]

mod rig;

use bursar_sim::Random;
use rig::{INVALID_CONTEXT, memory};
use std::sync::Barrier;

const THREADS: u64 = 4;

fn enter() {
    let mut context = 0u64;
    ok!(cuInit(0u64));
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0i32));
    ok!(cuCtxSetCurrent(context));
}

fn stream_id(stream: u64) -> u64 {
    let mut id = 0u64;
    ok!(cuStreamGetId(stream, &mut id));
    id
}

#[test]
fn k1_a_thread_has_its_own_default_stream_where_it_asks_for_it() {
    const PER_THREAD: u64 = 2;
    enter();
    let (own, legacy) = (stream_id(PER_THREAD), stream_id(0));
    let mut id = 0u64;
    ok!(cuStreamGetId_ptsz(0u64, &mut id));
    assert_eq!((id, stream_id(PER_THREAD)), (own, own), "null is the thread's stream for such a call");
    assert_ne!(own, legacy);
    assert_eq!(stream_id(1), legacy);
    let other = std::thread::spawn(|| {
        let mut id = 0u64;
        assert_eq!(cu!(cuStreamGetId(PER_THREAD, &mut id)), INVALID_CONTEXT, "a context is current on one thread");
        enter();
        let ids = (stream_id(PER_THREAD), stream_id(0));
        ok!(cuDevicePrimaryCtxRelease_v2(0i32));
        ids
    });
    let (others, legacy_there) = other.join().expect("no panic");
    assert_ne!(others, own);
    assert_eq!(legacy_there, legacy, "the legacy stream is one for all");
    ok!(cuDevicePrimaryCtxRelease_v2(0i32));
}

/// Takes, fills, reads back and gives back memory of several kinds, always with bytes of this thread alone.
fn live(seed: u64, barrier: &Barrier) {
    enter();
    barrier.wait();
    let mut random = Random::new(seed);
    for turn in 0..200 {
        let (bytes, mut at) = (1 + random.below(20_000), 0u64);
        let is_ordered = random.below(2) == 0;
        if is_ordered {
            ok!(cuMemAllocAsync_ptsz(&mut at, bytes, 0u64));
        } else {
            ok!(cuMemAlloc_v2(&mut at, bytes));
        }
        let value = (seed * 50 + turn) as u8;
        let mut back = vec![0u8; bytes as usize];
        ok!(cuMemsetD8Async_ptsz(at, u64::from(value), bytes, 0u64));
        ok!(cuMemcpyDtoHAsync_v2_ptsz(back.as_mut_ptr(), at, bytes, 0u64));
        ok!(cuStreamSynchronize_ptsz(0u64));
        assert!(back.iter().all(|byte| *byte == value), "another thread's bytes");
        if is_ordered && random.below(2) == 0 {
            ok!(cuMemFreeAsync_ptsz(at, 0u64));
        } else {
            ok!(cuMemFree_v2(at));
        }
    }
    ok!(cuStreamSynchronize_ptsz(0u64));
    ok!(cuDevicePrimaryCtxRelease_v2(0i32));
}

#[test]
fn k1_threads_have_the_device_in_common_and_nothing_is_lost() {
    enter();
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let barrier = &barrier;
            scope.spawn(move || live(seed, barrier));
        }
    });
    ok!(cuCtxSynchronize());
    let (free, total) = memory();
    assert_eq!(free, total);
}

#[test]
fn k1_a_primary_context_that_one_thread_has_retained_is_not_ended_by_what_another_releases() {
    const TURNS: usize = 2000;
    enter();
    let barrier = Barrier::new(THREADS as usize);
    let retains = || {
        barrier.wait();
        for _ in 0..TURNS {
            let (mut context, mut stream) = (0u64, 0u64);
            ok!(cuDevicePrimaryCtxRetain(&mut context, 1i32));
            ok!(cuCtxSetCurrent(context));
            ok!(cuStreamCreate(&mut stream, 1u64));
            ok!(cuStreamSynchronize(stream));
            ok!(cuStreamDestroy_v2(stream));
            ok!(cuDevicePrimaryCtxRelease_v2(1i32));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(retains);
        }
    });
    let (mut flags, mut is_active) = (0u32, 1i32);
    ok!(cuDevicePrimaryCtxGetState(1i32, &mut flags, &mut is_active));
    assert_eq!(is_active, 0, "as many released it as had retained it");
    ok!(cuDevicePrimaryCtxRelease_v2(0i32));
}
