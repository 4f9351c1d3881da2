//! `bursar bench`: what an allocation and its free cost.

pub(crate) mod pinned;

use crate::output::{FAINT, Failure, HEADING, Show};
use crate::stacks::StackName;
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use serde::Serialize;
use std::io::Write;
use std::sync::Barrier;
use std::time::Instant;

/// What is timed, and how often each thread does it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Asked {
    /// What hands out the memory.
    #[arg(long, value_enum, default_value = "pool")]
    stack: StackName,
    /// The size of the block.
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    bytes: Bytes,
    /// How many threads, one row for each number.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// How many pairs each thread makes.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Pairs {
    driver: String,
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

/// Each thread allocates and frees on a stream of its own, a tenth of it to warm up before the clock starts.
pub(crate) fn pairs(opened: &OpenedDriver, asked: &Asked) -> Result<Pairs, Failure> {
    let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
    let memory = asked.stack.build(&context, None, &Statistics::default())?;
    let rows = asked.threads.iter().map(|&threads| row(&*memory, &context, asked, threads));
    Ok(Pairs {
        driver: opened.driver.describe(),
        stack: asked.stack,
        bytes: asked.bytes.get(),
        rows: rows.collect::<bursar::Result<_>>()?,
    })
}

fn row(memory: &dyn DeviceMemoryResource, context: &DeviceContext, asked: &Asked, threads: u32) -> bursar::Result<Row> {
    let line = Barrier::new(threads as usize);
    let streams = (0..threads).map(|_| context.create_stream(0)).collect::<bursar::Result<Vec<_>>>()?;
    let seconds = std::thread::scope(|scope| {
        let runners: Vec<_> = streams
            .iter()
            .map(|&stream| {
                let line = &line;
                scope.spawn(move || {
                    let warm = run(memory, asked.bytes, stream, asked.pairs / 10);
                    line.wait();
                    let start = Instant::now();
                    warm.and_then(|()| run(memory, asked.bytes, stream, asked.pairs)).map(|()| (start, Instant::now()))
                })
            })
            .collect();
        // From when the first began until the last was done: this thread may be late for either.
        let mut span: Option<(Instant, Instant)> = None;
        for runner in runners {
            let (start, end) = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        }
        Ok::<_, Error>(span.map_or(0.0, |(start, end)| (end - start).as_secs_f64()))
    })?;
    let pairs = asked.pairs as f64;
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
        let Self { driver, stack, bytes, rows } = self;
        writeln!(out, "{HEADING}{} through `{}`{HEADING:#} {FAINT}({driver}){FAINT:#}", Bytes(*bytes), stack.as_str())?;
        writeln!(out, "{:>8} {:>22} {:>18}", "threads", "ns per pair, a thread", "pairs per second")?;
        for Row { threads, ns_per_pair, pairs_per_second } in rows {
            writeln!(out, "{threads:>8} {ns_per_pair:>22.1} {pairs_per_second:>18.0}")?;
        }
        Ok(())
    }
}
