//! `bursar replay`: replays real traces through stacks.

mod output_file;

use crate::failure::Failure;
use crate::output::{FAINT, HEADING, Progress, Show};
use crate::stacks::StackName;
use crate::stage::parse_size;
use crate::traces::{Percent, TraceSource, Variation};
use bursar::driver::CountingDriver;
use bursar::driver::OpenedDriver;
use bursar::observe::Observer;
use bursar::prelude::*;
use bursar::trace::{
    BackedAddresses, Cost, MemoryProfile, Replay, ReplayPage, StackRun, Summary, Trace, TraceFile, TraceGenerator,
    TraceRecorder, write_torch_snapshot_at,
};
use output_file::OutputFile;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options of `bursar replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The traces, each replayed on its own.
    #[arg(value_name = "TRACE", required_unless_present = "generate")]
    traces: Vec<PathBuf>,
    /// Replay a trace that is made: server, pipeline, training or mix, with seed=N, streams=N and rounds=N behind it.
    #[arg(long, value_name = "FAMILY[,seed=N,…]")]
    generate: Vec<TraceGenerator>,
    #[command(flatten)]
    variation: Variation,
    /// The stacks that memory is allocated from, a row for each.
    #[arg(long = "stack", value_name = "STACK,…", value_enum, value_delimiter = ',', default_value = "pool")]
    stacks: Vec<StackName>,
    /// The most that may be held.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<Bytes>,
    /// Refuse traces with frees of nothing or blocks that are never freed.
    #[arg(long)]
    strict: bool,
    /// Write a page that shows memory over the operations, the address space at the peak, and what held it.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the replayed run as a PyTorch memory snapshot, as pytorch.org/memory_viz opens it; of one trace and one stack.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar replay run.csv.gz snapshot.pickle --stack async,direct --limit 40GiB
  bursar replay run.csv.gz --stack async,direct --html run.html
  bursar replay run.csv.gz --stack async --snapshot placed.pickle
  bursar replay run.csv.gz --deal 4:foreign --jitter 10% --seed 3
  bursar replay --generate server,seed=3 --generate pipeline,streams=8,rounds=500";

impl ReplayArgs {
    /// Returns the traces that are read, and then those that are made.
    fn sources(&self) -> impl Iterator<Item = TraceSource<'_>> {
        let read = self.traces.iter().map(|path| TraceSource::File(path));
        read.chain(self.generate.iter().map(TraceSource::Generator))
    }
}

/// The result of all replays.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayReport {
    driver: String,
    /// True if its devices are simulated.
    simulated: bool,
    limit: Option<u64>,
    /// The variation of the traces, as the options say it.
    deal: Option<String>,
    jitter: Option<f64>,
    seed: Option<u64>,
    traces: Vec<Row>,
    /// The page that was written.
    html: Option<PathBuf>,
    /// The snapshot that was written.
    snapshot: Option<PathBuf>,
}

/// The result of one trace with one stack.
#[derive(Debug, Serialize)]
struct Row {
    trace: String,
    stack: StackName,
    ops: u64,
    streams: usize,
    threads: usize,
    ns_per_op: f64,
    ns_per_hit: Option<f64>,
    hits: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    ratio: f64,
    refused: u64,
    driver_calls: u64,
    frames_remapped: u64,
    unknown_frees: u64,
    missing_frees: u64,
}

/// Replays every trace through every stack, and writes the page and the snapshot.
pub(crate) fn replay(opened: &OpenedDriver, args: &ReplayArgs) -> Result<ReplayReport, Failure> {
    let mut files = Files::create(args)?;
    let mut progress = Progress::new(args.sources().count() * (1 + args.stacks.len() * files.passes()));
    let device = opened.driver.facts(DeviceId(0))?.name;
    let mut report = ReplayPage::new(format!("{device}, {}", opened.driver.describe()), args.limit);
    let mut rows = Vec::new();
    for source in args.sources() {
        progress.step(&format!("reading {source}"));
        let trace = source.open(&args.variation)?;
        if args.strict {
            trace.summary().strict()?;
        }
        let mut runs = Vec::new();
        for &stack in &args.stacks {
            let mut step = |what: &str| progress.step(&format!("{what} {source} through {}", stack.as_str()));
            let rig = Rig::build(opened, &trace, stack, args.limit)?;
            step("replaying");
            let mut cost = rig.replay.run(&*rig.memory, &rig.driver)?;
            let frames_remapped = rig.backed_addresses.remaps();
            if files.page.is_some() {
                step("watching");
                let profile = rig.watch()?;
                cost.peak_reserved = cost.peak_reserved.max(profile.peak_reserved());
                runs.push(StackRun { stack: stack.as_str().to_owned(), cost, frames_remapped, profile });
            }
            if let Some(file) = files.snapshot.take() {
                step("placing");
                match trace.whole() {
                    Some(whole) => rig.write_snapshot(whole, file)?,
                    None => rig.write_snapshot(&source.read(&args.variation)?, file)?,
                }
            }
            rows.push(row(trace.summary(), stack, &cost, frames_remapped));
        }
        report.add(&trace.summary().name, trace.streams(), trace.summary().threads, runs);
    }
    if let Some(file) = files.page {
        file.finish(|out| report.write(out))?;
    }
    let (html, snapshot) = (args.html.clone(), args.snapshot.clone());
    Ok(ReplayReport {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        limit: args.limit.map(Bytes::get),
        deal: args.variation.deal.map(|deal| deal.to_string()),
        jitter: args.variation.jitter.map(Percent::part),
        seed: args.variation.jitter.map(|_| args.variation.seed),
        traces: rows,
        html,
        snapshot,
    })
}

/// Returns the canonical path of a file that exists or would be created.
fn canonical(path: &Path) -> PathBuf {
    let (folder, name) = (path.parent().unwrap_or(path), path.file_name());
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    path.canonicalize()
        .ok()
        .or_else(|| Some(folder.canonicalize().ok()?.join(name?)))
        .unwrap_or_else(|| path.to_owned())
}

/// The files that are written; created before the long work, so that a path that cannot be written fails at once.
#[derive(Debug)]
struct Files {
    page: Option<OutputFile>,
    snapshot: Option<OutputFile>,
}

impl Files {
    fn create(args: &ReplayArgs) -> Result<Self, Failure> {
        if args.snapshot.is_some() && (args.sources().count(), args.stacks.len()) != (1, 1) {
            return Err(Failure::Usage("--snapshot is of one run: give one trace and one --stack"));
        }
        let written: Vec<PathBuf> = args.html.iter().chain(&args.snapshot).map(|path| canonical(path)).collect();
        let is_trace = |path: &PathBuf| args.traces.iter().any(|trace| canonical(trace) == *path);
        if written.len() == 2 && written[0] == written[1] {
            return Err(Failure::Usage("--snapshot and --html are the same file"));
        }
        if written.iter().any(is_trace) {
            return Err(Failure::Usage("--html and --snapshot are not the same file as a trace that is replayed"));
        }
        let create = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
        Ok(Self { page: create(&args.html)?, snapshot: create(&args.snapshot)? })
    }

    /// Returns how often each trace goes through each stack, counting the timed passes as one.
    fn passes(&self) -> usize {
        1 + usize::from(self.page.is_some()) + usize::from(self.snapshot.is_some())
    }
}

/// The context and the stack of one row, so that no trace finds another's memory warm.
#[derive(Debug)]
struct Rig {
    driver: Arc<CountingDriver>,
    backed_addresses: Arc<BackedAddresses>,
    memory: Arc<dyn DeviceMemoryResource>,
    replay: Replay,
    /// The bytes in use on the device before anything was allocated.
    used_before: Bytes,
}

impl Rig {
    fn build(
        opened: &OpenedDriver,
        trace: &TraceFile,
        stack: StackName,
        limit: Option<Bytes>,
    ) -> Result<Self, Failure> {
        let driver = CountingDriver::new(opened.driver.clone());
        let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
        let backed_addresses = Arc::new(BackedAddresses::default());
        context.sink().subscribe(&(backed_addresses.clone() as Arc<dyn Observer>))?;
        let used_before = driver.memory(context.device())?.used();
        let memory = stack.build(&context, limit, Some(&Statistics::default()))?;
        let replay = Replay::of(trace, &context)?;
        Ok(Self { driver, backed_addresses, memory, replay, used_before })
    }

    fn watch(&self) -> Result<MemoryProfile, Failure> {
        Ok(MemoryProfile::watch(&self.replay, &*self.memory, &self.driver, &self.backed_addresses, self.used_before)?)
    }

    fn write_snapshot(&self, trace: &Trace, file: OutputFile) -> Result<(), Failure> {
        let mut recorder = TraceRecorder::default();
        self.replay.watch(&*self.memory, &mut |step| recorder.record(step))?;
        let (run, layout) = recorder.finish(trace, &self.backed_addresses);
        file.finish(|out| write_torch_snapshot_at(&run, &layout, out))
    }
}

fn row(summary: &Summary, stack: StackName, cost: &Cost, frames_remapped: u64) -> Row {
    let Cost { operations, ns_per_op, hits, ns_per_hit, peak_live, peak_reserved, refused, driver_calls, .. } = *cost;
    Row {
        trace: summary.name.clone(),
        stack,
        ops: operations,
        streams: summary.streams,
        threads: summary.threads,
        ns_per_op,
        ns_per_hit,
        hits,
        peak_live_bytes: peak_live.get(),
        peak_reserved_bytes: peak_reserved.get(),
        ratio: cost.ratio(),
        refused,
        driver_calls,
        frames_remapped,
        unknown_frees: summary.unknown_frees,
        missing_frees: summary.missing_frees,
    }
}

impl Show for ReplayReport {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let limit = self.limit.map_or(String::new(), |limit| format!(", limit {}", Bytes(limit)));
        let deal = self.deal.as_ref().map_or(String::new(), |deal| format!(", dealt over {deal} streams"));
        let jitter = self.jitter.zip(self.seed).map_or(String::new(), |(part, seed)| {
            format!(", sizes within {}% of the recorded, seed {seed}", part * 100.0)
        });
        writeln!(out, "{HEADING}{}{HEADING:#}{FAINT}{limit}{deal}{jitter}{FAINT:#}", self.driver)?;
        writeln!(
            out,
            "{:<24} {:>7} {:>10} {:>9} {:>9} {:>11} {:>11} {:>7} {:>8}",
            "trace", "stack", "ops", "ns/op", "ns/hit", "peak live", "reserved", "ratio", "refused"
        )?;
        for row in &self.traces {
            let name = Path::new(&row.trace).file_name().map_or(row.trace.clone(), |name| {
                name.to_string_lossy().trim_end_matches(".gz").trim_end_matches(".csv").to_owned()
            });
            let hit = row.ns_per_hit.map_or("–".to_owned(), |ns| format!("{ns:.1}"));
            writeln!(
                out,
                "{name:<24} {:>7} {:>10} {:>9.1} {hit:>9} {:>11} {:>11} {:>7.3} {:>8}",
                row.stack.as_str(),
                row.ops,
                row.ns_per_op,
                Bytes(row.peak_live_bytes),
                Bytes(row.peak_reserved_bytes),
                row.ratio,
                row.refused
            )?;
            if row.unknown_frees + row.missing_frees > 0 {
                let (unknown, missing) = (row.unknown_frees, row.missing_frees);
                writeln!(out, "  {FAINT}{unknown} frees of nothing, {missing} blocks never freed{FAINT:#}")?;
            }
        }
        for (what, path) in [("page", &self.html), ("snapshot", &self.snapshot)] {
            if let Some(path) = path {
                writeln!(out, "{FAINT}{what}:{FAINT:#} {}", path.display())?;
            }
        }
        Ok(())
    }
}
