//! S5, R6: adoptions that end while the driver fails. Programs that a seed makes, on the simulator that reports every access
//! which nothing orders: whatever fails when a stream ends, its memory is not touched before its work has run, and once
//! nothing fails any more and everything has run, all of it comes back.
//!
//! `BURSAR_SEEDS=N` runs so many programs on each stack instead of a few; `BURSAR_PROGRAM_SEED=N` runs that one alone.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    AdoptedStream, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Pattern,
    RawStream, Stack, Status, Stream, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, Guard, PagePool};
use bursar_sim::{Call, Faults, Sim};
use common::Dice;
use std::sync::Arc;
use std::time::Duration;

const GPU: DeviceId = DeviceId(0);
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };
/// The calls that order streams, that tell how far they are, and that give memory back.
const FAILING: [Call; 14] = [
    Call::StreamCreate,
    Call::StreamIsCapturing,
    Call::EventSynchronize,
    Call::Allocate,
    Call::Free,
    Call::FreeAsync,
    Call::PagesUnmap,
    Call::PagesRelease,
    Call::EventCreate,
    Call::EventRecord,
    Call::StreamSynchronize,
    Call::StreamWait,
    Call::StreamQuery,
    Call::EventQuery,
];

type Memory = Arc<dyn DeviceMemoryResource>;

fn build(stack: &impl Build, context: &Arc<DeviceContext>) -> Memory {
    Arc::new(stack.build(context).expect("the device works"))
}

/// A block, and the stream that used it last.
struct Live {
    block: DeviceBlock,
    at: Stream,
}

struct Program {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    context: Arc<DeviceContext>,
    memory: Memory,
    dice: Dice,
    own: Vec<Stream>,
    adopted: Vec<(AdoptedStream, RawStream)>,
    live: Vec<Live>,
    is_failing: bool,
}

impl Program {
    fn new(seed: u64, stack: &dyn Fn(&Arc<DeviceContext>) -> Memory) -> Self {
        let sim = Sim::seeded(seed);
        let faults = Faults::new(sim.clone());
        let context = common::context(faults.clone());
        let memory = stack(&context);
        let own = (0..2).map(|_| context.create_stream(0).expect("a stream")).collect();
        let (adopted, live) = (Vec::new(), Vec::new());
        Self { sim, faults, context, memory, dice: Dice::new(seed), own, adopted, live, is_failing: false }
    }

    fn run(mut self) {
        for _ in 0..60 {
            self.step();
        }
        if self.dice.below(3) == 0 { self.drop_first() } else { self.finish() }
    }

    fn step(&mut self) {
        match self.dice.below(16) {
            0..5 => self.allocate(),
            5..7 => self.use_one(),
            7..10 => self.free(),
            10 => self.adopt(),
            11..13 if !self.adopted.is_empty() => self.end(),
            13 => self.fail_or_heal(),
            14 => _ = self.context.trim(),
            15 => drop(self.memory.reap()),
            _ => _ = self.sim.step(),
        }
    }

    fn fail_or_heal(&mut self) {
        self.is_failing = !self.is_failing;
        if !self.is_failing {
            return self.faults.heal();
        }
        let most = 1 + self.dice.below(4);
        for call in FAILING {
            if self.dice.below(4) < most {
                self.faults.fail_always(call, FAILS);
            }
        }
    }

    fn stream(&mut self) -> Stream {
        let nth = self.dice.below((self.own.len() + self.adopted.len()) as u64) as usize;
        self.own.get(nth).copied().unwrap_or_else(|| self.adopted[nth - self.own.len()].0.stream())
    }

    fn raw(&self, stream: Stream) -> RawStream {
        self.context.hold(stream).expect("a live stream").raw()
    }

    /// The program's own order, which never fails.
    fn order(&self, first: Stream, then: Stream) {
        let event = self.sim.event_create(GPU).expect("the simulator works");
        let (first, then) = (self.raw(first), self.raw(then));
        // SAFETY: both streams are live, and the event is destroyed once.
        unsafe { self.sim.event_record(GPU, event, first) }.expect("the simulator works");
        // SAFETY: as above.
        unsafe { self.sim.stream_wait(GPU, then, event) }.expect("the simulator works");
        // SAFETY: as above.
        unsafe { self.sim.event_destroy(GPU, event) }.expect("the simulator works");
    }

    fn write(&self, block: &DeviceBlock, stream: Stream) {
        let bytes = block.requested().get().min(4096);
        // SAFETY: the block is live, and the simulator reports what is not ordered.
        let filled = unsafe { self.sim.fill(GPU, self.raw(stream), block.ptr(), Pattern::U8(9), bytes) };
        filled.expect("the simulator works");
    }

    /// Allocates and writes; what fails, fails.
    fn allocate(&mut self) {
        let (stream, bytes) = (self.stream(), self.dice.size(6 << 20));
        if let Ok(block) = self.memory.allocate(bytes, 256, stream, tag!("program")) {
            self.write(&block, stream);
            self.live.push(Live { block, at: stream });
        }
    }

