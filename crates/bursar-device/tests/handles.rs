//! D6: handles that share a device, and what each of them answers for.

mod log;

use bursar_core::{
    AllocTag, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Error, Holder, Holding, Identity, Stack,
    Status, leaf, tag,
};
use bursar_device::{DeviceBuffer, Gpu, Leak, StreamOptions};
use bursar_memory::{GlobalDeviceBudget, Guard, PagePool, Quota, Statistics};
use bursar_sim::{Call, Faults, Random, Sim};
use log::{listen, logged};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const GPU0: DeviceId = DeviceId(0);
const NAMES: [&str; 3] = ["d6-a", "d6-b", "d6-c"];

fn open(driver: Arc<dyn bursar_core::Driver>) -> Gpu {
    Gpu::open(driver, GPU0, &Stack::new().over(leaf::Async)).expect("a device")
}

/// One handle, and what the model says is held through it.
struct Handle {
    gpu: Gpu,
    buffers: Vec<DeviceBuffer<u8>>,
    lost: BTreeMap<AllocTag, (u64, u64)>,
}

impl Handle {
    fn new(gpu: Gpu) -> Self {
        Self { gpu, buffers: Vec::new(), lost: BTreeMap::new() }
    }

    /// What is held through it: bytes and blocks by tag.
    fn expected(&self) -> BTreeMap<AllocTag, (u64, u64)> {
        let mut held = self.lost.clone();
        for buffer in &self.buffers {
            let entry = held.entry(buffer.tag()).or_default();
            *entry = (entry.0 + buffer.bytes().get(), entry.1 + 1);
        }
        held
    }

    fn check(&self, seed: u64) {
        let expected = self.expected();
        let sum: u64 = expected.values().map(|(bytes, _)| bytes).sum();
        let leak = self.gpu.still_held(Duration::MAX);
        assert_eq!(leak.as_ref().map_or(0, |leak| leak.held.get()), sum, "seed {seed}: {leak:?}");
        let Some(Leak { holders, sites, waiting, failure, .. }) = leak else { return };
        assert_eq!((waiting.len(), failure), (0, None), "seed {seed}");
        let holders: BTreeMap<_, _> = holders.iter().map(|held| (held.tag, (held.bytes.get(), held.blocks))).collect();
        assert_eq!(holders, expected, "seed {seed}");
        let of_sites: u64 = sites.iter().map(|site| site.bytes.get()).sum();
        assert_eq!(of_sites, sum, "seed {seed}: each block is in one handle's report");
    }
}

/// Makes a handle under another one, with a layer of some kind.
fn under(gpu: &Gpu, kind: u64) -> Gpu {
    let limit = Bytes::gib(1);
    match kind {
        0 => gpu.under(&Identity),
        1 => gpu.under(&Quota::of(limit)),
        _ => gpu.under(&GlobalDeviceBudget::of(limit)),
    }
    .expect("a handle")
}

/// Handles over handles come and go, allocate, free and lose blocks: each reports exactly what is its own.
#[test]
fn d6_each_handle_answers_for_what_was_allocated_through_it() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).over(leaf::Frames);
        let root = Gpu::open(Sim::immediate(), GPU0, &stack).expect("a device");
        root.record_sites().expect("room for an observer");
        let stream = root.streams().acquire().expect("a stream");
        let mut handles = vec![Handle::new(root)];
        for _ in 0..60 {
            let at = random.index(handles.len());
            match random.below(8) {
                0 if handles.len() < 6 => {
                    let gpu = under(&handles[at].gpu, random.below(3));
                    handles.push(Handle::new(gpu));
                }
                1 if at > 0 => drop(handles.remove(at)),
                2 => drop(handles[at].buffers.pop()),
                3 => {
                    let Handle { buffers, lost, .. } = &mut handles[at];
                    if let Some(buffer) = buffers.pop() {
                        let entry = lost.entry(buffer.tag()).or_default();
                        *entry = (entry.0 + buffer.bytes().get(), entry.1 + 1);
                        assert!(buffer.into_block().expect("not captured").is_some());
                    }
                }
                _ => {
                    let tag = AllocTag::intern(NAMES[random.index(NAMES.len())]);
                    let bytes = 256 * (1 + random.index(64));
                    let Handle { gpu, buffers, .. } = &mut handles[at];
                    buffers.push(gpu.buffer(bytes, stream, tag).expect("room"));
                }
            }
            handles.iter().for_each(|handle| handle.check(seed));
        }
    }
}

