//! K1 for memory in stream order: pools of other devices, pools with a limit, and linear memory that is freed in order.
#![allow(unsafe_code)]

mod rig;

use rig::{INVALID_VALUE, OUT_OF_MEMORY, memory};

const MIB: u64 = 1 << 20;

/// Makes the primary context of a device current.
fn enter(device: i32) {
    let mut context = 0u64;
    ok!(cuInit(0u64));
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
}

/// Returns the bytes that are held of a device.
fn held(device: i32) -> u64 {
    enter(device);
    let (free, total) = memory();
    enter(0);
    total - free
}

/// Creates a pool of a device that reserves no more than `limit`; zero is no limit.
fn pool_of(device: u64, limit: u64) -> u64 {
    let (mut pool, mut properties) = (0u64, [0u64; 11]);
    // Pinned memory, no shareable handles, on the device, no attributes, and the limit.
    properties[..4].copy_from_slice(&[1, device << 32 | 1, 0, limit]);
    ok!(cuMemPoolCreate(&mut pool, &properties));
    pool
}

/// Fills memory on a stream, and returns its last byte.
fn filled(at: u64, bytes: u64, value: u64, stream: u64) -> u8 {
    let mut last = 0u8;
    ok!(cuMemsetD8Async(at, value, bytes, stream));
    ok!(cuStreamSynchronize(stream));
    ok!(cuMemcpyDtoH_v2(&mut last, at + bytes - 1, 1u64));
    last
}

/// One test, because memory is counted for the process.
#[test]
fn k1_memory_in_stream_order_comes_from_any_pool_and_goes_by_any_stream() {
    enter(0);
    let (mut stream, mut at, mut refused) = (0u64, 0u64, 0u64);
    ok!(cuStreamCreate(&mut stream, 1u64));

    // A pool of another device than that of the stream.
    let pool = pool_of(1, 0);
    for is_async in [true, false] {
        ok!(cuMemAllocFromPoolAsync(&mut at, 40 * MIB, pool, stream));
        assert_eq!((held(0), held(1)), (0, 64 * MIB), "it is memory of the pool's device");
        assert_eq!(filled(at, 40 * MIB, 7, stream), 7);
        if is_async {
            ok!(cuMemFreeAsync(at, stream));
            ok!(cuStreamSynchronize(stream));
            ok!(cuMemPoolTrimTo(pool, 0u64));
        } else {
            ok!(cuMemFree_v2(at));
        }
        assert_eq!((held(0), held(1)), (0, 0));
    }
    ok!(cuMemPoolDestroy(pool));

    // A pool with a limit, which is in whole pages.
    let pool = pool_of(0, 5 * MIB);
    assert_eq!(cu!(cuMemAllocFromPoolAsync(&mut refused, 7 * MIB, pool, stream)), OUT_OF_MEMORY);
    ok!(cuMemAllocFromPoolAsync(&mut at, 5 * MIB, pool, stream));
    assert_eq!(held(0), 6 * MIB);
    assert_eq!(cu!(cuMemAllocFromPoolAsync(&mut refused, 2 * MIB, pool, stream)), OUT_OF_MEMORY);
    ok!(cuMemFreeAsync(at, stream));
    ok!(cuMemAllocFromPoolAsync(&mut at, 6 * MIB, pool, stream));
    ok!(cuMemFreeAsync(at, stream));
    ok!(cuMemPoolDestroy(pool));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(held(0), 0);

    // Linear memory, of this device and of another.
    for device in [0, 1] {
        enter(device);
        ok!(cuMemAlloc_v2(&mut at, MIB));
        assert_eq!(held(device), MIB);
        assert_eq!(filled(at, MIB, 9, stream), 9);
        ok!(cuMemFreeAsync(at, stream));
        assert_eq!(cu!(cuMemFreeAsync(at, stream)), INVALID_VALUE, "freed twice");
        assert_eq!(cu!(cuMemFree_v2(at)), INVALID_VALUE);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(held(device), 0);
    }
    let mut managed = 0u64;
    ok!(cuMemAllocManaged(&mut managed, MIB, 1u64));
    assert_eq!(cu!(cuMemFreeAsync(managed, stream)), INVALID_VALUE, "neither");
    ok!(cuMemFree_v2(managed));
}
