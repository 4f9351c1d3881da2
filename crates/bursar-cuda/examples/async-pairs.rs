//! The cost of the async leaf: allocating and freeing through it, compared with the two driver calls underneath.
//!
//! Requires: CUDA
//!
//! `cargo run --release -p bursar-cuda --example async-pairs [-- --json]`
//!
//! Each thread has one stream for the bare pair and one for the leaf, of the same pool, which is left as it was found. One allocation
//! stays live throughout, so that the pool is never empty and never gives everything back. Rounds alternate between the
//! contenders on the same threads, since what a driver call costs depends on the core it runs on; a number is the median
//! over the rounds of what a pair costs one thread, and a ratio the median of each round's own. Two more contenders are the
//! leaf where no context is current, and the leaf on a stream whose raw handle was asked for: others may capture it then,
//! so the driver is asked about that each time.
//!
//! Exit status: 0 within the bar, 1 over it, 2 wrong usage, 3 no CUDA.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

use bursar_core::leaf::AsyncMemory;
use bursar_core::{
    Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Driver, ObservedResource, RawStream, Stack, Stream,
    leaf, tag,
};
use bursar_cuda::Cuda;
use cudarc::driver::sys::{self, CUcontext, CUstream};
use serde_json::{Value, json};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// The highest cost of the leaf that passes, as a multiple of the bare pair.
const BAR: f64 = 1.15;
const ROUNDS: usize = 41;
/// The number of pairs that all threads together time in a round.
const PAIRS: usize = 16_000;
const WARM_UP: usize = 200;
const THREADS: [usize; 2] = [1, 8];
const SIZES: [Bytes; 2] = [Bytes::kib(1), Bytes::mib(1)];

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    /// `cuMemAllocAsync` and `cuMemFreeAsync`.
    Bare,
    /// The leaf, on a thread where the device's context is current, as it is for the bare pair.
    Leaf,
    /// The leaf, on a thread where nothing is current.
    LeafAlone,
    /// The leaf, on a stream whose raw handle was asked for.
    LeafShared,
}

const CONTENDERS: [Contender; 4] = [Contender::Bare, Contender::Leaf, Contender::LeafAlone, Contender::LeafShared];

struct Bench {
    context: Arc<DeviceContext>,
    memory: ObservedResource<Arc<AsyncMemory>>,
    streams: Vec<Stream>,
    /// Streams whose raw handles were asked for, with these.
    shared: Vec<(Stream, RawStream)>,
}

/// Nanoseconds a pair, per contender.
struct Row {
    bytes: Bytes,
    threads: usize,
    bare: f64,
    leaf: f64,
    ratio: f64,
    ratio_alone: f64,
    ratio_shared: f64,
}

