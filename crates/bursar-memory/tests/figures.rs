//! R10: `{:?}` is a few figures, however much is held; and settings at their extremes do what they say or are refused by name.

mod common;

use bursar_core::{
    Build, Bytes, DeviceContext, DeviceMemoryResource, Error, Layer, MAX_ALIGN, Result, Stack, leaf, tag,
};
use bursar_memory::{FailureAction, GlobalDeviceBudget, Guard, Logging, OnFailure, PagePool, Quota, Statistics};
use bursar_sim::Sim;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The most characters that `{:?}` may take, with every layer of a stack in them.
const MOST: usize = 1500;

type Memory = Arc<dyn DeviceMemoryResource>;

#[track_caller]
fn is_short(what: &str, value: &dyn Debug) {
    let shown = format!("{value:?}");
    assert!(shown.len() <= MOST, "{what} takes {} characters: {}…", shown.len(), &shown[..MOST.min(shown.len())]);
}

#[test]
fn r10_what_a_stack_and_its_handles_show_does_not_grow_with_what_they_hold() {
    let context = common::context(Sim::immediate());
    let (statistics, guard, pool, quota) =
        (Statistics::default(), Guard::default(), PagePool::default(), Quota::of(Bytes::gib(4)));
    let budget = GlobalDeviceBudget::of(Bytes::gib(8));
    let stack = Stack::new()
        .observe(statistics.clone())
        .layer(OnFailure::new(|_| FailureAction::GiveUp))
        .layer(quota.clone())
        .layer(guard.clone())
        .layer(pool.clone())
        .layer(budget.clone())
        .over(leaf::Frames);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let mut blocks = Vec::new();
    for bytes in 1..4000 {
        blocks.push(memory.allocate(bytes * 3, 256, stream, tag!("many")).expect("there is room"));
    }
    // Every other one is free, so that nothing coalesces.
    for block in blocks.extract_if(.., |block| block.ptr().0 / 256 % 2 == 0) {
        memory.deallocate(block, stream).expect("its own");
    }
    is_short("the stack", &memory);
    is_short("the context", &context);
    is_short("the recipe", &stack);
    is_short("statistics", &statistics);
    is_short("the guard", &guard);
    is_short("the pool's recipe", &pool);
    is_short("the quota", &quota);
    is_short("the budget's recipe", &budget);
    for name in [
        "OnFailureResource",
        "QuotaResource",
        "GuardResource",
        "PagePoolResource",
        "GlobalDeviceBudgetResource",
        "DeviceFrames",
    ] {
        assert!(format!("{memory:?}").contains(name), "{name} is named: {memory:?}");
    }
    blocks.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
}

#[test]
fn r10_leaves_show_figures() {
    let context = common::context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    let of = |memory: Memory| {
        let blocks: Vec<_> =
            (0..2000).map(|_| memory.allocate(300, 256, stream, tag!("many")).expect("there is room")).collect();
        is_short("a leaf", &memory);
        blocks.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
    };
    of(Arc::new(Stack::new().over(leaf::Direct).build(&context).expect("a stack")));
    of(Arc::new(Stack::new().over(leaf::Async).build(&context).expect("a stack")));
}

/// The sizes that go wrong where one is not expected.
const EXTREMES: [u64; 9] =
    [0, 1, 255, 257, MAX_ALIGN, u64::MAX / 256, u64::MAX - MAX_ALIGN - 256, u64::MAX - 255, u64::MAX];

/// Builds a stack and asks it for a little and for too much: every outcome is one that the contract names.
fn survives(what: &str, build: impl FnOnce(&Arc<DeviceContext>) -> Result<Memory>) {
    let context = common::context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    let memory = match build(&context) {
        Ok(memory) => memory,
        Err(Error::InvalidSize { .. } | Error::InvalidNumber { .. } | Error::InvalidValue { .. }) => return,
        Err(other) => panic!("{what}: {other}"),
    };
    for bytes in EXTREMES {
        for align in [0, 1, 3, 256, MAX_ALIGN, MAX_ALIGN * 2, 1 << 63, u64::MAX] {
            let granted = memory.granted_size(bytes, align);
            match memory.allocate(bytes, align, stream, tag!("extreme")) {
                Ok(block) => {
                    assert!(block.granted() >= Bytes(bytes), "{what}: {bytes} at {align}");
                    assert_eq!(granted, Ok(block.granted()), "{what}: {bytes} at {align}");
                    memory.deallocate(block, stream).expect("its own");
                }
                Err(Error::InvalidSize { .. } | Error::InvalidAlignment { .. } | Error::InvalidNumber { .. }) => {
                    assert!(granted.is_err(), "{what}: {bytes} at {align}: {granted:?}");
                }
                Err(refused) => assert!(refused.is_capacity(), "{what}: {bytes} at {align}: {refused}"),
            }
        }
    }
    memory.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "{what}");
}

