//! P4: the advice in a refusal is true, whatever limits stand over and under each other.
//!
//! A seeded program builds a tree of limits on one device: stacks with and without pools, budgets under and over them,
//! quotas over shared memory, guards, nested and shared by several layers. It allocates, submits work and frees at random,
//! on streams whose work runs at once, or late. Whenever a request is refused, what was advised is freed, exactly that,
//! and waited for only where the advice says so; then the same request must be granted.

mod common;

use bursar_core::{
    Account as _, Advice, AllocTag, Build, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource,
    DeviceMemoryResourceExt as _, Error, Holder as _, Layer, Stack, Stream, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, Guard, PagePool, Quota, Statistics};
use bursar_sim::{Random, Sim};
use common::Purse;
use std::sync::Arc;
use std::time::Duration;

const FRAME: u64 = 2 << 20;
const TAGS: [&str; 6] = ["weights", "kv-cache", "activations", "scratch", "gradients", "batch"];

/// A way to the memory, with the names of the limits on it.
#[derive(Clone)]
struct Way {
    memory: Arc<dyn DeviceMemoryResource>,
    limits: Vec<String>,
    /// The stack at the bottom.
    stack: usize,
}

struct Held {
    block: DeviceBlock,
    way: usize,
}

struct Program {
    random: Random,
    /// The most frames that a limit is of.
    most: u64,
    is_guarded: bool,
    context: Arc<DeviceContext>,
    streams: Vec<Stream>,
    ways: Vec<Way>,
    held: Vec<Held>,
    names: u32,
    /// The number of refusals, and of those that promised something.
    refused: u64,
    promised: u64,
}

impl Program {
    fn new(seed: u64, streams: Streams) -> Self {
        let mut random = Random::new(seed);
        let device = Bytes([64, 256, 4096][random.below(3) as usize] << 20);
        let driver = Sim::builder().device(device);
        let driver = match streams {
            Streams::AtOnce => driver.immediate(),
            Streams::Late => driver.seed(seed),
        };
        // A guard writes to all of its memory, which takes long.
        let (is_guarded, most) = match random.below(if streams == Streams::Late { 20 } else { 160 }) {
            0 => (true, 6),
            _ => (false, 64),
        };
        let driver = if random.below(4) == 0 { driver.without_pages() } else { driver }.build();
        let context = common::context(driver);
        let streams = (0..3).map(|_| context.create_stream(0).expect("a stream")).collect();
        let (ways, held) = (Vec::new(), Vec::new());
        let mut program =
            Self { random, most, is_guarded, context, streams, ways, held, names: 0, refused: 0, promised: 0 };
        let statistics = Statistics::default();
        let shared = GlobalDeviceBudget::of(program.limit()).named("shared");
        for _ in 0..1 + program.random.below(3) {
            let way = program.stack(&statistics, &shared);
            program.ways.push(way);
        }
        let mut quotas: Vec<(Quota, String)> = Vec::new();
        for _ in 0..program.random.below(5) {
            program.layer(&mut quotas);
        }
        program
    }

    fn limit(&mut self) -> Bytes {
        Bytes((1 + self.random.below(self.most)) * FRAME - self.random.below(2) * 256)
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }

