//! S and D: stream pools and device pools, on every driver with all of its devices.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::{Bytes, DeviceId, Driver, DriverError, Error, MIN_ALIGN, Stack, Status, StreamNumber, leaf, tag};
use bursar_device::{DevicePool, Gpu, StreamOptions, StreamPool};
use bursar_sim::Call;
use std::collections::HashSet;
use std::sync::Mutex;

super::clauses! {
    Device: s1_streams_are_distinct_and_numbered_and_no_more_than_asked_for,
    Device: s2_a_failed_creation_is_reported_and_costs_no_place,
    Device: s4_the_next_holder_of_a_lease_finds_what_the_last_one_wrote,
    Device: s8_a_lease_has_the_priority_it_asked_for,
    Device: d1_a_device_that_fails_at_open_is_left_out_and_named,
    Device: d2_all_who_open_a_device_share_its_primary_context,
    Device: t9_a_copy_between_two_contexts_comes_after_and_before_what_either_does,
    Device: d4_round_robin_is_exact_on_sixteen_threads,
    Device: d4_most_free_is_the_first_of_those_with_the_most_free_bytes,
}

fn streams(rig: &StackRig, max_streams: usize) -> StreamPool {
    let options = StreamOptions { max_streams, ..StreamOptions::default() };
    StreamPool::with_options(rig.context.clone(), options).expect("sensible options")
}

fn devices(rig: &StackRig) -> Result<DevicePool, Error> {
    DevicePool::open(rig.faults.clone(), &Stack::new().over(leaf::Async))
}

fn s1_streams_are_distinct_and_numbered_and_no_more_than_asked_for(rig: &StackRig) {
    const MAX: usize = 5;
    let pool = streams(rig, MAX);
    let before = rig.faults.calls(Call::StreamCreate);
    let acquired: Vec<_> = (0..MAX).map(|_| pool.acquire().expect("room")).collect();
    let raw: HashSet<_> = acquired.iter().map(|&stream| rig.context.resolve(stream).expect("live")).collect();
    assert_eq!((raw.len(), rig.faults.calls(Call::StreamCreate) - before), (MAX, MAX as u64));
    let numbers: HashSet<_> = acquired.iter().map(|stream| stream.number()).collect();
    assert_eq!(numbers.len(), MAX);
    for &stream in &acquired {
        assert_eq!((pool.resolve(stream.number()), pool.contains(stream)), (Some(stream), true));
    }
    let last = numbers.iter().max().expect("some").0;
    let found = [0, last + 1].map(|number| pool.resolve(StreamNumber(number)));
    assert_eq!(found, [Some(rig.context.default_stream()), None]);
    assert_eq!(pool.acquire(), Err(Error::Capacity { max: MAX }));
    assert_eq!(pool.lease().expect_err("full"), Error::Capacity { max: MAX });
    assert_eq!(rig.faults.calls(Call::StreamCreate) - before, MAX as u64, "nothing is made to be thrown away");
}

fn s2_a_failed_creation_is_reported_and_costs_no_place(rig: &StackRig) {
    let pool = streams(rig, 1);
    let failed = Error::CreateFailed(DriverError::new("stream_create", rig.context.device(), Status::OutOfMemory));
    for _ in 0..3 {
        rig.faults.fail_next(Call::StreamCreate, Status::OutOfMemory);
        assert_eq!(pool.acquire(), Err(failed.clone()));
    }
    assert_eq!(pool.created(), 0);
    let stream = pool.acquire().expect("the place is still there");
    assert_eq!((pool.contains(stream), pool.acquire()), (true, Err(Error::Capacity { max: 1 })));
}

