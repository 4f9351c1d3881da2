//! P1 to P6 together: programs that a seed makes, on the simulator that reports every access which nothing orders.
//!
//! `BURSAR_SEEDS=N` runs so many programs instead of a few hundred; `BURSAR_PROGRAM_SEED=N` runs that one alone.
#![allow(unsafe_code)]

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig};
use bursar_core::{AdoptedStream, Bytes, DeviceBlock, DeviceMemoryResource, Driver, Holder, RawStream, Stream, tag};
use bursar_memory::PagePool;
use bursar_sim::{Random, Sim, Stall};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

/// A block with a byte in it, and the stream that used it last.
struct Live {
    block: DeviceBlock,
    value: u8,
    at: Stream,
    /// That stream was its own and has ended.
    is_orphan: bool,
}

type Mailbox = Mutex<Vec<Live>>;

struct Program<'a> {
    rig: &'a Rig,
    random: Random,
    mailbox: &'a Mailbox,
    own: Vec<Stream>,
    adopted: Vec<(AdoptedStream, RawStream)>,
    live: Vec<Live>,
    /// Holds a stream for so many steps.
    stall: Option<(Stall, u32)>,
    may_stall: bool,
}

impl<'a> Program<'a> {
    fn new(rig: &'a Rig, seed: u64, mailbox: &'a Mailbox, may_stall: bool) -> Self {
        let own = (0..3).map(|_| rig.stream()).collect();
        Self {
            rig,
            random: Random::new(seed),
            mailbox,
            own,
            adopted: Vec::new(),
            live: Vec::new(),
            stall: None,
            may_stall,
        }
    }

    fn run(mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
        }
        self.stall = None;
        while !self.live.is_empty() {
            self.free();
        }
        while !self.adopted.is_empty() {
            self.end();
        }
    }

    fn step(&mut self) {
        self.stall = self.stall.take().and_then(|(stall, left)| Some((stall, left.checked_sub(1)?)));
        match self.random.below(32) {
            0..10 => self.allocate(),
            10..15 => self.use_one(),
            15..24 => self.free(),
            24 => drop(self.rig.pool.trim(Bytes(self.random.below(8) * FRAME))),
            25 => drop(self.rig.pool.reap().expect("the device works")),
            26 if self.stall.is_none() => {
                let stream = self.stream();
                self.rig.context.synchronize(stream).expect("the device works");
            }
            27 if self.may_stall && self.stall.is_none() => {
                let stream = self.own[self.random.below(3) as usize];
                self.stall = Some((self.rig.stall(stream), 1 + self.random.below(10) as u32));
            }
            28 => self.adopt(),
            29 if !self.adopted.is_empty() => self.end(),
            30 => self.hand_over(),
            31 => self.live.extend(self.mailbox.lock().expect("no panic").pop()),
            _ => drop(self.rig.sim.step()),
        }
    }

    fn stream(&mut self) -> Stream {
        let nth = self.random.below((self.own.len() + self.adopted.len()) as u64) as usize;
        self.own.get(nth).copied().unwrap_or_else(|| self.adopted[nth - self.own.len()].0.stream())
    }

    fn pick(&mut self) -> Option<Live> {
        let count = self.live.len() as u64;
        (count > 0).then(|| self.live.swap_remove(self.random.below(count) as usize))
    }

    fn allocate(&mut self) {
        let (stream, bytes) = (self.stream(), self.random.size(5 * FRAME));
        let align = 256 << (self.random.below(3) * self.random.below(3));
        match self.rig.pool.allocate(bytes, align, stream, tag!("program")) {
            Ok(block) => {
                assert!(block.ptr().0.is_multiple_of(align));
                let value = self.random.below(256) as u8;
                self.rig.fill(&block, value, stream);
                self.live.push(Live { block, value, at: stream, is_orphan: false });
            }
            Err(refused) if refused.is_capacity() => self.free(),
            Err(failed) => panic!("{failed}"),
        }
    }

    /// Looks at a block, and perhaps writes it, on any stream.
    fn use_one(&mut self) {
        let Some(mut live) = self.pick() else { return };
        if !live.is_orphan {
            let stream = self.stream();
            self.rig.context.order(live.at, stream).expect("both are live");
            live.at = stream;
            self.rig.expect(&live.block, live.value, stream);
            if self.random.below(2) == 0 {
                live.value = live.value.wrapping_add(1);
                self.rig.fill(&live.block, live.value, stream);
            }
        }
        self.live.push(live);
    }

    /// Frees a block on any stream. It is the pool that orders this after the block's own stream.
    fn free(&mut self) {
        let Some(live) = self.pick() else { return };
        let stream = self.stream();
        if !live.is_orphan {
            self.rig.expect(&live.block, live.value, live.at);
            if live.at != live.block.stream() {
                self.rig.context.order(live.at, stream).expect("both are live");
            }
        }
        self.rig.free_on(live.block, stream);
    }

    fn adopt(&mut self) {
        let raw = self.rig.sim.stream_create(self.rig.context.device(), 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed in `end`, after its adoption has ended.
        self.adopted.push((unsafe { self.rig.context.adopt_stream(raw) }.expect("room"), raw));
    }

    /// Ends an adopted stream; blocks that it used last go to another, or stay as they are if they were its own.
    fn end(&mut self) {
        let nth = self.random.below(self.adopted.len() as u64) as usize;
        let (adopted, raw) = self.adopted.swap_remove(nth);
        let (ends, next) = (adopted.stream(), self.own[0]);
        for live in self.live.iter_mut().filter(|live| live.at == ends) {
            live.is_orphan = live.block.stream() == ends && self.random.below(2) == 0;
            if !live.is_orphan {
                self.rig.context.order(ends, next).expect("both are live");
                live.at = next;
            }
        }
        drop(adopted);
        // SAFETY: made in `adopt`, and its adoption has ended.
        unsafe { self.rig.sim.stream_destroy(self.rig.context.device(), raw) }.expect("the device works");
    }

    /// Leaves a block to another thread, where there is one.
    fn hand_over(&mut self) {
        let Some(mut live) = self.pick() else { return };
        if !live.is_orphan {
            let next = self.own[0];
            self.rig.context.order(live.at, next).expect("both are live");
            live.at = next;
        }
        self.mailbox.lock().expect("no panic").push(live);
    }
}