#[test]
fn d6_a_limit_of_a_handle_is_its_own_and_exact() {
    let gpu = open(Sim::immediate());
    let stream = gpu.streams().acquire().expect("a stream");
    let _before = gpu.buffer::<u8>(1 << 20, stream, tag!("before")).expect("room");
    let (quota, budget) = (Quota::of(Bytes::mib(2)), GlobalDeviceBudget::of(Bytes::mib(2)));
    let handles = [gpu.under(&quota), gpu.under(&budget)].map(|handle| handle.expect("a handle"));
    for handle in &handles {
        for _ in 0..20 {
            drop(gpu.buffer::<u8>(4 << 20, stream, tag!("beside")).expect("the limit is not the device's"));
            let all = handle.buffer::<u8>(2 << 20, stream, tag!("all")).expect("what others hold is not counted");
            let refused = handle.buffer::<u8>(1, stream, tag!("more")).expect_err("over the limit");
            let Error::OutOfBudget { remaining, limit, .. } = &refused else { panic!("{refused:?}") };
            assert_eq!((*remaining, *limit), (Bytes::ZERO, Bytes::mib(2)));
            assert_eq!((handle.memory().bytes_outstanding(), all.gpu().id()), (Bytes::mib(2), GPU0));
        }
        assert_eq!(handle.memory().bytes_outstanding(), Bytes::ZERO);
    }
    assert_eq!((quota.used(), budget.readings()[0].charged), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn d6_limits_of_handles_nest_and_what_is_freed_comes_back_to_all_of_them() {
    let gpu = open(Sim::immediate());
    let stream = gpu.streams().acquire().expect("a stream");
    let (outer, inner) = (Quota::of(Bytes::mib(3)), Quota::of(Bytes::mib(2)));
    let team = gpu.under(&outer).expect("a handle");
    let member = team.under(&inner).expect("a handle");
    let mine = member.buffer::<u8>(2 << 20, stream, tag!("mine")).expect("room");
    assert_eq!((outer.used(), inner.used()), (Bytes::mib(2), Bytes::mib(2)));
    assert!(team.buffer::<u8>(2 << 20, stream, tag!("theirs")).expect_err("1 MiB is left").is_capacity());
    assert_eq!(team.still_held(Duration::MAX), None, "the member holds it");
    drop((team, gpu));
    drop(mine);
    assert_eq!((outer.used(), inner.used()), (Bytes::ZERO, Bytes::ZERO));
    member.close().expect("nothing is held");
}

/// Whatever others hold of the same memory, a refusal by a handle's limit names those under it, and freeing what it
/// advises is enough.
#[test]
fn d6_a_refusal_of_a_handle_is_explained_by_what_is_under_its_limit() {
    let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).over(leaf::Frames);
    let gpu = Gpu::open(Sim::immediate(), GPU0, &stack).expect("a device");
    let stream = gpu.streams().acquire().expect("a stream");
    let _beside = gpu.buffer::<u8>(1 << 30, stream, tag!("beside")).expect("room");
    let limit = Bytes::gib(4);
    for handle in [gpu.under(&Quota::of(limit)), gpu.under(&GlobalDeviceBudget::of(limit))] {
        let handle = handle.expect("a handle");
        let weights = handle.buffer::<u8>(3 << 30, stream, tag!("weights")).expect("room");
        let refused = handle.buffer::<u8>(2 << 30, stream, tag!("cache")).expect_err("1 GiB is left");
        let shortage = refused.shortage().expect("it is explained");
        assert_eq!(shortage.holders, [Holding { tag: weights.tag(), bytes: Bytes::gib(3), blocks: 1 }]);
        assert!(refused.to_string().contains("freeing `weights`"), "{refused}");
        drop(weights);
        drop(handle.buffer::<u8>(2 << 30, stream, tag!("cache")).expect("what was advised is enough"));
    }
}

/// What a guard keeps of freed memory, and the canaries around blocks, are the handle's that has the guard.
#[test]
fn d6_a_guard_on_one_handle_is_that_handles_alone() {
    let sim = Sim::seeded(7);
    let gpu = open(sim.clone());
    let guarded = gpu.under(&Guard::default()).expect("a handle");
    let stream = gpu.streams().acquire().expect("a stream");
    let kept = guarded.buffer_from(&[1u8; 100], stream, tag!("guarded")).expect("room");
    drop(guarded.buffer_from(&[2u8; 100], stream, tag!("freed")).expect("room"));
    assert_eq!(kept.to_vec().expect("works"), [1; 100]);
    assert_eq!(gpu.still_held(Duration::MAX), None);
    let held = guarded.still_held(Duration::MAX).expect("one block");
    assert!(matches!(&held.holders[..], [Holding { tag, blocks: 1, .. }] if *tag == kept.tag()), "{held}");
    drop(kept);
    guarded.close().expect("nothing is held");
    gpu.close().expect("nothing is held");
    sim.settle();
    sim.assert_clean();
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

/// Blocks that other threads free than those that allocated them: a handle never holds less than nothing, and at the end
/// it holds nothing.
#[test]
fn d6_the_count_of_a_handle_is_exact_whichever_threads_free() {
    const THREADS: u64 = 6;
    let gpu = Gpu::open(Sim::immediate(), GPU0, &Stack::new().layer(PagePool::default()).over(leaf::Frames));
    let gpu = gpu.expect("a device");
    let quotas = [(); 2].map(|()| Quota::of(Bytes::gib(1)));
    let handles = quotas.each_ref().map(|quota| gpu.under(quota).expect("a handle"));
    let stream = gpu.streams().acquire().expect("a stream");
    let shared = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (handles, shared) = (&handles, &shared);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..2000 {
                    let handle = &handles[random.index(2)];
                    let buffer = handle.buffer::<u8>(1 + random.index(5000), stream, tag!("passed on")).expect("room");
                    let mut shared = shared.lock().expect("no panic");
                    shared.push(buffer);
                    let at = random.index(shared.len());
                    let other = (shared.len() > 20).then(|| shared.swap_remove(at));
                    drop(shared);
                    drop(other);
                    // A reading that others overtake may be too large, but never by more than was made in all, and no
                    // free is counted before its allocation.
                    let outstanding = handle.memory().bytes_outstanding();
                    assert!(outstanding < Bytes::mib(128), "{outstanding} of 2,000 of 5 KiB for each thread");
                }
            });
        }
    });
    let held = shared.lock().expect("no panic").drain(..).count();
    assert_eq!(held, 20);
    for (handle, quota) in handles.into_iter().zip(&quotas) {
        assert_eq!((handle.memory().bytes_outstanding(), quota.used()), (Bytes::ZERO, Bytes::ZERO));
        handle.close().expect("nothing is held");
    }
}

