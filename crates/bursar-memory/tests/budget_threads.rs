//! Budgets under many threads: nothing is refused while there is room, and nothing is left behind.

mod common;

use bursar_core::leaf::{AsyncMemory, DirectMemory};
use bursar_core::{Bytes, DeviceContext, DeviceMemoryResource, Error, Holder, Status, Stream, tag};
use bursar_memory::GlobalDeviceBudgetResource;
use bursar_sim::{Call, Faults, Random, Sim};
use common::{Budget, Dooming, RandomSize, Rounding, context, with_each_budget};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const LIMIT: Bytes = Bytes::gib(1);
const THREADS: u64 = 8;

/// The amount that is known from outside: everything that was granted or is being asked for.
#[derive(Debug)]
struct Ledger {
    asked: AtomicU64,
    refused: AtomicU64,
}

/// Allocates and frees blocks of mixed sizes, holding at most `share`; checks every refusal.
fn churn(memory: &impl DeviceMemoryResource, stream: Stream, ledger: &Ledger, share: u64, rounds: u64, seed: u64) {
    let (mut random, mut live, mut held) = (Random::new(seed), Vec::new(), 0);
    for _ in 0..rounds {
        let bytes = random.size(share / 4);
        let granted = memory.granted_size(bytes, 256).expect("legal").get();
        while held + granted > share || (!live.is_empty() && random.below(8) == 0) {
            let at = random.below(live.len() as u64) as usize;
            let block: bursar_core::DeviceBlock = live.swap_remove(at);
            held -= block.granted().get();
            memory.deallocate(block, stream).expect("its own");
        }
        let released = memory.released_total();
        ledger.asked.fetch_add(granted, SeqCst);
        match memory.allocate(bytes, 256, stream, tag!("churn")) {
            Ok(block) => {
                held += block.granted().get();
                live.push(block);
            }
            Err(Error::OutOfBudget { requested, remaining, limit, .. }) => {
                assert!(requested.get() == granted && requested > remaining && limit == LIMIT);
                let most = ledger.asked.load(SeqCst).wrapping_sub(released);
                assert!(limit.get() - remaining.get() <= most, "refused for more than anyone can hold");
                ledger.asked.fetch_sub(granted, SeqCst);
                ledger.refused.fetch_add(1, SeqCst);
            }
            Err(Error::Driver(error)) if error.status == Status::NotSupported => {
                ledger.asked.fetch_sub(granted, SeqCst);
            }
            Err(other) => panic!("{other}"),
        }
    }
    live.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
}

/// Runs `threads` threads on streams of their own, each holding at most `share` beside the `held` of others; returns how
/// many requests were refused.
fn fire(
    memory: &(impl DeviceMemoryResource + Sync),
    context: &DeviceContext,
    threads: u64,
    share: u64,
    rounds: u64,
    seed: u64,
    held: u64,
) -> u64 {
    let ledger = Ledger { asked: AtomicU64::new(held), refused: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (ledger, stream) = (&ledger, context.create_stream(0).expect("a stream"));
            scope.spawn(move || churn(memory, stream, ledger, share, rounds, seed * 1000 + thread));
        }
    });
    ledger.refused.into_inner()
}

fn drained(budget: &impl Budget) {
    budget.reap_blocking(Duration::MAX).expect("works");
    assert_eq!(budget.bytes_outstanding(), Bytes::ZERO);
    assert_eq!(budget.charged(), Bytes::ZERO);
}

fn rounding(context: &Arc<DeviceContext>) -> Rounding<DirectMemory> {
    Rounding { inner: DirectMemory::new(context.clone()), unit: 1 << 20 }
}

#[test]
fn b2_eight_threads_within_their_share_are_never_refused() {
    let share = LIMIT.get() / THREADS;
    for seed in 0..4 {
        let context = context(Sim::immediate());
        with_each_budget!(DirectMemory::new(context.clone()), LIMIT, |direct| {
            assert_eq!(fire(&direct, &context, THREADS, share, 20_000, seed, 0), 0, "direct, seed {seed}");
            drained(&direct);
        });
        with_each_budget!(AsyncMemory::new(context.clone()), LIMIT, |stream_ordered| {
            assert_eq!(fire(&stream_ordered, &context, THREADS, share, 20_000, seed, 0), 0, "async, seed {seed}");
            drained(&stream_ordered);
        });
        with_each_budget!(rounding(&context), LIMIT, |rounding| {
            assert_eq!(fire(&rounding, &context, THREADS, share, 20_000, seed, 0), 0, "rounding, seed {seed}");
            drained(&rounding);
        });
    }
}

#[test]
fn b3_eight_threads_beyond_the_limit_are_refused_with_true_numbers() {
    for seed in 0..4 {
        let context = context(Sim::immediate());
        with_each_budget!(DirectMemory::new(context.clone()), LIMIT, |budget| { crowded(&budget, &context, seed) });
        with_each_budget!(AsyncMemory::new(context.clone()), LIMIT, |budget| { crowded(&budget, &context, seed) });
    }
}

