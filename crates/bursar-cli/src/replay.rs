//! `bursar replay`: real traces through a stack.

use crate::output::{FAINT, Failure, HEADING, Progress, Show};
use crate::stacks::StackName;
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use bursar::trace::{Cost, Replay, Trace};
use bursar::{Action, Actions, Counted, Observer, Record};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Asked {
    /// The traces, each replayed on its own.
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// What hands out the memory; several for one row each.
    #[arg(long = "stack", value_name = "STACK,…", value_enum, value_delimiter = ',', default_value = "async")]
    stacks: Vec<StackName>,
    /// The most that may be held.
    #[arg(long, value_name = "SIZE")]
    limit: Option<Bytes>,
    /// Refuse traces with frees of nothing or blocks that are never freed.
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Replayed {
    driver: String,
    limit: Option<u64>,
    traces: Vec<Row>,
}

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
    unknown_frees: usize,
    missing_frees: usize,
}

pub(crate) fn replay(opened: &OpenedDriver, asked: &Asked) -> Result<Replayed, Failure> {
    let mut progress = Progress::new(asked.traces.len() * (1 + asked.stacks.len()));
    let mut traces = Vec::new();
    for path in &asked.traces {
        progress.step(&format!("reading {}", path.display()));
        let trace = bursar::trace::read(path)?;
        if asked.strict {
            trace.strict()?;
        }
        for &stack in &asked.stacks {
            progress.step(&format!("{} through {}", path.display(), stack.as_str()));
            traces.push(row(opened, &trace, stack, asked.limit)?);
        }
    }
    Ok(Replayed { driver: opened.driver.describe(), limit: asked.limit.map(Bytes::get), traces })
}

/// Each row has a context and a stack of its own, so that no trace finds another's memory warm.
fn row(opened: &OpenedDriver, trace: &Trace, stack: StackName, limit: Option<Bytes>) -> Result<Row, Failure> {
    let driver = Counted::new(opened.driver.clone());
    let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
    let remaps = Arc::new(Remaps::default());
    context.sink().subscribe(&(remaps.clone() as Arc<dyn Observer>))?;
    let memory = stack.build(&context, limit, &Statistics::default())?;
    let cost = Replay::new(trace, &context)?.run(&*memory, &driver)?;
    let Cost { operations, ns_per_op, hits, ns_per_hit, peak_live, peak_reserved, refused, driver_calls, .. } = cost;
    Ok(Row {
        trace: trace.name.clone(),
        stack,
        ops: operations,
        streams: trace.events.iter().map(|event| event.stream).collect::<HashSet<_>>().len(),
        threads: trace.threads.len(),
        ns_per_op,
        ns_per_hit,
        hits,
        peak_live_bytes: peak_live.get(),
        peak_reserved_bytes: peak_reserved.get(),
        ratio: cost.ratio(),
        refused,
        driver_calls,
        frames_remapped: remaps.0.load(Relaxed),
        unknown_frees: trace.unknown_frees.len(),
        missing_frees: trace.missing_frees.len(),
    })
}

/// Counts frames that a pool moved.
#[derive(Debug, Default)]
struct Remaps(AtomicU64);

impl Observer for Remaps {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Remap])
    }
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    fn record(&self, _: &Record<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Show for Replayed {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let limit = self.limit.map_or(String::new(), |limit| format!(", limit {}", Bytes(limit)));
        writeln!(out, "{HEADING}{}{HEADING:#}{FAINT}{limit}{FAINT:#}", self.driver)?;
        writeln!(
            out,
            "{:<24} {:>7} {:>10} {:>9} {:>9} {:>11} {:>11} {:>7} {:>8}",
            "trace", "stack", "ops", "ns/op", "ns/hit", "peak live", "reserved", "ratio", "refused"
        )?;
        for row in &self.traces {
            let name = std::path::Path::new(&row.trace).file_name().map_or(row.trace.clone(), |name| {
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
        Ok(())
    }
}
