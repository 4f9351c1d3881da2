//! Clauses S1 to S6: the streams of a pool.
#![allow(unsafe_code)]

use bursar_core::{
    Action, Actions, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, DriverError,
    Error, Gate, Holder, Holding, HostFunction, Observer, RawStream, Record, Refused, Result, Stack, Status, Stream,
    StreamMisuse, StreamNumber, Submission, forward_holder, forward_memory_resource, leaf, tag,
};
use bursar_device::{Gpu, StreamOptions, StreamPool};
use bursar_sim::{Call, Executor, Faults, Launch, Sim};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};

const GPU0: DeviceId = DeviceId(0);

fn context(driver: Arc<dyn Driver>) -> Arc<DeviceContext> {
    DeviceContext::open(driver, GPU0).expect("a simulated device opens")
}

fn pool_of(driver: Arc<dyn Driver>, max_streams: usize) -> StreamPool {
    let options = StreamOptions { max_streams, ..StreamOptions::default() };
    StreamPool::with_options(context(driver), options).expect("sensible options")
}

fn counts(pool: &StreamPool) -> [usize; 4] {
    [pool.created(), pool.acquired(), pool.leased(), pool.idle()]
}

/// Has the stream write `word` to `log` when it gets there, behind `gate` if there is one.
fn write(
    context: &Arc<DeviceContext>,
    stream: Stream,
    gate: Option<Gate>,
    log: &Arc<Mutex<Vec<&'static str>>>,
    word: &'static str,
) {
    let log = log.clone();
    let run = move || log.lock().expect("no panic").push(word);
    let function = match gate {
        Some(gate) => HostFunction::behind(gate, run),
        None => HostFunction::new(run),
    };
    Submission::new(context, stream).run_on_host(function).expect("a stream of this context");
}

#[test]
fn s1_streams_are_made_on_demand_and_sixteen_is_the_default() {
    let faults = Faults::new(Sim::immediate());
    let pool = StreamPool::new(context(faults.clone()));
    assert_eq!((pool.max_streams(), faults.calls(Call::StreamCreate)), (16, 0));
    let streams: HashSet<_> = (0..16).map(|_| pool.acquire().expect("room")).collect();
    assert_eq!(streams.len(), 16);
    assert_eq!(counts(&pool), [16, 16, 0, 0]);
    assert_eq!(faults.calls(Call::StreamCreate), 16);
}

#[test]
fn s1_numbers_run_from_one_and_stay_resolvable() {
    let pool = pool_of(Sim::immediate(), 3);
    let first = pool.acquire().expect("room");
    let lease = pool.lease().expect("room");
    let leased = *lease;
    assert_eq!((first.number(), lease.number()), (StreamNumber(1), StreamNumber(2)));
    drop(lease);
    let third = pool.acquire().expect("room");
    for (number, stream) in [(1, first), (2, leased), (3, third)] {
        assert_eq!((pool.resolve(StreamNumber(number)), pool.contains(stream)), (Some(stream), true));
        assert!(pool.context().resolve(stream).is_ok());
    }
}

#[test]
fn s1_zero_is_the_default_stream_and_always_resolves() {
    let pool = pool_of(Sim::immediate(), 1);
    let default = pool.context().default_stream();
    assert_eq!((pool.resolve(StreamNumber(0)), pool.contains(default)), (Some(default), true));
    assert_eq!(counts(&pool), [0, 0, 0, 0]);
}

#[test]
fn s1_an_acquired_stream_is_never_handed_out_again() {
    let pool = pool_of(Sim::immediate(), 4);
    let kept: HashSet<Stream> = (0..2).map(|_| pool.acquire().expect("room")).collect();
    for _ in 0..20 {
        let (a, b) = (pool.lease().expect("room"), pool.lease().expect("room"));
        assert!(*a != *b && !kept.contains(&*a) && !kept.contains(&*b));
    }
    assert_eq!(counts(&pool), [4, 2, 0, 2]);
}

#[test]
fn s1_a_pool_of_no_streams_is_refused() {
    let options = StreamOptions { max_streams: 0, ..StreamOptions::default() };
    let refused = StreamPool::with_options(context(Sim::immediate()), options);
    assert!(matches!(refused, Err(Error::InvalidValue { .. })), "{refused:?}");
}

