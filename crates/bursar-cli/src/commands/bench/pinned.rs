//! `bursar bench pinned`: times the allocation of pinned memory, and copies from and to it.

use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use bursar::device::NumaNode;
use bursar::driver::OpenedDriver;
use bursar::host::{
    Errno, Machine, NumaWorkerPool, PinnedBuffer, PinnedKind, PinnedOptions, PinnedPool, pages_on_node,
};
use bursar::memory::HostMemory;
use bursar::prelude::*;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// The options of `bursar bench pinned`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PinnedArgs {
    /// The size that is pinned, and copied at a time.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    bytes: Bytes,
    /// The number of copies made each way; the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    copies: u32,
    /// The number of times a buffer of the pool is got and given back.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench pinned --bytes 8GiB
  bursar bench pinned --bytes 1GiB --json | jq '.rows[] | {method, bytes_per_second}'";

/// The times of `bursar bench pinned`.
#[derive(Debug, Serialize)]
pub(crate) struct Pinned {
    driver: String,
    /// True if its devices are simulated.
    simulated: bool,
    numa_node: Option<u32>,
    bytes: u64,
    rows: Vec<Row>,
    pool: PoolHits,
}

#[derive(Debug, Serialize)]
struct Row {
    method: &'static str,
    seconds: f64,
    bytes_per_second: f64,
    /// The number of pages that the kernel was asked about.
    pages_asked: Option<usize>,
    /// The number of those on the device's node; if that is unknown, on the node that has most.
    pages_on_node: Option<usize>,
    /// The kernel's error if it does not say where pages are.
    #[serde(skip)]
    pages_unknown: Option<Errno>,
    h2d_bytes_per_second: f64,
    d2h_bytes_per_second: f64,
    placement: Option<String>,
}

/// The time of getting a buffer from the pool and giving it back.
#[derive(Debug, Serialize)]
struct PoolHits {
    bytes: usize,
    pairs: u32,
    ns_per_pair: f64,
}

/// The size of the buffer that is taken from the pool over and over.
const PAIR_BYTES: usize = 4096;

/// The device that memory is copied to, and the workers that pin it.
struct Bench<'a> {
    workers: &'a Arc<NumaWorkerPool>,
    context: Arc<DeviceContext>,
    args: &'a PinnedArgs,
    bytes: usize,
    progress: Progress,
}

pub(crate) fn pinned(opened: &OpenedDriver, args: &PinnedArgs) -> Result<Pinned, Failure> {
    let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
    let workers = NumaWorkerPool::global()?;
    let node = workers.node_of(&context);
    let bytes = usize::try_from(args.bytes.get()).unwrap_or(usize::MAX);
    // Starts the worker thread and pins it to its processors, so that this is not timed.
    drop(workers.pin(&context, bytes.min(PAIR_BYTES)).wait()?);
    let mut bench = Bench { workers, context, args, bytes, progress: Progress::new(7) };
    let driver = bench.row("driver", |bench| bench.made_by_driver())?;
    let pageable = bench.row("pageable", |bench| Ok(bench.pageable()))?;
    let pool = PinnedPool::new(workers, &bench.context, PinnedOptions::default());
    let ours = bench.row("bursar", |_| Ok(pool.get(bytes)?))?;
    bench.progress.step("pool hits");
    let pool = pairs(&pool, args.pairs)?;
    Ok(Pinned {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        numa_node: node.index(),
        bytes: args.bytes.get(),
        rows: vec![driver, pageable, ours],
        pool,
    })
}

impl Bench<'_> {
    /// Allocates memory that the driver pins.
    fn made_by_driver(&self) -> Result<PinnedBuffer, Failure> {
        let options = PinnedOptions::default().kind(PinnedKind::DriverAllocated);
        Ok(self.workers.pin_with(&self.context, self.bytes, &options).wait()?)
    }

    /// Allocates memory of the heap, touched by one thread.
    fn pageable(&self) -> Vec<u8> {
        let mut memory = vec![0; self.bytes];
        memory.iter_mut().step_by(Machine::page()).for_each(|byte| *byte = 1);
        memory
    }

    /// Times `make`, which allocates memory, and copies from and to that memory.
    fn row<H: LocatedMemory>(
        &mut self,
        method: &'static str,
        make: impl FnOnce(&Self) -> Result<H, Failure>,
    ) -> Result<Row, Failure> {
        self.progress.step(&format!("{method}: making"));
        let start = Instant::now();
        let memory = make(self)?;
        let seconds = start.elapsed().as_secs_f64();
        let pages = memory.pages(self.workers.node_of(&self.context));
        let placement = memory.placement();
        self.progress.step(&format!("{method}: copying"));
        let (h2d, d2h) = self.copy(memory)?;
        Ok(Row {
            method,
            seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            pages_asked: pages.ok().map(|(asked, _)| asked),
            pages_on_node: pages.ok().map(|(_, there)| there),
            pages_unknown: pages.err(),
            h2d_bytes_per_second: h2d,
            d2h_bytes_per_second: d2h,
            placement,
        })
    }

    /// Returns the rate of the fastest of several copies each way, in bytes a second.
    fn copy<H: HostMemory>(&self, mut memory: H) -> bursar::Result<(f64, f64)> {
        let stack = Stack::new().over(leaf::Direct).build(&self.context)?;
        let stream = self.context.create_stream(0)?;
        let block = stack.allocate(self.bytes as u64, 256, stream, tag!("bench pinned"))?;
        let mut block = TrackedBlock::new(&stack, block);
        let (mut h2d, mut d2h) = (f64::MAX, f64::MAX);
        // Once more than asked for: the first copy warms up.
        for _ in 0..=self.args.copies {
            let start = Instant::now();
            memory = block.copy_from_host_async(&self.context, 0, memory, stream)?.wait()?;
            let between = Instant::now();
            memory = block.copy_to_host_async(&self.context, 0, memory, stream)?.wait()?;
            h2d = h2d.min((between - start).as_secs_f64());
            d2h = d2h.min(between.elapsed().as_secs_f64());
        }
        block.free(&stack, stream)?;
        Ok((self.bytes as f64 / h2d, self.bytes as f64 / d2h))
    }
}

