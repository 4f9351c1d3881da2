//! N7: pinned memory is kept, exact in size, charged, and not reused while a stream may be using it.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{
    Access, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Error, HostFunction, HostMemory, Stack,
    Stream, TrackedBlock, leaf, tag,
};
use bursar_host::{HostError, PinnedBuffer, PinnedKind, PinnedOptions, PinnedPool};
use bursar_sim::{Random, Sim};
use rig::{Call, Latch, Rig, TestAccount};
use std::sync::{Arc, Mutex};

const SIZE: usize = 3 << 20;

fn pool(rig: &Rig) -> PinnedPool {
    PinnedPool::new(&rig.workers, &rig.context, rig.charged())
}

/// Holds a stream at this point until the gate is opened.
fn stall(context: &DeviceContext, stream: Stream) -> Latch {
    let gate = Latch::default();
    let held = context.hold(stream).expect("a stream of this device");
    let function = HostFunction::behind(gate.0.clone(), || ());
    // SAFETY: the stream is held.
    unsafe { context.driver().host_function(context.device(), held.raw(), function) }.expect("the device works");
    gate
}

/// Submits a copy of a buffer to memory of the device that is never freed.
fn copy(rig: &Rig, buffer: &mut PinnedBuffer, stream: Stream) {
    let target = bursar_core::Driver::allocate(&*rig.sim, DeviceId(0), buffer.len() as u64).expect("room");
    let held = rig.context.hold(stream).expect("a stream of this device");
    let (src, bytes) = (buffer.host_ptr(), buffer.len() as u64);
    // SAFETY: the stream is held, and whoever calls gives the buffer back on it.
    let copied = unsafe { bursar_core::Driver::copy_to_device(&*rig.sim, DeviceId(0), held.raw(), target, src, bytes) };
    copied.expect("the device works");
}

fn release(pool: &PinnedPool, context: &Arc<DeviceContext>, buffer: PinnedBuffer, stream: Stream) {
    pool.release_on(buffer, context, stream).expect("a buffer of this pool, and a stream of this device");
}

#[test]
fn n7_sizes_are_exact_and_charged_as_held() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let large = pool.get(20 << 20).expect("room");
    assert_eq!((large.len(), rig.pinned(), rig.account.charged()), (20 << 20, 20 << 20, 20 << 20));
    assert_eq!(pool.counts().held, Bytes::mib(20));
    let odd = pool.get((5 << 20) + 1).expect("room");
    assert_eq!(
        (odd.len(), rig.account.charged()),
        ((5 << 20) + 1, (25 << 20) + 4096),
        "a page more, not a power of two"
    );
    drop((large, odd));
    assert_eq!(pool.counts().free, Bytes((25 << 20) + 64), "kept");
}

#[test]
fn n7_small_buffers_share_a_slab_and_nothing_else() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let mut buffers: Vec<_> = (0..50).map(|_| pool.get(1000).expect("room")).collect();
    assert_eq!(rig.account.charged(), 2_096_128_u64.next_multiple_of(4096), "2,047 pieces of 1,024 bytes in one slab");
    for (mark, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(mark as u8);
    }
    for (mark, buffer) in buffers.iter().enumerate() {
        assert!(buffer.len() == 1000 && buffer.iter().all(|byte| *byte == mark as u8));
        assert_eq!(buffer.as_ptr().addr() % 64, 0, "a cache line is one buffer's");
    }
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 1);
}

#[test]
fn n7_a_hit_asks_neither_kernel_nor_driver_nor_account() {
    let rig = Rig::new();
    let pool = pool(&rig);
    drop(pool.get(SIZE).expect("room"));
    let (of_driver, of_kernel) = (rig.sim.call_count(), rig.system.calls.lock().unwrap().len());
    *rig.account.hook.lock().unwrap() = Some(Box::new(|| panic!("the account was asked")));
    for _ in 0..100 {
        drop(pool.get(SIZE).expect("a hit"));
        drop(pool.try_get(SIZE).expect("a hit"));
    }
    assert_eq!((rig.sim.call_count(), rig.system.calls.lock().unwrap().len()), (of_driver, of_kernel));
    *rig.account.hook.lock().unwrap() = None;
    assert!(pool.try_get(SIZE + 64).is_none());
    assert_eq!(pool.get(0).unwrap_err(), HostError::ZeroBytes);
}