#[test]
fn s1_priorities_are_the_devices_own() {
    let context = context(Sim::immediate());
    let range = context.facts().stream_priorities.clone();
    for (priority, fits) in
        [(*range.start(), true), (*range.end(), true), (range.start() - 1, false), (range.end() + 1, false)]
    {
        let options = StreamOptions { priority, ..StreamOptions::default() };
        match StreamPool::with_options(context.clone(), options) {
            Ok(pool) => assert!(fits && pool.acquire().is_ok(), "{priority}"),
            Err(error) => assert!(!fits && matches!(error, Error::InvalidValue { .. }), "{priority}: {error}"),
        }
    }
}

#[test]
fn s2_at_capacity_says_how_many_there_may_be() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 2);
    let lease = pool.lease().expect("room");
    pool.acquire().expect("room");
    assert_eq!(pool.acquire(), Err(Error::Capacity { max: 2 }));
    assert_eq!(pool.lease().expect_err("full"), Error::Capacity { max: 2 });
    drop(lease);
    pool.acquire().expect("the lease gave one back");
    assert_eq!(pool.lease().expect_err("full"), Error::Capacity { max: 2 });
    assert_eq!(faults.calls(Call::StreamCreate), 2);
}

#[test]
fn s2_a_failed_creation_is_reported_and_loses_no_place() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 1);
    let error = Error::CreateFailed(DriverError::new("stream_create", GPU0, Status::OutOfMemory));
    for _ in 0..3 {
        faults.fail_next(Call::StreamCreate, Status::OutOfMemory);
        assert_eq!(pool.acquire(), Err(error.clone()));
        faults.fail_next(Call::StreamCreate, Status::OutOfMemory);
        assert_eq!(pool.lease().expect_err("the driver failed"), error);
    }
    assert_eq!(counts(&pool), [0, 0, 0, 0]);
    let stream = pool.acquire().expect("the place is still there");
    assert_eq!(stream.number(), StreamNumber(1));
}

#[test]
fn s2_a_failed_creation_does_not_fall_back_on_an_idle_stream() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 2);
    drop(pool.lease().expect("room"));
    faults.fail_next(Call::StreamCreate, Status::OutOfMemory);
    assert!(matches!(pool.acquire(), Err(Error::CreateFailed(_))));
    assert_eq!(counts(&pool), [1, 0, 0, 1]);
}

#[test]
fn s2_threads_get_exactly_as_many_streams_as_there_may_be() {
    for round in 0..50 {
        let pool = pool_of(Sim::seeded(round), 10);
        let barrier = Barrier::new(16);
        let got: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        pool.acquire()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let streams: HashSet<_> = got.iter().flatten().collect();
        assert_eq!((streams.len(), counts(&pool)), (10, [10, 10, 0, 0]));
        assert_eq!(got.iter().filter(|got| **got == Err(Error::Capacity { max: 10 })).count(), 6);
        assert!(
            (1..=10).all(|number| pool.resolve(StreamNumber(number)).is_some_and(|stream| streams.contains(&stream)))
        );
    }
}

#[test]
fn s3_what_is_unknown_does_not_resolve() {
    let pool = pool_of(Sim::immediate(), 4);
    let stream = pool.acquire().expect("room");
    assert_eq!([2, u32::MAX].map(|number| pool.resolve(StreamNumber(number))), [None, None]);
    let other = pool_of(Sim::immediate(), 4);
    assert!(!other.contains(stream) && !other.contains(pool.context().default_stream()));
}

#[test]
fn s4_a_lease_returns_its_stream_and_draws_the_longest_idle() {
    let pool = pool_of(Sim::immediate(), 3);
    let leases: Vec<_> = (0..3).map(|_| pool.lease().expect("room")).collect();
    let ids: Vec<_> = leases.iter().map(|lease| lease.number().0).collect();
    assert_eq!((ids, counts(&pool)), (vec![1, 2, 3], [3, 0, 3, 0]));
    leases.into_iter().rev().for_each(drop);
    assert_eq!(counts(&pool), [3, 0, 0, 3]);
    assert_eq!(pool.lease().expect("idle").number().0, 3);
    assert_eq!(pool.lease().expect("idle").number().0, 2);
}

