//! `bursar bench streams`: shows whether an allocator keeps streams apart that have work to do.
//!
//! Copies up on one stream and down on another, each into a fresh block, are only as fast as the link where neither stream is
//! made to wait for the other's memory. And a stream that is held up after it freed memory must hold up no other.

use crate::failure::Failure;
use crate::output::{BAD, FAINT, GOOD, HEADING, Progress, Show};
use crate::stacks::StackName;
use crate::stage::parse_size;
use bursar::driver::{Gate, HostFunction, OpenedDriver, Pattern};
use bursar::prelude::*;
use bursar::sim::Random;
use bursar::stream::Submission;
use clap::ValueEnum;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The options of `bursar bench streams`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StreamsArgs {
    /// The stacks that memory is allocated from, a row for each.
    #[arg(
        long = "stack",
        value_name = "STACK,…",
        value_enum,
        value_delimiter = ',',
        default_value = "pool,waiting-pool,pool-per-stream,async"
    )]
    stacks: Vec<StreamsStack>,
    /// The size of each copy, and of its block.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    bytes: Bytes,
    /// The number of copies each way in a round, each from or to pinned memory of its own.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    copies: u32,
    /// The number of rounds, in which the stacks take turns; one, whatever is said, where devices are simulated.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The memory that one stream frees before it is held.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    held: Bytes,
    /// The number of allocations on another stream meanwhile.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    allocations: u32,
    /// The most that may be held meanwhile.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    limit: Bytes,
    /// The seconds after which the held stream goes on, whether or not the other has come to its end.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar bench streams
  bursar bench streams --stack pool,async --rounds 9 --json | jq '.rows[] | {stack, bytes_per_second}'";

/// A stack, and how streams share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum StreamsStack {
    /// One pool for both streams.
    Pool,
    /// One pool that has a stream wait for the other's memory before it grows, and holds less.
    WaitingPool,
    /// A pool for each stream.
    PoolPerStream,
    /// The driver's own stream-ordered pool.
    Async,
}

impl StreamsStack {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::WaitingPool => "waiting-pool",
            Self::PoolPerStream => "pool-per-stream",
            Self::Async => "async",
        }
    }

    /// Builds the memory of two streams.
    fn build(self, context: &Arc<DeviceContext>, limit: Option<Bytes>) -> bursar::Result<[Memory; 2]> {
        let build = |stack: StackName, pool| stack.build_with(pool, context, limit, Some(&Statistics::default()));
        let shared = |stack, pool| build(stack, pool).map(|memory| [memory.clone(), memory]);
        let pool = PagePool::default();
        match self {
            Self::PoolPerStream => Ok([build(StackName::Pool, pool.clone())?, build(StackName::Pool, pool)?]),
            Self::Pool => shared(StackName::Pool, pool),
            Self::WaitingPool => shared(StackName::Pool, pool.wait_before_growing()),
            Self::Async => shared(StackName::Async, pool),
        }
    }
}

type Memory = Arc<dyn DeviceMemoryResource>;

/// The rows of `bursar bench streams`.
#[derive(Debug, Serialize)]
pub(crate) struct Streams {
    driver: String,
    /// True if its devices are simulated: then copies are checked and not timed.
    simulated: bool,
    bytes: u64,
    copies: u32,
    rounds: u32,
    held_bytes: u64,
    allocations: u32,
    limit: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    stack: StreamsStack,
    /// The median rate of both directions together.
    bytes_per_second: Option<f64>,
    best_bytes_per_second: Option<f64>,
    /// True if every copy down brought what its block was filled with.
    intact: bool,
    /// True if the other stream came to its end while the one was held.
    ran_beside_held: bool,
    /// The time that the other stream took to its end, whether or not the one was held all that time.
    beside_held_ms: f64,
}