#[test]
fn n7_a_buffer_in_a_copy_is_not_handed_out() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let memory = Stack::new().over(leaf::Direct).build(&rig.context).expect("a stack");
    let stream = rig.context.create_stream(0).expect("a stream");
    let block = memory.allocate(SIZE as u64, 256, stream, tag!("pool")).expect("room");
    let mut block = TrackedBlock::new(&memory, block);
    let mut buffer = pool.get(SIZE).expect("room");
    buffer.fill(9);
    let address = buffer.as_ptr();
    let gate = stall(&rig.context, stream);
    let upload = block.copy_from_host_async(&rig.context, 0, buffer, stream).expect("submitted");
    let hit = pool.try_get(SIZE);
    gate.0.open();
    assert!(hit.is_none());
    let back = upload.wait().expect("the device works");
    assert_eq!((back.as_ptr(), back[SIZE - 1]), (address, 9));
    let download = block.copy_to_host_async(&rig.context, 0, back, stream).expect("submitted");
    drop(download);
    assert_eq!(pool.get(SIZE).expect("a hit").as_ptr(), address, "dropping a copy waits for it and gives it back");
    block.free(&memory, stream).expect("it belongs there");
    rig.sim.assert_clean();
}

#[test]
fn n7_a_buffer_given_back_on_a_stream_is_free_when_the_stream_has_passed() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let stream = rig.context.create_stream(0).expect("a stream");
    let buffer = pool.get(SIZE).expect("room");
    let address = buffer.as_ptr();
    let gate = stall(&rig.context, stream);
    let calls = rig.sim.call_count();
    release(&pool, &rig.context, buffer, stream);
    assert_eq!(rig.sim.call_count(), calls, "giving back asks nothing of the driver");
    assert!(pool.try_get(SIZE).is_none());
    let second = pool.get(SIZE).expect("another one");
    assert_ne!(second.as_ptr(), address, "the first is in flight");
    assert_eq!(pool.counts().in_flight, Bytes::mib(3));
    gate.0.open();
    rig.context.synchronize(stream).expect("the device works");
    assert_eq!(pool.get(SIZE).expect("a hit").as_ptr(), address);
    assert_eq!(pool.counts().in_flight, Bytes::ZERO);
}

#[test]
fn n7_a_stream_that_never_runs_dry_gives_buffers_back_all_the_same() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let stream = rig.context.create_stream(0).expect("a stream");
    let gate = stall(&rig.context, stream);
    let (first, second) = (pool.get(SIZE).expect("room"), pool.get(SIZE).expect("room"));
    let address = first.as_ptr();
    release(&pool, &rig.context, first, stream);
    let third = pool.get(SIZE).expect("room");
    // Queried once by now, and marked; what follows is behind the marker.
    let later = stall(&rig.context, stream);
    release(&pool, &rig.context, second, stream);
    gate.0.open();
    rig.sim.settle();
    let hit = pool.get(SIZE).expect("a hit");
    assert_eq!(hit.as_ptr(), address, "the stream is busy still, and has passed the mark");
    assert_eq!((pool.counts().held, pool.counts().in_flight), (Bytes::mib(9), Bytes::mib(3)));
    later.0.open();
    drop((third, hit));
}

