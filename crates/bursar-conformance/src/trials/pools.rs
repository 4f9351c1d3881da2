//! What is promised of pools: R6 where frames fail, and bytes that go from stream to stream.
#![allow(unsafe_code)]

use crate::Rig;
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

fn maps_pages(rig: &Rig) -> bool {
    rig.context.facts().capabilities.page_granularity.is_some()
}

/// What the pool holds, as it says itself.
fn held(rig: &Rig) -> Bytes {
    let none = Bytes::ZERO;
    let cause = Error::OutOfMemory { device: rig.context.device(), requested: none, free: none, total: none };
    match rig.context.explain(cause, none) {
        Error::Shortage(shortage) => shortage.held.expect("a pool says how it stands"),
        other => panic!("an explanation: {other:?}"),
    }
}

/// What the driver says is held of it.
fn driver_held(rig: &Rig) -> Bytes {
    rig.faults.held(rig.context.device())
}

/// Everything goes back to the driver, and everyone agrees that it has.
fn all_goes_back(rig: &Rig) {
    rig.drain();
    rig.context.trim();
    rig.drain();
    assert_eq!((held(rig), driver_held(rig), rig.outstanding()), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
}

/// What can be asked for and takes no more than a frame, whatever the layers above the pool add to it.
fn one_frame(rig: &Rig) -> u64 {
    rig.fitting(Bytes(FRAME))
}

fn is_injected(result: &Result<DeviceBlock, Error>) -> bool {
    matches!(result, Err(Error::Driver(DriverError { status: Status::InvalidValue, .. })))
}

fn r6_a_growth_that_fails_leaves_nothing_behind(rig: &Rig) {
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
        all_goes_back(rig);
    }
}

fn r6_a_move_that_fails_leaves_everything_where_it_is(rig: &Rig) {
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
    all_goes_back(rig);
}

fn r6_a_trim_that_fails_keeps_the_frame(rig: &Rig) {
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
    all_goes_back(rig);
}

fn r6_a_frame_that_could_not_be_given_back_is_tried_again(rig: &Rig) {
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
    all_goes_back(rig);
}

/// A hit asks the driver nothing, so it cannot know; whoever asks finds out, and from then on everybody knows.
fn r6_a_lost_device_is_reported_by_the_calls_that_reach_it(rig: &Rig) {
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
/// How many streams each thread has.
const STREAMS: usize = 8;
/// How many blocks each thread keeps while it goes on.
const KEPT: usize = 16;
/// The most words of a block that are looked at.
const SEEN: usize = 1024;
/// What nobody expects to read.
const STRAY: u32 = u32::MAX;

/// How many allocations and frees all threads make together: a million on hardware and on the driver that completes at
/// once, fewer where every access is judged and where nothing is optimised.
fn operations(context: &DeviceContext) -> u64 {
    match (context.driver().listens(), cfg!(debug_assertions)) {
        (true, _) => 1_600,
        (false, true) => 40_000,
        (false, false) => 1_000_000,
    }
}

fn p1_blocks_handed_from_stream_to_stream_keep_their_bytes(rig: &Rig) {
    let rounds = operations(&rig.context) / 2 / u64::from(THREADS);
    let (memory, context, seed, shelf) = (&*rig.memory, &*rig.context, rig.seed, &Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let streams = [(); STREAMS].map(|()| context.create_stream(0).expect("a stream"));
            let mut worker = Worker { memory, context, streams, number, shelf, state: seed << 8 | u64::from(number) };
            scope.spawn(move || worker.run(rounds));
        }
    });
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

/// A block that is full of one word, which no other block is ever filled with, and the stream that has it.
struct Written {
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
    /// Where blocks are left for whoever comes by.
    shelf: &'a Mutex<Vec<Written>>,
    state: u64,
}

impl Worker<'_> {
    fn run(&mut self, rounds: u64) {
        let mut kept = Vec::with_capacity(KEPT + 1);
        for round in 0..rounds {
            let written = self.write(self.number << 24 | round as u32);
            match self.roll(8) {
                0 => self.shelf.lock().expect("no panic").push(written),
                _ => kept.push(written),
            }
            if self.roll(8) == 0 {
                kept.extend(self.shelf.lock().expect("no panic").pop());
            }
            while kept.len() > KEPT {
                let chosen = self.roll(kept.len() as u64) as usize;
                self.check(kept.swap_remove(chosen));
            }
        }
        kept.append(&mut self.shelf.lock().expect("no panic"));
        kept.into_iter().for_each(|written| self.check(written));
    }

    /// The same numbers for the same seed.
    fn roll(&mut self, sides: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9_7f4a_7c15);
        (self.state >> 33) % sides
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.roll(STREAMS as u64) as usize]
    }

    fn write(&mut self, word: u32) -> Written {
        let words = 1 + if self.roll(64) == 0 { self.roll(1 << 19) } else { self.roll(SEEN as u64) };
        let at = self.stream();
        let block = self.memory.allocate(words * 4, 256, at, tag!("pattern")).expect("there is room");
        self.fill(&block, word, at);
        Written { block, word, at }
    }

    /// Reads a block back on any stream, compares, and frees it on any. One write more is in flight when it is freed: it
    /// would end up in the block of whoever was given the memory too early.
    fn check(&mut self, written: Written) {
        let Written { block, word, at } = written;
        let (reads, frees) = (self.stream(), self.stream());
        self.context.order(at, reads).expect("both are live");
        let mut seen = vec![0; SEEN.min((block.requested().get() / 4) as usize)];
        self.read(&block, &mut seen, reads);
        let wrong = seen.iter().position(|&found| found != word).map(|at| (at, seen[at]));
        assert_eq!(wrong, None, "thread {} lost {word:#x} at {}", self.number, block.ptr());
        self.fill(&block, STRAY, reads);
        self.context.order(reads, frees).expect("both are live");
        self.memory.deallocate(block, frees).expect("the block and the stream belong here");
    }

    /// The handle of a stream of the context's own, which lives as long as that does.
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