    fn pick(&mut self) -> Option<Live> {
        let count = self.live.len() as u64;
        (count > 0).then(|| self.live.swap_remove(self.dice.below(count) as usize))
    }

    fn has_ended(&self, stream: Stream) -> bool {
        self.context.hold(stream).is_err()
    }

    fn use_one(&mut self) {
        let Some(mut live) = self.pick() else { return };
        let stream = self.stream();
        if !self.has_ended(live.at) {
            self.order(live.at, stream);
            self.write(&live.block, stream);
            live.at = stream;
        }
        self.live.push(live);
    }

    /// Frees a block on any stream, which the memory orders after the block's own and the program after the last that
    /// used it. One that is refused is tried again later.
    fn free(&mut self) {
        let Some(Live { block, at }) = self.pick() else { return };
        let stream = self.stream();
        if at != block.stream() {
            self.order(at, stream);
        }
        if let Err(refused) = self.memory.deallocate(block, stream) {
            self.live.push(Live { block: refused.block, at });
        }
    }

    fn adopt(&mut self) {
        let raw = self.sim.stream_create(GPU, 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed in `end`, after its adoption has ended.
        self.adopted.push((unsafe { self.context.adopt_stream(raw) }.expect("room"), raw));
    }

    /// Ends an adopted stream. Blocks of other streams that it used last are another's from then on.
    fn end(&mut self) {
        let nth = self.dice.below(self.adopted.len() as u64) as usize;
        let (adopted, raw) = self.adopted.swap_remove(nth);
        let (ends, next) = (adopted.stream(), self.own[0]);
        for at in 0..self.live.len() {
            if self.live[at].at == ends && self.live[at].block.stream() != ends {
                self.order(ends, next);
                self.live[at].at = next;
            }
        }
        drop(adopted);
        // SAFETY: made in `adopt`, and its adoption has ended.
        unsafe { self.sim.stream_destroy(GPU, raw) }.expect("the simulator works");
    }

    /// The stack is dropped while calls may be failing; once they do not, everything is back.
    fn drop_first(mut self) {
        (0..self.live.len()).for_each(|_| self.free());
        assert!(self.live.is_empty(), "a free that fails is kept");
        while !self.adopted.is_empty() {
            self.end();
        }
        let Self { sim, context, memory, faults, mut dice, .. } = self;
        drop(memory);
        faults.heal();
        sim.settle();
        if dice.below(2) == 0 {
            context.trim();
        }
        drop((context, faults));
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }

    /// Nothing fails any more: everything runs, everything is freed, and everything is back.
    fn finish(mut self) {
        while self.dice.below(2) == 0 && !self.adopted.is_empty() {
            self.end();
        }
        self.faults.heal();
        while !self.adopted.is_empty() {
            self.end();
        }
        self.sim.settle();
        // What failed before is reported once.
        let reports = (0..8).take_while(|_| self.memory.reap_blocking(Duration::MAX).is_err()).count();
        assert!(reports < 8, "nothing fails any more");
        for _ in 0..3 {
            (0..self.live.len()).for_each(|_| self.free());
        }
        assert!(self.live.is_empty(), "every block can be freed");
        self.memory.reap_blocking(Duration::MAX).expect("nothing fails any more");
        assert_eq!(self.memory.bytes_outstanding(), Bytes::ZERO, "nothing stays charged");
        self.sim.settle();
        self.context.trim();
        assert_eq!(self.faults.held(GPU), Bytes::ZERO, "nothing stays held");
        let Self { sim, context, memory, faults, .. } = self;
        drop((memory, context, faults));
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}

#[allow(clippy::print_stderr, reason = "the seed that replays a failure")]
fn programs(seeds: u64, stack: &dyn Fn(&Arc<DeviceContext>) -> Memory) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("BURSAR_PROGRAM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_SEEDS").unwrap_or(seeds),
    };
    for seed in seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Program::new(seed, stack).run()));
        if let Err(panic) = ran {
            eprintln!("BURSAR_PROGRAM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn s5_adoptions_that_end_while_the_driver_fails_over_a_pool() {
    let budget = || GlobalDeviceBudget::of(Bytes::mib(64));
    programs(100, &|context| {
        build(&Stack::new().layer(PagePool::default()).layer(budget()).over(leaf::Frames), context)
    });
}

#[test]
fn s5_adoptions_that_end_while_the_driver_fails_over_a_guarded_pool() {
    let guard = || Guard::default().quarantine(Bytes::mib(4));
    programs(25, &|context| build(&Stack::new().layer(guard()).layer(PagePool::default()).over(leaf::Frames), context));
}

#[test]
fn s5_adoptions_that_end_while_the_driver_fails_over_the_drivers_pool() {
    let budget = || GlobalDeviceBudget::of(Bytes::mib(64));
    programs(100, &|context| build(&Stack::new().layer(budget()).over(leaf::Async), context));
}

#[test]
fn s5_adoptions_that_end_while_the_driver_fails_under_guard() {
    let guard = || Guard::default().quarantine(Bytes::mib(4));
    programs(25, &|context| build(&Stack::new().layer(guard()).over(leaf::Async), context));
}