#[test]
fn n7_a_stream_that_has_gone_or_is_captured_strands_nothing() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let raw = bursar_core::Driver::stream_create(&*rig.sim, DeviceId(0), 0).expect("a stream");
    // SAFETY: the stream is live until the adoption is dropped.
    let adopted = unsafe { rig.context.adopt_stream(raw) }.expect("room in the table");
    let buffer = pool.get(SIZE).expect("room");
    let address = buffer.as_ptr();
    release(&pool, &rig.context, buffer, adopted.stream());
    rig.sim.begin_capture(DeviceId(0), raw).expect("it can be captured");
    assert_ne!(pool.get(SIZE).expect("another one").as_ptr(), address, "a captured stream cannot be asked");
    rig.sim.end_capture(DeviceId(0), raw).expect("it was captured");
    let gone = adopted.stream();
    drop(adopted);
    rig.sim.settle();
    let [late, hit] = [0, 1].map(|_| pool.get(SIZE).expect("room"));
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 2, "the adoption has ended, and its heir is asked");
    assert!([late.as_ptr(), hit.as_ptr()].contains(&address));
    let refused = pool.release_on(late, &rig.context, gone).unwrap_err();
    assert!(matches!(refused.error, Error::StreamMisuse { .. }));
    assert_eq!(refused.buffer.len(), SIZE);
}

#[test]
fn n7_counts_are_of_one_moment_while_streams_are_queried() {
    let rig = Rig::new();
    let pool = Arc::new(pool(&rig));
    let stream = rig.context.create_stream(0).expect("a stream");
    let buffer = pool.get(SIZE).expect("room");
    release(&pool, &rig.context, buffer, stream);
    let (seen, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&pool));
    let counts = seen.clone();
    rig.driver.hook(move |call, _| {
        if call == "stream_query"
            && let Some(pool) = asked.upgrade()
        {
            counts.lock().unwrap().push(pool.counts());
        }
        None
    });
    drop(pool.get(SIZE).expect("the same again"));
    rig.driver.unhook();
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty(), "the stream was queried");
    for counts in &*seen {
        assert_eq!((counts.held, counts.free, counts.in_flight), (Bytes(SIZE as u64), Bytes::ZERO, Bytes(SIZE as u64)));
    }
}

