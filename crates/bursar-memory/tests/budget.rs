//! The clauses of a budget that need to look inside it; those that do not are in the conformance suite.

mod common;

use bursar_core::leaf::{AsyncMemory, DeviceFrames, DirectMemory};
use bursar_core::{
    Action, Actions, Build, Bytes, DeviceId, DeviceMemoryResource, Error, FrameSource, Holder, Holding, MAX_SIZE,
    Observer, Record, Stack, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, GlobalDeviceBudgetResource};
use bursar_sim::{Call, Faults, Random, Sim};
use common::{Dooming, RandomSize, Rounding, context, stall, with_each_budget};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn b1_a_budget_starts_from_what_is_already_held() {
    let context = context(Sim::immediate());
    let leaf = Arc::new(DirectMemory::new(context.clone()));
    let stream = context.default_stream();
    let earlier = leaf.allocate(1000, 256, stream, tag!("earlier")).expect("room");
    let gone = leaf.allocate(5000, 256, stream, tag!("gone")).expect("room");
    leaf.deallocate(gone, stream).expect("its own");
    let budget = GlobalDeviceBudgetResource::new(leaf, Bytes::kib(2));
    assert_eq!(budget.limit(), Bytes::kib(2));
    assert_eq!(budget.charged_bytes(), Bytes::kib(1));
    assert_eq!(budget.remaining(), Bytes::kib(1));
    budget.deallocate(earlier, stream).expect("its own");
    assert_eq!(budget.charged_bytes(), Bytes::ZERO);
}

#[test]
fn b1_remaining_is_zero_where_more_is_held_than_allowed() {
    let context = context(Sim::immediate());
    let budget = GlobalDeviceBudgetResource::new(DirectMemory::new(context.clone()), Bytes::mib(1));
    let stream = context.default_stream();
    let block = budget.allocate(1 << 20, 256, stream, tag!("all")).expect("an exact fit");
    budget.set_limit(Bytes::kib(1));
    assert_eq!(budget.remaining(), Bytes::ZERO);
    budget.deallocate(block, stream).expect("its own");
    assert_eq!(budget.remaining(), Bytes::kib(1));
}

#[test]
fn b1_memory_that_somebody_else_frees_below_a_budget_counts_as_nothing_held() {
    let context = context(Sim::immediate());
    let leaf = Arc::new(DirectMemory::new(context.clone()));
    let stream = context.default_stream();
    let budget = GlobalDeviceBudgetResource::new(leaf.clone(), Bytes::kib(2));
    let behind = leaf.allocate(4096, 256, stream, tag!("behind its back")).expect("room");
    leaf.deallocate(behind, stream).expect("its own");
    assert_eq!((budget.charged_bytes(), budget.remaining()), (Bytes::ZERO, Bytes::kib(2)));
    let block = budget.allocate(2048, 256, stream, tag!("fits")).expect("nothing is held");
    budget.deallocate(block, stream).expect("its own");
    assert_eq!(budget.charged_bytes(), Bytes::ZERO);
}

#[test]
fn b2_nested_budgets_agree_whichever_of_them_reaps() {
    for seed in 0..64 {
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        let inner = Arc::new(GlobalDeviceBudgetResource::new(AsyncMemory::new(context.clone()), Bytes::gib(2)));
        let middle = Arc::new(GlobalDeviceBudgetResource::new(inner.clone(), Bytes::gib(1)));
        let outer = GlobalDeviceBudgetResource::new(middle.clone(), Bytes::gib(3));
        let stream = context.create_stream(0).expect("a stream");
        let (mut random, mut live) = (Random::new(seed), Vec::new());
        for _ in 0..200 {
            match random.below(5) {
                0 | 1 => live.extend(outer.allocate(random.size(64 << 20), 256, stream, tag!("nested"))),
                2 | 3 if !live.is_empty() => {
                    let at = random.below(live.len() as u64) as usize;
                    outer.deallocate(live.swap_remove(at), stream).expect("its own");
                }
                _ => drop(
                    [&inner.reap(), &middle.reap(), &outer.reap()][random.below(3) as usize].as_ref().expect("works"),
                ),
            }
            let held = outer.bytes_outstanding();
            assert_eq!([outer.charged_bytes(), middle.charged_bytes(), inner.charged_bytes()], [held; 3]);
        }
        live.into_iter().for_each(|block| outer.deallocate(block, stream).expect("its own"));
        middle.reap_blocking(Duration::MAX).expect("works");
        assert_eq!([outer.charged_bytes(), middle.charged_bytes(), inner.charged_bytes()], [Bytes::ZERO; 3]);
        sim.assert_clean();
    }
}

