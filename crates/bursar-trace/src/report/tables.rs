//! The parts of the page that need no drawing: figures, histograms, and what held the memory.

use super::html::{Count, Nanoseconds, Plain};
use super::map::stream_name;
use super::tally::{Doubling, Sum, class, least};
use super::{Recording, Run};
use bursar_core::{AllocTag, Bytes};
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::io::{self, Write};

/// How many groups are listed one by one.
const TOP: usize = 12;

/// The figures of each stack. Every cell carries the bare number as well, for programs that read the page.
pub(super) fn figures(out: &mut dyn Write, runs: &[Run]) -> io::Result<()> {
    let heads = ["Stack", "Per operation", "Per hit", "Peak live", "Peak reserved", "Reserved ÷ live"];
    let more = ["Refused", "Driver calls", "Frames remapped"];
    write!(
        out,
        "<div class=scroll><table class=figures><caption>What each stack cost and held. A hit is an operation "
    )?;
    write!(out, "without a driver call. Times are of a warm pass that nobody watched.</caption><thead><tr>")?;
    for head in heads.iter().chain(&more) {
        write!(out, "<th scope=col>{head}</th>")?;
    }
    write!(out, "</tr></thead><tbody>")?;
    for Run { stack, cost, frames_remapped, .. } in runs {
        write!(out, "<tr data-stack=\"{0}\"><th scope=row>{0}</th>", Plain(stack))?;
        cell(out, "ns_per_op", cost.ns_per_op, Nanoseconds(cost.ns_per_op))?;
        match cost.ns_per_hit {
            Some(ns) => cell(out, "ns_per_hit", ns, Nanoseconds(ns))?,
            None => cell(out, "ns_per_hit", "null", "no hits")?,
        }
        cell(out, "peak_live_bytes", cost.peak_live.get(), cost.peak_live)?;
        cell(out, "peak_reserved_bytes", cost.peak_reserved.get(), cost.peak_reserved)?;
        cell(out, "ratio", cost.ratio(), format_args!("{:.3}", cost.ratio()))?;
        cell(out, "refused", cost.refused, Count(cost.refused))?;
        cell(out, "driver_calls", cost.driver_calls, Count(cost.driver_calls))?;
        cell(out, "frames_remapped", frames_remapped, Count(*frames_remapped))?;
        write!(out, "</tr>")?;
    }
    write!(out, "</tbody></table></div>")
}

fn cell(out: &mut dyn Write, name: &str, value: impl Display, shown: impl Display) -> io::Result<()> {
    write!(out, "<td data-figure={name} data-value=\"{value}\">{shown}</td>")
}

/// A histogram as a table of bars.
fn histogram(out: &mut dyn Write, caption: &str, heads: [&str; 3], rows: &[(String, Sum)]) -> io::Result<()> {
    write!(out, "<div class=scroll><table class=bars><caption>{caption}</caption><thead><tr>")?;
    for head in heads {
        write!(out, "<th scope=col>{head}</th>")?;
    }
    write!(out, "</tr></thead><tbody>")?;
    let most = |measure: fn(&Sum) -> u64| rows.iter().map(|(_, sum)| measure(sum)).max().unwrap_or(0);
    let (most_count, most_bytes) = (most(|sum| sum.count), most(|sum| sum.bytes));
    for (name, sum) in rows {
        write!(out, "<tr><th scope=row>{}</th>", Plain(name))?;
        bar(out, "count", sum.count, most_count, Count(sum.count))?;
        bar(out, "bytes", sum.bytes, most_bytes, Bytes(sum.bytes))?;
        write!(out, "</tr>")?;
    }
    write!(out, "</tbody></table></div>")
}

/// A cell whose bar is as long as `value` is to `most`.
fn bar(out: &mut dyn Write, kind: &str, value: u64, most: u64, shown: impl Display) -> io::Result<()> {
    let share = 100.0 * value as f64 / most.max(1) as f64;
    write!(out, "<td class={kind}><i style=\"width:{share:.2}%\"></i><span>{shown}</span></td>")
}

pub(super) fn sizes(out: &mut dyn Write, recording: &Recording) -> io::Result<()> {
    let rows = named(&recording.tally.sizes, |class| size_class(class).to_string());
    let caption = "Allocations by what they asked for; each row reaches to twice its size.";
    histogram(out, caption, ["Size from", "Allocations", "Bytes, all together"], &rows)
}

