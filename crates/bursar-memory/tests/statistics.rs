//! The promises of statistics.

mod common;

use bursar_core::{
    Action, Actions, AllocTag, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Holding, Layer, Observer,
    Record, Stack, leaf, tag,
};
use bursar_memory::{Amount, Counts, GlobalDeviceBudget, PagePool, Quota, Statistics};
use bursar_sim::{Random, Sim};
use common::{RandomSize, context};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

fn told(statistics: &Statistics, action: Action, tag: AllocTag, bytes: u64) {
    statistics.record(&Record { tag, granted: Bytes(bytes), ..Record::new(action, DeviceId(0)) });
}

fn amount(bytes: u64, count: u64) -> Amount {
    Amount { bytes: Bytes(bytes), count }
}

#[test]
fn g2_one_thread_is_counted_exactly() {
    for seed in 0..64 {
        let statistics = Statistics::default();
        let tags = [tag!("first"), tag!("second"), tag!("third")];
        let (mut random, mut live) = (Random::new(seed), Vec::new());
        let mut model = [Counts::default(); 4];
        for _ in 0..500 {
            let (action, at, bytes) = if live.is_empty() || random.below(2) == 0 {
                let (at, bytes) = (random.below(3) as usize, random.size(8 << 20));
                live.push((at, bytes));
                (Action::Allocate, at, bytes)
            } else {
                let (at, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
                (Action::Free, at, bytes)
            };
            told(&statistics, action, tags[at], bytes);
            for counts in [at, 3] {
                apply(&mut model[counts], action, bytes);
            }
            assert_eq!(statistics.counts(), model[3], "seed {seed}");
        }
        for (at, tag) in tags.into_iter().enumerate() {
            assert_eq!(statistics.counts_of(tag), model[at], "seed {seed}");
        }
    }
}

fn apply(counts: &mut Counts, action: Action, bytes: u64) {
    let Counts { current, peak, total } = counts;
    if action == Action::Allocate {
        *current = amount(current.bytes.get() + bytes, current.count + 1);
        *total = amount(total.bytes.get() + bytes, total.count + 1);
        *peak = amount(peak.bytes.max(current.bytes).get(), peak.count.max(current.count));
    } else {
        *current = amount(current.bytes.get() - bytes, current.count - 1);
    }
}

#[test]
fn g2_the_peak_is_never_below_the_truth() {
    const THREADS: u64 = 8;
    let statistics = Statistics::default();
    let (live, surely_reached) = (AtomicI64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (statistics, live, surely_reached) = (&statistics, &live, &surely_reached);
            scope.spawn(move || {
                let (mut random, mut mine) = (Random::new(thread + 1), Vec::new());
                for _ in 0..20_000 {
                    if mine.is_empty() || random.below(2) == 0 {
                        let bytes = random.size(1 << 20);
                        told(statistics, Action::Allocate, tag!("peak"), bytes);
                        let now = live.fetch_add(bytes as i64, SeqCst) + bytes as i64;
                        surely_reached.fetch_max(now.max(0) as u64, SeqCst);
                        mine.push(bytes);
                    } else {
                        let bytes = mine.swap_remove(random.below(mine.len() as u64) as usize);
                        live.fetch_sub(bytes as i64, SeqCst);
                        told(statistics, Action::Free, tag!("peak"), bytes);
                    }
                }
                for bytes in mine {
                    live.fetch_sub(bytes as i64, SeqCst);
                    told(statistics, Action::Free, tag!("peak"), bytes);
                }
            });
        }
    });
    let counts = statistics.counts();
    assert_eq!(counts.current, Amount::default());
    let truth = Bytes(surely_reached.into_inner());
    assert!(counts.peak.bytes >= truth, "a peak of {} is below the truth, {truth}", counts.peak.bytes);
}

#[test]
fn g2_the_peak_is_at_most_a_mebibyte_a_thread_above_the_truth() {
    let statistics = Statistics::default();
    for _ in 0..4 {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    told(&statistics, Action::Allocate, tag!("slack"), 1 << 20);
                    told(&statistics, Action::Free, tag!("slack"), 1 << 20);
                });
            }
        });
    }
    told(&statistics, Action::Allocate, tag!("slack"), 16 << 20);
    let peak = statistics.counts().peak.bytes;
    assert!(peak >= Bytes::mib(16) && peak <= Bytes::mib(16 + 12), "{peak}");
}

