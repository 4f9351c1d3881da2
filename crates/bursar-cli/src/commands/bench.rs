//! `bursar bench`: times allocations and frees.

pub(crate) mod cluster;
pub(crate) mod fragmentation;
pub(crate) mod live;
pub(crate) mod pinned;
mod sizes;
pub(crate) mod sleep;
pub(crate) mod streams;

use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Show};
use crate::stacks::StackName;
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use serde::Serialize;
use std::io::Write;
use std::sync::Barrier;
use std::time::Instant;

/// The options of `bursar bench pairs`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PairsArgs {
    /// The stack that memory is allocated from.
    #[arg(long, value_enum, default_value = "pool")]
    stack: StackName,
    /// The size of the block.
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    bytes: Bytes,
    /// The number of threads, one row for each.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// The number of pairs each thread makes.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
}

/// The times of `bursar bench pairs`.
#[derive(Debug, Serialize)]
pub(crate) struct Pairs {
    driver: String,
    /// True if its devices are simulated.
    simulated: bool,
    stack: StackName,
    bytes: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    threads: u32,
    ns_per_pair: f64,
    pairs_per_second: f64,
}

/// Times threads that allocate and free, each on a stream of its own. A tenth more runs before the clock starts, to warm up.
pub(crate) fn pairs(opened: &OpenedDriver, args: &PairsArgs) -> Result<Pairs, Failure> {
    let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
    let memory = args.stack.build(&context, None, Some(&Statistics::default()))?;
    let rows = args.threads.iter().map(|&threads| row(&*memory, &context, args, threads));
    Ok(Pairs {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        stack: args.stack,
        bytes: args.bytes.get(),
        rows: rows.collect::<bursar::Result<_>>()?,
    })
}

fn row(
    memory: &dyn DeviceMemoryResource,
    context: &DeviceContext,
    args: &PairsArgs,
    threads: u32,
) -> bursar::Result<Row> {
    let barrier = Barrier::new(threads as usize);
    let streams = (0..threads).map(|_| context.create_stream(0)).collect::<bursar::Result<Vec<_>>>()?;
    let seconds = std::thread::scope(|scope| {
        let runners: Vec<_> = streams
            .iter()
            .map(|&stream| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let warm = run(memory, args.bytes, stream, args.pairs / 10);
                    barrier.wait();
                    let start = Instant::now();
                    warm.and_then(|()| run(memory, args.bytes, stream, args.pairs)).map(|()| (start, Instant::now()))
                })
            })
            .collect();
        // The span from the first start to the last end, by the threads' own clocks: this thread may be late for either.
        let mut span: Option<(Instant, Instant)> = None;
        for runner in runners {
            let (start, end) = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        }
        Ok::<_, Error>(span.map_or(0.0, |(start, end)| (end - start).as_secs_f64()))
    })?;
    let pairs = args.pairs as f64;
    Ok(Row { threads, ns_per_pair: seconds * 1e9 / pairs, pairs_per_second: pairs * f64::from(threads) / seconds })
}

fn run(memory: &dyn DeviceMemoryResource, bytes: Bytes, stream: Stream, pairs: u64) -> bursar::Result<()> {
    for _ in 0..pairs {
        let block = memory.allocate(bytes.get(), 256, stream, tag!("pairs"))?;
        memory.deallocate(block, stream)?;
    }
    Ok(())
}

impl Show for Pairs {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { driver, stack, bytes, rows, .. } = self;
        writeln!(out, "{HEADING}{} through `{}`{HEADING:#} {FAINT}({driver}){FAINT:#}", Bytes(*bytes), stack.as_str())?;
        writeln!(out, "{:>8} {:>22} {:>18}", "threads", "ns per pair, a thread", "pairs per second")?;
        for Row { threads, ns_per_pair, pairs_per_second } in rows {
            writeln!(out, "{threads:>8} {ns_per_pair:>22.1} {pairs_per_second:>18.0}")?;
        }
        Ok(())
    }
}