#[test]
fn d6_handles_that_share_a_resource_keep_apart_what_they_hold() {
    let context = DeviceContext::open(Sim::immediate(), GPU0).expect("a device");
    let memory = Arc::new(Stack::new().over(leaf::Async).build(&context).expect("builds"));
    let few = StreamOptions { max_streams: 1, ..StreamOptions::default() };
    let (a, b) = (Gpu::with_resource(memory.clone()), Gpu::options().streams(few).with_resource(memory.clone()));
    let b = b.expect("sensible options");
    assert!(Arc::ptr_eq(a.context(), &context) && Arc::ptr_eq(b.context(), &context));
    let stream = b.streams().acquire().expect("a stream");
    assert_eq!(b.streams().lease().expect_err("there is one"), Error::Capacity { max: 1 });
    let kept = a.buffer::<u8>(1000, stream, tag!("kept")).expect("room");
    let raw = memory.allocate(1000, 256, stream, tag!("raw")).expect("room");
    assert_eq!((a.memory().bytes_outstanding(), memory.bytes_outstanding()), (Bytes(1024), Bytes(2048)));
    b.close().expect("it holds nothing");
    let report = a.close().expect_err("a buffer lives on");
    assert_eq!(report.leaks[0].holders, [Holding { tag: kept.tag(), bytes: Bytes(1024), blocks: 1 }]);
    memory.deallocate(raw, stream).expect("its own");
}

#[test]
fn d6_a_device_that_is_open_is_opened_no_second_time() {
    let faults = Faults::new(Sim::immediate());
    let context = DeviceContext::open(faults.clone(), GPU0).expect("a device");
    let stack = Stack::new().over(leaf::Async);
    let gpu = Gpu::with_context(&context, &stack).expect("builds");
    let urgent = StreamOptions { priority: -5, ..StreamOptions::default() };
    let more = Gpu::options().streams(urgent).with_context(&context, &stack).expect("builds");
    let under = more.under(&Identity).expect("a handle");
    for handle in [&gpu, &more, &under] {
        let stream = handle.streams().lease().expect("room");
        drop(handle.buffer_from(&[1u8], &stream, tag!("any")).expect("room"));
    }
    assert_eq!(faults.calls(Call::Open), 1);
    drop((gpu, more, under));
    assert_eq!(faults.calls(Call::Close), 0, "the context is the caller's");
    drop(context);
    assert_eq!(faults.calls(Call::Close), 1);
}

#[test]
fn d6_options_that_make_no_sense_leave_no_device_open() {
    let faults = Faults::new(Sim::immediate());
    for options in [
        StreamOptions { max_streams: 0, ..StreamOptions::default() },
        StreamOptions { priority: 99, ..StreamOptions::default() },
    ] {
        let refused = Gpu::options().streams(options).open(faults.clone(), GPU0, &Stack::new().over(leaf::Async));
        assert!(matches!(refused, Err(Error::InvalidValue { .. })), "{refused:?}");
    }
    assert_eq!(faults.calls(Call::Open), faults.calls(Call::Close));
}