#[test]
fn g2_blocks_freed_by_another_thread_are_counted_and_nothing_goes_negative() {
    let statistics = Statistics::default();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel(64);
        let (statistics, done) = (&statistics, &done);
        scope.spawn(move || {
            for n in 1..20_000u64 {
                told(statistics, Action::Allocate, tag!("handed over"), n);
                sender.send(n).expect("the other side listens");
            }
        });
        scope.spawn(move || {
            for n in receiver {
                told(statistics, Action::Free, tag!("handed over"), n);
            }
            done.store(1, SeqCst);
        });
        while done.load(SeqCst) == 0 {
            let current = statistics.counts().current;
            assert!(current.count < 20_000 && current.bytes < Bytes::gib(1), "{current}: less than nothing");
        }
    });
    assert_eq!(statistics.counts().current, Amount::default());
    assert_eq!(statistics.counts().total.count, 19_999);
}

#[test]
fn g2_scopes_nest_and_belong_to_their_thread() {
    let statistics = Statistics::default();
    let allocate = |bytes| told(&statistics, Action::Allocate, tag!("scoped"), bytes);
    let free = |bytes| told(&statistics, Action::Free, tag!("scoped"), bytes);
    allocate(1000);
    let outer = statistics.scope();
    allocate(100);
    let inner = statistics.scope();
    allocate(50);
    free(50);
    std::thread::scope(|scope| {
        scope.spawn(|| told(&statistics, Action::Allocate, tag!("scoped"), 1 << 30));
    });
    free(1000);
    let inner = inner.finish();
    assert_eq!((inner.peak, inner.total, inner.current), (amount(50, 1), amount(50, 1), Amount::default()));
    allocate(20);
    let outer = outer.finish();
    assert_eq!((outer.peak, outer.total), (amount(150, 2), amount(170, 3)));
    assert_eq!(outer.current, amount(0, 1), "a free of an earlier block does not go below nothing");
}

#[test]
fn g2_a_stack_is_counted_whole_and_by_tag() {
    let context = context(Sim::immediate());
    let statistics = Statistics::default();
    let stack = Stack::new().observe(statistics.clone()).layer(GlobalDeviceBudget::of(Bytes::mib(4))).over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let weights = memory.allocate(1 << 20, 256, stream, tag!("weights")).expect("room");
    let cache = memory.allocate(1, 256, stream, tag!("cache")).expect("room");
    assert!(memory.allocate(8 << 20, 256, stream, tag!("cache")).is_err());
    assert!(memory.allocate(0, 256, stream, tag!("cache")).is_err());
    memory.deallocate(weights, stream).expect("its own");
    assert_eq!(statistics.counts().current, amount(256, 1));
    assert_eq!(statistics.counts().peak, amount((1 << 20) + 256, 2));
    assert_eq!(statistics.counts_of(tag!("weights")).total, amount(1 << 20, 1));
    assert_eq!((statistics.refused(), statistics.failed()), (1, 1));
    assert_eq!(statistics.tags()[0].0, tag!("cache"));
    memory.deallocate(cache, stream).expect("its own");
}

/// A request is refused once, by whichever limit, or fails for another reason: no request is both.
#[test]
fn g2_a_request_that_a_limit_refused_is_counted_once_and_apart_from_other_failures() {
    let context = context(Sim::immediate());
    let (statistics, stream) = (Statistics::default(), context.default_stream());
    let stack = Stack::new().observe(statistics.clone()).layer(PagePool::default());
    let pool = stack.layer(GlobalDeviceBudget::of(Bytes::mib(64))).over(leaf::Frames).build(&context);
    let pool = Arc::new(pool.expect("a stack"));
    let tenant = Quota::of(Bytes::mib(8)).layer(pool.clone()).expect("a layer");
    let ask = |memory: &dyn DeviceMemoryResource, bytes| memory.allocate(bytes, 256, stream, tag!("asked"));
    for refused in 1..=2 {
        assert!(ask(&tenant, 9 << 20).is_err_and(|error| error.is_capacity()));
        assert_eq!((statistics.refused(), statistics.failed()), (refused, 0), "by the tenant's own limit");
    }
    let held = ask(&*pool, 60 << 20).expect("room");
    assert!(ask(&tenant, 8 << 20).is_err_and(|error| error.is_capacity()));
    assert_eq!((statistics.refused(), statistics.failed()), (3, 0), "by the budget below, which was asked many times");
    assert!(ask(&tenant, 0).is_err() && ask(&*pool, 0).is_err());
    assert_eq!((statistics.refused(), statistics.failed()), (3, 1), "what no layer passes on is nobody's request");
    pool.deallocate(held, stream).expect("its own");
}

