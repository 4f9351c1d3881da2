//! `bursar bench live`: times frees and allocations among many live blocks.

use super::sizes::SizeRange;
use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use crate::stacks::StackName;
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use bursar::sim::Random;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The options of `bursar bench live`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LiveArgs {
    /// The stack that memory is allocated from.
    #[arg(long, value_enum, default_value = "pool")]
    stack: StackName,
    /// The number of live blocks, one row for each.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1000,10000,100000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    blocks: Vec<u32>,
    /// The smallest and the largest block.
    #[arg(long, value_name = "SIZE..SIZE", default_value = "20KB..60KB")]
    sizes: SizeRange,
    /// Counts blocks by tag, as most programs do.
    #[arg(long, value_name = "on|off", default_value = "off")]
    statistics: OnOff,
    /// The number of rounds. In each, every row has its turn.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// The number of frees, and of allocations, in each turn.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnOff {
    On,
    Off,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench live --driver sim --blocks 1000,100000
  bursar bench live --driver sim --statistics on --json | jq '.rows[] | {blocks, ratio}'";

/// The times of `bursar bench live`.
#[derive(Debug, Serialize)]
pub(crate) struct Live {
    driver: String,
    /// True if its devices are simulated.
    simulated: bool,
    stack: StackName,
    statistics: bool,
    least_bytes: u64,
    most_bytes: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    blocks: u32,
    /// Nanoseconds of a free or an allocation, the median of all rounds.
    ns_median: f64,
    ns_best: f64,
    /// The median over that of the first row.
    ratio: f64,
}

/// The number of blocks that are moved out of all at a time, before the clock is started, so that what is timed touches no
/// memory of the benchmark that depends on how many there are.
const HAND: usize = 64;

/// A stack with so many live blocks in it, and as many holes between them.
struct Population {
    memory: Arc<dyn DeviceMemoryResource>,
    stream: Stream,
    sizes: (u64, u64),
    live: Vec<DeviceBlock>,
    random: Random,
}

/// Times frees and allocations of random sizes in stacks that have so many live blocks. Twice as many were allocated and a
/// random half freed before, so that the free memory is in as many pieces as it is in a program that has run for long.
pub(crate) fn live(opened: &OpenedDriver, args: &LiveArgs) -> Result<Live, Failure> {
    let mut progress = Progress::new(args.blocks.len() + 1);
    let mut populations = Vec::new();
    for &blocks in &args.blocks {
        progress.step(&format!("{blocks} blocks"));
        populations.push(Population::new(opened, args, blocks)?);
    }
    progress.step("frees and allocations");
    let mut times = vec![Vec::new(); populations.len()];
    for _ in 0..args.rounds {
        for (population, times) in populations.iter_mut().zip(&mut times) {
            // What the others have in the caches of the machine meanwhile is not this one's cost.
            population.exchange(args.pairs / 4)?;
            times.push(population.exchange(args.pairs)?);
        }
    }
    for population in populations {
        population.end()?;
    }
    Ok(Live {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        stack: args.stack,
        statistics: args.statistics == OnOff::On,
        least_bytes: args.sizes.least.get(),
        most_bytes: args.sizes.most.get(),
        rows: rows(&args.blocks, times),
    })
}

fn rows(blocks: &[u32], times: Vec<Vec<f64>>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (&blocks, mut times) in blocks.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let (ns_best, ns_median) = (times[0], times[times.len() / 2]);
        let ratio = ns_median / rows.first().map_or(ns_median, |first| first.ns_median);
        rows.push(Row { blocks, ns_median, ns_best, ratio });
    }
    rows
}

impl Population {
    fn new(opened: &OpenedDriver, args: &LiveArgs, blocks: u32) -> bursar::Result<Self> {
        let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
        let statistics = Statistics::default();
        let memory = args.stack.build(&context, None, (args.statistics == OnOff::On).then_some(&statistics))?;
        let stream = context.create_stream(0)?;
        let sizes = (args.sizes.least.get(), args.sizes.most.get());
        let (live, random) = (Vec::with_capacity(2 * blocks as usize), Random::new(u64::from(blocks)));
        let mut population = Self { memory, stream, sizes, live, random };
        for _ in 0..2 * u64::from(blocks) {
            let block = population.allocate()?;
            population.live.push(block);
        }
        for _ in 0..blocks {
            let block = population.victim();
            population.memory.deallocate(block, stream)?;
        }
        population.exchange(blocks.max(args.pairs))?;
        Ok(population)
    }

    fn allocate(&mut self) -> bursar::Result<DeviceBlock> {
        let (least, most) = self.sizes;
        self.memory.allocate(least + self.random.below(most - least + 1), 256, self.stream, tag!("bench live"))
    }

    /// Takes a random block out.
    fn victim(&mut self) -> DeviceBlock {
        let victim = self.random.index(self.live.len());
        self.live.swap_remove(victim)
    }

    /// Frees so many random blocks and allocates as many, turn by turn; returns the nanoseconds of one of either.
    fn exchange(&mut self, pairs: u32) -> bursar::Result<f64> {
        let (mut spent, mut done) = (Duration::ZERO, 0);
        let (mut freed, mut granted) = (Vec::with_capacity(HAND), Vec::with_capacity(HAND));
        while done < pairs {
            let hand = HAND.min(self.live.len()).min((pairs - done) as usize);
            freed.extend((0..hand).map(|_| self.victim()));
            let start = Instant::now();
            for block in freed.drain(..) {
                self.memory.deallocate(block, self.stream)?;
                granted.push(self.allocate()?);
            }
            spent += start.elapsed();
            self.live.append(&mut granted);
            done += hand as u32;
        }
        Ok(spent.as_secs_f64() * 1e9 / (2.0 * f64::from(pairs.max(1))))
    }

    fn end(self) -> bursar::Result<()> {
        for block in self.live {
            self.memory.deallocate(block, self.stream)?;
        }
        Ok(())
    }
}

impl Show for Live {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { driver, stack, statistics, least_bytes, most_bytes, rows, .. } = self;
        let (least, most) = (Bytes(*least_bytes), Bytes(*most_bytes));
        let counted = if *statistics { "with statistics" } else { "without statistics" };
        let title = format!("{least} to {most} through `{}`, {counted}", stack.as_str());
        writeln!(out, "{HEADING}{title}{HEADING:#} {FAINT}({driver}){FAINT:#}")?;
        writeln!(out, "{:>12} {:>18} {:>10} {:>8}", "live blocks", "ns per operation", "best", "ratio")?;
        for Row { blocks, ns_median, ns_best, ratio } in rows {
            writeln!(out, "{blocks:>12} {ns_median:>18.1} {ns_best:>10.1} {ratio:>8.2}")?;
        }
        Ok(())
    }
}
