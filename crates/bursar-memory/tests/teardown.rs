//! R6, P4, P5 where things end in odd ways: with faults at every call, in odd orders, busy, or with the device lost.
//!
//! `BURSAR_SEEDS=N` runs so many lives with failures by chance.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    Account, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Error, Holder, Layer,
    Stack, Status, Stream, leaf, leaf::DeviceFrames, tag,
};
use bursar_memory::{FailureAction, GlobalDeviceBudget, GlobalDeviceBudgetResource, Guard, OnFailure, PagePool};
use bursar_sim::{Call, Faults, Random, Sim};
use common::{Purse, RandomSize};
use std::sync::Arc;
use std::time::Duration;

const GPU: DeviceId = DeviceId(0);
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };

type Memory = Arc<dyn DeviceMemoryResource>;

struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    context: Arc<DeviceContext>,
    stream: Stream,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let sim = Sim::seeded(seed);
        let faults = Faults::new(sim.clone());
        let context = common::context(faults.clone());
        let stream = context.create_stream(0).expect("a stream");
        Self { sim, faults, context, stream }
    }

    fn pool(&self) -> Memory {
        Arc::new(Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&self.context).expect("a pool"))
    }

    /// Allocates, writes and frees.
    fn use_memory(&self, memory: &dyn DeviceMemoryResource, bytes: u64) {
        let mut block = memory.allocate(bytes, 256, self.stream, tag!("used")).expect("there is room");
        self.context.submit_fill(&mut block, 0, 1, 64, self.stream).expect("the device works");
        memory.deallocate(block, self.stream).expect("its own");
    }

    fn held(&self) -> Bytes {
        self.faults.held(GPU)
    }

    #[track_caller]
    fn finish(self) {
        let Self { sim, faults, context, .. } = self;
        drop((context, faults));
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}

/// One failed question while a pool is dropped.
#[test]
fn r6_one_failed_question_while_a_pool_is_dropped_leaves_nothing_for_good() {
    let rig = Rig::new(1);
    let memory = rig.pool();
    rig.use_memory(&*memory, 500 << 20);
    rig.context.synchronize(rig.stream).expect("the device works");
    rig.faults.fail_nth(Call::StreamQuery, 1, FAILS);
    drop(memory);
    rig.context.trim();
    assert_eq!((rig.held(), rig.context.left_behind()), (Bytes::ZERO, Bytes::ZERO));
    rig.context.fault().check().expect_err("it failed once");
    let memory = rig.pool();
    rig.use_memory(&*memory, 500 << 20);
    rig.context.synchronize(rig.stream).expect("the device works");
    rig.faults.fail_always(Call::StreamQuery, FAILS);
    drop(memory);
    assert_eq!((rig.held(), rig.context.left_behind()), (Bytes::mib(500), Bytes::mib(500)), "kept and counted");
    rig.faults.heal();
    assert_eq!(rig.context.usage().expect("it is still a member").held, Bytes::mib(500));
    assert_eq!(rig.context.trim(), Bytes::mib(500));
    assert_eq!((rig.held(), rig.context.left_behind()), (Bytes::ZERO, Bytes::ZERO));
    rig.finish();
}

/// Memory that was left behind is given back before anybody is refused: a pool, each leaf, and a pool's addresses.
#[test]
fn r6_what_was_left_behind_is_given_back_before_a_request_is_refused() {
    let takers: [fn(&Arc<DeviceContext>) -> Memory; 3] = [
        |context| Arc::new(Stack::new().layer(PagePool::default()).over(leaf::Frames).build(context).expect("a pool")),
        |context| Arc::new(Stack::new().over(leaf::Direct).build(context).expect("a leaf")),
        |context| Arc::new(Stack::new().over(leaf::Async).build(context).expect("a leaf")),
    ];
    for taker in takers {
        let rig = Rig::new(2);
        let memory = rig.pool();
        rig.use_memory(&*memory, 64 << 20);
        rig.context.synchronize(rig.stream).expect("the device works");
        rig.faults.fail_always(Call::PagesUnmap, FAILS);
        drop(memory);
        rig.faults.heal();
        assert!(rig.context.fault().check().is_err(), "it failed");
        rig.faults.out_of_memory_at(Bytes::mib(64));
        let memory = taker(&rig.context);
        rig.use_memory(&*memory, 48 << 20);
        rig.faults.heal();
        drop(memory);
        rig.finish();
    }
}