#[test]
fn g2_a_stack_is_counted_exactly_whatever_the_sizes_in_and_out_of_scopes() {
    for seed in 0..16 {
        let context = context(Sim::builder().device(Bytes::gib(64)).immediate().build());
        let (statistics, stream) = (Statistics::default(), context.default_stream());
        let memory = Stack::new().observe(statistics.clone()).over(leaf::Async).build(&context).expect("a stack");
        let tags = [tag!("first"), tag!("second"), tag!("third")];
        let (mut random, mut live) = (Random::new(seed), Vec::new());
        let (mut model, mut scope) = ([Counts::default(); 4], None);
        for step in 0..900 {
            if step % 100 == 0 {
                scope = (step % 300 == 100).then(|| (statistics.scope(), statistics.counts().total));
            }
            let (action, at, bytes) = if live.is_empty() || (random.below(4) > 0) == (step % 600 < 400) {
                let at = random.below(3) as usize;
                let block = memory.allocate(random.size(64 << 20), 256, stream, tags[at]).expect("room");
                let bytes = block.granted().get();
                live.push((at, block));
                (Action::Allocate, at, bytes)
            } else {
                let (at, block) = live.swap_remove(random.below(live.len() as u64) as usize);
                let bytes = block.granted().get();
                memory.deallocate(block, stream).expect("its own");
                (Action::Free, at, bytes)
            };
            for counts in [at, 3] {
                apply(&mut model[counts], action, bytes);
            }
            assert_eq!(statistics.counts(), model[3], "seed {seed}, step {step}");
            assert_eq!(statistics.counts_of(tags[at]), model[at], "seed {seed}, step {step}");
            if let Some((scope, before)) = &scope {
                let scoped = scope.counts().total;
                assert_eq!(
                    amount(scoped.bytes.get() + before.bytes.get(), scoped.count + before.count),
                    model[3].total
                );
            }
        }
        live.into_iter().for_each(|(_, block)| memory.deallocate(block, stream).expect("its own"));
        assert_eq!(statistics.counts().current, Amount::default(), "seed {seed}");
    }
}

#[test]
fn r3_a_refused_free_is_still_counted() {
    let context = context(Sim::immediate());
    let statistics = Statistics::default();
    let stack = Stack::new().observe(statistics.clone()).over(leaf::Direct);
    let (one, other) = (stack.build(&context).expect("a stack"), stack.build(&context).expect("a stack"));
    let stream = context.default_stream();
    let block = one.allocate(1000, 256, stream, tag!("kept")).expect("room");
    let refused = other.deallocate(block, stream).expect_err("not its block");
    assert_eq!(statistics.counts().current, amount(1024, 1));
    one.deallocate(refused.block, stream).expect("its own");
    assert_eq!(statistics.counts().current, Amount::default());
}

#[test]
fn g2_frees_of_blocks_that_were_never_counted_take_nothing_below_zero() {
    let statistics = Statistics::default();
    for bytes in [1, 300, 5 << 20, 1 << 40] {
        told(&statistics, Action::Free, tag!("uncounted"), bytes);
        assert_eq!(statistics.counts(), Counts::default());
        assert_eq!(statistics.counts_of(tag!("uncounted")), Counts::default());
    }
    told(&statistics, Action::Allocate, tag!("uncounted"), 3 << 20);
    let counts = statistics.counts();
    assert_eq!(counts.total, amount(3 << 20, 1));
    assert!(counts.current.bytes <= Bytes::mib(3) && counts.current.count <= 1, "{}", counts.current);
    assert!(counts.peak.bytes <= Bytes::mib(3) && counts.peak.count <= 1, "{}", counts.peak);
}

#[test]
fn g2_blocks_from_before_the_observer_may_be_freed_under_it() {
    let context = context(Sim::immediate());
    let stream = context.default_stream();
    let early = Stack::new().over(leaf::Direct).build(&context).expect("a stack");
    let blocks: Vec<_> = (0..400).map(|_| early.allocate(1 << 16, 256, stream, tag!("early")).expect("room")).collect();
    let statistics = Statistics::default();
    let late = Stack::new().observe(statistics.clone()).over(leaf::Direct).build(&context).expect("a stack");
    blocks.into_iter().for_each(|block| early.deallocate(block, stream).expect("its own"));
    let block = late.allocate(8 << 20, 256, stream, tag!("late")).expect("room");
    let counts = statistics.counts_of(tag!("late"));
    assert_eq!([counts.current, counts.peak, counts.total], [amount(8 << 20, 1); 3]);
    assert!(statistics.counts().peak.bytes <= Bytes::mib(8));
    late.deallocate(block, stream).expect("its own");
    assert_eq!(statistics.counts().current, Amount::default());
}

#[test]
fn g2_two_stacks_that_share_statistics_count_each_block_once() {
    let context = context(Sim::immediate());
    let (statistics, stream) = (Statistics::default(), context.default_stream());
    let build = || Stack::new().observe(statistics.clone()).over(leaf::Direct).build(&context).expect("a stack");
    let (one, other) = (build(), build());
    let blocks = [&one, &other].map(|memory| memory.allocate(1024, 256, stream, tag!("once")).expect("room"));
    assert_eq!(statistics.counts().current, amount(2048, 2));
    for (memory, block) in [one, other].into_iter().zip(blocks) {
        memory.deallocate(block, stream).expect("its own");
    }
    assert_eq!((statistics.counts().current, statistics.counts().total), (Amount::default(), amount(2048, 2)));
}

