//! Budgets that pay from an account: the promises that are theirs alone. Those they share with budgets of their own limit are tested
//! together with those.

mod common;

use bursar_core::leaf::{AsyncMemory, DeviceFrames, DirectMemory};
use bursar_core::{
    Account, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Error, FrameSource, Holder, Result, Stack,
    Status, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, GlobalDeviceBudgetResource, PagePool};
use bursar_sim::{Call, Faults, Random, Sim};
use common::{Dooming, Purse, RandomSize, context, stall};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn b1_what_is_already_held_is_charged_at_once_or_refused() {
    let context = context(Sim::immediate());
    let leaf = Arc::new(DirectMemory::new(context.clone()));
    let stream = context.default_stream();
    let earlier = leaf.allocate(1000, 256, stream, tag!("earlier")).expect("room");
    let small = Purse::of(Bytes(512));
    let refused = GlobalDeviceBudgetResource::charged_to(leaf.clone(), small.clone()).expect_err("1 KiB is held");
    assert_eq!(refused.to_string(), "over budget: 1 KiB requested, 512 B of 512 B left");
    assert_eq!(small.held(), Bytes::ZERO);
    let purse = Purse::of(Bytes::kib(2));
    let budget = GlobalDeviceBudgetResource::charged_to(leaf, purse.clone()).expect("room");
    assert_eq!((purse.held(), budget.charged_bytes()), (Bytes::kib(1), Bytes::kib(1)));
    budget.deallocate(earlier, stream).expect("its own");
    assert_eq!((purse.held(), budget.charged_bytes()), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn b2_the_account_of_each_nested_budget_agrees_whichever_of_them_reaps() {
    for seed in 0..64 {
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        let [below, above] = [Purse::of(Bytes::gib(2)), Purse::of(Bytes::gib(3))];
        let inner =
            GlobalDeviceBudgetResource::charged_to(AsyncMemory::new(context.clone()), below.clone()).expect("room");
        let inner = Arc::new(inner);
        let middle = Arc::new(GlobalDeviceBudgetResource::new(inner.clone(), Bytes::gib(1)));
        let outer = GlobalDeviceBudgetResource::charged_to(middle.clone(), above.clone()).expect("room");
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
            assert_eq!([above.held(), below.held()], [held; 2], "seed {seed}");
        }
        live.into_iter().for_each(|block| outer.deallocate(block, stream).expect("its own"));
        outer.reap_blocking(Duration::MAX).expect("works");
        assert_eq!([above.held(), below.held()], [Bytes::ZERO; 2]);
        sim.assert_clean();
    }
}

#[test]
fn b3_budgets_that_share_an_account_share_its_limit_to_the_byte() {
    let context = context(Sim::immediate());
    let purse = Purse::of(Bytes::mib(4));
    let stream = context.default_stream();
    let blocks =
        GlobalDeviceBudgetResource::charged_to(AsyncMemory::new(context.clone()), purse.clone()).expect("room");
    let frames =
        GlobalDeviceBudgetResource::charged_to(DeviceFrames::new(context.clone()), purse.clone()).expect("room");
    let frame = frames.create_frame(1).expect("room");
    let block = blocks.allocate(1 << 20, 256, stream, tag!("block")).expect("room");
    assert_eq!(purse.held(), Bytes::mib(3));
    let refused = frames.create_frame(1).expect_err("one of four is left");
    let expected = Error::out_of_budget(Bytes::mib(2), Bytes::mib(1), Bytes::mib(4));
    assert_eq!(refused.plain(), expected);
    let rest = blocks.allocate(1 << 20, 256, stream, tag!("rest")).expect("an exact fit");
    assert!(blocks.allocate(1, 256, stream, tag!("one more")).expect_err("full").is_capacity());
    frames.release_frame(frame).expect("its own");
    [block, rest].into_iter().for_each(|block| blocks.deallocate(block, stream).expect("its own"));
    blocks.reap_blocking(Duration::MAX).expect("works");
    assert_eq!(purse.held(), Bytes::ZERO);
}

#[test]
fn b3_threads_on_two_budgets_of_one_account_never_hold_more_than_it_has() {
    let context = context(Sim::immediate());
    let limit = Bytes::mib(8);
    let purse = Purse::of(limit);
    let budget =
        || GlobalDeviceBudgetResource::charged_to(AsyncMemory::new(context.clone()), purse.clone()).expect("room");
    let budgets = [budget(), budget()];
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (budget, purse, stream) = (&budgets[thread % 2], &purse, context.create_stream(0).expect("a stream"));
            scope.spawn(move || {
                let (mut random, mut live) = (Random::new(thread as u64 + 1), Vec::new());
                for _ in 0..4_000 {
                    match budget.allocate(random.size(2 << 20), 256, stream, tag!("shared")) {
                        Ok(block) => live.push(block),
                        Err(error) => assert!(error.is_capacity(), "{error}"),
                    }
                    assert!(purse.held() <= limit);
                    while live.len() > 4 || (!live.is_empty() && random.below(4) == 0) {
                        let at = random.below(live.len() as u64) as usize;
                        budget.deallocate(live.swap_remove(at), stream).expect("its own");
                    }
                }
                live.into_iter().for_each(|block| budget.deallocate(block, stream).expect("its own"));
            });
        }
    });
    for budget in &budgets {
        budget.reap_blocking(Duration::MAX).expect("works");
    }
    assert_eq!(purse.held(), Bytes::ZERO);
}