/// Frames that are charged to an account stay charged until the driver has them, also when the budget is gone.
#[test]
fn r6_what_is_left_of_a_pool_stays_charged() {
    let rig = Rig::new(3);
    let purse = Purse::of(Bytes::gib(1));
    let account: Arc<dyn Account> = purse.clone();
    let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(account)).over(leaf::Frames);
    let memory = stack.build(&rig.context).expect("a pool");
    rig.use_memory(&memory, 10 << 20);
    rig.faults.fail_always(Call::PagesUnmap, FAILS);
    drop(memory);
    assert_eq!((rig.held(), purse.held()), (Bytes::mib(10), Bytes::mib(10)), "held, so charged");
    rig.faults.heal();
    rig.context.trim();
    assert_eq!((rig.held(), purse.held()), (Bytes::ZERO, Bytes::ZERO));
    rig.finish();
}

/// A budget that outlives its pool knows what is left of that, and when it is gone.
#[test]
fn r6_a_budget_that_outlives_its_pool_counts_what_is_left() {
    let rig = Rig::new(4);
    let budget = Arc::new(GlobalDeviceBudgetResource::new(DeviceFrames::new(rig.context.clone()), Bytes::gib(1)));
    let pool = PagePool::default().layer(budget.clone()).expect("a pool");
    rig.use_memory(&*pool, 10 << 20);
    rig.faults.fail_always(Call::StreamQuery, FAILS);
    drop(pool);
    assert_eq!((rig.held(), budget.charged_bytes()), (Bytes::mib(10), Bytes::mib(10)));
    rig.faults.heal();
    rig.context.synchronize(rig.stream).expect("the device works");
    rig.context.trim();
    assert_eq!((rig.held(), budget.charged_bytes()), (Bytes::ZERO, Bytes::ZERO));
    drop(budget);
    rig.finish();
}

/// An adoption ends after the pool is gone that could not ask its stream: the pool's state still hears of it.
#[test]
fn p6_a_stream_may_end_after_a_pool_that_was_left_behind() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let memory = rig.pool();
        let raw = rig.sim.stream_create(GPU, 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed below, after its adoption has ended.
        let adopted = unsafe { rig.context.adopt_stream(raw) }.expect("room");
        let stream = adopted.stream();
        let mut block = memory.allocate(8 << 20, 256, stream, tag!("used")).expect("there is room");
        rig.context.submit_fill(&mut block, 0, 1, 4096, stream).expect("the device works");
        memory.deallocate(block, stream).expect("its own");
        for call in [Call::StreamQuery, Call::StreamSynchronize, Call::EventQuery] {
            rig.faults.fail_always(call, FAILS);
        }
        drop(memory);
        assert_eq!(rig.held(), Bytes::mib(8));
        drop(adopted);
        // SAFETY: as above.
        unsafe { rig.sim.stream_destroy(GPU, raw) }.expect("the device works");
        rig.faults.heal();
        // Another stream takes the slot, and is idle.
        let next = rig.sim.stream_create(GPU, 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed below, after its adoption has ended.
        let adopted = unsafe { rig.context.adopt_stream(next) }.expect("room");
        rig.context.trim();
        drop(adopted);
        // SAFETY: as above.
        unsafe { rig.sim.stream_destroy(GPU, next) }.expect("the device works");
        rig.sim.settle();
        rig.context.trim();
        assert_eq!(rig.held(), Bytes::ZERO, "seed {seed}");
        rig.finish();
    }
}