pub(crate) fn streams(opened: &OpenedDriver, args: &StreamsArgs) -> Result<Streams, Failure> {
    if args.limit.get() < args.held.get().saturating_add(Beside::BYTES_MAX) {
        return Err(Failure::Usage("--limit leaves no room: it is at least --held and 64MiB more"));
    }
    if [args.held, args.bytes].contains(&Bytes::ZERO) {
        return Err(Failure::Usage("--held and --bytes are at least a byte"));
    }
    let context = DeviceContext::open(opened.driver.clone(), DeviceId(0))?;
    Failure::if_no_room("--limit", args.limit, &context)?;
    let rounds = if opened.is_simulated { 1 } else { args.rounds };
    let mut progress = Progress::new(args.stacks.len() * (1 + rounds as usize) + 1);
    progress.step("pinning memory");
    let mut copies = Copies::new(&context, args)?;
    let mut rigs = args.stacks.iter().map(|&stack| Rig::new(&context, stack)).collect::<Result<Vec<_>, _>>()?;
    for round in 0..rounds {
        for rig in &mut rigs {
            progress.step(&format!("round {} through {}", round + 1, rig.stack.as_str()));
            // The first round has another before it, to warm up.
            for _ in 0..if round == 0 { 2 } else { 1 } {
                rig.copy(&mut copies, round)?;
            }
        }
    }
    let mut rows = Vec::new();
    for rig in rigs {
        let (stack, timed) = (rig.stack, !opened.is_simulated);
        progress.step(&format!("a held stream beside {}", stack.as_str()));
        let (best, median, intact) = (rig.best(), rig.median(), rig.intact);
        drop(rig);
        let (ran_beside_held, took) = Beside::new(&context, stack, args)?.run(args)?;
        rows.push(Row {
            stack,
            bytes_per_second: timed.then_some(median),
            best_bytes_per_second: timed.then_some(best),
            intact,
            ran_beside_held,
            beside_held_ms: took.as_secs_f64() * 1e3,
        });
    }
    // Not before: to unpin memory waits for every stream, and what else is asked of the driver waits for that.
    drop(copies);
    Ok(Streams {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        bytes: args.bytes.get(),
        copies: args.copies,
        rounds,
        held_bytes: args.held.get(),
        allocations: args.allocations,
        limit: args.limit.get(),
        rows,
    })
}

/// The pinned memory of a round's copies.
struct Copies {
    bytes: Bytes,
    up: Vec<PinnedBuffer>,
    down: Vec<PinnedBuffer>,
}

impl Copies {
    fn new(context: &Arc<DeviceContext>, args: &StreamsArgs) -> Result<Self, Failure> {
        let pool = PinnedPool::new(NumaWorkerPool::global()?, context, PinnedOptions::default());
        let bytes = usize::try_from(args.bytes.get()).unwrap_or(usize::MAX);
        let buffers = || (0..args.copies).map(|_| Ok(pool.get(bytes)?)).collect::<Result<Vec<_>, Failure>>();
        Ok(Self { bytes: args.bytes, up: buffers()?, down: buffers()? })
    }
}

/// A stack with two streams, one for the copies up and one for those down.
struct Rig<'a> {
    context: &'a Arc<DeviceContext>,
    stack: StreamsStack,
    memory: [Memory; 2],
    streams: [Stream; 2],
    /// The rate of each round.
    rates: Vec<f64>,
    intact: bool,
}

impl<'a> Rig<'a> {
    fn new(context: &'a Arc<DeviceContext>, stack: StreamsStack) -> Result<Self, Failure> {
        let streams = [context.create_stream(0)?, context.create_stream(0)?];
        Ok(Self { context, stack, memory: stack.build(context, None)?, streams, rates: Vec::new(), intact: true })
    }