#[test]
fn b4_more_than_the_account_will_ever_have_is_refused_without_a_reap() {
    let faults = Faults::new(Sim::seeded(1));
    let context = context(faults.clone());
    let purse = Purse::of(Bytes::mib(1));
    let budget = GlobalDeviceBudgetResource::charged_to(AsyncMemory::new(context.clone()), purse).expect("room");
    let stream = context.create_stream(0).expect("a stream");
    let block = budget.allocate(1 << 20, 256, stream, tag!("all")).expect("room");
    let stalled = stall(&faults, &context, stream);
    budget.deallocate(block, stream).expect("its own");
    let calls = faults.total_calls();
    assert!(budget.allocate((1 << 20) + 1, 256, stream, tag!("more")).expect_err("over the limit").is_capacity());
    assert_eq!(faults.total_calls(), calls, "the driver was called");
    drop(stalled);
    budget.reap_blocking(Duration::MAX).expect("works");
}

#[test]
fn b5_what_has_completed_is_paid_back_before_anything_is_refused() {
    let sim = Sim::seeded(3);
    let context = context(sim.clone());
    let purse = Purse::of(Bytes::mib(1));
    let budget =
        GlobalDeviceBudgetResource::charged_to(AsyncMemory::new(context.clone()), purse.clone()).expect("room");
    let stream = context.create_stream(0).expect("a stream");
    for _ in 0..8 {
        let block = budget.allocate(1 << 20, 256, stream, tag!("all")).expect("what was freed has completed");
        budget.deallocate(block, stream).expect("its own");
        assert_eq!(purse.held(), Bytes::mib(1), "charged until the free has run and somebody knows");
        context.synchronize(stream).expect("works");
    }
    let block = budget.allocate(1 << 20, 256, stream, tag!("all")).expect("room");
    context.fault().record(bursar_core::DriverError::new("planted", context.device(), Status::InvalidValue));
    let failed = budget.allocate(256, 256, stream, tag!("more")).expect_err("the reap fails");
    assert!(matches!(failed, Error::Driver(error) if error.call == "planted"), "{failed}");
    budget.deallocate(block, stream).expect("its own");
}

/// An account that cannot be used.
#[derive(Debug)]
struct Broken;

impl Account for Broken {
    fn charge(&self, _: Bytes) -> Result<()> {
        Err(Error::Forked)
    }
    fn release(&self, _: Bytes) {}
}

#[test]
fn b5_an_account_that_cannot_be_asked_is_reported_as_that() {
    let context = context(Sim::immediate());
    let below = Dooming::new(DirectMemory::new(context.clone()), 0);
    let budget = GlobalDeviceBudgetResource::charged_to(below.clone(), Arc::new(Broken)).expect("nothing is held");
    let error = budget.allocate(256, 256, context.default_stream(), tag!("any")).expect_err("it is broken");
    assert_eq!(error, Error::Forked);
    assert_eq!(below.reaps.load(SeqCst), 0, "no reap would help");
    assert_eq!(budget.charged_bytes(), Bytes::ZERO);
}