#[test]
fn n7_counts_are_of_one_moment_while_threads_get_and_return() {
    const PIECES: usize = 4;
    let rig = Rig::new();
    let pool = pool(&rig);
    pool.prime(SIZE, PIECES).wait().expect("room");
    let working = std::sync::atomic::AtomicUsize::new(PIECES);
    let stream = rig.context.create_stream(0).expect("a stream");
    std::thread::scope(|scope| {
        for _ in 0..PIECES {
            scope.spawn(|| {
                for round in 0..500 {
                    let buffer = pool.get(SIZE).expect("one for each");
                    if round % 2 == 0 {
                        release(&pool, &rig.context, buffer, stream);
                    }
                }
                working.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        while working.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            let counts = pool.counts();
            assert!(counts.free.get() + counts.in_flight.get() <= counts.held.get(), "{counts:?}");
        }
    });
    let counts = pool.counts();
    assert_eq!(counts.free.get() + counts.in_flight.get(), counts.held.get(), "nothing is in use: {counts:?}");
}

/// The owner of a stream drops its adoption in the middle of a capture, so nothing can be ordered after the stream.
#[test]
fn n7_memory_of_a_stream_that_ended_while_it_was_captured_is_released_with_its_pool() {
    for is_ended_first in [true, false] {
        let rig = Rig::new();
        let pool = pool(&rig);
        let raw = bursar_core::Driver::stream_create(&*rig.sim, DeviceId(0), 0).expect("a stream");
        // SAFETY: the stream is live until the adoption is dropped.
        let adopted = unsafe { rig.context.adopt_stream(raw) }.expect("room in the table");
        let mut buffer = pool.get(SIZE).expect("room");
        let address = buffer.as_ptr();
        copy(&rig, &mut buffer, adopted.stream());
        release(&pool, &rig.context, buffer, adopted.stream());
        rig.sim.begin_capture(DeviceId(0), raw).expect("it can be captured");
        drop(adopted);
        for _ in 0..3 {
            assert_ne!(pool.get(SIZE).expect("another one").as_ptr(), address, "the first is not reused");
            assert_eq!(pool.counts().in_flight, Bytes(SIZE as u64));
        }
        let end_capture = || rig.sim.end_capture(DeviceId(0), raw).expect("it was captured");
        if is_ended_first {
            end_capture();
            drop(pool);
        } else {
            drop(pool);
            assert!(rig.workers.retry_stranded() >= Bytes(SIZE as u64), "kept while the capture goes on");
            end_capture();
            assert_eq!(rig.workers.retry_stranded(), Bytes::ZERO, "and released after it");
        }
        let Rig { sim, driver, system, account, context, workers } = rig;
        drop(workers);
        assert_eq!((system.mapped(), account.charged()), (0, 0), "is_ended_first: {is_ended_first}");
        assert_eq!(Arc::strong_count(&context), 1, "and nothing keeps the context alive");
        drop((context, driver, sim));
    }
}

/// A driver that cannot wait for the device when the pool ends gets the memory back when it is asked again.
#[test]
fn n7_memory_that_a_stream_may_use_when_its_pool_ends_is_kept_and_tried_again() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let stream = rig.context.create_stream(0).expect("a stream");
    let mut buffer = pool.get(SIZE).expect("room");
    copy(&rig, &mut buffer, stream);
    release(&pool, &rig.context, buffer, stream);
    let raw = rig.context.resolve(stream).expect("a stream of this context");
    rig.sim.begin_capture(DeviceId(0), raw).expect("it can be captured");
    drop(pool);
    assert_eq!(rig.workers.retry_stranded(), Bytes(SIZE as u64), "a captured stream cannot be waited for");
    assert_eq!(rig.account.charged(), SIZE as u64, "and what it may use stays charged");
    rig.sim.end_capture(DeviceId(0), raw).expect("it was captured");
    assert_eq!(rig.workers.retry_stranded(), Bytes::ZERO);
    rig.assert_nothing_is_held();
}

#[test]
fn n7_streams_of_other_devices_count_and_strangers_are_refused() {
    let rig = Rig::new();
    let (mine, other) = (pool(&rig), pool(&rig));
    let second = DeviceContext::open(rig.driver.clone(), DeviceId(1)).expect("a second device");
    let stream = second.create_stream(0).expect("a stream");
    let gate = stall(&second, stream);
    let buffer = mine.get(SIZE).expect("room");
    let address = buffer.as_ptr();
    release(&mine, &second, buffer, stream);
    let fresh = mine.get(SIZE).expect("room");
    assert_ne!(fresh.as_ptr(), address);
    let refused = other.release_on(fresh, &second, stream).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidValue { .. }));
    let misplaced = mine.release_on(*refused.buffer, &rig.context, stream).unwrap_err();
    assert!(matches!(misplaced.error, Error::StreamMisuse { .. }), "a stream goes with its own context");
    gate.0.open();
    second.synchronize(stream).expect("the device works");
    drop(misplaced);
    let both: Vec<_> = (0..2).map(|_| mine.get(SIZE).expect("room")).collect();
    assert!(both.iter().any(|buffer| buffer.as_ptr() == address));
    drop(both);
    drop((mine, other));
}