/// Memory whose NUMA node can be asked for.
trait LocatedMemory: HostMemory {
    /// Returns how many pages the kernel was asked about, and how many of those are on `node`.
    fn pages(&self, node: NumaNode) -> Result<(usize, usize), Errno>;
    /// Returns a description of how it was placed.
    fn placement(&self) -> Option<String>;
}

impl LocatedMemory for Vec<u8> {
    fn pages(&self, node: NumaNode) -> Result<(usize, usize), Errno> {
        pages_on_node(&Machine::default(), self, node)
    }
    fn placement(&self) -> Option<String> {
        None
    }
}

impl LocatedMemory for PinnedBuffer {
    fn pages(&self, node: NumaNode) -> Result<(usize, usize), Errno> {
        pages_on_node(&Machine::default(), self, node)
    }
    fn placement(&self) -> Option<String> {
        Some(PinnedBuffer::placement(self).to_string())
    }
}

/// Times `pairs` hits of the pool.
fn pairs(pool: &PinnedPool, pairs: u32) -> Result<PoolHits, Failure> {
    drop(pool.get(PAIR_BYTES)?);
    let start = Instant::now();
    for _ in 0..pairs {
        drop(std::hint::black_box(pool.get(PAIR_BYTES)?));
    }
    Ok(PoolHits { bytes: PAIR_BYTES, pairs, ns_per_pair: start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs) })
}

impl Show for Pinned {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let node = self.numa_node.map_or("unknown".to_owned(), |node| node.to_string());
        let Self { driver, bytes, rows, pool, .. } = self;
        writeln!(out, "{HEADING}{} near node {node}{HEADING:#} {FAINT}({driver}){FAINT:#}", Bytes(*bytes))?;
        writeln!(out, "{:>10} {:>10} {:>14} {:>16} {:>14} {:>14}", "", "seconds", "made", "on the node", "h2d", "d2h")?;
        for row in rows {
            let pages = row.pages_on_node.zip(row.pages_asked);
            let pages = pages.map_or("unknown".to_owned(), |(there, asked)| format!("{there} of {asked}"));
            let rate = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
            let [made, h2d, d2h] = [row.bytes_per_second, row.h2d_bytes_per_second, row.d2h_bytes_per_second].map(rate);
            writeln!(out, "{:>10} {:>10.4} {made:>14} {pages:>16} {h2d:>14} {d2h:>14}", row.method, row.seconds)?;
        }
        for row in rows {
            if let Some(why) = row.pages_unknown {
                writeln!(out, "{FAINT}{}: the kernel does not say where the pages are: {why}{FAINT:#}", row.method)?;
            }
        }
        for row in rows.iter().filter(|row| row.method == "bursar") {
            writeln!(out, "{FAINT}{}{FAINT:#}", row.placement.as_deref().unwrap_or_default())?;
        }
        writeln!(
            out,
            "a hit of the pool: {:.1} ns to get {} and give it back",
            pool.ns_per_pair,
            Bytes(pool.bytes as u64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n4_why_nobody_knows_where_pages_are_is_said() {
        let row = |method, pages_unknown| Row {
            method,
            seconds: 1.0,
            bytes_per_second: 1e9,
            pages_asked: None,
            pages_on_node: None,
            pages_unknown,
            h2d_bytes_per_second: 1e9,
            d2h_bytes_per_second: 1e9,
            placement: None,
        };
        // `EPERM`.
        let rows = vec![row("driver", Some(Errno(1))), row("pageable", None)];
        let pool = PoolHits { bytes: PAIR_BYTES, pairs: 1, ns_per_pair: 1.0 };
        let mut shown = Vec::new();
        let driver = "a driver".to_owned();
        let pinned = Pinned { driver, simulated: false, numa_node: None, bytes: 1 << 20, rows, pool };
        pinned.show(&mut shown).expect("memory takes everything");
        let shown = String::from_utf8(shown).expect("text");
        let why: Vec<_> = shown.lines().filter(|line| line.contains("does not say")).collect();
        assert!(matches!(why[..], [why] if why.contains("driver") && why.contains("not permitted")), "{shown}");
    }
}