#[test]
fn b8_what_is_lost_is_not_charged_once_the_budget_is_gone() {
    let context = context(Sim::immediate());
    let purse = Purse::of(Bytes::mib(4));
    let stack = Stack::new().layer(GlobalDeviceBudget::shared(purse.clone())).over(leaf::Direct);
    let memory = stack.build(&context).expect("a stack");
    let _lost = memory.allocate(1 << 20, 256, context.default_stream(), tag!("lost")).expect("room");
    assert_eq!(purse.held(), Bytes::mib(1));
    drop(memory);
    assert_eq!(purse.held(), Bytes::ZERO);
}

#[test]
fn b9_no_more_is_paid_back_than_was_charged_whatever_others_free_below() {
    let context = context(Sim::immediate());
    let leaf = Arc::new(DirectMemory::new(context.clone()));
    let stream = context.default_stream();
    let purse = Purse::of(Bytes::kib(8));
    purse.charge(Bytes::kib(2)).expect("somebody else's");
    let budget = GlobalDeviceBudgetResource::charged_to(leaf.clone(), purse.clone()).expect("room");
    let behind = leaf.allocate(4096, 256, stream, tag!("behind its back")).expect("room");
    leaf.deallocate(behind, stream).expect("its own");
    let block = budget.allocate(1024, 256, stream, tag!("ours")).expect("room");
    budget.deallocate(block, stream).expect("its own");
    assert_eq!(budget.charged_bytes(), Bytes::ZERO);
    drop(budget);
    assert_eq!(purse.held(), Bytes::kib(2), "what others charged stays theirs");
}

#[test]
fn b1_each_device_of_a_stack_pays_from_its_own_account() {
    let sim = Sim::immediate();
    let purses = [Purse::of(Bytes::mib(1)), Purse::of(Bytes::mib(2))];
    let accounts = purses.clone();
    let find = move |context: &Arc<DeviceContext>| -> Result<Arc<dyn Account>> {
        let account = accounts.get(context.device().0 as usize).ok_or(Error::NoDevice)?;
        Ok(account.clone())
    };
    let stack = Stack::new().layer(GlobalDeviceBudget::shared_by(find)).over(leaf::Direct);
    for (ordinal, purse) in purses.iter().enumerate() {
        let context = DeviceContext::open(sim.clone(), DeviceId(ordinal as u32)).expect("a device");
        let memory = stack.build(&context).expect("a stack");
        let block = memory.allocate(1 << 20, 256, context.default_stream(), tag!("one")).expect("room");
        assert_eq!(purse.held(), Bytes::mib(1));
        let more = memory.allocate(1 << 20, 256, context.default_stream(), tag!("two"));
        assert_eq!(more.is_ok(), ordinal == 1);
        for block in std::iter::once(block).chain(more) {
            memory.deallocate(block, context.default_stream()).expect("its own");
        }
    }
    let third = Sim::builder().immediate().devices(3, Bytes::gib(1)).build();
    let context = DeviceContext::open(third, DeviceId(2)).expect("a device");
    assert_eq!(stack.build(&context).map(drop), Err(Error::NoDevice), "nobody has an account for it");
}

#[test]
fn p4_pools_on_one_account_make_room_for_each_other() {
    let context = context(Sim::immediate());
    let purse = Purse::of(Bytes::mib(64));
    let pool = PagePool::default();
    let stack = Stack::new().layer(pool.clone()).layer(GlobalDeviceBudget::shared(purse.clone())).over(leaf::Frames);
    let [one, two] = [(); 2].map(|()| stack.build(&context).expect("a stack"));
    let stream = context.create_stream(0).expect("a stream");
    let block = one.allocate(48 << 20, 256, stream, tag!("first")).expect("room");
    one.deallocate(block, stream).expect("its own");
    assert_eq!(purse.held(), Bytes::mib(48), "what is cached is charged");
    let block = two.allocate(48 << 20, 256, stream, tag!("second")).expect("the other pool lets go");
    assert!(purse.held() <= Bytes::mib(64));
    two.deallocate(block, stream).expect("its own");
    pool.trim(Bytes::ZERO);
    assert_eq!(purse.held(), Bytes::ZERO);
}