#[test]
fn n7_trimming_happens_off_the_callers_thread_and_keeps_what_it_should() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let threads: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = threads.clone();
    rig.driver.hook(move |call, is_over| {
        if call == "host_unregister" && !is_over {
            seen.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
        }
        None
    });
    let buffers: Vec<_> = [4 << 20, 5 << 20, 6 << 20, 1000].map(|size| pool.get(size).expect("room")).into();
    let in_use = pool.get(1000).expect("room");
    assert_eq!(pool.trim(Bytes::ZERO), Bytes::ZERO, "what is used stays");
    drop(buffers);
    assert_eq!(pool.trim(Bytes::mib(9)), Bytes::mib(6), "the largest goes first");
    assert_eq!(pool.trim(Bytes::mib(9)), Bytes::ZERO);
    assert_eq!(pool.trim(Bytes::ZERO), Bytes::mib(9), "a slab of which a piece is used stays");
    pool.flush();
    assert_eq!(rig.account.charged(), pool.counts().held.get());
    assert_eq!(threads.lock().unwrap()[..], ["pinned-release", "pinned-release", "pinned-release"]);
    drop(in_use);
    assert!(pool.trim(Bytes::ZERO) > Bytes::ZERO);
    pool.flush();
    rig.assert_nothing_is_held();
}

#[test]
fn n7_where_memory_is_short_what_nobody_uses_goes_first() {
    let rig = Rig::new();
    let account = TestAccount::of(Bytes::mib(16));
    let pool = PinnedPool::new(&rig.workers, &rig.context, PinnedOptions::default().account(account.clone()));
    let (small, large) = (5 << 20, 12 << 20);
    drop(pool.get(small).expect("room"));
    let used = pool.get(64).expect("room");
    drop(pool.get(large).expect("5 MiB go for it"));
    assert_eq!((pool.counts().held, account.charged()), (Bytes::mib(14), 14 << 20));
    let held = pool.get(large).expect("a hit");
    let refused = pool.get(small).unwrap_err();
    assert!(refused.is_capacity() && matches!(refused, HostError::Account { .. }), "{refused}");
    drop((used, held));
}

#[test]
fn n7_growth_in_the_background() {
    let rig = Rig::new();
    let pool = pool(&rig);
    pool.prime(SIZE, 2).wait().expect("room");
    assert_eq!(pool.counts().free, Bytes::mib(6));
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 2);
    // Nobody waits for this one, and it is created all the same.
    drop(pool.prime(1000, 100));
    let next = pool.get(SIZE + (1 << 20)).expect("room");
    assert!(pool.try_get(1000).is_some(), "made before what was asked for later");
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 4);
    let refused = pool.prime(2 << 30, 1).wait().unwrap_err();
    assert!(refused.is_capacity());
    assert_eq!(pool.prime(0, 3).wait(), Err(HostError::ZeroBytes));
    drop(next);
}

#[test]
fn n7_dropping_the_pool_gives_everything_back_and_what_is_out_when_it_comes() {
    for kind in [PinnedKind::Registered, PinnedKind::WriteCombined] {
        let rig = Rig::new();
        let pool = PinnedPool::new(&rig.workers, &rig.context, rig.charged().kind(kind));
        let stream = rig.context.create_stream(0).expect("a stream");
        let (kept, mut flying, out) =
            (pool.get(SIZE).expect("room"), pool.get(SIZE).expect("room"), pool.get(1000).expect("room"));
        drop(kept);
        copy(&rig, &mut flying, stream);
        release(&pool, &rig.context, flying, stream);
        let priming = pool.prime(5 << 20, 1);
        drop(pool);
        assert_eq!(priming.wait(), Ok(()), "and what comes too late goes again");
        assert_eq!(out.len(), 1000, "still there");
        drop(out);
        let Rig { sim, system, account, workers, .. } = rig;
        // The workers wait for the thread that releases.
        drop(workers);
        assert_eq!((system.mapped(), account.charged()), (0, 0), "{kind:?}");
        sim.assert_clean();
    }
}

