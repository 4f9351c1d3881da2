//! Limits: how they are given, how they are named, and what they may stand over.

mod common;

use bursar_core::{
    Account, Advice, AllocTag, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource,
    DeviceMemoryResourceExt as _, Error, Holding, Layer, Result, Stack, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, Guard, OnFailure, PagePool, Quota, Statistics};
use bursar_sim::Sim;
use common::Purse;
use std::sync::Arc;

fn devices() -> [Arc<DeviceContext>; 2] {
    let sim = Sim::builder().device(Bytes::gib(8)).device(Bytes::gib(2)).immediate().build();
    [0, 1].map(|device| DeviceContext::open(sim.clone(), DeviceId(device)).expect("a device"))
}

fn limits(budget: &GlobalDeviceBudget) -> Result<Vec<Bytes>> {
    let stack = Stack::new().layer(budget.clone()).over(leaf::Async);
    let built: Vec<_> = devices().iter().map(|context| stack.build(context)).collect::<Result<_>>()?;
    let limits = budget.readings().iter().map(|reading| reading.limit).collect();
    drop(built);
    Ok(limits)
}

#[test]
fn b13_a_limit_is_one_for_all_one_for_each_or_a_part_of_the_device() {
    let gib = |sizes: [u64; 2]| sizes.map(Bytes::gib).to_vec();
    assert_eq!(limits(&GlobalDeviceBudget::of(Bytes::gib(1))), Ok(gib([1, 1])));
    let each = [(DeviceId(1), Bytes::gib(1)), (DeviceId(0), Bytes::gib(6))];
    assert_eq!(limits(&GlobalDeviceBudget::per_device(each)), Ok(gib([6, 1])));
    assert_eq!(limits(&GlobalDeviceBudget::fraction_of_total(0.5)), Ok(gib([4, 1])));
    assert_eq!(limits(&GlobalDeviceBudget::fraction_of_total(1.0)), Ok(gib([8, 2])));
    let all_but_one = |context: &Arc<DeviceContext>| Ok(context.facts().total - Bytes::gib(1));
    assert_eq!(limits(&GlobalDeviceBudget::limited_by(all_but_one)), Ok(gib([7, 1])));
    let changed = GlobalDeviceBudget::fraction_of_total(0.5);
    changed.set_limit(Bytes::gib(1));
    assert_eq!(limits(&changed), Ok(gib([1, 1])), "what is set last holds for stacks to come");
}

#[test]
fn b13_a_part_of_what_is_free_is_measured_when_the_stack_is_built() {
    let [context, _] = devices();
    let others = Stack::new().over(leaf::Direct).build(&context).expect("a stack");
    let held = others.allocate(4 << 30, 256, context.default_stream(), tag!("others")).expect("room");
    let budget = GlobalDeviceBudget::fraction_of_free(0.75);
    let memory = Stack::new().layer(budget.clone()).over(leaf::Async).build(&context).expect("a stack");
    assert_eq!(budget.readings()[0].limit, Bytes::gib(3));
    others.free(held).expect("its own");
    assert_eq!((budget.readings()[0].limit, budget.readings()[0].remaining()), (Bytes::gib(3), Bytes::gib(3)));
    drop(memory);
}

#[test]
fn b13_a_part_that_is_none_and_a_device_without_a_limit_are_refused() {
    for part in [0.0, -0.5, 1.01, 90.0, f64::NAN, f64::INFINITY] {
        for budget in [GlobalDeviceBudget::fraction_of_total(part), GlobalDeviceBudget::fraction_of_free(part)] {
            let refused = limits(&budget).expect_err("no such part");
            assert_eq!(refused.to_string(), "invalid value: a fraction is more than 0 and at most 1", "{part}");
        }
    }
    for part in [f64::MIN_POSITIVE, 1e-300, 1e-11] {
        for budget in [GlobalDeviceBudget::fraction_of_total(part), GlobalDeviceBudget::fraction_of_free(part)] {
            let refused = limits(&budget).unwrap_err();
            let text = "invalid value: a fraction of the memory that comes to less than a byte";
            assert_eq!(refused.to_string(), text, "{part}");
        }
    }
    let refused = limits(&GlobalDeviceBudget::per_device([(DeviceId(0), Bytes::gib(1))])).expect_err("two devices");
    assert_eq!(refused.to_string(), "invalid value: the budget has no limit for the device: 1");
}