/// The memory's own end is the last: the context's handle, streams and leases went before.
#[test]
fn p5_things_may_be_dropped_in_any_order() {
    for seed in 0..24 {
        let rig = Rig::new(seed);
        let memory = rig.pool();
        rig.use_memory(&*memory, 5 << 20);
        let Rig { sim, faults, context, .. } = rig;
        if seed % 2 == 0 {
            faults.fail_nth(Call::StreamQuery, 1 + seed / 8, FAILS);
        }
        if seed % 3 == 0 {
            faults.fail_nth(Call::PagesUnmap, 1 + seed / 8, FAILS);
        }
        drop(context);
        drop(memory);
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

/// Every call that opening and using a stack makes fails once: an error or none, and nothing is left behind for good.
#[test]
fn r6_a_failure_at_any_call_of_a_stacks_life_leaves_nothing() {
    let life = |sim: &Arc<Sim>, faults: &Arc<Faults>| -> Result<(), Error> {
        let context = DeviceContext::open(faults.clone(), GPU)?;
        let stream = context.create_stream(0)?;
        let other = context.create_stream(0)?;
        let stack = Stack::new()
            .layer(Guard::default().quarantine(Bytes::mib(1)))
            .layer(PagePool::default().largest_frame(Bytes::mib(2)))
            .layer(GlobalDeviceBudget::of(Bytes::mib(64)))
            .over(leaf::Frames);
        let memory = stack.build(&context)?;
        let mut kept: Vec<DeviceBlock> = Vec::new();
        let mut answers = Vec::new();
        for (nth, bytes) in [5000, 3 << 20, 9 << 20, 700, 20 << 20, 6 << 20].into_iter().enumerate() {
            let on = if nth % 2 == 0 { stream } else { other };
            match memory.allocate(bytes, 256, on, tag!("life")) {
                Ok(mut block) => {
                    answers.push(context.submit_fill(&mut block, 0, 1, 64, on));
                    kept.push(block);
                }
                Err(error) => answers.push(Err(error)),
            }
            if nth % 2 == 1 && !kept.is_empty() {
                let block = kept.swap_remove(0);
                answers.push(memory.deallocate(block, on).map_err(Error::from));
            }
            sim.step();
        }
        context.trim();
        answers.push(memory.reap().map(drop));
        for block in kept {
            answers.push(memory.deallocate(block, stream).map_err(Error::from));
        }
        answers.push(memory.reap_blocking(Duration::MAX).map(drop));
        drop((memory, context));
        answers.into_iter().collect()
    };
    for call in Call::ALL.iter().copied().filter(|call| call.can_fail()) {
        for nth in 1..200 {
            let sim = Sim::seeded(nth);
            let faults = Faults::new(sim.clone());
            faults.fail_nth(call, nth, FAILS);
            let answer = life(&sim, &faults);
            if let Err(error) = &answer {
                assert!(error.driver_error().is_some(), "{call} number {nth}: {error}");
            }
            sim.assert_clean();
            assert!(sim.leaks().is_empty(), "{call} number {nth}: {}", sim.leaks());
            if faults.calls(call) < nth {
                break;
            }
        }
    }
}

/// With each call of a life failing by chance, nothing is touched early, and nothing is left once that is over.
#[test]
fn r6_failures_by_chance_leave_nothing() {
    let seeds = std::env::var("BURSAR_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(150) {
        let rig = Rig::new(seed);
        let other = rig.context.create_stream(0).expect("a stream");
        let guard = Guard::default().quarantine(Bytes::kib(64));
        let evict = OnFailure::new(|_| FailureAction::Retry);
        let pool = PagePool::default().patience(Duration::from_millis(1));
        let memory: Memory = match seed % 4 {
            0 => Arc::new(Stack::new().layer(pool).over(leaf::Frames).build(&rig.context).expect("a stack")),
            1 => Arc::new(Stack::new().layer(evict).over(leaf::Async).build(&rig.context).expect("a stack")),
            2 => {
                Arc::new(Stack::new().layer(guard).layer(pool).over(leaf::Frames).build(&rig.context).expect("a stack"))
            }
            _ => Arc::new(Stack::new().layer(guard).over(leaf::Async).build(&rig.context).expect("a stack")),
        };
        rig.faults.fail_with_probability(Call::ALL, 0.15, FAILS, seed);
        let (mut random, mut kept) = (Random::new(seed), Vec::new());
        for _ in 0..80 {
            let stream = if random.below(2) == 0 { rig.stream } else { other };
            match random.below(8) {
                0..4 => kept.extend(memory.allocate(random.size(8 << 20), 256, stream, tag!("chance"))),
                4..6 if !kept.is_empty() => {
                    let block: DeviceBlock = kept.swap_remove(random.below(kept.len() as u64) as usize);
                    kept.extend(memory.deallocate(block, stream).map_err(|refused| refused.block).err());
                }
                6 => drop(memory.reap()),
                7 => _ = rig.context.trim(),
                _ => _ = rig.sim.step(),
            }
        }
        let is_early = seed % 3 == 0;
        if is_early {
            rig.faults.heal();
        }
        for mut block in std::mem::take(&mut kept) {
            for tries in 0.. {
                assert!(tries < 100, "seed {seed}: a block can be freed at last");
                match memory.deallocate(block, rig.stream) {
                    Ok(()) => break,
                    Err(refused) => block = refused.block,
                }
            }
        }
        drop(memory);
        rig.faults.heal();
        rig.sim.settle();
        rig.context.trim();
        let left = rig.context.left_behind();
        assert_eq!(rig.held(), Bytes::ZERO, "seed {seed}: {left} are left behind");
        rig.finish();
    }
}

/// Calls of a lost device return, and dropping everything ends.
#[test]
fn r6_dropping_everything_on_a_lost_device_ends() {
    for seed in 0..8 {
        let rig = Rig::new(seed);
        let memory = rig.pool();
        rig.use_memory(&*memory, 5 << 20);
        let guarded = Stack::new().layer(Guard::default()).over(leaf::Async).build(&rig.context).expect("a stack");
        rig.use_memory(&guarded, 5000);
        let raw = rig.sim.stream_create(GPU, 0).expect("a stream of somebody else");
        // SAFETY: the stream lives as long as the simulator.
        let adopted = unsafe { rig.context.adopt_stream(raw) }.expect("room");
        let block = memory.allocate(4096, 256, adopted.stream(), tag!("last")).expect("there is room");
        rig.faults.lose(GPU);
        drop(adopted);
        drop(memory.deallocate(block, rig.stream));
        drop(memory.reap_blocking(Duration::MAX));
        drop((memory, guarded));
        rig.context.trim();
        let Rig { sim, faults, context, .. } = rig;
        drop((context, faults));
        sim.assert_clean();
    }
}

/// A pool is dropped by one thread while another trims the context.
#[test]
fn p5_a_pool_may_be_dropped_while_others_trim() {
    for seed in 0..30 {
        let rig = Rig::new(seed);
        std::thread::scope(|scope| {
            let rig = &rig;
            let trimming = scope.spawn(move || (0..200).map(|_| rig.context.trim().get()).sum::<u64>());
            for nth in 0..10 {
                let memory = rig.pool();
                // What failed before, in either thread, is reported once.
                let mut tries = (0..8).map(|_| memory.allocate(5 << 20, 256, rig.stream, tag!("used")));
                let block = tries.find_map(Result::ok).expect("there is room");
                memory.deallocate(block, rig.stream).expect("its own");
                if nth % 2 == 0 {
                    rig.faults.fail_nth(Call::PagesUnmap, 1, FAILS);
                }
                drop(memory);
            }
            trimming.join().expect("no panic");
        });
        rig.faults.heal();
        rig.context.synchronize(rig.stream).expect("the device works");
        rig.context.trim();
        assert_eq!(rig.held(), Bytes::ZERO, "seed {seed}");
        rig.finish();
    }
}