/// Says which seed it was, where a program fails.
struct Says(u64);

impl Drop for Says {
    #[allow(clippy::print_stderr, reason = "what a failing program has to say beside its panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the program of seed {0}: BURSAR_PROGRAM_SEED={0} runs it alone", self.0);
        }
    }
}

/// The rig of a program: small or large magazines, a limit that makes frames move, and now and then no pages at all.
fn rig(seed: u64, random: &mut Random) -> Rig {
    let sim = Sim::builder().seed(seed).devices(1, Bytes::gib(1));
    let sim = if seed % 8 == 7 { sim.without_pages() } else { sim };
    let recipe = PagePool::default()
        .magazine(Bytes(random.below(3) << 19))
        .patience(Duration::from_micros(random.below(3) * 300))
        .largest_frame(Bytes((1 + random.below(2)) * FRAME));
    Rig::new(sim.build(), 4 + random.below(20), &recipe)
}

fn finish(rig: Rig, mailbox: Mailbox) {
    let stream = rig.stream();
    for live in mailbox.into_inner().expect("no panic") {
        if live.at != live.block.stream() {
            rig.context.order(live.at, stream).expect("both are live");
        }
        rig.free_on(live.block, stream);
    }
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!((rig.pool.bytes_outstanding(), rig.pool.pending()), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!((rig.pool.held(), rig.budget.charged_bytes()), (rig.driver_held(), rig.driver_held()));
    rig.finish();
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn seeds(usual: u64) -> Range<u64> {
    match number("BURSAR_PROGRAM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_SEEDS").map_or(usual, |seeds| seeds * usual / 300),
    }
}

#[test]
fn p1_programs_of_one_thread_touch_nothing_early() {
    for seed in seeds(300) {
        let (_says, mut random, mailbox) = (Says(seed), Random::new(!seed), Mailbox::default());
        let rig = rig(seed, &mut random);
        // Where memory is freed by waiting for the whole device, a stream that is stalled would stall the program.
        Program::new(&rig, seed, &mailbox, seed % 8 != 7).run(120);
        finish(rig, mailbox);
    }
}

#[test]
fn p1_programs_of_several_threads_touch_nothing_early() {
    for seed in seeds(60) {
        let (_says, mut random, mailbox) = (Says(seed), Random::new(!seed), Mailbox::default());
        let rig = rig(seed, &mut random);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (rig, mailbox) = (&rig, &mailbox);
                scope.spawn(move || Program::new(rig, seed * 3 + thread, mailbox, false).run(80));
            }
        });
        finish(rig, mailbox);
    }
}
