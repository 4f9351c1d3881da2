//! `bursar bench fragmentation`: fills memory, frees a random half, and asks for the largest piece that is to be had.

use super::sizes::{Distribution, SizeRange};
use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use crate::stacks::StackName;
use crate::stage::parse_size;
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use bursar::sim::Random;
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The options of `bursar bench fragmentation`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FragmentationArgs {
    /// The limits that memory is filled up to, a row for each.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "6GiB", value_parser = parse_size)]
    fill: Vec<Bytes>,
    /// The smallest and the largest block.
    #[arg(long, value_name = "SIZE..SIZE", default_value = "64KiB..24MiB")]
    sizes: SizeRange,
    /// The distribution of sizes between them.
    #[arg(long, value_enum, default_value = "log")]
    distribution: Distribution,
    /// The seed of sizes and of the half that is freed; each round has the next one.
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// The number of rounds, each on memory of its own and a row of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The stacks that memory is allocated from, a row for each.
    #[arg(long = "stack", value_name = "STACK,…", value_enum, value_delimiter = ',', default_value = "pool")]
    stacks: Vec<StackName>,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench fragmentation --fill 6GiB,64GiB --stack pool,async
  bursar bench fragmentation --sizes 64KiB..24MiB --distribution square --rounds 3 --json | jq '.rows[].largest_of_freed'";

/// The rows of `bursar bench fragmentation`.
#[derive(Debug, Serialize)]
pub(crate) struct Fragmentation {
    driver: String,
    /// True if its devices are simulated: then the time is that of the processor alone.
    simulated: bool,
    least_bytes: u64,
    most_bytes: u64,
    distribution: Distribution,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    stack: StackName,
    limit: u64,
    seed: u64,
    blocks: usize,
    filled_bytes: u64,
    fill_seconds: f64,
    freed_bytes: u64,
    /// The largest single block that could be allocated beside the half that stayed.
    largest_bytes: u64,
    /// The most device memory in use beside the largest block, beyond what was in use before.
    device_bytes: u64,
    /// The pages of 2 MiB that the blocks lay in and that no live block touches.
    whole_pages_bytes: u64,
    largest_of_freed: f64,
    largest_of_rest: f64,
    whole_pages_of_freed: f64,
    whole_pages_of_rest: f64,
}

/// The length of the pages that are counted, and how exactly the largest piece is found.
const PAGE: u64 = 2 << 20;

pub(crate) fn fragmentation(opened: &OpenedDriver, args: &FragmentationArgs) -> Result<Fragmentation, Failure> {
    let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
    for &limit in &args.fill {
        if limit < args.sizes.most {
            return Err(Failure::Usage("--fill is less than the largest block of --sizes"));
        }
        Failure::if_no_room("--fill", limit, &context)?;
    }
    let mut progress = Progress::new(args.fill.len() * args.stacks.len() * args.rounds as usize);
    let (mut rows, stream) = (Vec::new(), context.create_stream(0)?);
    for &limit in &args.fill {
        for round in 0..args.rounds {
            for &stack in &args.stacks {
                let seed = args.seed.wrapping_add(round.into());
                progress.step(&format!("{limit} through {}, seed {seed}", stack.as_str()));
                rows.push(Trial::new(&context, stack, limit, stream)?.run(args, seed)?);
            }
        }
    }
    Ok(Fragmentation {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        least_bytes: args.sizes.least.get(),
        most_bytes: args.sizes.most.get(),
        distribution: args.distribution,
        rows,
    })
}

/// A stack under a limit, which is filled once.
struct Trial {
    stack: StackName,
    memory: Arc<dyn DeviceMemoryResource>,
    stream: Stream,
    limit: Bytes,
}

impl Trial {
    fn new(context: &Arc<DeviceContext>, stack: StackName, limit: Bytes, stream: Stream) -> bursar::Result<Self> {
        let memory = stack.build(context, Some(limit), Some(&Statistics::default()))?;
        Ok(Self { stack, memory, stream, limit })
    }

    fn run(&self, args: &FragmentationArgs, seed: u64) -> Result<Row, Failure> {
        let (mut random, before) = (Random::new(seed), self.device_bytes()?);
        let start = Instant::now();
        let mut blocks = self.fill(args, &mut random)?;
        let fill_seconds = start.elapsed().as_secs_f64();
        let (count, filled, touched) = (blocks.len(), requested(&blocks), pages(&blocks));
        shuffle(&mut blocks, &mut random);
        let live = blocks.split_off(count / 2);
        let freed = requested(&blocks);
        self.free(blocks)?;
        let (largest, device_bytes) = self.largest()?;
        let whole_pages = touched.difference(&pages(&live)).count() as u64 * PAGE;
        self.free(live)?;
        let rest = self.limit.get() - (filled - freed);
        let of = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        Ok(Row {
            stack: self.stack,
            limit: self.limit.get(),
            seed,
            blocks: count,
            filled_bytes: filled,
            fill_seconds,
            freed_bytes: freed,
            largest_bytes: largest,
            device_bytes: device_bytes.saturating_sub(before),
            whole_pages_bytes: whole_pages,
            largest_of_freed: of(largest, freed),
            largest_of_rest: of(largest, rest),
            whole_pages_of_freed: of(whole_pages, freed),
            whole_pages_of_rest: of(whole_pages, rest),
        })
    }

    /// Allocates blocks until one is refused.
    fn fill(&self, args: &FragmentationArgs, random: &mut Random) -> bursar::Result<Vec<DeviceBlock>> {
        let mut blocks = Vec::new();
        while let Some(block) = self.try_allocate(args.distribution.draw(args.sizes, random))? {
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Returns the size of the largest block that can be allocated, to 2 MiB, and the device memory in use beside it.
    fn largest(&self) -> Result<(u64, u64), Failure> {
        let (mut granted, mut refused, mut in_use) = (0, self.limit.get(), 0);
        while refused - granted > PAGE {
            let bytes = granted.midpoint(refused);
            match self.try_allocate(bytes)? {
                Some(block) => {
                    granted = bytes;
                    in_use = self.device_bytes()?.max(in_use);
                    self.free(vec![block])?;
                }
                None => refused = bytes,
            }
        }
        Ok((granted, in_use))
    }

    /// Returns the device memory in use, by anyone.
    fn device_bytes(&self) -> Result<u64, Failure> {
        let context = self.memory.context();
        Ok(context.driver().memory(context.device())?.used().get())
    }

    /// Allocates a block; none if that is refused for want of memory.
    fn try_allocate(&self, bytes: u64) -> bursar::Result<Option<DeviceBlock>> {
        match self.memory.allocate(bytes, 256, self.stream, tag!("fragmentation")) {
            Ok(block) => Ok(Some(block)),
            Err(error) if error.is_capacity() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees blocks, and waits until their memory is free.
    fn free(&self, blocks: Vec<DeviceBlock>) -> Result<(), Failure> {
        for block in blocks {
            self.memory.deallocate(block, self.stream).map_err(Error::from)?;
        }
        self.memory.reap_blocking(Duration::MAX)?;
        Ok(())
    }
}

fn requested(blocks: &[DeviceBlock]) -> u64 {
    blocks.iter().map(|block| block.requested().get()).sum()
}

/// Returns the numbers of the pages that blocks touch.
fn pages(blocks: &[DeviceBlock]) -> HashSet<u64> {
    let of = |block: &DeviceBlock| {
        let first = block.ptr().0;
        first / PAGE..=(first + block.requested().get() - 1) / PAGE
    };
    blocks.iter().flat_map(of).collect()
}

/// Shuffles as Fisher and Yates do, from the last.
fn shuffle<T>(things: &mut [T], random: &mut Random) {
    for last in (1..things.len()).rev() {
        things.swap(last, random.index(last + 1));
    }
}

impl Show for Fragmentation {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { driver, least_bytes, most_bytes, distribution, rows, .. } = self;
        let (least, most, how) = (Bytes(*least_bytes), Bytes(*most_bytes), distribution.as_str());
        writeln!(out, "{HEADING}Blocks of {least} to {most}, {how}{HEADING:#} {FAINT}({driver}){FAINT:#}")?;
        writeln!(
            out,
            "{:>7} {:>10} {:>6} {:>8} {:>11} {:>9} {:>11} {:>11} {:>8} {:>8} {:>10}",
            "stack",
            "limit",
            "seed",
            "blocks",
            "filled",
            "seconds",
            "freed",
            "largest",
            "÷ freed",
            "÷ rest",
            "in pages"
        )?;
        for row in rows {
            writeln!(
                out,
                "{:>7} {:>10} {:>6} {:>8} {:>11} {:>9.4} {:>11} {:>11} {:>8.3} {:>8.3} {:>10.3}",
                row.stack.as_str(),
                Bytes(row.limit),
                row.seed,
                row.blocks,
                Bytes(row.filled_bytes),
                row.fill_seconds,
                Bytes(row.freed_bytes),
                Bytes(row.largest_bytes),
                row.largest_of_freed,
                row.largest_of_rest,
                row.whole_pages_of_freed
            )?;
        }
        writeln!(
            out,
            "{FAINT}rest: the limit less what is live; in pages: pages of 2 MiB that no live block touches ÷ freed{FAINT:#}"
        )?;
        if self.simulated {
            writeln!(out, "{FAINT}the devices are simulated: seconds are of the processor alone{FAINT:#}")?;
        }
        Ok(())
    }
}