#[test]
fn s4_the_next_holder_never_overtakes_the_last_ones_work() {
    for seed in 0..32 {
        let pool = pool_of(Sim::seeded(seed), 1);
        let (context, log, gate) = (pool.context(), Arc::default(), Gate::default());
        let last = pool.lease().expect("room");
        write(context, *last, Some(gate.clone()), &log, "last");
        drop(last);
        let next = pool.lease().expect("the last one gave it back");
        write(context, *next, None, &log, "next");
        assert!(log.lock().expect("no panic").is_empty(), "seed {seed}");
        gate.open();
        context.synchronize(*next).expect("runs");
        assert_eq!(*log.lock().expect("no panic"), ["last", "next"], "seed {seed}");
    }
}

#[test]
fn s4_threads_that_lease_never_share_a_stream() {
    let pool = pool_of(Sim::immediate(), 4);
    let held: [Mutex<()>; 5] = Default::default();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    match pool.lease() {
                        Ok(lease) => {
                            let alone = held[lease.number().0 as usize].try_lock().expect("nobody else has it");
                            std::thread::yield_now();
                            drop(alone);
                        }
                        Err(error) => assert_eq!(error, Error::Capacity { max: 4 }),
                    }
                }
            });
        }
    });
    assert_eq!((pool.leased(), pool.idle()), (0, pool.created()));
}

#[test]
fn s5_an_adopted_stream_takes_no_place_in_the_pool() {
    let pool = pool_of(Sim::immediate(), 1);
    let context = pool.context();
    let raw = context.driver().stream_create(GPU0, 0).expect("room");
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { context.adopt_stream(raw) }.expect("room");
    assert!(!pool.contains(&adopted));
    assert_ne!(pool.acquire().expect("room"), adopted.stream());
    drop(adopted);
    // SAFETY: it was made here and its adoption has ended.
    unsafe { context.driver().stream_destroy(GPU0, raw) }.expect("alive");
}

#[test]
fn s6_the_plan_saturates() {
    let pool = pool_of(Sim::immediate(), 1);
    let each = pool.bytes_per_stream();
    assert_eq!(pool.planned_pool_bytes(2, 3), each.saturating_mul(6));
    assert_eq!(pool.planned_pool_bytes(0, u64::MAX), Bytes::ZERO);
    assert_eq!(pool.planned_pool_bytes(u64::MAX, 0), Bytes::ZERO);
    assert_eq!(pool.planned_pool_bytes(u64::MAX, u64::MAX), Bytes::MAX);
    assert_eq!(pool.planned_pool_bytes(1 << 20, 1 << 20), Bytes::MAX);
}

#[test]
fn s6_priming_leaves_nothing_behind_and_says_what_went_wrong() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 1);
    let memory = memory(&pool);
    let lease = pool.lease().expect("room");
    pool.prime(&memory, &lease).expect("it fits");
    memory.reap().expect("no fault");
    assert_eq!(memory.released_total(), pool.bytes_per_stream().get());
    assert_eq!(faults.held(GPU0), Bytes::ZERO);
    faults.out_of_memory_at(pool.bytes_per_stream().saturating_sub(Bytes(1)));
    assert!(pool.prime(&memory, *lease).expect_err("too little").is_capacity());
}

#[test]
fn s6_what_priming_cannot_free_is_kept_and_tried_again() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 1);
    let refusing = Arc::new(Refusing { inner: memory(&pool), refusals: AtomicUsize::new(1) });
    let memory: Arc<dyn DeviceMemoryResource> = refusing.clone();
    let lease = pool.lease().expect("room");
    let refused = pool.prime(&memory, &lease).expect_err("the free is refused");
    assert_eq!(refused, capturing(*lease));
    assert_eq!((pool.deferred_frees(), faults.held(GPU0)), (1, pool.bytes_per_stream()));
    pool.prime(&memory, &lease).expect("it is refused no more");
    assert_eq!((pool.deferred_frees(), faults.held(GPU0)), (0, Bytes::ZERO));

    refusing.refusals.store(1, Relaxed);
    pool.prime(&memory, &lease).expect_err("the free is refused");
    drop((lease, pool));
    assert_eq!(faults.held(GPU0), Bytes::ZERO, "tried once more when the pool is let go");
}

