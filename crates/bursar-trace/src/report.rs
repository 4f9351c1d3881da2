//! The picture of memory over time: replayed traces as one page that needs nothing else.
//!
//! `Replay::watch` tells a [`Recording`] of every operation; `series.rs` keeps memory over the operations in a bounded
//! number of points, `peak.rs` the blocks when most was live, `tally.rs` what was asked for. A [`Report`] of several traces
//! and stacks writes the page: `tables.rs` the parts that need no drawing, `map.rs` and `pack.rs` the data of those that
//! do, and `page/` is what runs in the browser. [`Placed`] keeps a watched pass as a trace of its own.

mod ground;
mod html;
mod map;
mod pack;
mod peak;
mod placed;
mod recording;
mod series;
mod tables;
mod tally;

pub use ground::Ground;
pub use placed::Placed;
pub use recording::Recording;

use crate::Cost;
use bursar_core::Bytes;
use html::{Count, Plain, inert};
use map::Map;
use pack::Packer;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// One trace through one stack.
///
/// ```
/// use bursar_trace::{Cost, Recording, Run};
///
/// fn run(stack: &str, cost: Cost, recording: Recording) -> Run {
///     Run { stack: stack.to_owned(), cost, frames_remapped: 0, recording }
/// }
/// ```
#[derive(Debug)]
pub struct Run {
    /// What the stack is called.
    pub stack: String,
    /// What it cost.
    pub cost: Cost,
    /// How often it moved memory to where it was needed.
    pub frames_remapped: u64,
    /// What was seen of it.
    pub recording: Recording,
}

/// A page in the making.
///
/// ```
/// use bursar_trace::Report;
///
/// let mut page = Vec::new();
/// Report::new("a simulated device", None).write(&mut page)?;
/// assert!(String::from_utf8(page).is_ok_and(|page| page.contains("a simulated device")));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Report {
    driver: String,
    limit: Option<Bytes>,
    traces: Vec<Traced>,
}

#[derive(Debug)]
struct Traced {
    name: String,
    streams: Vec<u64>,
    threads: usize,
    runs: Vec<Run>,
}

const PAGE: &str = include_str!("report/page/page.html");
const STYLE: &str = include_str!("report/page/style.css");
const SCRIPTS: [&str; 6] = [
    include_str!("report/page/format.js"),
    include_str!("report/page/decode.js"),
    include_str!("report/page/timeline.js"),
    include_str!("report/page/steering.js"),
    include_str!("report/page/map.js"),
    include_str!("report/page/page.js"),
];

impl Report {
    /// A report of nothing so far, of runs on `driver` under `limit`.
    pub fn new(driver: impl Into<String>, limit: Option<Bytes>) -> Self {
        Self { driver: driver.into(), limit, traces: Vec::new() }
    }

    /// Adds a trace and its runs, one a stack. `streams` are the recording's names of its streams.
    pub fn add(&mut self, name: &str, streams: &[u64], threads: usize, runs: Vec<Run>) {
        self.traces.push(Traced { name: name.to_owned(), streams: streams.to_vec(), threads, runs });
    }

    /// Writes the page.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let out: &mut dyn Write = &mut to;
        let mut rest = PAGE;
        while let Some((before, (mark, after))) =
            rest.split_once("{{").and_then(|(before, marked)| Some((before, marked.split_once("}}")?)))
        {
            out.write_all(before.as_bytes())?;
            match mark {
                "title" => write!(out, "{}", Plain(self.title()))?,
                "style" => out.write_all(STYLE.as_bytes())?,
                "about" => self.about(out)?,
                "contents" => self.contents(out)?,
                "traces" => self.sections(out)?,
                "data" => self.data(out)?,
                "script" => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
                _ => {}
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }

    fn title(&self) -> String {
        let names: Vec<String> = self.traces.iter().map(|traced| self.short(traced)).collect();
        names.join(", ")
    }

    /// The name of a trace's file, or all of its path where another has the same.
    fn short(&self, traced: &Traced) -> String {
        let file =
            |traced: &Traced| Path::new(&traced.name).file_name().map(|name| name.to_string_lossy().into_owned());
        let own = file(traced);
        let is_alone = self.traces.iter().filter(|other| file(other) == own).count() < 2;
        own.filter(|_| is_alone).unwrap_or_else(|| traced.name.clone())
    }

    fn about(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "Replayed on {}", Plain(&self.driver))?;
        self.limit.map_or(Ok(()), |limit| write!(out, ", with a limit of {limit}"))?;
        write!(out, ".")
    }

