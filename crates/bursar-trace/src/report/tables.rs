//! The tables of the page: figures of each stack, histograms, and the groups that held the memory.

use super::address_map::stream_name;
use super::html::{Count, Escaped, Nanoseconds};
use super::totals::{Log2Histogram, Total, class, least};
use super::{MemoryProfile, StackRun};
use bursar_core::{AllocTag, Bytes};
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::io::{self, Write};

/// The number of groups that are listed one by one.
const TOP: usize = 12;

/// Writes the figures of each stack. Every cell carries the bare number as well, for programs that read the page.
pub(super) fn figures(out: &mut dyn Write, runs: &[StackRun]) -> io::Result<()> {
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
    for StackRun { stack, cost, frames_remapped, .. } in runs {
        write!(out, "<tr data-stack=\"{0}\"><th scope=row>{0}</th>", Escaped(stack))?;
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

/// Writes a histogram as a table of bars.
fn histogram(out: &mut dyn Write, caption: &str, heads: [&str; 3], rows: &[(String, Total)]) -> io::Result<()> {
    write!(out, "<div class=scroll><table class=bars><caption>{caption}</caption><thead><tr>")?;
    for head in heads {
        write!(out, "<th scope=col>{head}</th>")?;
    }
    write!(out, "</tr></thead><tbody>")?;
    let most = |measure: fn(&Total) -> u64| rows.iter().map(|(_, sum)| measure(sum)).max().unwrap_or(0);
    let (most_count, most_bytes) = (most(|sum| sum.count), most(|sum| sum.bytes));
    for (name, sum) in rows {
        write!(out, "<tr><th scope=row>{}</th>", Escaped(name))?;
        bar(out, "count", sum.count, most_count, Count(sum.count))?;
        bar(out, "bytes", sum.bytes, most_bytes, Bytes(sum.bytes))?;
        write!(out, "</tr>")?;
    }
    write!(out, "</tbody></table></div>")
}

/// Writes a cell with a bar of length `value / most`.
fn bar(out: &mut dyn Write, kind: &str, value: u64, most: u64, shown: impl Display) -> io::Result<()> {
    let share = 100.0 * value as f64 / most.max(1) as f64;
    write!(out, "<td class={kind}><i style=\"width:{share:.2}%\"></i><span>{shown}</span></td>")
}

pub(super) fn sizes(out: &mut dyn Write, profile: &MemoryProfile) -> io::Result<()> {
    let rows = named(&profile.totals.sizes, |class| size_class(class).to_string());
    let caption = "Allocations by requested size; each row reaches to twice its size.";
    histogram(out, caption, ["Size from", "Allocations", "Bytes, all together"], &rows)
}

pub(super) fn lifetimes(out: &mut dyn Write, profile: &MemoryProfile) -> io::Result<()> {
    let mut rows = named(&profile.totals.lifetimes, |class| Count(least(class)).to_string());
    if profile.never_freed > 0 {
        let bytes = profile.totals.sizes.classes().map(|(_, sum)| sum.bytes).sum::<u64>();
        let freed = profile.totals.lifetimes.classes().map(|(_, sum)| sum.bytes).sum::<u64>();
        rows.push(("never freed".to_owned(), Total { count: profile.never_freed, bytes: bytes.saturating_sub(freed) }));
    }
    let caption = "Operations from an allocation to its free; each row reaches to twice its length.";
    histogram(out, caption, ["Operations from", "Allocations", "Bytes, all together"], &rows)
}

fn named(classes: &Log2Histogram, name: fn(usize) -> String) -> Vec<(String, Total)> {
    classes.classes().map(|(class, sum)| (name(class), sum)).collect()
}

fn size_class(class: usize) -> Bytes {
    Bytes(least(class))
}

/// Allocations with the same tag, size class or stream.
#[derive(Debug)]
struct Group {
    name: String,
    at_peak: Total,
    total: Total,
}

/// Writes the groups that held the memory: by tag if there are tags, else by size, and by stream if there are several.
pub(super) fn groups(out: &mut dyn Write, profile: &MemoryProfile, streams: &[u64]) -> io::Result<()> {
    let totals = &profile.totals;
    if totals.has_tags() {
        let groups = grouped(profile, totals.by_tag.iter(), |block| block.tag, |tag| AllocTag::name(*tag).to_owned());
        table(out, "By tag.", "Tag", groups)?;
    } else {
        let sums: HashMap<usize, Total> = totals.sizes.classes().filter(|(_, sum)| sum.count > 0).collect();
        let name = |number: &usize| format!("from {}", size_class(*number));
        let groups = grouped(profile, sums.iter(), |block| class(block.requested), name);
        table(out, "By size, because this trace has no tags.", "Size class", groups)?;
    }
    if totals.by_stream.len() > 1 {
        let name = |stream: &u16| format!("stream {}", stream_name(streams, *stream));
        let groups = grouped(profile, totals.by_stream.iter(), |block| block.stream, name);
        table(out, "By stream.", "Stream", groups)?;
    }
    Ok(())
}

/// Returns the groups, the one that held most at the peak first.
fn grouped<'a, K: Copy + Eq + Hash + 'a>(
    profile: &MemoryProfile,
    totals: impl Iterator<Item = (&'a K, &'a Total)>,
    key: impl Fn(&super::peak::PlacedBlock) -> K,
    name: impl Fn(&K) -> String,
) -> Vec<Group> {
    let mut at_peak: HashMap<K, Total> = HashMap::new();
    for block in &profile.peak.blocks {
        at_peak.entry(key(block)).or_default().add(block.requested);
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
        let sum = |part: fn(&Group) -> Total| Total {
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
        write!(out, "<tr><th scope=row>{}</th>", Escaped(name))?;
        bar(out, "bytes", at_peak.bytes, most, Bytes(at_peak.bytes))?;
        write!(out, "<td>{}</td><td>{}</td>", Percent(at_peak.bytes, all), Count(at_peak.count))?;
        write!(out, "<td>{}</td><td>{}</td></tr>", Count(total.count), Bytes(total.bytes))?;
    }
    write!(out, "</tbody></table></div>")
}

/// A part of a whole, shown in percent.
struct Percent(u64, u64);

impl Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.0 as f64 / self.1.max(1) as f64)
    }
}