#[test]
fn p5_a_pool_that_is_dropped_leaves_nothing_charged() {
    let faults = Faults::new(Sim::immediate());
    let context = context(faults.clone());
    let purse = Purse::of(Bytes::mib(64));
    let stack =
        Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(purse.clone())).over(leaf::Frames);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let blocks: Vec<_> =
        (0..8).map(|_| memory.allocate(4 << 20, 256, stream, tag!("one of many")).expect("room")).collect();
    blocks.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
    faults.fail_next(Call::PagesRelease, Status::NotSupported);
    drop(memory);
    assert_eq!(purse.held(), Bytes::ZERO);
}

/// A purse that writes down which requests failed, by what they were refused by.
#[derive(Debug)]
struct Told {
    purse: Arc<Purse>,
    heard: Mutex<Vec<Kind>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Account,
    Device,
}

impl Kind {
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::OutOfBudget { .. } => Some(Self::Account),
            Error::OutOfMemory { .. } => Some(Self::Device),
            _ => None,
        }
    }
}

impl Told {
    fn of(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { purse: Purse::of(limit), heard: Mutex::default() })
    }
}

impl Account for Told {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        panic!("a budget may try again, and {bytes} would be counted");
    }
    fn try_charge(&self, bytes: Bytes) -> Result<()> {
        self.purse.charge(bytes)
    }
    fn release(&self, bytes: Bytes) {
        self.purse.release(bytes);
    }
    fn note_refusal(&self, error: &Error) {
        self.heard.lock().expect("no panic").extend(Kind::of(error));
    }
}

#[test]
fn m4_an_account_hears_once_of_each_request_that_fails_and_of_no_other() {
    let mut seen = [0; 2];
    for seed in 0..48 {
        let faults = Faults::new(Sim::seeded(seed));
        let context = context(faults.clone());
        let [pooled, plain] = [Told::of(Bytes::mib(48)), Told::of(Bytes::mib(24))];
        let pool = PagePool::default().patience(Duration::ZERO);
        let pool = Stack::new().layer(pool).layer(GlobalDeviceBudget::shared(pooled.clone())).over(leaf::Frames);
        let pool = pool.build(&context).expect("a stack");
        let plainly = Stack::new().layer(GlobalDeviceBudget::shared(plain.clone())).over(leaf::Async);
        let plainly = plainly.build(&context).expect("a stack");
        let sides: [(&dyn DeviceMemoryResource, &Told); 2] = [(&pool, &pooled), (&plainly, &plain)];
        let streams = [0, 0].map(|_| context.create_stream(0).expect("a stream"));
        let mut random = Random::new(seed);
        let (mut live, mut expected) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..150 {
            let (side, stream) = (random.below(2) as usize, streams[random.below(2) as usize]);
            match random.below(8) {
                0..=4 => match sides[side].0.allocate(random.size(12 << 20), 256, stream, tag!("m4")) {
                    Ok(block) => live[side].push(block),
                    Err(error) => expected[side].extend(Kind::of(&error)),
                },
                5 | 6 if !live[side].is_empty() => {
                    let at = random.below(live[side].len() as u64) as usize;
                    sides[side].0.deallocate(live[side].swap_remove(at), stream).expect("its own");
                }
                _ => faults.out_of_memory_at(Bytes::mib(30 + random.below(60))),
            }
            for side in 0..2 {
                assert_eq!(*sides[side].1.heard.lock().expect("no panic"), expected[side], "seed {seed}");
            }
        }
        for kind in expected.iter().flatten() {
            seen[*kind as usize] += 1;
        }
        for (side, blocks) in live.into_iter().enumerate() {
            blocks.into_iter().for_each(|block| sides[side].0.deallocate(block, streams[0]).expect("its own"));
        }
    }
    assert!(seen.iter().all(|count| *count > 50), "both kinds were tried: {seen:?}");
}