/// Threads that would each like to hold everything, while somebody else holds half.
fn crowded(budget: &impl Budget, context: &DeviceContext, seed: u64) {
    let stream = context.default_stream();
    let half = budget.allocate(LIMIT.get() / 2, 256, stream, tag!("half")).expect("room");
    let held = half.granted().get();
    assert!(fire(budget, context, THREADS, LIMIT.get(), 10_000, seed, held) > 0, "each alone wants more than is left");
    budget.deallocate(half, stream).expect("its own");
    drained(budget);
}

#[test]
fn b2_frees_that_have_not_run_are_charged_until_they_have() {
    for seed in 0..32 {
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        with_each_budget!(AsyncMemory::new(context.clone()), LIMIT, |budget| {
            fire(&budget, &context, THREADS, LIMIT.get() / THREADS, 100, seed, 0);
            drained(&budget);
            sim.assert_clean();
        });
    }
}

#[test]
fn b3_sixteen_threads_churning_exactly_a_sixteenth_are_never_refused() {
    let context = context(Sim::immediate());
    let exact = |memory: &(dyn DeviceMemoryResource + Sync)| {
        std::thread::scope(|scope| {
            for _ in 0..16 {
                let stream = context.create_stream(0).expect("a stream");
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let block = memory.allocate(LIMIT.get() / 16, 256, stream, tag!("a sixteenth"));
                        memory.deallocate(block.expect("its share is free"), stream).expect("its own");
                    }
                });
            }
        });
    };
    with_each_budget!(DirectMemory::new(context.clone()), LIMIT, |direct| {
        exact(&direct);
        drained(&direct);
    });
    with_each_budget!(AsyncMemory::new(context.clone()), LIMIT, |stream_ordered| {
        exact(&stream_ordered);
        drained(&stream_ordered);
    });
    with_each_budget!(rounding(&context), LIMIT, |rounding| {
        exact(&rounding);
        drained(&rounding);
    });
}

#[test]
fn b3_nobody_is_refused_for_what_a_budget_below_refuses() {
    const UNIT: u64 = 1 << 20;
    let context = context(Sim::immediate());
    let inner = Arc::new(GlobalDeviceBudgetResource::new(AsyncMemory::new(context.clone()), Bytes(5 * UNIT)));
    with_each_budget!(Dooming::new(inner.clone(), 0), Bytes(10 * UNIT), |outer| {
        let stream = context.default_stream();
        let held = outer.allocate(4 * UNIT, 256, stream, tag!("held")).expect("room");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for units in [4, 2, 3, 3] {
                let (outer, done, stream) = (&outer, &done, context.create_stream(0).expect("a stream"));
                scope.spawn(move || {
                    while !done.load(SeqCst) {
                        let refused = outer.allocate(units * UNIT, 256, stream, tag!("too much"));
                        assert!(refused.expect_err("four of five are held").is_capacity());
                    }
                });
            }
            let fits = scope.spawn(|| {
                let stream = context.create_stream(0).expect("a stream");
                (0..20_000).find_map(|_| match outer.allocate(UNIT, 256, stream, tag!("fits")) {
                    Ok(block) => outer.deallocate(block, stream).err().map(Error::from),
                    Err(error) => Some(error),
                })
            });
            let refused = fits.join().expect("no panic");
            done.store(true, SeqCst);
            assert_eq!(refused, None, "one of five is left throughout");
        });
        outer.deallocate(held, stream).expect("its own");
        drained(&outer);
        assert_eq!(inner.charged_bytes(), Bytes::ZERO);
    });
}

#[test]
fn b2_three_nested_budgets_of_which_the_middle_one_reaps() {
    for seed in 0..4 {
        let context = context(Sim::immediate());
        let inner = Arc::new(GlobalDeviceBudgetResource::new(AsyncMemory::new(context.clone()), Bytes::gib(4)));
        let middle = Arc::new(GlobalDeviceBudgetResource::new(inner.clone(), LIMIT));
        let outer = GlobalDeviceBudgetResource::new(middle.clone(), Bytes::gib(2));
        assert_eq!(fire(&outer, &context, THREADS, LIMIT.get() / THREADS, 10_000, seed, 0), 0, "seed {seed}");
        drained(&outer);
        assert_eq!([middle.charged_bytes(), inner.charged_bytes()], [Bytes::ZERO; 2]);
    }
}

#[test]
fn b8_driver_failures_leave_nothing_charged() {
    for seed in 0..4 {
        let faults = Faults::new(Sim::immediate());
        let context = context(faults.clone());
        with_each_budget!(AsyncMemory::new(context.clone()), LIMIT, |budget| {
            faults.fail_with_probability(&[Call::AllocateAsync, Call::FreeAsync], 0.02, Status::NotSupported, seed);
            fire(&budget, &context, THREADS, LIMIT.get() / THREADS, 5_000, seed, 0);
            faults.heal();
            while budget.reap().is_err() {}
            drained(&budget);
        });
    }
}