#[test]
fn g2_a_refused_free_adds_nothing_to_the_total() {
    let context = context(Sim::immediate());
    let statistics = Statistics::default();
    let stack = Stack::new().observe(statistics.clone()).over(leaf::Direct);
    let (one, other) = (stack.build(&context).expect("a stack"), stack.build(&context).expect("a stack"));
    let stream = context.default_stream();
    let scope = statistics.scope();
    let mut block = one.allocate(1000, 256, stream, tag!("refused")).expect("room");
    for _ in 0..3 {
        block = other.deallocate(block, stream).expect_err("not its block").block;
        let expected = Counts { current: amount(1024, 1), peak: amount(1024, 1), total: amount(1024, 1) };
        assert_eq!(statistics.counts(), expected);
        assert_eq!(statistics.counts_of(tag!("refused")), expected);
        assert_eq!(scope.counts(), expected);
    }
    one.deallocate(block, stream).expect("its own");
    assert_eq!(statistics.counts().current, Amount::default());
}

#[test]
fn g2_whoever_observes_second_counts_the_same() {
    let context = context(Sim::immediate());
    let (first, second, heard) = (Statistics::default(), Statistics::default(), Heard::default());
    let stack = Stack::new().observe(first.clone()).observe(second.clone()).observe(heard.clone()).over(leaf::Direct);
    let (memory, other) = (stack.build(&context).expect("a stack"), stack.build(&context).expect("a stack"));
    let (mut random, mut live, stream) = (Random::new(7), Vec::new(), context.default_stream());
    for step in 1..500u64 {
        if live.is_empty() || random.below(2) == 0 {
            live.push(memory.allocate(random.size(1 << 20), 256, stream, tag!("both")).expect("room"));
        } else {
            let block = live.swap_remove(random.below(live.len() as u64) as usize);
            let block = other.deallocate(block, stream).expect_err("not its block").block;
            memory.deallocate(block, stream).expect("its own");
        }
        assert_eq!(first.counts(), second.counts());
        assert_eq!(first.counts_of(tag!("both")), second.counts_of(tag!("both")));
        let counts = first.counts();
        assert_eq!(counts.current.count, live.len() as u64);
        assert_eq!(counts.total.count * 2 - counts.current.count, step, "every grant and every free, once");
    }
    let (granted, freed): (Vec<_>, Vec<_>) =
        heard.take().into_iter().partition(|(action, _)| *action == Action::Allocate);
    let counts = first.counts();
    assert_eq!(granted.iter().filter(|(_, well)| *well).count() as u64, counts.total.count);
    let taken_back = granted.iter().filter(|(_, well)| !well).count();
    assert_eq!((freed.len() - taken_back) as u64, counts.total.count - counts.current.count);
    live.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
}

/// The records that were made, in order, and whether each went well.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Vec<(Action, bool)>>>);

impl Heard {
    fn take(&self) -> Vec<(Action, bool)> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl Observer for Heard {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Allocate, Action::Free])
    }
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    fn record(&self, record: &Record<'_>) {
        self.0.lock().expect("no panic").push((record.action, record.error.is_none()));
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[test]
fn g1_a_refused_free_is_told_where_the_block_is_and_nowhere_else() {
    let sim = Sim::immediate();
    let contexts = [0, 0, 1].map(|device| DeviceContext::open(sim.clone(), DeviceId(device)).expect("a device"));
    let heard = contexts.each_ref().map(|_| Heard::default());
    let build = |at: usize| Stack::new().observe(heard[at].clone()).over(leaf::Direct).build(&contexts[at]);
    let [home, sibling, elsewhere] = [0, 1, 2].map(|at| build(at).expect("a stack"));
    let neighbour = build(0).expect("a stack");
    let streams = contexts.each_ref().map(|context| context.default_stream());
    let mut block = home.allocate(1000, 256, streams[0], tag!("home")).expect("room");
    assert_eq!(heard[0].take(), [(Action::Allocate, true)]);
    for stream in streams {
        for stranger in [&sibling, &elsewhere] {
            block = stranger.deallocate(block, stream).expect_err("not its block").block;
        }
    }
    for stream in [streams[1], streams[2]] {
        block = home.deallocate(block, stream).expect_err("not its stream").block;
    }
    assert!(heard.each_ref().map(Heard::take).concat().is_empty(), "nothing happened to any of their blocks");
    block = neighbour.deallocate(block, streams[0]).expect_err("not its block").block;
    assert_eq!(heard[0].take(), [(Action::Free, true), (Action::Allocate, false)], "a free, taken back");
    home.deallocate(block, streams[0]).expect("its own");
    assert_eq!(heard[0].take(), [(Action::Free, true)]);
}