fn s8_a_lease_has_the_priority_it_asked_for(rig: &StackRig) {
    let (pool, range) = (streams(rig, 3), rig.context.facts().stream_priorities.clone());
    let (urgent, common) = (pool.lease_with_priority(*range.start()), pool.lease_with_priority(*range.end()));
    let (urgent, common) = (urgent.expect("within the range"), common.expect("within the range"));
    assert_eq!((urgent.priority(), common.priority()), (*range.start(), *range.end()));
    let before = rig.faults.calls(Call::StreamCreate);
    for outside in [range.start() - 1, range.end() + 1] {
        assert!(matches!(pool.lease_with_priority(outside), Err(Error::InvalidValue { .. })));
    }
    assert_eq!((pool.created(), rig.faults.calls(Call::StreamCreate)), (2, before), "the driver is not asked");
    for lease in [&urgent, &common] {
        rig.context.synchronize(lease).expect("a stream like any other");
    }
}

/// The copy of the second holder is submitted while the write of the first is stalled.
fn s4_the_next_holder_of_a_lease_finds_what_the_last_one_wrote(rig: &StackRig) {
    const BYTES: u64 = 1 << 16;
    let pool = streams(rig, 1);
    let last = pool.lease().expect("room");
    let [written, copy] = [(); 2].map(|()| rig.allocate_on(BYTES, *last));
    rig.fill(&written, 1, *last);
    let stall = rig.stall(*last);
    rig.fill(&written, 2, *last);
    drop(last);
    let next = pool.lease().expect("given back");
    let (raw, device) = (rig.context.resolve(*next).expect("live"), rig.context.device());
    // SAFETY: both blocks are live, and were allocated on the stream that the copy is submitted to.
    let copied = unsafe { rig.context.driver().copy_on_device(device, raw, copy.ptr(), written.ptr(), BYTES) };
    copied.expect("the device works");
    drop(stall);
    assert_eq!(rig.read(&copy, *next), [2; BYTES as usize], "the next holder overtook the last one");
    [written, copy].into_iter().for_each(|block| rig.free_on(block, *next));
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn d1_a_device_that_fails_at_open_is_left_out_and_named(rig: &StackRig) {
    let count = rig.faults.device_count();
    for sick in 0..count {
        rig.faults.fail_nth(Call::Open, u64::from(sick) + 1, Status::NotSupported);
        let error = Error::Driver(DriverError::new("open", DeviceId(sick), Status::NotSupported));
        match devices(rig) {
            Ok(gpus) => {
                assert_eq!(gpus.left_out(), [(DeviceId(sick), error.clone())]);
                assert_eq!(gpus.device(DeviceId(sick)).expect_err("left out"), error);
                let well: Vec<_> = gpus.iter().map(|gpu| gpu.id().0).collect();
                assert_eq!(well, (0..count).filter(|&device| device != sick).collect::<Vec<_>>());
            }
            Err(refused) => {
                let only = Error::DeviceUnusable { device: DeviceId(sick), cause: Box::new(error) };
                assert_eq!((refused, count), (only, 1));
            }
        }
    }
    assert_eq!(devices(rig).expect("all are well again").len(), count as usize);
}

fn d2_all_who_open_a_device_share_its_primary_context(rig: &StackRig) {
    let other = StackRig::new(rig.faults.clone(), rig.stack.clone(), rig.seed, None).expect("the device opens again");
    assert_eq!(other.context.raw_context(), rig.context.raw_context());
    let block = rig.allocate(4096);
    rig.fill(&block, 5, rig.stream);
    rig.context.synchronize(rig.stream).expect("the device works");
    assert_eq!(other.read(&block, other.stream), [5; 4096], "memory of one is memory of the other");
    rig.free(block);
    rig.drain();
}

/// Between every two devices, and between two contexts of each: the copies are submitted while the writes that they must
/// come after are stalled, and the source is overwritten and freed at once.
fn t9_a_copy_between_two_contexts_comes_after_and_before_what_either_does(rig: &StackRig) {
    const LEN: usize = 1 << 16;
    let open =
        |device| Gpu::open(rig.faults.clone(), DeviceId(device), &Stack::new().over(leaf::Async)).expect("opens");
    let devices = 0..rig.faults.device_count();
    for (from, to) in devices.clone().flat_map(|from| devices.clone().map(move |to| (from, to))) {
        let (here, there) = (open(from), open(to));
        for is_pushed in [false, true] {
            let (a, b) = (here.streams().lease().expect("room"), there.streams().lease().expect("room"));
            let mut source = here.zeros::<u32>(LEN, &a, tag!("source")).expect("room");
            let mut target = there.zeros::<u32>(LEN, &b, tag!("target")).expect("room");
            let raw = here.context().resolve(*a).expect("live");
            // SAFETY: the stream is live.
            let stall = unsafe { rig.faults.stall(here.id(), raw) }.expect("the device works");
            a.submit(|work| work.fill(&mut source, 5)).expect("submitted");
            // Where the driver cannot copy between the two, the copy is waited for, which a stall would prevent.
            let links = rig.faults.links(here.id()).expect("the device works");
            if from != to && !links.iter().any(|link| link.to == there.id()) {
                stall.open();
            }
            let side = if is_pushed { &a } else { &b };
            side.submit(|work| work.copy_peer(&source, &mut target)).expect("submitted");
            a.submit(|work| work.fill(&mut source, 6)).expect("submitted");
            drop((source, stall));
            assert!(target.to_vec().expect("read").iter().all(|&word| word == 5), "{from} to {to}");
        }
    }
}

fn d4_round_robin_is_exact_on_sixteen_threads(rig: &StackRig) {
    const THREADS: usize = 16;
    const EACH: usize = 500;
    let gpus = devices(rig).expect("usable devices");
    let turns = Mutex::new(vec![0; gpus.len()]);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mine: Vec<_> = (0..EACH).map(|_| gpus.round_robin().id().0 as usize).collect();
                let mut turns = turns.lock().expect("no panic");
                mine.into_iter().for_each(|device| turns[device] += 1);
            });
        }
    });
    let (rounds, rest) = (THREADS * EACH / gpus.len(), THREADS * EACH % gpus.len());
    let expected: Vec<_> = (0..gpus.len()).map(|device| rounds + usize::from(device < rest)).collect();
    assert_eq!(turns.into_inner().expect("no panic"), expected);
    assert_eq!(gpus.round_robin().id().0 as usize, rest, "the turn goes on where it was");
}