/// Three models on one pool, each with a limit: the refusal of one is about its own memory.
#[test]
fn p4_a_refusal_is_about_the_limit_that_refused_and_says_its_name() {
    let [context, _] = devices();
    let stream = context.create_stream(0).expect("a stream");
    let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default());
    let pool = stack.layer(GlobalDeviceBudget::of(Bytes::gib(7))).over(leaf::Frames).build(&context);
    let pool = Arc::new(pool.expect("a stack"));
    let [a, b] =
        ["model-a", "model-b"].map(|name| Quota::of(Bytes::gib(3)).named(name).layer(pool.clone()).expect("a layer"));
    let mut held = Vec::new();
    let mut hold = |memory: &dyn DeviceMemoryResource, mib: u64, tag: AllocTag| {
        held.push(memory.allocate(mib << 20, 256, stream, tag).expect("room"));
    };
    hold(&a, 2048, tag!("weights"));
    hold(&a, 512, tag!("kv-cache"));
    hold(&b, 256, tag!("weights"));
    hold(&b, 2048, tag!("large"));
    let ask = |memory: &dyn DeviceMemoryResource, mib: u64| {
        let refused = memory.allocate(mib << 20, 256, stream, tag!("more")).expect_err("no room");
        memory.explain(refused, Bytes::mib(mib), 256)
    };
    let refused = ask(&a, 1024);
    assert_eq!(
        refused.to_string(),
        "over `model-a`: 1 GiB requested, 512 MiB of 3 GiB left; freeing `kv-cache` (512 MiB) would have been enough"
    );
    let shortage = refused.shortage().expect("explained");
    assert_eq!(shortage.by.as_ref().map(bursar_core::LimitName::as_str), Some("model-a"));
    let holding = |tag, mib, blocks| Holding { tag, bytes: Bytes::mib(mib), blocks };
    assert_eq!(shortage.holders, [holding(tag!("weights"), 2048, 1), holding(tag!("kv-cache"), 512, 1)]);
    assert!(matches!(refused, Error::OutOfBudget { by: Some(_), .. }));

    // The budget below refuses in its own name, whoever asks: 4,864 of 7,168 MiB are in use.
    let quota = Quota::of(Bytes::gib(9)).layer(pool.clone()).expect("a layer");
    let refused = ask(&quota, 3 << 10);
    assert!(
        refused.to_string().starts_with("over budget: 3 GiB requested, 2.25 GiB of 7 GiB left; freeing `"),
        "{refused}"
    );
    let shortage = refused.shortage().expect("explained");
    assert_eq!((shortage.requested, shortage.limit), (Bytes::gib(3), Some(Bytes::gib(7))));
    assert_eq!(shortage.holders[0], holding(tag!("weights"), 2304, 2), "those of every model");
    held.into_iter().for_each(|block| {
        let owner = if [tag!("large")].contains(&block.tag()) || block.granted() == Bytes::mib(256) { &b } else { &a };
        owner.free(block).expect("its own");
    });
}

#[test]
fn p4_the_headline_is_what_was_asked_for_and_the_numbers_are_the_limits() {
    let [context, _] = devices();
    let stream = context.create_stream(0).expect("a stream");
    let budget = GlobalDeviceBudget::of(Bytes::gib(5)).named("card");
    let stack = Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames);
    let memory = stack.build(&context).expect("a stack");
    let held = memory.allocate(3 << 30, 256, stream, tag!("held")).expect("room");
    let cached = memory.allocate(1 << 30, 256, stream, tag!("cached")).expect("room");
    memory.free(cached).expect("its own");
    let refused = memory.allocate(4 << 30, 256, stream, tag!("more")).expect_err("no room");
    assert!(refused.to_string().starts_with("over `card`: 4 GiB requested"), "{refused}");
    let Error::OutOfBudget { requested, remaining, limit, .. } = refused else { panic!("{refused}") };
    assert_eq!((requested.saturating_sub(remaining), limit), (Bytes::gib(2), Bytes::gib(5)));
    let explained = format!("{refused:?}");
    assert!(explained.contains("requested         4 GiB on gpu0"), "{explained}");
    memory.free(held).expect("its own");
}

/// An account, or memory, by value or behind a pointer, erased or not.
#[test]
fn r9_pointers_are_what_they_point_to() {
    let [context, _] = devices();
    let stream = context.create_stream(0).expect("a stream");
    let by_value: Box<dyn Account> = Box::new(Purse::of(Bytes::mib(1)));
    let shared: Arc<dyn Account> = Purse::of(Bytes::mib(1));
    for budget in [GlobalDeviceBudget::shared(by_value), GlobalDeviceBudget::shared(shared)] {
        let memory = Stack::new().layer(budget).over(leaf::Async).build(&context).expect("a stack");
        let erased: Box<dyn DeviceMemoryResource> = Box::new(memory);
        let guarded = Guard::default().layer(erased).expect("a layer");
        let shared: Arc<dyn DeviceMemoryResource> = Arc::new(guarded);
        let layered =
            OnFailure::new(|_| bursar_memory::FailureAction::GiveUp).layer(Box::new(shared)).expect("a layer");
        let limited = Quota::of(Bytes::gib(1)).layer(layered).expect("a layer");
        let block = limited.allocate(1 << 10, 256, stream, tag!("small")).expect("room");
        let refused = limited.allocate(1 << 20, 256, stream, tag!("large")).expect_err("the account is full");
        let refused = limited.explain(refused, Bytes::mib(1), 256);
        let advice = &refused.shortage().expect("explained").advice;
        assert!(matches!(advice, Advice::TooLarge), "with its margins it is too large: {refused:?}");
        limited.free(block).expect("its own");
    }
}