    /// Links to the traces, where there are several.
    fn contents(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.traces.len() > 1 {
            write!(out, "<nav aria-label=Traces><ul>")?;
            for (number, traced) in self.traces.iter().enumerate() {
                write!(out, "<li><a href=\"#trace-{number}\">{}</a></li>", Plain(self.short(traced)))?;
            }
            write!(out, "</ul></nav>")?;
        }
        Ok(())
    }

    fn sections(&self, out: &mut dyn Write) -> io::Result<()> {
        for (number, traced) in self.traces.iter().enumerate() {
            let name = self.short(traced);
            write!(out, "<section class=trace id=trace-{number} aria-labelledby=name-{number}>")?;
            write!(out, "<h2 id=name-{number}>{}</h2>", Plain(name))?;
            if let Some(first) = traced.runs.first() {
                traced.lede(out, &first.recording)?;
                tables::figures(out, &traced.runs)?;
                write!(out, "<h3>Memory over operations</h3><div class=timeline data-trace={number}></div>")?;
                write!(out, "<h3>Address space at the peak</h3><div class=maps data-trace={number}></div>")?;
                write!(out, "<h3>What held it</h3>")?;
                traced.whose(out, first)?;
                tables::groups(out, &first.recording, &traced.streams)?;
                write!(out, "<div class=columns><div><h3>Sizes</h3>")?;
                tables::sizes(out, &first.recording)?;
                write!(out, "</div><div><h3>Lifetimes</h3>")?;
                tables::lifetimes(out, &first.recording)?;
                write!(out, "</div></div>")?;
            }
            write!(out, "</section>")?;
        }
        Ok(())
    }

    fn data(&self, out: &mut dyn Write) -> io::Result<()> {
        let traces = self.traces.iter().map(|traced| {
            let runs = traced.runs.iter().map(|run| RunData::new(run, &traced.streams)).collect::<io::Result<_>>()?;
            Ok(TraceData { name: self.short(traced), runs })
        });
        let traces: Vec<TraceData> = traces.collect::<io::Result<_>>()?;
        out.write_all(inert(&serde_json::to_string(&traces)?).as_bytes())
    }
}

impl Traced {
    /// What there is to know in two sentences.
    fn lede(&self, out: &mut dyn Write, first: &Recording) -> io::Result<()> {
        let counted = |count: u64, what: &str| format!("{} {what}{}", Count(count), if count == 1 { "" } else { "s" });
        let (operations, peak) = (first.series.operations(), &first.peak);
        let streams = counted(first.tally.by_stream.len() as u64, "stream");
        let threads = counted(self.threads as u64, "thread");
        write!(out, "<p class=lede>{} operations on {streams}, by {threads}. ", Count(operations))?;
        write!(
            out,
            "At most <strong>{}</strong> was live, after operation {}. ",
            Bytes(peak.live),
            Count(peak.operation)
        )?;
        for (place, Run { stack, cost, .. }) in self.runs.iter().enumerate() {
            let lead = if place == 0 { "For that, " } else { "; " };
            write!(out, "{lead}<b>{}</b> held {}", Plain(stack), cost.peak_reserved)?;
            write!(out, " ({:.3} × live)", cost.ratio())?;
            if cost.refused > 0 {
                write!(out, " and refused {}", counted(cost.refused, "allocation"))?;
            }
        }
        write!(out, ".</p>")
    }

    /// Stacks that refuse differ in what they saw, and then it matters whose figures follow.
    fn whose(&self, out: &mut dyn Write, first: &Run) -> io::Result<()> {
        if self.runs.iter().any(|run| run.cost.refused > 0) {
            write!(
                out,
                "<p class=note>What {} granted; refused allocations are not counted.</p>",
                Plain(&first.stack)
            )?;
        }
        Ok(())
    }
}

/// A trace, as the page's scripts find it.
#[derive(Debug, Serialize)]
struct TraceData {
    name: String,
    runs: Vec<RunData>,
}

#[derive(Debug, Serialize)]
struct RunData {
    stack: String,
    operations: u64,
    points: usize,
    per_point: u64,
    packed: String,
    map: Map,
}

impl RunData {
    fn new(run: &Run, streams: &[u64]) -> io::Result<Self> {
        let series = &run.recording.series;
        let mut packer = Packer::default();
        series.pack(&mut packer);
        Ok(Self {
            stack: run.stack.clone(),
            operations: series.operations(),
            points: series.points(),
            per_point: series.per_point(),
            packed: packer.finish()?,
            map: Map::new(&run.recording.peak, streams)?,
        })
    }
}
