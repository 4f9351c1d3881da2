//! Trials that write memory, let others write and read back: what a counter cannot show.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::{Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Pattern, Stream, tag};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

super::clauses! {
    Anything: r1_eight_threads_on_eight_streams_keep_their_bytes,
    StreamOrder: t2_memory_freed_on_a_stalled_stream_is_not_given_out_early,
    Limit: s5_memory_freed_on_a_stream_that_is_gone_is_reusable,
    Device: d4_free_bytes_are_read_live,
}

const THREADS: u32 = 8;
/// The number of blocks that each thread holds at a time.
const LIVE_BLOCKS: usize = 16;
/// The most words in a block.
const WORDS_MAX: u64 = 1024;
/// A word that no read expects.
const STRAY: u32 = u32::MAX;

/// Returns the number of allocations and frees of all threads together: a million on hardware and on the driver that
/// completes at once, fewer on a driver that checks every access and in builds without optimisation.
fn operations(context: &DeviceContext) -> u64 {
    match (context.driver().listens(), cfg!(debug_assertions)) {
        (true, _) => 4_000,
        (false, true) => 80_000,
        (false, false) => 1_000_000,
    }
}

/// The cost of a block in a stack that writes and reads back every one, relative to other stacks.
const WATCHED: u64 = 20;

fn r1_eight_threads_on_eight_streams_keep_their_bytes(rig: &StackRig) {
    let cost = rig.stack.kind.guard.map_or(1, |_| WATCHED);
    let rounds = operations(&rig.context) / 2 / u64::from(THREADS) / cost;
    let (memory, context, seed) = (&*rig.memory, &*rig.context, rig.seed);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let stream = context.create_stream(0).expect("a stream");
            let writer = Writer { memory, context, stream, number };
            scope.spawn(move || writer.run(rounds, seed));
        }
    });
    rig.drain();
    assert_eq!(rig.outstanding().get(), 0);
}

/// One thread, on a stream of its own, which fills every block with a word that no other block is ever filled with.
#[derive(Clone, Copy)]
struct Writer<'a> {
    memory: &'a dyn DeviceMemoryResource,
    context: &'a DeviceContext,
    stream: Stream,
    number: u32,
}

impl Writer<'_> {
    fn run(self, rounds: u64, seed: u64) {
        let mut generator = Generator(seed << 8 | u64::from(self.number));
        let mut live = VecDeque::with_capacity(LIVE_BLOCKS + 1);
        let mut seen = vec![0; WORDS_MAX as usize];
        for round in 0..rounds {
            let word = self.number << 24 | round as u32;
            let block = self.write(1 + generator.roll(WORDS_MAX), word);
            live.push_back((block, word));
            if live.len() > LIVE_BLOCKS {
                let chosen = generator.roll(live.len() as u64) as usize;
                live.swap(0, chosen);
                self.check(live.pop_front(), &mut seen);
            }
        }
        while !live.is_empty() {
            self.check(live.pop_front(), &mut seen);
        }
    }

    fn write(self, words: u64, word: u32) -> DeviceBlock {
        let block = self.memory.allocate(words * 4, 256, self.stream, tag!("pattern")).expect("there is room");
        fill(self.context, &block, word, self.stream);
        block
    }

    /// Reads a block back, compares it and frees it. One more write is in flight when it is freed: it would end up in another
    /// block if the memory was given out too early.
    fn check(self, written: Option<(DeviceBlock, u32)>, seen: &mut [u32]) {
        let (block, word) = written.expect("not empty");
        let seen = &mut seen[..(block.requested().get() / 4) as usize];
        read(self.context, &block, seen, self.stream);
        let wrong = seen.iter().position(|&found| found != word).map(|at| (at, seen[at]));
        assert_eq!(wrong, None, "thread {} lost {word:#x} at {}", self.number, block.ptr());
        fill(self.context, &block, STRAY, self.stream);
        self.memory.deallocate(block, self.stream).expect("the block and the stream belong here");
    }
}

/// A generator of pseudo-random numbers.
struct Generator(u64);

impl Generator {
    /// Returns a number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9_7f4a_7c15);
        (self.0 >> 33) % sides
    }
}

/// Fills a whole block with one word, in stream order.
fn fill(context: &DeviceContext, block: &DeviceBlock, word: u32, stream: Stream) {
    let raw = context.resolve(stream).expect("a stream of this device");
    let (driver, words) = (context.driver(), block.requested().get() / 4);
    // SAFETY: the block is live, and its only user submits to the stream that it was allocated on.
    let filled = unsafe { driver.fill(context.device(), raw, block.ptr(), Pattern::U32(word), words) };
    filled.expect("the device works");
}