    /// Submits every copy of a round, in turns up and down, waits for them all, and notes their rate.
    fn copy(&mut self, copies: &mut Copies, round: u32) -> Result<(), Failure> {
        let bytes = copies.bytes;
        let ([up, down], [up_memory, down_memory]) = (self.streams, &self.memory);
        let pairs = copies.up.drain(..).zip(copies.down.drain(..)).enumerate();
        let (mut rising, mut falling) = (Vec::new(), Vec::new());
        let start = Instant::now();
        for (index, (source, target)) in pairs {
            let mut block = Self::block(&**up_memory, bytes, up)?;
            rising.push(block.copy_from_host_async(self.context, 0, source, up).map_err(Error::from)?);
            block.free(&**up_memory, up).map_err(Error::from)?;
            let mut block = Self::block(&**down_memory, bytes, down)?;
            Submission::new(self.context, down).fill(&mut block, 0, Pattern::U8(mark(round, index)), bytes.get())?;
            falling.push(block.copy_to_host_async(self.context, 0, target, down).map_err(Error::from)?);
            block.free(&**down_memory, down).map_err(Error::from)?;
        }
        self.context.synchronize(up)?;
        self.context.synchronize(down)?;
        let seconds = start.elapsed().as_secs_f64();
        let wait = |transfer: Transfer<PinnedBuffer>| transfer.wait().map_err(Error::from);
        copies.up = rising.into_iter().map(wait).collect::<Result<_, _>>()?;
        copies.down = falling.into_iter().map(wait).collect::<Result<_, _>>()?;
        let is_intact = |(index, memory): (usize, &PinnedBuffer)| {
            memory.iter().step_by(4096).all(|&byte| byte == mark(round, index))
        };
        self.intact &= copies.down.iter().enumerate().all(is_intact);
        self.rates.push(2.0 * copies.up.len() as f64 * bytes.get() as f64 / seconds);
        Ok(())
    }

    fn block(memory: &dyn DeviceMemoryResource, bytes: Bytes, stream: Stream) -> bursar::Result<TrackedBlock> {
        Ok(TrackedBlock::new(memory, memory.allocate(bytes.get(), 256, stream, tag!("copy"))?))
    }

    /// Returns the rates of the rounds but the first, which warms up.
    fn sorted(&self) -> Vec<f64> {
        let mut rates = self.rates.get(1..).unwrap_or_default().to_vec();
        rates.sort_unstable_by(f64::total_cmp);
        rates
    }

    fn median(&self) -> f64 {
        let rates = self.sorted();
        rates.get(rates.len() / 2).copied().unwrap_or_default()
    }

    fn best(&self) -> f64 {
        self.sorted().last().copied().unwrap_or_default()
    }
}

/// Returns the byte that a block is filled with before it is copied down.
fn mark(round: u32, index: usize) -> u8 {
    (round as usize * 31 + index + 1) as u8
}

/// A stream that works beside one that is held.
struct Beside<'a> {
    context: &'a Arc<DeviceContext>,
    memory: [Memory; 2],
    runs: Stream,
    held: Stream,
}

/// Opens a gate when it is dropped, so that no stream is held for good.
struct OpensAtLast(Gate);

impl Drop for OpensAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl<'a> Beside<'a> {
    /// The blocks that are live at a time, and the largest of them.
    const LIVE: usize = 32;
    const BLOCK_MAX: u64 = 1 << 20;
    /// The bytes of each block that are filled.
    const FILLED: u64 = 256;
    /// The memory that a limit must leave them: twice what is live, for what lies between.
    const BYTES_MAX: u64 = 2 * Self::LIVE as u64 * Self::BLOCK_MAX;

    fn new(context: &'a Arc<DeviceContext>, stack: StreamsStack, args: &StreamsArgs) -> Result<Self, Failure> {
        let [runs, held] = [context.create_stream(0)?, context.create_stream(0)?];
        Ok(Self { context, memory: stack.build(context, Some(args.limit))?, runs, held })
    }

