//! P4: the advice in a refusal is true, whatever limits stand over and under each other.
//!
//! A seeded program builds a tree of limits on one device: stacks with and without pools, budgets under and over them,
//! quotas over shared memory, nested and shared by several layers. It allocates and frees at random. Whenever a request
//! is refused, what was advised is freed, exactly that, and the same request must be granted.

mod common;

use bursar_core::{
    Advice, AllocTag, Build, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DeviceMemoryResourceExt as _,
    Error, Layer, Stack, Stream, leaf,
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
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let device = Bytes([64, 256, 4096][random.below(3) as usize] << 20);
        let driver = Sim::builder().device(device).immediate().build();
        let context = common::context(driver);
        let streams = (0..3).map(|_| context.create_stream(0).expect("a stream")).collect();
        let mut program =
            Self { random, context, streams, ways: Vec::new(), held: Vec::new(), names: 0, refused: 0, promised: 0 };
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
        Bytes((1 + self.random.below(64)) * FRAME - self.random.below(2) * 256)
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
        let pool = || PagePool::default().patience(Duration::ZERO).largest_frame(largest);
        let stack = Stack::new().observe(statistics.clone());
        let (context, nth) = (&self.context.clone(), self.ways.len());
        let built = |memory: Arc<dyn DeviceMemoryResource>, limits: Vec<String>| Way { memory, limits, stack: nth };
        fn erased(memory: impl DeviceMemoryResource) -> Arc<dyn DeviceMemoryResource> {
            Arc::new(memory)
        }
        // A guard writes to all of its memory, which takes long.
        let kind = if self.random.below(160) == 0 { 8 } else { self.random.below(8) };
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
                let stack = stack.layer(Guard::default()).layer(over).layer(pool()).layer(under).over(leaf::Frames);
                built(erased(stack.build(context).expect("a stack")), vec![above, below])
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
            2 => (1 + self.random.below(8)) * FRAME,
            _ => 1 + self.random.below(20 * FRAME),
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
            Ok(block) => self.held.push(Held { block, way }),
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
            Advice::Free { tags, bytes } => {
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
            }
            Advice::Wait => self.promised += 1,
            Advice::TooLarge => {
                std::mem::take(&mut self.held).into_iter().for_each(|held| self.free(held));
                assert!(ask(&*self.ways[way].memory).is_err(), "freeing cannot help: {refused:?}");
                return;
            }
            _ => return,
        }
        match ask(&*self.ways[way].memory) {
            Ok(block) => self.held.push(Held { block, way }),
            Err(again) => panic!("what was advised is not enough:\n{refused:?}\nand then\n{again:?}"),
        }
    }

    fn free(&self, held: Held) {
        self.ways[held.way].memory.free(held.block).expect("its own");
    }

    fn run(mut self, steps: u64) -> (u64, u64) {
        for _ in 0..steps {
            self.step();
        }
        std::mem::take(&mut self.held).into_iter().for_each(|held| self.free(held));
        (self.refused, self.promised)
    }
}

/// `BURSAR_ADVICE_SEEDS=N` runs so many programs, and `BURSAR_ADVICE_SEED=N` that one.
#[test]
fn p4_whoever_follows_the_advice_is_granted_the_request() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("BURSAR_ADVICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_ADVICE_SEEDS").unwrap_or(2000),
    };
    let (mut refused, mut promised) = (0, 0);
    for seed in seeds.clone() {
        let _seed = PrintedSeed(seed);
        let counts = Program::new(seed).run(40);
        (refused, promised) = (refused + counts.0, promised + counts.1);
    }
    assert!(seeds.end - seeds.start < 100 || promised * 10 > refused, "{promised} promises in {refused} refusals");
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