/// Returns the outcome of a request for one of three units while one for all of them waits to fail.
fn beside_a_doomed_request(patience: u64, expect: impl Fn(Result<(), Error>)) {
    let context = context(Sim::immediate());
    let below = || Dooming::new(DirectMemory::new(context.clone()), patience);
    with_each_budget!(below(), Bytes(3 * 256), |budget| {
        let (below, stream) = (budget.inner(), context.default_stream());
        let result = std::thread::scope(|scope| {
            let doomed = scope.spawn(|| budget.allocate(3 * 256, 256, stream, tag!("doomed")).map(drop));
            while below.doomed.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let result = budget.allocate(256, 256, stream, tag!("fits"));
            below.stop.store(true, SeqCst);
            let doomed = doomed.join().expect("no panic");
            assert_eq!(doomed.expect_err("doomed"), Error::InvalidValue { what: "a doomed request" });
            result.map(|block| budget.deallocate(block, stream).expect("its own"))
        });
        expect(result);
        assert_eq!(budget.charged_bytes(), Bytes::ZERO);
    });
}

#[test]
fn b3_nobody_is_refused_for_a_charge_whose_driver_call_fails() {
    beside_a_doomed_request(100, |result| assert_eq!(result, Ok(())));
}

#[test]
fn b3_a_charge_that_is_never_decided_is_not_waited_for_forever() {
    beside_a_doomed_request(u64::MAX, |result| {
        assert!(result.expect_err("a call that does not return").is_capacity());
    });
}

#[test]
fn b5_a_refused_request_reaps_exactly_once() {
    let faults = Faults::new(Sim::seeded(1));
    let context = context(faults.clone());
    with_each_budget!(AsyncMemory::new(context.clone()), Bytes::mib(1), |budget| {
        let stream = context.create_stream(0).expect("a stream");
        let block = budget.allocate(512 << 10, 256, stream, tag!("half")).expect("room");
        let freed = budget.allocate(512 << 10, 256, stream, tag!("half")).expect("room");
        let stalled = stall(&faults, &context, stream);
        budget.deallocate(freed, stream).expect("its own");
        let queries = faults.calls(Call::StreamQuery);
        assert!(budget.allocate(1 << 20, 256, stream, tag!("whole")).expect_err("too much").is_capacity());
        assert_eq!(faults.calls(Call::StreamQuery) - queries, 1, "one stream has frees pending: one question");
        drop(stalled);
        budget.deallocate(block, stream).expect("its own");
        budget.reap_blocking(Duration::MAX).expect("works");
    });
}

#[test]
fn b7_a_rounding_inner_is_charged_what_it_rounds_to() {
    let context = context(Sim::immediate());
    let rounding = || Rounding { inner: DirectMemory::new(context.clone()), unit: 2 << 20 };
    with_each_budget!(rounding(), Bytes::mib(5), |budget| {
        let stream = context.default_stream();
        let blocks = [1, 1].map(|bytes| budget.allocate(bytes, 256, stream, tag!("rounded")).expect("room"));
        assert_eq!(budget.charged_bytes(), Bytes::mib(4));
        let refused = budget.allocate(1, 256, stream, tag!("rounded")).expect_err("one unit too many");
        let expected = Error::out_of_budget(Bytes::mib(2), Bytes::mib(1), Bytes::mib(5));
        assert_eq!(refused.plain(), expected);
        blocks.into_iter().for_each(|block| budget.deallocate(block, stream).expect("its own"));
        assert_eq!(budget.charged_bytes(), Bytes::ZERO);
    });
}

#[test]
fn b8_frames_are_charged_like_blocks() {
    let faults = Faults::new(Sim::immediate());
    let context = context(faults.clone());
    with_each_budget!(DeviceFrames::new(context.clone()), Bytes::mib(4), |budget| {
        let frames = [1, 2 << 20].map(|bytes| budget.create_frame(bytes).expect("room"));
        assert_eq!(budget.charged_bytes(), Bytes::mib(4));
        assert!(budget.create_frame(1).expect_err("full").is_capacity());
        frames.into_iter().for_each(|frame| budget.release_frame(frame).expect("its own"));
        assert_eq!(budget.charged_bytes(), Bytes::ZERO);
        faults.fail_next(Call::PagesCreate, bursar_core::Status::OutOfMemory);
        assert!(matches!(budget.create_frame(1), Err(Error::OutOfMemory { .. })));
        assert_eq!(budget.charged_bytes(), Bytes::ZERO);
    });
}