#[test]
fn s6_memory_of_another_context_cannot_be_primed() {
    let [here, there] = [(); 2].map(|()| pool_of(Sim::immediate(), 1));
    let stream = there.acquire().expect("room");
    let refused = here.prime(&memory(&there), stream).expect_err("not its memory");
    assert!(matches!(refused, Error::InvalidValue { .. }), "{refused}");
}

fn memory(pool: &StreamPool) -> Arc<dyn DeviceMemoryResource> {
    Arc::new(Stack::new().over(leaf::Async).build(pool.context()).expect("builds"))
}

fn capturing(stream: Stream) -> Error {
    Error::StreamMisuse { device: GPU0, stream: stream.number(), why: StreamMisuse::Capturing }
}

/// Memory that refuses a number of frees as if their stream were being captured.
#[derive(Debug)]
struct Refusing {
    inner: Arc<dyn DeviceMemoryResource>,
    refusals: AtomicUsize,
}

impl Holder for Refusing {
    forward_holder!(self.inner);
}

impl DeviceMemoryResource for Refusing {
    forward_memory_resource!(self.inner; granted_size, allocate, tracks_use);
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let refuses = self.refusals.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if refuses { Err(Refused { block, error: capturing(stream) }) } else { self.inner.deallocate(block, stream) }
    }
}

#[test]
fn s8_a_stream_has_the_priority_it_was_asked_for_and_no_other_is_given_instead() {
    let faults = Faults::new(Sim::immediate());
    let pool = pool_of(faults.clone(), 3);
    let (urgent, common) = (pool.lease_with_priority(-5).expect("room"), pool.lease().expect("room"));
    assert_eq!((urgent.priority(), common.priority()), (-5, 0));
    let (first, second) = (*urgent, *common);
    drop((urgent, common));
    for _ in 0..3 {
        assert_eq!(*pool.lease_with_priority(-5).expect("it is idle"), first);
        assert_eq!(*pool.lease().expect("it is idle"), second);
    }
    assert_eq!(faults.calls(Call::StreamCreate), 2, "each is used again");
    let kept = pool.acquire_with_priority(-1).expect("room");
    assert_ne!((kept, kept), (first, second));
    assert_eq!(pool.lease_with_priority(-2).expect_err("full, of others"), Error::Capacity { max: 3 });
    assert_eq!(pool.acquire_with_priority(-5), Ok(first), "one of that priority is idle");
    assert_eq!(pool.lease_with_priority(-5).expect_err("it was acquired"), Error::Capacity { max: 3 });
}

#[test]
fn s8_a_priority_outside_the_range_is_refused_and_costs_no_place() {
    let pool = pool_of(Sim::immediate(), 1);
    let range = pool.context().facts().stream_priorities.clone();
    for priority in [range.start() - 1, range.end() + 1, i32::MIN, i32::MAX] {
        assert!(matches!(pool.lease_with_priority(priority), Err(Error::InvalidValue { .. })), "{priority}");
        assert!(matches!(pool.acquire_with_priority(priority), Err(Error::InvalidValue { .. })), "{priority}");
    }
    assert_eq!(counts(&pool), [0, 0, 0, 0]);
    let last = pool.lease_with_priority(*range.start()).expect("the place is there");
    let refused = pool.lease_with_priority(range.start() - 1).expect_err("whether there is a place or not");
    assert!(matches!(refused, Error::InvalidValue { .. }), "{refused}");
    drop(last);
}

/// A driver's handle that remembers the priority of each stream it made.
#[test]
fn s8_the_driver_is_asked_for_that_priority() {
    #[derive(Debug)]
    struct Asked(Arc<Sim>, Mutex<Vec<i32>>);
    macro_rules! forwarded {
        (fn stream_create $($signature:tt)*) => {};
        ($($method:tt)*) => { bursar_core::forward_driver_method! { 0: $($method)* } };
    }
    // SAFETY: everything returned comes from a driver that upholds the contract.
    unsafe impl Driver for Asked {
        fn stream_create(&self, device: DeviceId, priority: i32) -> Result<RawStream, DriverError> {
            self.1.lock().expect("no panic").push(priority);
            self.0.stream_create(device, priority)
        }
        bursar_core::driver_methods!(forwarded);
    }
    let asked = Arc::new(Asked(Sim::immediate(), Mutex::default()));
    let options = StreamOptions { max_streams: 4, priority: -2 };
    let pool = StreamPool::with_options(context(asked.clone()), options).expect("sensible options");
    let _leases = [pool.lease(), pool.lease_with_priority(-5), pool.lease_with_priority(0)].map(|it| it.expect("room"));
    assert_eq!(*asked.1.lock().expect("no panic"), [-2, -5, 0]);
}