type Costs = [[f64; CONTENDERS.len()]; ROUNDS];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--json"] => true,
        _ => {
            eprintln!("usage: async-pairs [--json]");
            return ExitCode::from(2);
        }
    };
    match measure() {
        Ok((driver, rows)) => {
            if json {
                println!("{:#}", as_json(&driver, &rows));
            } else {
                show(&driver, &rows);
            }
            ExitCode::from(u8::from(!rows.iter().all(Row::is_within)))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

fn measure() -> Outcome<(String, Vec<Row>)> {
    let cuda = Cuda::load()?;
    Ok((cuda.describe(), Bench::open(cuda)?.run()?))
}

impl Bench {
    fn open(cuda: Arc<Cuda>) -> Outcome<Self> {
        let context = DeviceContext::open(cuda, DeviceId(0))?;
        let memory = Stack::new().over(leaf::Async).build(&context)?;
        let most = THREADS.into_iter().max().unwrap_or(1);
        let streams = (0..most).map(|_| context.create_stream(0)).collect::<Result<_, _>>()?;
        let shared = (0..most).map(|_| {
            let stream = context.create_stream(0)?;
            Ok((stream, context.resolve(stream)?))
        });
        let shared = shared.collect::<bursar_core::Result<_>>()?;
        Ok(Self { context, memory, streams, shared })
    }

    fn run(&self) -> Outcome<Vec<Row>> {
        let stream = self.streams[0];
        let kept = self.memory.allocate(1 << 20, 256, stream, tag!("kept"))?;
        let rows = SIZES
            .into_iter()
            .flat_map(|bytes| THREADS.map(|threads| (bytes, threads)))
            .map(|(bytes, threads)| self.row(bytes, threads))
            .collect();
        self.memory.deallocate(kept, stream)?;
        rows
    }

    fn row(&self, bytes: Bytes, threads: usize) -> Outcome<Row> {
        let line = Barrier::new(threads);
        let costs: Outcome<Vec<Costs>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let line = &line;
                    scope.spawn(move || self.thread(bytes, thread, PAIRS / threads, line))
                })
                .collect();
            running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        let costs = costs?;
        let of = |contender: Contender| -> Vec<f64> {
            let round = |round: usize| costs.iter().map(|costs| costs[round][contender as usize]).sum::<f64>();
            (0..ROUNDS).map(|at| round(at) / threads as f64).collect()
        };
        let [bare, leaf, alone, shared] = CONTENDERS.map(of);
        let ratio = |costs: &[f64]| median(costs.iter().zip(&bare).map(|(cost, bare)| cost / bare).collect());
        Ok(Row {
            bytes,
            threads,
            ratio: ratio(&leaf),
            ratio_alone: ratio(&alone),
            ratio_shared: ratio(&shared),
            bare: median(bare),
            leaf: median(leaf),
        })
    }

    /// One thread's rounds: nanoseconds a pair, by round and contender. All threads begin each contender together.
    fn thread(&self, bytes: Bytes, thread: usize, pairs: usize, line: &Barrier) -> Outcome<Costs> {
        let mut costs = [[0.0; CONTENDERS.len()]; ROUNDS];
        let mut outcome = Ok(());
        for round in &mut costs {
            for contender in CONTENDERS {
                // A thread that failed comes here too, or the others would wait for good.
                outcome = outcome.and_then(|()| self.prepare(contender, bytes, thread));
                line.wait();
                let begun = Instant::now();
                outcome = outcome.and_then(|()| self.pairs(contender, bytes, thread, pairs));
                round[contender as usize] = begun.elapsed().as_nanos() as f64 / pairs as f64;
            }
        }
        outcome.map(|()| costs)
    }

    fn prepare(&self, contender: Contender, bytes: Bytes, thread: usize) -> Outcome<()> {
        let current = if contender == Contender::LeafAlone { 0 } else { self.context.raw_context().0 };
        // SAFETY: nothing, or the primary context of a device that is open.
        unsafe { sys::cuCtxSetCurrent(current as CUcontext) }.result()?;
        self.pairs(contender, bytes, thread, WARM_UP)
    }

    fn pairs(&self, contender: Contender, bytes: Bytes, thread: usize, count: usize) -> Outcome<()> {
        let (shared, raw) = self.shared[thread];
        if contender == Contender::Bare {
            return (0..count).try_for_each(|_| bare_pair(bytes.get() as usize, raw.0 as CUstream));
        }
        let stream = if contender == Contender::LeafShared { shared } else { self.streams[thread] };
        (0..count).try_for_each(|_| {
            let block = self.memory.allocate(bytes.get(), 256, stream, tag!("pair"))?;
            Ok(self.memory.deallocate(block, stream)?)
        })
    }
}

#[inline]
fn bare_pair(bytes: usize, stream: CUstream) -> Outcome<()> {
    let mut ptr = 0;
    // SAFETY: the driver writes one address; the stream is live and of the context that is current.
    unsafe { sys::cuMemAllocAsync(&raw mut ptr, bytes, stream) }.result()?;
    // SAFETY: allocated above, in the order of the same stream.
    unsafe { sys::cuMemFreeAsync(ptr, stream) }.result()?;
    Ok(())
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

impl Row {
    fn is_within(&self) -> bool {
        self.ratio <= BAR
    }
}

fn show(driver: &str, rows: &[Row]) {
    println!("{driver}; nanoseconds a pair and thread, median of {ROUNDS} rounds; the bar is {BAR}\n");
    println!("   bytes  threads      bare      leaf   ratio          nothing current  handle shared");
    for row in rows {
        println!(
            "{:>8}  {:>7}  {:>8.0}  {:>8.0}  {:>6.3}  {:<6}  {:>15.3}  {:>13.3}",
            row.bytes.to_string(),
            row.threads,
            row.bare,
            row.leaf,
            row.ratio,
            if row.is_within() { "within" } else { "OVER" },
            row.ratio_alone,
            row.ratio_shared,
        );
    }
}

fn as_json(driver: &str, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "bytes": row.bytes.get(),
            "threads": row.threads,
            "bare_ns_per_pair": row.bare,
            "leaf_ns_per_pair": row.leaf,
            "ratio": row.ratio,
            "within": row.is_within(),
            "ratio_nothing_current": row.ratio_alone,
            "ratio_handle_shared": row.ratio_shared,
        })
    };
    json!({ "driver": driver, "rounds": ROUNDS, "bar": BAR, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}