/// Reads the first words of a block, in stream order, and waits for them.
fn read(context: &DeviceContext, block: &DeviceBlock, words: &mut [u32], stream: Stream) {
    let raw = context.resolve(stream).expect("a stream of this device");
    let (driver, bytes) = (context.driver(), size_of_val(words) as u64);
    assert!(bytes <= block.requested().get());
    // SAFETY: the block is live and holds so much, its only user submits to the stream that it was allocated on, and the
    // words are borrowed until the copy has run, which is waited for below.
    let copied = unsafe { driver.copy_to_host(context.device(), raw, words.as_mut_ptr().cast(), block.ptr(), bytes) };
    context.synchronize(stream).expect("the device works");
    copied.expect("the device works");
}

/// The time that a stream is given to run, if it may have been made to wait for another.
const RUN_TIME_MAX: Duration = Duration::from_millis(10);

/// Waits until a stream is idle, but no longer than [`RUN_TIME_MAX`].
fn let_run(context: &DeviceContext, stream: Stream) {
    let raw = context.resolve(stream).expect("a stream of this device");
    let start = Instant::now();
    let is_idle = || {
        // SAFETY: the table resolves live streams of this device only.
        let progress = unsafe { context.driver().stream_query(context.device(), raw) };
        progress.expect("the device works").is_complete()
    };
    while !is_idle() && start.elapsed() < RUN_TIME_MAX {
        std::thread::yield_now();
    }
}

/// The write that was submitted before the free runs last. If the memory was given out meanwhile, it would end up in the new
/// block.
fn t2_memory_freed_on_a_stalled_stream_is_not_given_out_early(rig: &StackRig) {
    const OLD: u32 = 0xaaaa_aaaa;
    const NEW: u32 = 0x5555_5555;
    let (context, a) = (&*rig.context, rig.stream);
    let b = context.create_stream(0).expect("a stream");
    for bytes in [256, 4096, 1 << 20, 2 << 20].repeat(2) {
        let old = rig.allocate_on(bytes, a);
        let stall = rig.stall(a);
        fill(context, &old, OLD, a);
        rig.free_on(old, a);
        let new = rig.allocate_on(bytes, b);
        fill(context, &new, NEW, b);
        // A driver may reuse the memory and make `b` wait for `a`, which is as right as other memory.
        let_run(context, b);
        drop(stall);
        context.synchronize(a).expect("the device works");
        let mut seen = vec![0; (bytes / 4) as usize];
        read(context, &new, &mut seen, b);
        assert!(seen.iter().all(|&word| word == NEW), "{bytes} bytes were given out early");
        rig.free_on(new, b);
        rig.drain();
    }
    assert_eq!(rig.outstanding().get(), 0);
}

/// Every block takes the whole limit, so each needs the memory of the one before, whose stream is gone.
fn s5_memory_freed_on_a_stream_that_is_gone_is_reusable(rig: &StackRig) {
    let limit = rig.stack.kind.limit.expect("chosen for its limit").get();
    let (context, device) = (&rig.context, rig.context.device());
    let mut seen = [0; 64];
    for round in 0..100 {
        let raw = context.driver().stream_create(device, 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed below, after the adoption has ended.
        let adopted = unsafe { context.adopt_stream(raw) }.expect("room");
        let stream = adopted.stream();
        let block = rig.allocate_on(rig.fitting(Bytes(limit)), stream);
        fill(context, &block, round, stream);
        read(context, &block, &mut seen, stream);
        assert_eq!(seen, [round; 64], "not what was written last");
        fill(context, &block, !round, stream);
        rig.free_on(block, stream);
        drop(adopted);
        // SAFETY: the stream was made above and its adoption has ended.
        unsafe { context.driver().stream_destroy(device, raw) }.expect("the device works");
        rig.drain();
        assert_eq!(rig.outstanding().get(), 0);
    }
}

/// Other programs may use the device too, so the free memory may change by itself: by less than half of what is allocated
/// here.
fn d4_free_bytes_are_read_live(rig: &StackRig) {
    let (driver, device) = (rig.context.driver(), rig.context.device());
    let free = || driver.memory(device).expect("the device works").free.get();
    let before = free();
    let bytes = (before / 4).min(4 << 30);
    let ptr = driver.allocate(device, bytes).expect("there is room");
    let during = free();
    // SAFETY: allocated above and never used.
    unsafe { driver.free(device, ptr) }.expect("the device works");
    let after = free();
    let near = |moved: u64| moved.abs_diff(bytes) < bytes / 2;
    assert!(
        near(before.saturating_sub(during)) && near(after.saturating_sub(during)),
        "{bytes} bytes came and went: {before}, {during}, {after} free"
    );
}