    /// Builds a stack: over one leaf or another, with a budget on this side of a pool or that, or on an account.
    fn stack(&mut self, statistics: &Statistics, shared: &GlobalDeviceBudget) -> Way {
        let (above, below) = (self.name("above"), self.name("below"));
        let (outer, inner) = (self.limit(), self.limit());
        let over = GlobalDeviceBudget::of(outer).named(&above);
        let under = GlobalDeviceBudget::of(inner).named(&below);
        let largest = Bytes(FRAME << self.random.below(4));
        let patience = [Duration::ZERO, Duration::from_secs(60)][self.random.below(2) as usize];
        let pool = || PagePool::default().patience(patience).largest_frame(largest);
        let guard = || Guard::default().patience(patience);
        let stack = Stack::new().observe(statistics.clone());
        let (context, nth) = (&self.context.clone(), self.ways.len());
        let built = |memory: Arc<dyn DeviceMemoryResource>, limits: Vec<String>| Way { memory, limits, stack: nth };
        fn erased(memory: impl DeviceMemoryResource) -> Arc<dyn DeviceMemoryResource> {
            Arc::new(memory)
        }
        let kind = if self.is_guarded { 8 + self.random.below(4) } else { self.random.below(8) };
        match kind {
            0 => built(erased(stack.layer(over).over(leaf::Direct).build(context).expect("a stack")), vec![above]),
            1 => built(erased(stack.layer(over).over(leaf::Async).build(context).expect("a stack")), vec![above]),
            2 => {
                let stack = stack.layer(over).layer(under).over(leaf::Async);
                built(erased(stack.build(context).expect("a stack")), vec![above, below])
            }
            3 => {
                let stack = stack.layer(pool()).layer(under).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![below])
            }
            4 => {
                let stack = stack.layer(over).layer(pool()).layer(under).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![above, below])
            }
            // One handle, built for several stacks: each has a budget of its own, all with one name.
            5 => {
                let stack = stack.layer(pool()).layer(shared.clone()).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![])
            }
            6 => {
                let account = GlobalDeviceBudget::shared(Purse::of(inner)).named(&below);
                let stack = stack.layer(over).layer(pool()).layer(account).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![above, below])
            }
            8 => {
                let stack = stack.layer(guard()).layer(over).layer(pool()).layer(under).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![above, below])
            }
            9 => {
                let stack = stack.layer(guard()).layer(pool()).layer(under).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![below])
            }
            10 => {
                let stack = stack.layer(guard()).layer(under).over(leaf::Async);
                built(erased(stack.build(context).expect("a stack")), vec![below])
            }
            11 => {
                let stack = stack.layer(over).layer(guard()).over(leaf::Async);
                built(erased(stack.build(context).expect("a stack")), vec![above])
            }
            _ => built(erased(stack.layer(pool()).over(leaf::Frames).build(context).expect("a stack")), vec![]),
        }
    }

    /// Lays a quota, new or one that is there already, or a budget over some memory.
    fn layer(&mut self, quotas: &mut Vec<(Quota, String)>) {
        let below = self.ways[self.random.below(self.ways.len() as u64) as usize].clone();
        if self.random.below(4) == 0 {
            let (name, limit) = (self.name("tenant"), self.limit());
            let memory = GlobalDeviceBudget::of(limit).named(&name).layer(below.memory).expect("a layer");
            let limits = [vec![name], below.limits].concat();
            self.ways.push(Way { memory: Arc::new(memory), limits, stack: below.stack });
            return;
        }
        if quotas.is_empty() || self.random.below(3) > 0 {
            let (name, limit) = (self.name("quota"), self.limit());
            quotas.push((Quota::of(limit).named(&name), name));
        }
        let (quota, name) = &quotas[self.random.below(quotas.len() as u64) as usize];
        if below.limits.contains(name) {
            return;
        }
        let memory = quota.layer(below.memory).expect("a layer");
        self.ways.push(Way {
            memory: Arc::new(memory),
            limits: [vec![name.clone()], below.limits].concat(),
            stack: below.stack,
        });
    }

    fn size(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 1 + self.random.below(4096),
            1 => 1 + self.random.below(FRAME),
            2 => (1 + self.random.below(8.min(self.most))) * FRAME,
            _ => 1 + self.random.below(20.min(self.most) * FRAME),
        }
    }

    fn step(&mut self) {
        if !self.held.is_empty() && self.random.below(5) < 2 {
            let at = self.random.below(self.held.len() as u64) as usize;
            let held = self.held.swap_remove(at);
            self.free(held);
            return;
        }
        let way = self.random.below(self.ways.len() as u64) as usize;
        let (bytes, align) = (self.size(), 256 << (self.random.below(3) * self.random.below(3) * 2));
        let stream = self.streams[self.random.below(3) as usize];
        let tag = AllocTag::intern(TAGS[self.random.below(TAGS.len() as u64) as usize]);
        let memory = self.ways[way].memory.clone();
        match memory.allocate(bytes, align, stream, tag) {
            Ok(block) => self.hold(block, way),
            Err(refused) => {
                let refused = memory.explain(refused, Bytes(bytes), align);
                self.follow(&refused, way, |memory| memory.allocate(bytes, align, stream, tag));
            }
        }
    }

    /// Frees what was advised, and asks again.
    fn follow(
        &mut self,
        refused: &Error,
        way: usize,
        ask: impl Fn(&dyn DeviceMemoryResource) -> Result<DeviceBlock, Error>,
    ) {
        self.refused += 1;
        let shortage = refused.shortage().unwrap_or_else(|| panic!("{refused}"));
        let by = shortage.by.as_ref().map(|by| by.as_str().to_owned());
        for holding in &shortage.holders {
            assert!(holding.bytes > Bytes::ZERO && holding.blocks > 0, "{refused:?}");
        }
        match &shortage.advice {
            Advice::Free { tags, bytes, must_wait } => {
                self.promised += 1;
                let by = by.expect("a limit refused");
                let is_under = |held: &Held| match by.as_str() {
                    "shared" => self.ways[held.way].stack == self.ways[way].stack,
                    name => self.ways[held.way].limits.iter().any(|limit| limit == name),
                };
                let is_advised = |held: &Held| tags.contains(&held.block.tag()) && is_under(held);
                let (freed, kept): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut self.held).into_iter().partition(|held| is_advised(held));
                self.held = kept;
                let sum: u64 = freed.iter().map(|held| held.block.granted().get()).sum();
                assert_eq!(sum, bytes.get(), "the holders are those under the limit: {refused:?}");
                freed.into_iter().for_each(|held| self.free(held));
                if *must_wait {
                    self.wait(way);
                }
            }
            Advice::Wait => {
                self.promised += 1;
                self.wait(way);
            }
            Advice::TooLarge => {
                std::mem::take(&mut self.held).into_iter().for_each(|held| self.free(held));
                assert!(ask(&*self.ways[way].memory).is_err(), "freeing cannot help: {refused:?}");
                return;
            }
            _ => return,
        }
        match ask(&*self.ways[way].memory) {
            Ok(block) => self.hold(block, way),
            Err(again) => panic!("what was advised is not enough:\n{refused:?}\nand then\n{again:?}"),
        }
    }

    /// Keeps a block, with work on it that frees come after.
    fn hold(&mut self, mut block: DeviceBlock, way: usize) {
        let (bytes, stream) = (block.requested().get().min(256), block.stream());
        for _ in 0..self.random.below(4) {
            self.context.submit_fill(&mut block, 0, 1, bytes, stream).expect("work");
        }
        self.held.push(Held { block, way });
    }

    fn free(&mut self, held: Held) {
        let stream = match self.random.below(4) {
            0 => self.streams[self.random.below(3) as usize],
            _ => held.block.stream(),
        };
        self.ways[held.way].memory.deallocate(held.block, stream).expect("its own");
    }

    /// Waits as the advice says to.
    fn wait(&self, way: usize) {
        self.ways[way].memory.reap_blocking(Duration::MAX).expect("the device works");
    }

    fn run(mut self, steps: u64) -> (u64, u64) {
        for _ in 0..steps {
            self.step();
        }
        std::mem::take(&mut self.held).into_iter().for_each(|held| self.free(held));
        (self.refused, self.promised)
    }
}

