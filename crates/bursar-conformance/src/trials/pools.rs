//! The promises of pools: R6 when calls about frames fail, and P1 for blocks that are handed from stream to stream.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::{
    Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DriverError, Error, Pattern, RawStream, Status, Stream,
    tag,
};
use bursar_sim::Call;
use std::sync::Mutex;
use std::time::Duration;

super::clauses! {
    Pool: r6_a_growth_that_fails_leaves_nothing_behind,
    PoolOfPages: r6_a_move_that_fails_leaves_everything_where_it_is,
    PoolOfPages: r6_a_trim_that_fails_keeps_the_frame,
    Pool: r6_a_frame_that_could_not_be_given_back_is_tried_again,
    Pool: r6_a_lost_device_is_reported_by_the_calls_that_reach_it,
    Pool: p1_blocks_handed_from_stream_to_stream_keep_their_bytes,
}

const FRAME: u64 = 2 << 20;

fn maps_pages(rig: &StackRig) -> bool {
    rig.context.facts().capabilities.page_granularity.is_some()
}

/// Returns the bytes that the pool says it holds.
fn held(rig: &StackRig) -> Bytes {
    rig.context.usage().expect("a pool says how it stands").held
}

/// Returns the bytes that the driver has given out.
fn driver_held(rig: &StackRig) -> Bytes {
    rig.faults.held(rig.context.device())
}