/// Other programs may use the devices too: a result counts if the same bytes were free before and after the call.
fn d4_most_free_is_the_first_of_those_with_the_most_free_bytes(rig: &StackRig) {
    const TRIES: usize = 1000;
    let gpus = devices(rig).expect("usable devices");
    let free = || gpus.iter().map(|gpu| gpu.memory_info().expect("the device works").free).collect::<Vec<_>>();
    let ask = || {
        let quiet = (0..TRIES).find_map(|_| {
            let (before, chosen) = (free(), gpus.most_free());
            (before == free()).then_some((before, chosen))
        });
        let (free, chosen) = quiet.expect("others leave the devices alone for a moment");
        let most = *free.iter().max().expect("at least one device");
        let first = free.iter().position(|&bytes| bytes == most).expect("one of them");
        assert_eq!(chosen.id(), gpus.device_at(first).expect("there").id(), "{free:?}");
        chosen
    };
    let mut held = Vec::new();
    for _ in 0..2 * gpus.len() {
        let gpu = ask();
        let stream = gpu.streams().acquire().expect("room");
        let block = gpu.memory().allocate(256 << 20, MIN_ALIGN, stream, tag!("held")).expect("room");
        gpu.context().synchronize(stream).expect("the device works");
        held.push((gpu, block, stream));
    }
    for (gpu, block, stream) in held {
        gpu.memory().deallocate(block, stream).expect("its own");
        gpu.memory().reap_blocking(std::time::Duration::MAX).expect("the device works");
        ask();
    }
}