/// When the work of streams runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    AtOnce,
    Late,
}

/// `BURSAR_ADVICE_SEEDS=N` runs so many programs, and `BURSAR_ADVICE_SEED=N` that one.
fn follow_advice(streams: Streams, programs: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("BURSAR_ADVICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_ADVICE_SEEDS").unwrap_or(programs),
    };
    let (mut refused, mut promised) = (0, 0);
    for seed in seeds.clone() {
        let _seed = PrintedSeed(seed);
        let counts = Program::new(seed, streams).run(40);
        (refused, promised) = (refused + counts.0, promised + counts.1);
    }
    assert!(seeds.end - seeds.start < 100 || promised * 10 > refused, "{promised} promises in {refused} refusals");
}

#[test]
fn p4_whoever_follows_the_advice_is_granted_the_request() {
    follow_advice(Streams::AtOnce, 1200);
}

#[test]
fn p4_whoever_follows_the_advice_while_work_is_pending_is_granted_the_request() {
    follow_advice(Streams::Late, 300);
}

/// Somebody else has what is missing.
#[test]
fn p4_a_refusal_tells_nothing_held_from_nothing_counted() {
    let refused = |stack: Stack| {
        let context = common::context(Sim::seeded(1));
        let purse = Purse::of(Bytes::mib(4));
        purse.charge(Bytes::mib(3)).expect("room");
        let budget = GlobalDeviceBudget::shared(purse.clone()).named("purse");
        let memory = stack.layer(budget).over(leaf::Async).build(&context).expect("a stack");
        let stream = context.create_stream(0).expect("a stream");
        let refused = memory.allocate(2 << 20, 256, stream, tag!("batch")).expect_err("1 MiB is left");
        format!("{:#}", memory.explain(refused, Bytes::mib(2), 256))
    };
    let counted = refused(Stack::new().observe(Statistics::default()));
    assert!(counted.ends_with("at least 1 MiB more are needed, and nothing that is counted is held"), "{counted}");
    assert!(counted.contains("holders           none"), "{counted}");
    let uncounted = refused(Stack::new());
    assert!(uncounted.ends_with("at least 1 MiB more are needed, and nobody counts who holds what"), "{uncounted}");
    assert!(uncounted.contains("holders           unknown"), "{uncounted}");
}