/// Returns everything to the driver, and checks that pool, driver and stack agree on that.
fn return_everything(rig: &StackRig) {
    rig.drain();
    rig.context.trim();
    rig.drain();
    assert_eq!((held(rig), driver_held(rig), rig.outstanding()), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
}

/// Returns the largest request that takes no more than a frame, whatever the layers above the pool add to it.
fn one_frame(rig: &StackRig) -> u64 {
    rig.fitting(Bytes(FRAME))
}

fn is_injected(result: &Result<DeviceBlock, Error>) -> bool {
    matches!(result, Err(Error::Driver(DriverError { status: Status::InvalidValue, .. })))
}

fn r6_a_growth_that_fails_leaves_nothing_behind(rig: &StackRig) {
    let pages = [Call::PagesCreate, Call::PagesMap, Call::PagesAllow];
    let calls = if maps_pages(rig) { &pages[..] } else { &[Call::Allocate] };
    for &call in calls {
        let kept = rig.allocate(1000);
        rig.faults.fail_next(call, Status::InvalidValue);
        let failed = rig.memory.allocate(3 * FRAME, 256, rig.stream, tag!("failing"));
        assert!(is_injected(&failed), "{call}: {failed:?}");
        assert_eq!(rig.outstanding(), kept.granted(), "{call}");
        assert_eq!(held(rig), driver_held(rig), "{call}: nothing is lost");
        let block = rig.allocate(3 * FRAME);
        assert_eq!(held(rig), driver_held(rig), "{call}");
        rig.fill(&block, 7, rig.stream);
        rig.free(block);
        rig.free(kept);
        return_everything(rig);
    }
}

fn r6_a_move_that_fails_leaves_everything_where_it_is(rig: &StackRig) {
    let [first, second, third] = [(); 3].map(|()| rig.allocate(FRAME));
    rig.fill(&second, 7, rig.stream);
    rig.free(first);
    rig.free(third);
    rig.drain();
    let before = held(rig);
    rig.faults.fail_next(Call::PagesUnmap, Status::InvalidValue);
    let failed = rig.memory.allocate(2 * FRAME, 256, rig.stream, tag!("failing"));
    assert!(is_injected(&failed), "{failed:?}");
    assert_eq!((held(rig), driver_held(rig), rig.outstanding()), (before, before, second.granted()));
    let block = rig.allocate(2 * FRAME);
    rig.fill(&block, 8, rig.stream);
    assert_eq!((held(rig), driver_held(rig)), (before, before), "what was free is enough");
    assert!(rig.read(&second, rig.stream).iter().all(|&byte| byte == 7));
    rig.free(block);
    rig.free(second);
    return_everything(rig);
}

fn r6_a_trim_that_fails_keeps_the_frame(rig: &StackRig) {
    rig.free(rig.allocate(one_frame(rig)));
    rig.drain();
    let before = held(rig);
    rig.faults.fail_next(Call::PagesUnmap, Status::InvalidValue);
    rig.context.trim();
    assert_eq!((held(rig), driver_held(rig)), (before, before), "it could not be unmapped");
    assert!(is_injected(&rig.memory.allocate(256, 256, rig.stream, tag!("next"))), "reported by the next call");
    let block = rig.allocate(one_frame(rig));
    rig.fill(&block, 7, rig.stream);
    assert_eq!(held(rig), before, "and still of use");
    rig.free(block);
    return_everything(rig);
}

fn r6_a_frame_that_could_not_be_given_back_is_tried_again(rig: &StackRig) {
    rig.free(rig.allocate(one_frame(rig)));
    rig.drain();
    let before = driver_held(rig);
    let call = if maps_pages(rig) { Call::PagesRelease } else { Call::Free };
    rig.faults.fail_next(call, Status::InvalidValue);
    rig.context.trim();
    assert_eq!(driver_held(rig), before, "the driver does not have it back");
    assert!(is_injected(&rig.memory.allocate(256, 256, rig.stream, tag!("next"))), "reported by the next call");
    rig.drain();
    assert_eq!(driver_held(rig), Bytes::ZERO, "tried again, and gone");
    rig.free(rig.allocate(256));
    return_everything(rig);
}

/// A hit calls the driver not at all, so it cannot notice the loss. The first call that reaches the driver does, and after it
/// every call reports the loss.
fn r6_a_lost_device_is_reported_by_the_calls_that_reach_it(rig: &StackRig) {
    let block = rig.allocate(1000);
    rig.faults.lose(rig.context.device());
    rig.free(block);
    let reaches = rig.memory.allocate(32 * FRAME, 256, rig.stream, tag!("more"));
    assert!(matches!(reaches, Err(Error::Driver(error)) if error.is_sticky()), "{reaches:?}");
    for _ in 0..3 {
        for result in [
            rig.memory.allocate(256, 256, rig.stream, tag!("next")).map(drop),
            rig.memory.reap().map(drop),
            rig.memory.reap_blocking(Duration::MAX).map(drop),
        ] {
            assert!(matches!(result, Err(Error::Driver(error)) if error.is_sticky()), "{result:?}");
        }
    }
    assert_eq!(held(rig), driver_held(rig), "what a lost device held stays counted");
}

const THREADS: u32 = 8;
/// The number of streams of each thread.
const STREAMS: usize = 8;
/// The number of blocks that each thread holds at a time.
const LIVE_BLOCKS: usize = 16;
/// The most words of a block that are read back.
const WORDS_READ: usize = 1024;
/// A word that no read expects.
const STRAY: u32 = u32::MAX;

/// Returns the number of allocations and frees of all threads together: a million on hardware and on the driver that
/// completes at once, fewer on a driver that checks every access and in builds without optimisation.
fn operations(context: &DeviceContext) -> u64 {
    match (context.driver().listens(), cfg!(debug_assertions)) {
        (true, _) => 1_600,
        (false, true) => 40_000,
        (false, false) => 1_000_000,
    }
}

fn p1_blocks_handed_from_stream_to_stream_keep_their_bytes(rig: &StackRig) {
    let rounds = operations(&rig.context) / 2 / u64::from(THREADS);
    let (memory, context, seed, exchange) = (&*rig.memory, &*rig.context, rig.seed, &Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let streams = [(); STREAMS].map(|()| context.create_stream(0).expect("a stream"));
            let mut worker =
                Worker { memory, context, streams, number, exchange, state: seed << 8 | u64::from(number) };
            scope.spawn(move || worker.run(rounds));
        }
    });
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