#[test]
fn n7_a_request_that_is_refused_waits_for_what_the_pool_is_giving_back() {
    let rig = Rig::new();
    let pool = pool(&rig);
    let tried = Latch::default();
    let gate = tried.0.clone();
    rig.driver.hook(move |call, is_over| {
        if call == "host_unregister" && !is_over {
            gate.wait();
        }
        None
    });
    drop(pool.get(700 << 20).expect("room"));
    assert_eq!(pool.trim(Bytes::ZERO), Bytes::mib(700), "it is being given back, and still charged");
    let gate = tried.0.clone();
    *rig.account.hook.lock().unwrap() = Some(Box::new(move || gate.open()));
    let again = pool.get(701 << 20).expect("room, once what was dropped is back");
    assert_eq!(rig.account.charged(), again.len() as u64);
    drop(again);
    pool.trim(Bytes::ZERO);
    pool.flush();
    rig.assert_nothing_is_held();
}

#[test]
fn n7_threads_share_a_pool_and_never_a_buffer() {
    let rig = Rig::new();
    let pool = pool(&rig);
    std::thread::scope(|scope| {
        for mark in 1..=4u8 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..2000usize {
                    let mut buffer = pool.get(100 + round % 3 * 64).expect("room");
                    buffer.fill(mark);
                    assert!(buffer.iter().all(|byte| *byte == mark));
                }
            });
        }
    });
    let counts = pool.counts();
    assert_eq!(counts.held.get(), rig.account.charged());
    pool.trim(Bytes::ZERO);
    pool.flush();
    rig.assert_nothing_is_held();
}

/// Gets, writes, copies, returns on streams, trims. The simulator checks that nothing is written while a copy may read it.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let rig = Rig::on(Default::default(), Sim::builder().seed(seed));
    let pool = pool(&rig);
    let streams: Vec<_> = (0..3).map(|_| rig.context.create_stream(0).expect("a stream")).collect();
    let target = bursar_core::Driver::allocate(&*rig.sim, DeviceId(0), 1 << 20).expect("room");
    let mut out: Vec<PinnedBuffer> = Vec::new();
    for step in 0..120 {
        match random.below(10) {
            0..=3 => {
                let size = [100, 5000, 5000, 300_000][random.index(4)];
                let mut buffer = pool.get(size).expect("room");
                rig.sim.touch_host(buffer.as_ptr(), buffer.len(), Access::Write);
                buffer.fill(step as u8);
                out.push(buffer);
            }
            4 if !out.is_empty() => drop(out.swap_remove(random.index(out.len()))),
            5..=7 if !out.is_empty() => {
                let mut buffer = out.swap_remove(random.index(out.len()));
                let stream = streams[random.index(3)];
                let (raw, src, bytes) =
                    (rig.context.resolve(stream).expect("ours"), buffer.host_ptr(), buffer.len() as u64);
                // All copies have one target, in the order of one event after the other.
                for other in &streams {
                    if *other != stream {
                        rig.context.order_after(*other, stream).expect("ours");
                    }
                }
                // SAFETY: the buffer is given back on the stream of the copy, and the target is as large as any.
                let copied =
                    unsafe { bursar_core::Driver::copy_to_device(&*rig.sim, DeviceId(0), raw, target, src, bytes) };
                copied.expect("the device works");
                release(&pool, &rig.context, buffer, stream);
            }
            8 => drop(pool.trim(Bytes::kib(random.below(4000)))),
            _ => drop(rig.sim.step()),
        }
        let counts = pool.counts();
        assert!(counts.free.saturating_add(counts.in_flight) <= counts.held, "seed {seed}: {counts:?}");
    }
    drop(out);
    streams.iter().for_each(|stream| rig.context.synchronize(*stream).expect("the device works"));
    pool.trim(Bytes::ZERO);
    pool.flush();
    rig.sim.assert_clean();
    rig.assert_nothing_is_held();
    assert_eq!(pool.counts(), Default::default(), "seed {seed}");
}

/// Runs generated programs, as many as `BURSAR_SEEDS` says.
#[test]
fn n7_generated_programs_never_meet_a_copy_in_flight() {
    let seeds = std::env::var("BURSAR_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    (0..seeds).for_each(run);
}
