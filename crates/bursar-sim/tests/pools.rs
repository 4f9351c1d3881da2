//! Pools of stream-ordered memory: what they hold is exactly what the device lacks.
#![allow(unsafe_code)]

use bursar_core::{Bytes, DeviceId, DevicePtr, Driver, RawStream, Status};
use bursar_sim::{Random, Sim, SimPool};
use std::sync::Arc;

const DEVICE: DeviceId = DeviceId(0);
const PIECE: u64 = 32 << 20;
const TOTAL: Bytes = Bytes::mib(256);

fn sims(seed: u64) -> [Arc<Sim>; 2] {
    let builder = Sim::builder().device(TOTAL);
    [builder.clone().seed(seed).build(), builder.immediate().build()]
}

fn free_async(sim: &Sim, stream: RawStream, ptr: DevicePtr) {
    // SAFETY: the model frees each allocation once, in the order of one stream.
    unsafe { sim.free_async(DEVICE, stream, ptr) }.expect("a live allocation");
}

fn synchronize(sim: &Sim, stream: RawStream) {
    // SAFETY: the stream is live.
    unsafe { sim.stream_synchronize(DEVICE, stream) }.expect("the device works");
}

fn reserved(sim: &Sim, pool: SimPool) -> u64 {
    sim.pool_usage(pool).expect("a live pool").reserved.get()
}

#[test]
fn a_seeded_model_finds_that_the_device_lacks_what_pools_reserve_and_direct_memory_takes() {
    for seed in 0..60 {
        for sim in sims(seed) {
            let mut random = Random::new(seed);
            let stream = sim.stream_create(DEVICE, 0).expect("a stream");
            let pools = [(); 2].map(|()| sim.pool_create(DEVICE).expect("a pool"));
            let mut live: Vec<(DevicePtr, usize, u64)> = Vec::new();
            let (mut direct, mut granted) = (Vec::new(), [0; 2]);
            for _ in 0..200 {
                let which = random.index(2);
                match random.below(10) {
                    0..=3 => {
                        let bytes = 1 + random.below(40 << 20);
                        match sim.allocate_from_pool(DEVICE, stream, pools[which], bytes) {
                            Ok(ptr) => {
                                let bytes = bytes.next_multiple_of(256);
                                granted[which] += bytes;
                                live.push((ptr, which, bytes));
                            }
                            Err(error) => assert_eq!(error.status, Status::OutOfMemory),
                        }
                    }
                    4..=6 if !live.is_empty() => {
                        let (ptr, which, bytes) = live.swap_remove(random.index(live.len()));
                        free_async(&sim, stream, ptr);
                        granted[which] -= bytes;
                    }
                    7 => {
                        if let Ok(ptr) = sim.allocate(DEVICE, 1 << 20) {
                            direct.push(ptr);
                        }
                    }
                    8 => {
                        synchronize(&sim, stream);
                        for (pool, granted) in pools.iter().zip(granted) {
                            let usage = sim.pool_usage(*pool).expect("a live pool");
                            assert_eq!(usage.used.get(), granted, "seed {seed}");
                            assert!(usage.reserved.get() < granted + PIECE, "seed {seed}: {usage:?} was not trimmed");
                        }
                    }
                    _ => sim.pool_trim(pools[which], Bytes(random.below(64 << 20))).expect("a live pool"),
                }
                let held = pools.map(|pool| reserved(&sim, pool)).iter().sum::<u64>() + ((direct.len() as u64) << 20);
                let free = sim.memory(DEVICE).expect("a device").free;
                assert_eq!(free.get() + held, TOTAL.get(), "seed {seed}");
                for pool in pools {
                    let usage = sim.pool_usage(pool).expect("a live pool");
                    assert!(usage.used <= usage.reserved, "seed {seed}: {usage:?}");
                    assert!(usage.reserved <= usage.reserved_high && usage.used <= usage.used_high);
                }
            }
            sim.assert_clean();
        }
    }
}

#[test]
fn a_pool_keeps_its_threshold_and_ends_with_its_last_allocation() {
    for sim in sims(7) {
        let (stream, pool) =
            (sim.stream_create(DEVICE, 0).expect("a stream"), sim.pool_create(DEVICE).expect("a pool"));
        sim.pool_set_threshold(pool, Bytes::mib(64)).expect("a live pool");
        let [kept, last] =
            [100 << 20, 1].map(|bytes| sim.allocate_from_pool(DEVICE, stream, pool, bytes).expect("room"));
        free_async(&sim, stream, kept);
        synchronize(&sim, stream);
        assert_eq!(reserved(&sim, pool), 64 << 20);
        sim.pool_reset_high(pool).expect("a live pool");
        assert_eq!(sim.pool_usage(pool).expect("a live pool").reserved_high, Bytes::mib(64));
        sim.pool_destroy(pool).expect("a live pool");
        assert!(sim.pool_usage(pool).is_err(), "a destroyed pool is no pool");
        assert!(sim.allocate_from_pool(DEVICE, stream, pool, 1).is_err());
        assert_eq!(sim.memory(DEVICE).expect("a device").free, TOTAL - Bytes::mib(64));
        free_async(&sim, stream, last);
        synchronize(&sim, stream);
        assert_eq!(sim.memory(DEVICE).expect("a device").free, TOTAL);
    }
}

#[test]
fn a_pool_takes_smaller_pieces_where_the_device_has_no_whole_one() {
    let sim = Sim::builder().device(Bytes::mib(10)).immediate().build();
    let (stream, pool) = (sim.stream_create(DEVICE, 0).expect("a stream"), sim.pool_create(DEVICE).expect("a pool"));
    sim.allocate_from_pool(DEVICE, stream, pool, 3 << 20).expect("room");
    assert_eq!(reserved(&sim, pool), 4 << 20);
    let refused = sim.allocate_from_pool(DEVICE, stream, pool, 8 << 20).expect_err("7 MiB are left");
    assert_eq!(refused.status, Status::OutOfMemory);
}