/// A block filled with a word that no other block is ever filled with, and the stream that it was filled on.
struct FilledBlock {
    block: DeviceBlock,
    word: u32,
    at: Stream,
}

/// One thread and its streams.
struct Worker<'a> {
    memory: &'a dyn DeviceMemoryResource,
    context: &'a DeviceContext,
    streams: [Stream; STREAMS],
    number: u32,
    /// Blocks that any thread may take.
    exchange: &'a Mutex<Vec<FilledBlock>>,
    state: u64,
}

impl Worker<'_> {
    fn run(&mut self, rounds: u64) {
        let mut live = Vec::with_capacity(LIVE_BLOCKS + 1);
        for round in 0..rounds {
            let written = self.write(self.number << 24 | round as u32);
            match self.roll(8) {
                0 => self.exchange.lock().expect("no panic").push(written),
                _ => live.push(written),
            }
            if self.roll(8) == 0 {
                live.extend(self.exchange.lock().expect("no panic").pop());
            }
            while live.len() > LIVE_BLOCKS {
                let chosen = self.roll(live.len() as u64) as usize;
                self.check(live.swap_remove(chosen));
            }
        }
        live.append(&mut self.exchange.lock().expect("no panic"));
        live.into_iter().for_each(|written| self.check(written));
    }

    /// Returns a pseudo-random number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9_7f4a_7c15);
        (self.state >> 33) % sides
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.roll(STREAMS as u64) as usize]
    }

    fn write(&mut self, word: u32) -> FilledBlock {
        let words = 1 + if self.roll(64) == 0 { self.roll(1 << 19) } else { self.roll(WORDS_READ as u64) };
        let at = self.stream();
        let block = self.memory.allocate(words * 4, 256, at, tag!("pattern")).expect("there is room");
        self.fill(&block, word, at);
        FilledBlock { block, word, at }
    }

    /// Reads a block back on any stream, compares it and frees it on any. One more write is in flight when it is freed: it
    /// would end up in another block if the memory was given out too early.
    fn check(&mut self, written: FilledBlock) {
        let FilledBlock { block, word, at } = written;
        let (reads, frees) = (self.stream(), self.stream());
        self.context.order(at, reads).expect("both are live");
        let mut seen = vec![0; WORDS_READ.min((block.requested().get() / 4) as usize)];
        self.read(&block, &mut seen, reads);
        let wrong = seen.iter().position(|&found| found != word).map(|at| (at, seen[at]));
        assert_eq!(wrong, None, "thread {} lost {word:#x} at {}", self.number, block.ptr());
        self.fill(&block, STRAY, reads);
        self.context.order(reads, frees).expect("both are live");
        self.memory.deallocate(block, frees).expect("the block and the stream belong here");
    }

    /// Returns the handle of a stream that the context created, which lives as long as the context.
    fn raw(&self, stream: Stream) -> RawStream {
        self.context.hold(stream).expect("a stream of this device").raw()
    }

    fn fill(&self, block: &DeviceBlock, word: u32, stream: Stream) {
        let (driver, device, words) = (self.context.driver(), self.context.device(), block.requested().get() / 4);
        // SAFETY: the block is live, and the stream was ordered after the last that had it.
        let filled = unsafe { driver.fill(device, self.raw(stream), block.ptr(), Pattern::U32(word), words) };
        filled.expect("the device works");
    }

    fn read(&self, block: &DeviceBlock, words: &mut [u32], stream: Stream) {
        let (driver, device, bytes) = (self.context.driver(), self.context.device(), size_of_val(words) as u64);
        let into = words.as_mut_ptr().cast();
        // SAFETY: the block is live and holds so much, the stream was ordered after the last that had it, and the words
        // are borrowed until the copy has run, which is waited for below.
        let copied = unsafe { driver.copy_to_host(device, self.raw(stream), into, block.ptr(), bytes) };
        self.context.synchronize(stream).expect("the device works");
        copied.expect("the device works");
    }
}