#[test]
fn d6_a_lost_block_is_logged_once_by_the_handle_that_lost_it() {
    listen();
    let gpu = open(Sim::immediate());
    let stream = gpu.streams().acquire().expect("a stream");
    let tenant = gpu.under(&Quota::of(Bytes::mib(1))).expect("a handle");
    assert!(
        tenant.buffer::<u8>(1000, stream, tag!("d6-lost")).expect("room").into_block().expect("not captured").is_some()
    );
    drop(tenant);
    assert_eq!(logged("d6-lost: 1 KiB in 1 block").len(), 1);
    gpu.close().expect("it lost nothing itself");
    assert_eq!(logged("memory is still held").len(), 1, "nobody says it again");
}

#[test]
fn d7_a_free_that_the_driver_failed_is_made_before_it_is_reported() {
    for direct in [true, false] {
        let faults = Faults::new(Sim::immediate());
        let gpu = match direct {
            true => Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Direct)),
            false => Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Async)),
        }
        .expect("a device");
        let stream = gpu.context().default_stream();
        let call = if direct { Call::Free } else { Call::FreeAsync };
        let buffer = gpu.buffer::<u8>(1000, stream, tag!("failed")).expect("room");
        faults.fail_next(call, Status::NotSupported);
        drop(buffer);
        assert_eq!(gpu.memory().bytes_outstanding(), Bytes(1024));
        assert_eq!(gpu.still_held(Duration::ZERO), None, "nothing is held by the program");
        let told = gpu.buffer::<u8>(1, stream, tag!("next")).expect_err("the failure is told all the same");
        assert_eq!(told.driver_error().map(|error| error.status), Some(Status::NotSupported));
        gpu.buffer::<u8>(1, stream, tag!("next")).expect("once");

        let kept = gpu.buffer::<u8>(2000, stream, tag!("kept")).expect("room");
        let buffer = gpu.buffer::<u8>(1000, stream, tag!("failed")).expect("room");
        faults.fail_always(call, Status::NotSupported);
        drop(buffer);
        let leak = gpu.still_held(Duration::ZERO).expect("one buffer, and one that cannot be freed");
        assert_eq!((leak.held, leak.waiting_bytes()), (Bytes(3072), Bytes::ZERO), "{leak}");
        let failure = leak.failure.as_ref().and_then(Error::driver_error).expect("it says why");
        assert_eq!(failure.status, Status::NotSupported);
        assert!(leak.to_string().contains("freed memory could not be given back"), "{leak}");
        faults.heal();
        drop(kept);
        gpu.close().expect("all of it is freed");
    }
}

#[test]
fn d7_a_free_that_waits_for_a_capture_is_told_from_memory_that_is_held() {
    let sim = Sim::seeded(9);
    let stack = Stack::new().observe(Statistics::default()).over(leaf::Async);
    let gpu = Gpu::open(sim.clone(), GPU0, &stack).expect("a device");
    let tenant = gpu.under(&Quota::of(Bytes::mib(1))).expect("a handle");
    gpu.record_sites().expect("room for an observer");
    let [stream, other] = [(); 2].map(|()| gpu.streams().acquire().expect("a stream"));
    let raw = gpu.context().resolve(stream).expect("its own");
    for handle in [&gpu, &tenant] {
        let held = handle.buffer::<u8>(1000, other, tag!("same-tag")).expect("room");
        let captured = handle.buffer::<u8>(3000, stream, tag!("same-tag")).expect("room");
        sim.begin_capture(GPU0, raw).expect("its own stream");
        drop(captured);
        let leak = handle.still_held(Duration::ZERO).expect("both");
        assert_eq!((leak.held, leak.waiting_bytes(), leak.uncounted()), (Bytes(4096), Bytes(3072), Bytes::ZERO));
        assert_eq!(leak.holders, [Holding { tag: held.tag(), bytes: Bytes(1024), blocks: 1 }]);
        assert!(matches!(&leak.sites[..], [site] if site.bytes == Bytes(1024)), "{leak}");
        let [waiting] = &leak.waiting[..] else { panic!("{leak}") };
        assert_eq!((waiting.stream, waiting.bytes), (stream, Bytes(3072)));
        assert!(leak.to_string().contains("waits to be freed: stream"), "{leak}");
        sim.end_capture(GPU0, raw).expect("it was captured");
        drop(held);
        assert_eq!(handle.still_held(Duration::MAX), None, "tried again before it is reported");
    }
    tenant.close().expect("nothing is held");
    gpu.close().expect("nothing is held");
    sim.assert_clean();
}