/// The budget counts what was freed until the stream has passed it, and a pool's users have it back at once.
#[test]
fn p4_advice_says_to_wait_only_where_the_next_request_would_be_refused() {
    let advice = |memory: &dyn DeviceMemoryResource, stream| {
        let held = memory.allocate(3 << 20, 256, stream, tag!("kv-cache")).expect("room");
        let refused = memory.allocate(2 << 20, 256, stream, tag!("batch")).expect_err("1 MiB is left");
        let refused = memory.explain(refused, Bytes::mib(2), 256);
        memory.free(held).expect("its own");
        refused.shortage().expect("an explanation").advice.to_string()
    };
    let (at_once, later) = (
        "freeing `kv-cache` (3 MiB) would have been enough",
        "freeing `kv-cache` (3 MiB) and waiting until that has run would have been enough",
    );
    let context = common::context(Sim::seeded(1));
    let stream = context.create_stream(0).expect("a stream");
    let (limit, stack) = (Bytes::mib(4), || Stack::new().observe(Statistics::default()));
    let budget = || GlobalDeviceBudget::of(limit);
    let over_async = stack().layer(budget()).over(leaf::Async).build(&context).expect("a stack");
    assert_eq!(advice(&over_async, stream), later);
    over_async.reap_blocking(Duration::MAX).expect("the device works");
    let quota_over_it = Quota::of(limit).layer(over_async).expect("a layer");
    assert_eq!(advice(&quota_over_it, stream), later, "the budget below would refuse next");
    let over_direct = stack().layer(budget()).over(leaf::Direct).build(&context).expect("a stack");
    assert_eq!(advice(&over_direct, stream), at_once);
    let over_nothing = stack().over(leaf::Async).build(&context).expect("a stack");
    let quota = Quota::of(limit).layer(over_nothing).expect("a layer");
    assert_eq!(advice(&quota, stream), at_once);
    let over_pool = stack().layer(budget()).layer(PagePool::default()).over(leaf::Frames);
    assert_eq!(advice(&over_pool.build(&context).expect("a stack"), stream), at_once);
    let pool = stack().layer(PagePool::default()).layer(budget()).over(leaf::Frames);
    assert_eq!(advice(&pool.build(&context).expect("a stack"), stream), at_once, "it waits by itself");
    let guarded = stack().layer(Guard::default()).layer(budget()).over(leaf::Direct);
    let guarded = guarded.build(&context).expect("a stack");
    let wait = advice(&guarded, stream);
    assert!(wait.contains("waiting until that has run"), "{wait}");
}

/// Prints a seed if its program panics.
struct PrintedSeed(u64);

impl Drop for PrintedSeed {
    #[allow(clippy::print_stderr, reason = "how to repeat the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("BURSAR_ADVICE_SEED={} replays it", self.0);
        }
    }
}
