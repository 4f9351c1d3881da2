//! Shows replayed traces as one HTML page that contains all of its data.
//!
//! A [`MemoryProfile`] watches one pass: `series.rs` keeps memory over the operations in a bounded number of points,
//! `peak.rs` the blocks at the peak, `totals.rs` the sizes, lifetimes, tags and streams. A [`ReplayPage`] of several traces
//! and stacks writes the page: `tables.rs` writes the tables, `address_map.rs` and `pack.rs` the data of the drawings, and
//! `page/` is what runs in the browser. [`TraceRecorder`] records a watched pass as a trace of its own, and
//! [`BackedAddresses`] follows the addresses that pools map memory to.
//!
//! Memory is bounded by the live blocks and not by the length of the trace: a series has at most 131,072 points, and the
//! blocks at the peak are computed late, from the changes since (see `peak.rs`).

mod address_map;
mod backed_addresses;
mod html;
mod memory_profile;
mod pack;
mod peak;
mod series;
mod tables;
mod totals;
mod trace_recorder;

pub use backed_addresses::BackedAddresses;
pub use memory_profile::MemoryProfile;
pub use trace_recorder::TraceRecorder;

use crate::Cost;
use address_map::AddressMap;
use bursar_core::Bytes;
use html::{Count, Escaped, script_safe};
use pack::Packer;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// One trace replayed through one stack.
///
/// ```
/// use bursar::trace::{Cost, MemoryProfile, StackRun};
///
/// fn run(stack: &str, cost: Cost, profile: MemoryProfile) -> StackRun {
///     StackRun { stack: stack.to_owned(), cost, frames_remapped: 0, profile }
/// }
/// ```
#[derive(Debug)]
pub struct StackRun {
    /// The name of the stack.
    pub stack: String,
    /// The cost of the replay.
    pub cost: Cost,
    /// The number of times that the stack moved frames to other addresses.
    pub frames_remapped: u64,
    /// The memory over the operations of the replay.
    pub profile: MemoryProfile,
}

/// An HTML page about replayed traces.
///
/// ```
/// use bursar::trace::ReplayPage;
///
/// let mut page = Vec::new();
/// ReplayPage::new("a simulated device", None).write(&mut page)?;
/// assert!(String::from_utf8(page).is_ok_and(|page| page.contains("a simulated device")));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReplayPage {
    driver: String,
    limit: Option<Bytes>,
    traces: Vec<TraceSection>,
}

#[derive(Debug)]
struct TraceSection {
    name: String,
    streams: Vec<u64>,
    threads: usize,
    runs: Vec<StackRun>,
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

impl ReplayPage {
    /// Creates an empty page about runs on `driver` under `limit`.
    pub fn new(driver: impl Into<String>, limit: Option<Bytes>) -> Self {
        Self { driver: driver.into(), limit, traces: Vec::new() }
    }

    /// Adds a trace and its runs, one per stack. `streams` are the recording's identifiers of its streams.
    pub fn add(&mut self, name: &str, streams: &[u64], threads: usize, runs: Vec<StackRun>) {
        self.traces.push(TraceSection { name: name.to_owned(), streams: streams.to_vec(), threads, runs });
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
                "title" => write!(out, "{}", Escaped(self.title()))?,
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
        let names: Vec<String> = self.traces.iter().map(|section| self.short(section)).collect();
        names.join(", ")
    }

    /// Returns the file name of a trace, or its whole path if another trace has the same file name.
    fn short(&self, section: &TraceSection) -> String {
        let file = |section: &TraceSection| {
            Path::new(&section.name).file_name().map(|name| name.to_string_lossy().into_owned())
        };
        let own = file(section);
        let is_alone = self.traces.iter().filter(|other| file(other) == own).count() < 2;
        own.filter(|_| is_alone).unwrap_or_else(|| section.name.clone())
    }

    fn about(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "Replayed on {}", Escaped(&self.driver))?;
        self.limit.map_or(Ok(()), |limit| write!(out, ", with a limit of {limit}"))?;
        write!(out, ".")
    }