pub(super) fn lifetimes(out: &mut dyn Write, recording: &Recording) -> io::Result<()> {
    let mut rows = named(&recording.tally.lifetimes, |class| Count(least(class)).to_string());
    if recording.left > 0 {
        let bytes = recording.tally.sizes.classes().map(|(_, sum)| sum.bytes).sum::<u64>();
        let freed = recording.tally.lifetimes.classes().map(|(_, sum)| sum.bytes).sum::<u64>();
        rows.push(("never freed".to_owned(), Sum { count: recording.left, bytes: bytes.saturating_sub(freed) }));
    }
    let caption = "Operations from an allocation to its free; each row reaches to twice its length.";
    histogram(out, caption, ["Operations from", "Allocations", "Bytes, all together"], &rows)
}

fn named(classes: &Doubling, name: fn(usize) -> String) -> Vec<(String, Sum)> {
    classes.classes().map(|(class, sum)| (name(class), sum)).collect()
}

fn size_class(class: usize) -> Bytes {
    Bytes(least(class))
}

/// Allocations that belong together.
#[derive(Debug)]
struct Group {
    name: String,
    at_peak: Sum,
    total: Sum,
}

/// What held the memory: by tag where there are any, else by size, and by stream where there are several.
pub(super) fn groups(out: &mut dyn Write, recording: &Recording, streams: &[u64]) -> io::Result<()> {
    let tally = &recording.tally;
    if tally.has_tags() {
        let groups = grouped(recording, tally.by_tag.iter(), |held| held.tag, |tag| AllocTag::name(*tag).to_owned());
        table(out, "By tag.", "Tag", groups)?;
    } else {
        let sums: HashMap<usize, Sum> = tally.sizes.classes().filter(|(_, sum)| sum.count > 0).collect();
        let name = |number: &usize| format!("from {}", size_class(*number));
        let groups = grouped(recording, sums.iter(), |held| class(held.asked), name);
        table(out, "By size, because this trace has no tags.", "Size class", groups)?;
    }
    if tally.by_stream.len() > 1 {
        let name = |stream: &u16| format!("stream {}", stream_name(streams, *stream));
        let groups = grouped(recording, tally.by_stream.iter(), |held| held.stream, name);
        table(out, "By stream.", "Stream", groups)?;
    }
    Ok(())
}

/// The groups, the one that held most at the peak first.
fn grouped<'a, K: Copy + Eq + Hash + 'a>(
    recording: &Recording,
    totals: impl Iterator<Item = (&'a K, &'a Sum)>,
    key: impl Fn(&super::peak::Held) -> K,
    name: impl Fn(&K) -> String,
) -> Vec<Group> {
    let mut at_peak: HashMap<K, Sum> = HashMap::new();
    for held in &recording.peak.blocks {
        at_peak.entry(key(held)).or_default().add(held.asked);
    }
    let mut groups: Vec<Group> = totals
        .map(|(key, &total)| Group { name: name(key), at_peak: at_peak.get(key).copied().unwrap_or_default(), total })
        .collect();
    groups.sort_by(|one, other| {
        let bytes = |group: &Group| (group.at_peak.bytes, group.total.bytes);
        bytes(other).cmp(&bytes(one)).then_with(|| one.name.cmp(&other.name))
    });
    groups
}

fn table(out: &mut dyn Write, caption: &str, head: &str, mut groups: Vec<Group>) -> io::Result<()> {
    let all: u64 = groups.iter().map(|group| group.at_peak.bytes).sum();
    let most = groups.first().map_or(0, |group| group.at_peak.bytes);
    if groups.len() > TOP + 1 {
        let rest = groups.split_off(TOP);
        let sum = |part: fn(&Group) -> Sum| Sum {
            count: rest.iter().map(|group| part(group).count).sum(),
            bytes: rest.iter().map(|group| part(group).bytes).fold(0, u64::saturating_add),
        };
        let name = format!("{} others", Count(rest.len() as u64));
        groups.push(Group { name, at_peak: sum(|group| group.at_peak), total: sum(|group| group.total) });
    }
    write!(
        out,
        "<div class=scroll><table class=groups><caption>{caption}</caption><thead><tr><th scope=col>{head}</th>"
    )?;
    write!(out, "<th scope=col>Bytes at the peak</th><th scope=col>Share</th><th scope=col>Blocks then</th>")?;
    write!(out, "<th scope=col>Allocations</th><th scope=col>Bytes, all together</th></tr></thead><tbody>")?;
    for Group { name, at_peak, total } in &groups {
        write!(out, "<tr><th scope=row>{}</th>", Plain(name))?;
        bar(out, "bytes", at_peak.bytes, most, Bytes(at_peak.bytes))?;
        write!(out, "<td>{}</td><td>{}</td>", Percent(at_peak.bytes, all), Count(at_peak.count))?;
        write!(out, "<td>{}</td><td>{}</td></tr>", Count(total.count), Bytes(total.bytes))?;
    }
    write!(out, "</tbody></table></div>")
}

/// A part of a whole.
struct Percent(u64, u64);

impl Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.0 as f64 / self.1.max(1) as f64)
    }
}