fn pooled(recipe: &PagePool, context: &Arc<DeviceContext>) -> Result<Memory> {
    let stack = Stack::new().layer(recipe.clone().patience(Duration::ZERO)).over(leaf::Frames);
    Ok(Arc::new(stack.build(context)?))
}

#[test]
fn r4_settings_of_a_pool_at_their_extremes() {
    for bytes in EXTREMES.map(Bytes) {
        survives(&format!("fixed({})", bytes.get()), |context| pooled(&PagePool::fixed(bytes), context));
        let frames = PagePool::default().largest_frame(bytes);
        survives(&format!("largest_frame({})", bytes.get()), |context| pooled(&frames, context));
        let magazine = PagePool::default().magazine(bytes);
        survives(&format!("magazine({})", bytes.get()), |context| pooled(&magazine, context));
    }
    let refused = common::context(Sim::immediate());
    let largest = pooled(&PagePool::fixed(Bytes(u64::MAX)), &refused).expect_err("no block is so large");
    assert_eq!(largest, Error::InvalidSize { requested: u64::MAX });
    let none = pooled(&PagePool::fixed(Bytes::ZERO), &refused).expect_err("no block holds nothing");
    assert_eq!(none, Error::InvalidSize { requested: 0 });
}

#[test]
fn r4_settings_of_the_other_layers_at_their_extremes() {
    for bytes in EXTREMES.map(Bytes) {
        survives(&format!("budget of {}", bytes.get()), |context| {
            Ok(Arc::new(Stack::new().layer(GlobalDeviceBudget::of(bytes)).over(leaf::Async).build(context)?))
        });
        survives(&format!("account of {}", bytes.get()), |context| {
            let shared = GlobalDeviceBudget::shared(common::Purse::of(bytes));
            Ok(Arc::new(Stack::new().layer(shared).over(leaf::Async).build(context)?))
        });
        survives(&format!("quota of {}", bytes.get()), |context| {
            let inner: Memory = Arc::new(Stack::new().over(leaf::Async).build(context)?);
            Ok(Arc::new(Quota::of(bytes).layer(inner)?))
        });
        survives(&format!("quarantine of {}", bytes.get()), |context| {
            let guard = Guard::default().quarantine(bytes).patience(Duration::MAX);
            Ok(Arc::new(Stack::new().layer(guard).over(leaf::Async).build(context)?))
        });
        survives(&format!("limit set to {}", bytes.get()), |context| {
            let budget = GlobalDeviceBudget::of(Bytes::mib(1));
            let memory = Stack::new().layer(budget.clone()).over(leaf::Async).build(context)?;
            budget.set_limit(bytes);
            Ok(Arc::new(memory))
        });
        survives(&format!("quota set to {}", bytes.get()), |context| {
            let (inner, quota): (Memory, _) =
                (Arc::new(Stack::new().over(leaf::Async).build(context)?), Quota::of(Bytes::mib(1)));
            let memory = quota.layer(inner)?;
            quota.set_limit(bytes);
            Ok(Arc::new(memory))
        });
    }
}

#[test]
fn g1_a_log_with_room_for_nothing_or_for_more_than_there_can_be_is_refused() {
    for records in [0, usize::MAX / 144, usize::MAX] {
        let opened = Logging::builder().capacity(records).to_writer(std::io::sink());
        let refused = opened.map(drop).expect_err("no log has such room");
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{refused}");
    }
}

#[test]
fn r4_calls_of_a_pool_at_their_extremes() {
    let context = common::context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    let pool = PagePool::default();
    let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context).expect("a pool");
    let block = memory.allocate(5 << 20, 256, stream, tag!("cached")).expect("there is room");
    memory.deallocate(block, stream).expect("its own");
    for bytes in EXTREMES.map(Bytes) {
        let primed = memory.inner().prime(bytes, stream);
        let is_named = |error: &Error| error.is_capacity() || matches!(error, Error::InvalidSize { .. });
        assert!(primed.as_ref().err().is_none_or(is_named), "{bytes}: {primed:?}");
        let (cached, went) = (memory.inner().cached(), memory.inner().trim(bytes));
        assert!(went == Bytes::ZERO || bytes < cached, "{bytes}: no more goes than is to");
        assert_eq!(memory.inner().cached(), cached.saturating_sub(went), "{bytes}");
    }
    assert_eq!(pool.trim(Bytes(u64::MAX)), Bytes::ZERO, "so much is never cached");
}
