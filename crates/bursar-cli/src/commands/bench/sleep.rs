//! `bursar bench sleep`: times how the memory of a pool sleeps and wakes, and checks that nothing is lost.

use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use bursar::device::{SleepOptions, WakeOptions};
use bursar::driver::{OpenedDriver, Pattern};
use bursar::host::{PinnedBuffer, PinnedPool};
use bursar::prelude::*;
use bursar::sim::Random;
use bursar::stream::Submission;
use serde::Serialize;
use std::io::Write;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The options of `bursar bench sleep`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SleepArgs {
    /// The memory that sleeps.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    bytes: Bytes,
    /// The size of each block of it.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    block: Bytes,
    /// The size of the pieces of pinned memory that contents go to.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    piece: Bytes,
    /// The number of sleeps and wakes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Copies on the device meanwhile, on a stream that the pool does not know, and shows what that loses.
    #[arg(long)]
    load: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench sleep --bytes 64GiB
  bursar bench sleep --bytes 16GiB --block 1GiB --load --json | jq '.rounds[] | {sleep_of_raw, wake_of_raw}'";

/// The times of `bursar bench sleep`.
#[derive(Debug, Serialize)]
pub(crate) struct Sleep {
    driver: String,
    /// True if its devices are simulated.
    simulated: bool,
    bytes: u64,
    block: u64,
    piece: u64,
    raw: Raw,
    rounds: Vec<Round>,
    load: Option<LoadRates>,
    /// True if all contents are what they were.
    intact: bool,
}

/// The rates of copies between pinned and device memory that nothing else is done with.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Raw {
    d2h_bytes_per_second: Option<f64>,
    h2d_bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Round {
    sleep_seconds: f64,
    sleep_bytes_per_second: Option<f64>,
    sleep_of_raw: Option<f64>,
    wake_seconds: f64,
    wake_bytes_per_second: Option<f64>,
    wake_of_raw: Option<f64>,
    released: u64,
    saved: u64,
    /// The pinned memory that the pool of it holds.
    pinned: u64,
    /// The rates of the load meanwhile.
    load_sleeping_bytes_per_second: Option<f64>,
    load_waking_bytes_per_second: Option<f64>,
    intact: bool,
}

/// The rates of the copies on the device that ran meanwhile.
#[derive(Debug, Serialize)]
struct LoadRates {
    alone_bytes_per_second: Option<f64>,
    sleeping_bytes_per_second: Option<f64>,
    waking_bytes_per_second: Option<f64>,
    /// The largest part of the rate that was lost.
    most_lost: Option<f64>,
}

/// The most contents that are made on the host: the rest are copies on the device, with marks of their own.
const SEED_BYTES: u64 = 32 << 20;
/// The distance between marks.
const MARKS: u64 = 4 << 20;
/// The bytes that are checked at a time, and of how many such parts one is looked at after each round.
const CHUNK: u64 = 16 << 20;
const SAMPLES: u64 = 16;
/// The most threads that read at a time.
const MOST_READERS: usize = 16;
/// The most that is copied as reference.
const RAW_BYTES: u64 = 8 << 30;
/// The number of those copies; the fastest counts.
const RAW_ROUNDS: u32 = 3;
/// The time for which the load is measured alone.
const ALONE: Duration = Duration::from_secs(1);

/// The blocks that sleep.
struct Bench {
    gpu: Gpu,
    pinned: PinnedPool,
    stream: Stream,
    blocks: Vec<TrackedBlock>,
    is_timed: bool,
}

pub(crate) fn sleep(opened: &OpenedDriver, args: &SleepArgs) -> Result<Sleep, Failure> {
    let mut progress = Progress::new(args.rounds as usize * 2 + 4);
    let block = args.block.min(args.bytes);
    progress.step("filling");
    let mut bench = Bench::new(opened, args.bytes, block)?;
    progress.step("checksum");
    let whole = bench.checksum(|_| true)?;
    let load = args.load.then(|| Load::start(opened, block)).transpose()?;
    let alone = load.as_ref().map(|load| load.rate_during(|| std::thread::sleep(bench.alone())).1);
    let mut rounds = Vec::new();
    for nth in 0..u64::from(args.rounds) {
        let is_sample = |chunk: u64| chunk % SAMPLES == nth % SAMPLES;
        let sample = bench.checksum(is_sample)?;
        progress.step(&format!("sleep {}", nth + 1));
        let options = SleepOptions::new().piece(args.piece);
        let (slept, load_sleeping) = rate_of(load.as_ref(), || bench.gpu.sleep(&bench.pinned, &options));
        let slept = slept?;
        progress.step(&format!("wake {}", nth + 1));
        let (woken, load_waking) = rate_of(load.as_ref(), || bench.gpu.wake(&WakeOptions::new()));
        let woken = woken?;
        let intact = sample == bench.checksum(is_sample)?;
        let saved = slept.saved.get() as f64;
        let rate = |time: Duration| bench.is_timed.then(|| saved / time.as_secs_f64());
        rounds.push(Round {
            sleep_seconds: slept.elapsed.as_secs_f64(),
            sleep_bytes_per_second: rate(slept.elapsed),
            sleep_of_raw: None,
            wake_seconds: woken.elapsed.as_secs_f64(),
            wake_bytes_per_second: rate(woken.elapsed),
            wake_of_raw: None,
            released: slept.released.get(),
            saved: slept.saved.get(),
            pinned: bench.pinned.counts().held.get(),
            load_sleeping_bytes_per_second: load_sleeping.filter(|_| bench.is_timed),
            load_waking_bytes_per_second: load_waking.filter(|_| bench.is_timed),
            intact,
        });
    }
    let load = load.map(|load| load.end(alone.filter(|_| bench.is_timed), &rounds)).transpose()?;
    progress.step("raw copies");
    let raw = bench.raw(args.piece.min(block))?;
    for round in &mut rounds {
        let of = |rate: Option<f64>, raw: Option<f64>| rate.zip(raw).map(|(rate, raw)| rate / raw);
        round.sleep_of_raw = of(round.sleep_bytes_per_second, raw.d2h_bytes_per_second);
        round.wake_of_raw = of(round.wake_bytes_per_second, raw.h2d_bytes_per_second);
    }
    progress.step("checksum");
    let intact = whole == bench.checksum(|_| true)? && rounds.iter().all(|round| round.intact);
    bench.end()?;
    let (driver, simulated) = (opened.driver.describe(), opened.is_simulated);
    let (bytes, block, piece) = (args.bytes.get(), block.get(), args.piece.get());
    Ok(Sleep { driver, simulated, bytes, block, piece, raw, rounds, load, intact })
}

impl Bench {
    /// Fills blocks, `bytes` in all.
    fn new(opened: &OpenedDriver, bytes: Bytes, block: Bytes) -> Result<Self, Failure> {
        let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
        let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
        let gpu = Gpu::with_context(&context, &stack)?;
        let (pinned, stream) = (PinnedPool::near(&gpu)?, context.create_stream(0)?);
        let (mut blocks, mut left) = (Vec::new(), bytes.get());
        while left > 0 || blocks.is_empty() {
            let len = left.min(block.get());
            let made = gpu.memory().allocate(len, 256, stream, tag!("bench sleep"))?;
            blocks.push(TrackedBlock::new(&**gpu.memory(), made));
            left -= len;
        }
        let mut bench = Self { gpu, pinned, stream, blocks, is_timed: !opened.is_simulated };
        bench.fill()?;
        Ok(bench)
    }

    const fn alone(&self) -> Duration {
        if self.is_timed { ALONE } else { Duration::from_millis(1) }
    }

    /// Fills the first block with random bytes and the others with those, each with marks of its own.
    fn fill(&mut self) -> bursar::Result<()> {
        let (context, stream) = (self.gpu.context().clone(), self.stream);
        let (first, others) = self.blocks.split_at_mut(1);
        let (first, mut at) = (&mut first[0], 0);
        let mut random = Random::new(1);
        let len = first.block().requested().get();
        while at < len {
            let mut seed = self.pinned.get((len - at).min(SEED_BYTES) as usize)?;
            for word in seed.chunks_mut(8) {
                word.copy_from_slice(&random.next_u64().to_ne_bytes()[..word.len()]);
            }
            at += seed.len() as u64;
            first.copy_from_host_async(&context, at - seed.len() as u64, seed, stream)?.wait()?;
        }
        for (nth, block) in others.iter_mut().enumerate() {
            let mut submission = Submission::new(&context, stream);
            let len = block.block().requested().get();
            submission.copy(block, 0, first, 0, len)?;
            for offset in (0..len - len % 4).step_by(MARKS as usize) {
                submission.fill(block, offset, Pattern::U32((nth as u32 + 1) << 16 ^ (offset / MARKS) as u32), 1)?;
            }
        }
        context.synchronize(stream)
    }

    /// Returns a checksum of those parts of all blocks that are meant, by their number. Several threads read them, since one
    /// is far slower than the copies.
    fn checksum(&self, is_meant: impl Fn(u64) -> bool) -> bursar::Result<u64> {
        let parts = self.blocks.iter().flat_map(|block| {
            let len = block.block().requested().get();
            (0..len).step_by(CHUNK as usize).map(move |offset| (block, offset, (len - offset).min(CHUNK)))
        });
        let parts: Vec<_> = (0..).zip(parts).filter(|&(nth, _)| is_meant(nth)).collect();
        let next = AtomicUsize::new(0);
        let read = || {
            let mut sum = 0u64;
            while let Some(&(nth, (block, offset, len))) = parts.get(next.fetch_add(1, Relaxed)) {
                let buffer = self.pinned.get(len as usize)?;
                let read = block.copy_to_host_async(self.gpu.context(), offset, buffer, self.stream)?.wait()?;
                sum = sum.wrapping_add(checksum(nth, &read));
            }
            Ok(sum)
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_READERS);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            let join = |reader: ScopedJoinHandle<'_, _>| reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            readers.into_iter().map(join).try_fold(0, |all: u64, sum: bursar::Result<u64>| Ok(all.wrapping_add(sum?)))
        })
    }

    /// Copies as many blocks as are compared with down and up, in parts of `len`.
    fn raw(&mut self, len: Bytes) -> bursar::Result<Raw> {
        let blocks = self.blocks.iter_mut().filter(|block| block.block().requested() >= len);
        let mut blocks: Vec<_> = blocks.take((RAW_BYTES / len.get()).max(1) as usize).collect();
        let (context, stream) = (self.gpu.context(), self.stream);
        let mut buffers =
            blocks.iter().map(|_| self.pinned.get(len.get() as usize)).collect::<Result<Vec<PinnedBuffer>, _>>()?;
        let bytes = len.get() as f64 * blocks.len() as f64;
        let (mut d2h, mut h2d) = (f64::MAX, f64::MAX);
        for _ in 0..RAW_ROUNDS {
            let start = Instant::now();
            let copies =
                blocks.iter().zip(buffers).map(|(block, buffer)| block.copy_to_host_async(context, 0, buffer, stream));
            let copies = copies.collect::<Result<Vec<_>, _>>()?;
            buffers = copies.into_iter().map(Transfer::wait).collect::<Result<_, _>>()?;
            d2h = d2h.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let copies = blocks
                .iter_mut()
                .zip(buffers)
                .map(|(block, buffer)| block.copy_from_host_async(context, 0, buffer, stream));
            let copies = copies.collect::<Result<Vec<_>, _>>()?;
            buffers = copies.into_iter().map(Transfer::wait).collect::<Result<_, _>>()?;
            h2d = h2d.min(start.elapsed().as_secs_f64());
        }
        let rate = |seconds: f64| (self.is_timed && bytes > 0.0).then(|| bytes / seconds);
        Ok(Raw { d2h_bytes_per_second: rate(d2h), h2d_bytes_per_second: rate(h2d) })
    }

    fn end(self) -> bursar::Result<()> {
        let memory = self.gpu.memory();
        self.blocks.into_iter().try_for_each(|block| Ok(block.free(&**memory, self.stream)?))
    }
}