    /// Returns whether the one stream came to its end while the other was held, and how long it took.
    fn run(&self, args: &StreamsArgs) -> Result<(bool, Duration), Failure> {
        let [_, memory] = &self.memory;
        let mut block = Rig::block(&**memory, args.held, self.held)?;
        // After the block, so that it is dropped before it: a block may wait for the stream that the gate holds.
        let gate = OpensAtLast(Gate::default());
        let mut submission = Submission::new(self.context, self.held);
        submission.fill(&mut block, 0, Pattern::U8(1), args.held.get())?;
        submission.run_on_host(HostFunction::behind(gate.0.clone(), || ()))?;
        drop(submission);
        block.free(&**memory, self.held).map_err(|refused| {
            gate.0.open();
            Error::from(refused)
        })?;
        let (done, is_done) = mpsc::channel();
        let (in_time, outcome) = std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let outcome = self.work(args.allocations);
                let _nobody_waits_any_more = done.send(());
                outcome
            });
            let in_time = is_done.recv_timeout(Duration::from_secs(args.patience)).is_ok();
            drop(gate);
            (in_time, worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let took = outcome?;
        self.context.synchronize(self.held)?;
        memory.reap_blocking(Duration::MAX)?;
        Ok((in_time, took))
    }

    /// Allocates, fills and frees on the stream that runs, and waits until that has run.
    fn work(&self, allocations: u32) -> bursar::Result<Duration> {
        let ([memory, _], mut random) = (&self.memory, Random::new(7));
        let mut live: Vec<Option<TrackedBlock>> = (0..Self::LIVE).map(|_| None).collect();
        let start = Instant::now();
        for number in 0..allocations {
            let slot = &mut live[number as usize % Self::LIVE];
            if let Some(block) = slot.take() {
                block.free(&**memory, self.runs)?;
            }
            let bytes = Bytes(Self::FILLED + random.below(Self::BLOCK_MAX - Self::FILLED));
            let mut block = Rig::block(&**memory, bytes, self.runs)?;
            Submission::new(self.context, self.runs).fill(&mut block, 0, Pattern::U8(number as u8), Self::FILLED)?;
            *slot = Some(block);
        }
        for block in live.into_iter().flatten() {
            block.free(&**memory, self.runs)?;
        }
        while !self.context.has_run(self.runs, Duration::ZERO)? {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(start.elapsed())
    }
}

impl Show for Streams {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { driver, bytes, copies, rounds, held_bytes, allocations, limit, rows, .. } = self;
        let plural = if *rounds == 1 { "" } else { "s" };
        writeln!(
            out,
            "{HEADING}{copies} copies of {} up and as many down, {rounds} round{plural}{HEADING:#} {FAINT}({driver}){FAINT:#}",
            Bytes(*bytes)
        )?;
        writeln!(
            out,
            "{:>16} {:>12} {:>12} {:>8} {:>18} {:>10}",
            "", "median", "best", "intact", "beside a held one", "ms"
        )?;
        for row in rows {
            let rate =
                |rate: Option<f64>| rate.map_or("not timed".to_owned(), |rate| format!("{:.2} GB/s", rate / 1e9));
            let (median, best) = (rate(row.bytes_per_second), rate(row.best_bytes_per_second));
            let intact = if row.intact { "yes" } else { "NO" };
            let (style, beside) = if row.ran_beside_held { (GOOD, "ran") } else { (BAD, "waited") };
            let (stack, ms) = (row.stack.as_str(), row.beside_held_ms);
            writeln!(out, "{stack:>16} {median:>12} {best:>12} {intact:>8} {style}{beside:>18}{style:#} {ms:>10.2}")?;
        }
        writeln!(
            out,
            "{FAINT}held: a stream that freed {} under a limit of {}, while another made {allocations} allocations{FAINT:#}",
            Bytes(*held_bytes),
            Bytes(*limit)
        )?;
        if self.simulated {
            writeln!(out, "{FAINT}the devices are simulated: copies are checked and not timed{FAINT:#}")?;
        }
        Ok(())
    }
}