#[derive(Debug, Default)]
struct Refusals(Mutex<Vec<(Bytes, Error)>>);

#[derive(Clone, Debug, Default)]
struct Listener(Arc<Refusals>);

impl Observer for Listener {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Refuse])
    }
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    fn record(&self, record: &Record<'_>) {
        let error = record.error.expect("a refusal says why").clone();
        self.0.0.lock().expect("no panic").push((record.asked, error));
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[test]
fn b10_refusals_reach_the_sink_from_the_bottom_of_a_stack() {
    let context = context(Sim::immediate());
    let listener = Listener::default();
    let stack = Stack::new()
        .observe(listener.clone())
        .layer(GlobalDeviceBudget::of(Bytes::gib(1)))
        .layer(GlobalDeviceBudget::of(Bytes::mib(1)))
        .over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    let refused = memory.allocate(2 << 20, 256, context.default_stream(), tag!("large")).expect_err("too large");
    assert_eq!(*listener.0.0.lock().expect("no panic"), [(Bytes::mib(2), refused)]);
}

#[test]
fn b11_the_limit_changes_while_running() {
    let context = context(Sim::immediate());
    let layer = GlobalDeviceBudget::of(Bytes::mib(2));
    let memory = Stack::new().layer(layer.clone()).over(leaf::Direct).build(&context).expect("a stack");
    let stream = context.default_stream();
    let allocate = || memory.allocate(1 << 20, 256, stream, tag!("changing"));
    let blocks = [allocate().expect("room"), allocate().expect("room")];
    assert!(allocate().is_err());
    layer.set_limit(Bytes::mib(3));
    let third = allocate().expect("raised at once");
    layer.set_limit(Bytes::mib(2));
    assert!(matches!(allocate(), Err(Error::OutOfBudget { remaining: Bytes::ZERO, .. })), "lowered below what is held");
    memory.deallocate(third, stream).expect("its own");
    assert!(allocate().is_err(), "exactly the limit is held");
    for block in blocks {
        memory.deallocate(block, stream).expect("its own");
        memory.deallocate(allocate().expect("usage fell under the limit"), stream).expect("its own");
    }
    assert_eq!(layer.readings().len(), 1);
    drop(memory);
    assert!(layer.readings().is_empty());
}

#[test]
fn b11_limits_of_nothing_one_byte_and_everything() {
    let context = context(Sim::immediate());
    let stream = context.default_stream();
    for limit in [0, 1, 255] {
        let budget = GlobalDeviceBudgetResource::new(DirectMemory::new(context.clone()), Bytes(limit));
        let refused = budget.allocate(1, 256, stream, tag!("one")).expect_err("a block is 256 bytes");
        let expected = Error::out_of_budget(Bytes(256), Bytes(limit), Bytes(limit));
        assert_eq!(refused.plain(), expected);
    }
    let budget = GlobalDeviceBudgetResource::new(DirectMemory::new(context.clone()), Bytes::MAX);
    let block = budget.allocate(1, 256, stream, tag!("one")).expect("no limit at all");
    assert_eq!(budget.remaining(), Bytes(u64::MAX - 256));
    let refused = budget.allocate(MAX_SIZE, 256, stream, tag!("all")).expect_err("more than any device");
    assert!(refused.is_capacity());
    assert_eq!(budget.charged_bytes(), Bytes(256));
    budget.deallocate(block, stream).expect("its own");
}

#[test]
fn b11_without_a_limit_the_driver_is_asked_for_every_size() {
    let context = context(Sim::immediate());
    let stream = context.default_stream();
    let budget = GlobalDeviceBudgetResource::new(DirectMemory::new(context.clone()), Bytes::MAX);
    let block = budget.allocate(1, 256, stream, tag!("one")).expect("room");
    let refused = budget.allocate(1 << 63, 256, stream, tag!("half")).expect_err("more than can be told from less");
    assert_eq!(refused, Error::InvalidSize { requested: 1 << 63 });
    let largest = budget.allocate(MAX_SIZE, 256, stream, tag!("largest")).expect_err("more than any device");
    assert!(matches!(largest, Error::OutOfMemory { .. }), "the driver was asked: {largest}");
    budget.deallocate(block, stream).expect("its own");
    assert_eq!(budget.charged_bytes(), Bytes::ZERO);
}