    /// Writes links to the traces, if there are several.
    fn contents(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.traces.len() > 1 {
            write!(out, "<nav aria-label=Traces><ul>")?;
            for (number, section) in self.traces.iter().enumerate() {
                write!(out, "<li><a href=\"#trace-{number}\">{}</a></li>", Escaped(self.short(section)))?;
            }
            write!(out, "</ul></nav>")?;
        }
        Ok(())
    }

    fn sections(&self, out: &mut dyn Write) -> io::Result<()> {
        for (number, section) in self.traces.iter().enumerate() {
            let name = self.short(section);
            write!(out, "<section class=trace id=trace-{number} aria-labelledby=name-{number}>")?;
            write!(out, "<h2 id=name-{number}>{}</h2>", Escaped(name))?;
            if let Some(first) = section.runs.first() {
                section.summary(out, &first.profile)?;
                tables::figures(out, &section.runs)?;
                write!(out, "<h3>Memory over operations</h3><div class=timeline data-trace={number}></div>")?;
                write!(out, "<h3>Address space at the peak</h3><div class=maps data-trace={number}></div>")?;
                write!(out, "<h3>What held it</h3>")?;
                section.note_on_refusals(out, first)?;
                tables::groups(out, &first.profile, &section.streams)?;
                write!(out, "<div class=columns><div><h3>Sizes</h3>")?;
                tables::sizes(out, &first.profile)?;
                write!(out, "</div><div><h3>Lifetimes</h3>")?;
                tables::lifetimes(out, &first.profile)?;
                write!(out, "</div></div>")?;
            }
            write!(out, "</section>")?;
        }
        Ok(())
    }

    fn data(&self, out: &mut dyn Write) -> io::Result<()> {
        let traces = self.traces.iter().map(|section| {
            let runs = section.runs.iter().map(|run| RunData::new(run, &section.streams)).collect::<io::Result<_>>()?;
            Ok(TraceData { name: self.short(section), runs })
        });
        let traces: Vec<TraceData> = traces.collect::<io::Result<_>>()?;
        out.write_all(script_safe(&serde_json::to_string(&traces)?).as_bytes())
    }
}

impl TraceSection {
    /// Writes a summary of the trace in two sentences.
    fn summary(&self, out: &mut dyn Write, first: &MemoryProfile) -> io::Result<()> {
        let counted = |count: u64, what: &str| format!("{} {what}{}", Count(count), if count == 1 { "" } else { "s" });
        let (operations, peak) = (first.series.operations(), &first.peak);
        let streams = counted(first.totals.by_stream.len() as u64, "stream");
        let threads = counted(self.threads as u64, "thread");
        write!(out, "<p class=lede>{} on {streams}, by {threads}. ", counted(operations, "operation"))?;
        write!(
            out,
            "At most <strong>{}</strong> was live, after operation {}. ",
            Bytes(peak.live),
            Count(peak.operation)
        )?;
        for (place, StackRun { stack, cost, .. }) in self.runs.iter().enumerate() {
            let lead = if place == 0 { "For that, " } else { "; " };
            write!(out, "{lead}<b>{}</b> held {}", Escaped(stack), cost.peak_reserved)?;
            write!(out, " ({:.3} × live)", cost.ratio())?;
            if cost.refused > 0 {
                write!(out, " and refused {}", counted(cost.refused, "allocation"))?;
            }
        }
        write!(out, ".</p>")
    }

    /// Writes whose figures follow, if any stack refused allocations: stacks then differ in what they held.
    fn note_on_refusals(&self, out: &mut dyn Write, first: &StackRun) -> io::Result<()> {
        if self.runs.iter().any(|run| run.cost.refused > 0) {
            write!(
                out,
                "<p class=note>What {} granted; refused allocations are not counted.</p>",
                Escaped(&first.stack)
            )?;
        }
        Ok(())
    }
}

/// The data of a trace, for the scripts of the page.
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
    map: AddressMap,
}

impl RunData {
    fn new(run: &StackRun, streams: &[u64]) -> io::Result<Self> {
        let series = &run.profile.series;
        let mut packer = Packer::default();
        series.pack(&mut packer);
        Ok(Self {
            stack: run.stack.clone(),
            operations: series.operations(),
            points: series.points(),
            per_point: series.per_point(),
            packed: packer.finish()?,
            map: AddressMap::new(&run.profile.peak, streams)?,
        })
    }
}