/// Returns a number that depends on every byte and its place, and on the number of the part.
fn checksum(nth: u64, bytes: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
    // Lanes do not wait for one another.
    let mut lanes: [u64; 8] = std::array::from_fn(|lane| mix(nth, lane as u64 + 1));
    let (lines, rest) = bytes.as_chunks::<64>();
    for line in lines {
        for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    let rest = rest.iter().map(|&byte| u64::from(byte));
    lanes.into_iter().chain(rest).fold(bytes.len() as u64, mix)
}

/// Copies on the device that go on until this is dropped, on a context of their own.
struct Load {
    copied: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<bursar::Result<()>>>,
}

/// The number of streams of the load, so that the device has work while one of them is waited for.
const STREAMS: usize = 4;
/// The number of copies that are submitted to a stream before it is waited for: enough that the device has work for longer
/// than a call of the driver takes, so that what the copies lose is counted and not what the thread does that submits them.
const BATCH: u32 = 32;

impl Load {
    fn start(opened: &OpenedDriver, bytes: Bytes) -> bursar::Result<Self> {
        let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
        let memory = Stack::new().over(leaf::Direct).build(&context)?;
        let make = || {
            let stream = context.create_stream(0)?;
            let make = || memory.allocate(bytes.get(), 256, stream, tag!("load"));
            let [mut to, from] = [make()?, make()?].map(|block| TrackedBlock::new(&memory, block));
            Submission::new(&context, stream).copy(&mut to, 0, &from, 0, bytes.get())?;
            Ok((stream, to, from))
        };
        let mut pairs = (0..STREAMS).map(|_| make()).collect::<bursar::Result<Vec<_>>>()?;
        let (copied, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (copied.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Relaxed) {
                for (stream, to, from) in &mut pairs {
                    context.synchronize(*stream)?;
                    for _ in 0..BATCH {
                        Submission::new(&context, *stream).copy(to, 0, from, 0, bytes.get())?;
                    }
                    counted.fetch_add(bytes.get() * u64::from(BATCH), Relaxed);
                }
            }
            pairs.into_iter().try_for_each(|(stream, to, from)| {
                to.free(&memory, stream)?;
                Ok(from.free(&memory, stream)?)
            })
        });
        Ok(Self { copied, is_over, thread: Some(thread) })
    }

    /// Returns the result of `act` and the rate of the load meanwhile.
    fn rate_during<T>(&self, act: impl FnOnce() -> T) -> (T, f64) {
        let (before, start) = (self.copied.load(Relaxed), Instant::now());
        let done = act();
        let copied = self.copied.load(Relaxed) - before;
        (done, copied as f64 / start.elapsed().as_secs_f64())
    }

    /// Ends the load and returns its rates.
    fn end(mut self, alone: Option<f64>, rounds: &[Round]) -> bursar::Result<LoadRates> {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        let least = |of: fn(&Round) -> Option<f64>| rounds.iter().filter_map(of).reduce(f64::min);
        let sleeping = least(|round| round.load_sleeping_bytes_per_second);
        let waking = least(|round| round.load_waking_bytes_per_second);
        let slowest = sleeping.into_iter().chain(waking).reduce(f64::min);
        let most_lost = alone.zip(slowest).map(|(alone, slowest)| 1.0 - slowest / alone);
        Ok(LoadRates {
            alone_bytes_per_second: alone,
            sleeping_bytes_per_second: sleeping,
            waking_bytes_per_second: waking,
            most_lost,
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // What failed first is what is reported.
            let _ended = thread.join();
        }
    }
}

/// Returns the result of `act` and the rate of a load meanwhile, if there is one.
fn rate_of<T>(load: Option<&Load>, act: impl FnOnce() -> T) -> (T, Option<f64>) {
    match load {
        Some(load) => {
            let (done, rate) = load.rate_during(act);
            (done, Some(rate))
        }
        None => (act(), None),
    }
}

impl Show for Sleep {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { driver, bytes, block, raw, rounds, load, intact, .. } = self;
        let rate = |rate: Option<f64>| rate.map_or("not timed".to_owned(), |rate| format!("{:.2} GB/s", rate / 1e9));
        let part = |part: Option<f64>| part.map_or(String::new(), |part| format!("{part:.2}"));
        writeln!(
            out,
            "{HEADING}{} in blocks of {}{HEADING:#} {FAINT}({driver}){FAINT:#}",
            Bytes(*bytes),
            Bytes(*block)
        )?;
        writeln!(out, "{:>8} {:>14} {:>8} {:>14} {:>8} {:>12}", "", "sleep", "of raw", "wake", "of raw", "pinned")?;
        for (nth, round) in rounds.iter().enumerate() {
            writeln!(
                out,
                "{:>8} {:>14} {:>8} {:>14} {:>8} {:>12}",
                nth + 1,
                rate(round.sleep_bytes_per_second),
                part(round.sleep_of_raw),
                rate(round.wake_bytes_per_second),
                part(round.wake_of_raw),
                Bytes(round.pinned).to_string()
            )?;
        }
        writeln!(out, "raw copies: {} down, {} up", rate(raw.d2h_bytes_per_second), rate(raw.h2d_bytes_per_second))?;
        if let Some(load) = load {
            let [alone, sleeping, waking] =
                [load.alone_bytes_per_second, load.sleeping_bytes_per_second, load.waking_bytes_per_second].map(rate);
            writeln!(out, "copies on the device: {alone} alone, {sleeping} during a sleep, {waking} during a wake")?;
        }
        writeln!(out, "{}", if *intact { "contents are what they were" } else { "CONTENTS ARE NOT WHAT THEY WERE" })
    }
}