#[test]
fn s1_pools_that_come_and_go_on_a_context_use_its_streams_again() {
    let faults = Faults::new(Sim::immediate());
    let context = context(faults.clone());
    for round in 0..200 {
        let pool = StreamPool::new(context.clone());
        let leases: Vec<_> = (0..8).map(|_| pool.lease().expect("streams do not run out")).collect();
        let distinct: HashSet<Stream> = leases.iter().map(|lease| **lease).collect();
        assert_eq!((distinct.len(), faults.calls(Call::StreamCreate)), (8, 8), "round {round}");
        if round % 2 == 0 {
            drop(pool);
        }
    }
    let pool = StreamPool::new(context.clone());
    let kept = pool.acquire().expect("room");
    drop(pool);
    let pool = StreamPool::new(context);
    assert!((0..16).all(|_| pool.acquire().is_ok_and(|stream| stream != kept)), "what was acquired stays its keeper's");
}

/// The same stream has the same number in messages, leases, records and the oracle's reports, also where a device is
/// opened twice, others make streams on it, and several threads do.
#[test]
fn s7_one_number_names_a_stream_everywhere() {
    #[derive(Debug, Default)]
    struct Numbers(Mutex<Vec<(Option<StreamNumber>, &'static str)>>);
    impl Observer for Numbers {
        fn interest(&self) -> Actions {
            Actions::of(&[Action::Allocate])
        }
        fn identity(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
        fn record(&self, record: &Record<'_>) {
            self.0.lock().expect("no panic").push((record.stream.map(Stream::number), record.tag.name()));
        }
        fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
            None
        }
    }
    let sim = Sim::seeded(11);
    let foreign = [0, 1].map(|device| sim.stream_create(DeviceId(device), 0).expect("room"));
    let stack = Stack::new().over(leaf::Async);
    let gpus = [0, 1, 0].map(|device| Gpu::open(sim.clone(), DeviceId(device), &stack).expect("a device"));
    for (gpu, foreign) in [(&gpus[2], foreign[0]), (&gpus[1], foreign[1]), (&gpus[0], foreign[0])] {
        let numbers = Arc::new(Numbers::default());
        gpu.context().sink().subscribe(&(numbers.clone() as Arc<dyn Observer>)).expect("room");
        // SAFETY: the stream outlives the adoption.
        let adopted = unsafe { gpu.context().adopt_stream(foreign) }.expect("room");
        let leases: Vec<_> = (0..3).map(|_| gpu.streams().lease().expect("room")).collect();
        let streams = leases.iter().map(Stream::from).chain([Stream::from(&adopted)]);
        for stream in streams {
            let number = stream.number();
            assert_eq!(stream.to_string(), format!("{number} of {}", gpu.id()));
            assert!(format!("{stream:?}").ends_with(&format!(":{})", number.0)), "{stream:?}");
            let buffer = gpu.buffer::<u8>(16, stream, tag!("numbered")).expect("room");
            assert_eq!(numbers.0.lock().expect("no panic").pop(), Some((Some(number), "numbered")));
            let raw = gpu.context().resolve(stream).expect("live");
            let late = Launch::new("late").writes(buffer.ptr(), 16);
            drop(buffer);
            sim.launch(gpu.id(), raw, late).expect("submitted");
            let report = sim.hazards().pop().expect("the block was freed").second;
            assert_eq!((report.executor, report.device), (Executor::Stream(number.0), gpu.id()));
            assert_eq!(report.executor.to_string(), number.to_string());
        }
    }
    let all: HashSet<_> = gpus[..1]
        .iter()
        .chain(&gpus[2..])
        .flat_map(|gpu| {
            let streams: Vec<_> = (0..3).map(|_| gpu.streams().acquire().expect("room").number()).collect();
            streams
        })
        .collect();
    assert_eq!(all.len(), 6, "a device opened twice has no two streams of one number");
}
