//! Writes PyTorch memory snapshots, as memory_viz opens them.

use super::pickler::Pickler;
use super::{Row, rows, synthetic_layout};
use crate::{Event, EventKind, Segment, Trace, TraceLayout};
use bursar_core::AllocTag;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// Writes a PyTorch memory snapshot that <https://pytorch.org/memory_viz> opens, with addresses made up by
/// [`TraceLayout::best_fit`]. Tags become `user_metadata` and the one frame of each stack; threads are dropped.
///
/// ```
/// let mut snapshot = Vec::new();
/// bursar::trace::write_torch_snapshot(&bursar::trace::bundled(), &mut snapshot)?;
/// assert_eq!(&snapshot[..2], [0x80, 4]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_torch_snapshot(trace: &Trace, to: impl Write) -> io::Result<()> {
    write_torch_snapshot_at(trace, &synthetic_layout(trace)?, to)
}

/// Writes a PyTorch memory snapshot of a run whose blocks and segments have the addresses of `layout`.
///
/// ```
/// use bursar::trace::{TraceLayout, bundled, write_torch_snapshot_at};
///
/// let trace = bundled();
/// let layout = TraceLayout::best_fit(&trace)?;
/// write_torch_snapshot_at(&trace, &layout, std::io::sink())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_torch_snapshot_at(trace: &Trace, layout: &TraceLayout, to: impl Write) -> io::Result<()> {
    let mut pickle = Pickler::begin(to)?;
    let frames = StackFrames::default();
    pickle.dict(|pickle| {
        let mut frames = frames;
        pickle.text("segments")?;
        write_segments(pickle, trace, layout, &mut frames)?;
        pickle.text("device_traces")?;
        write_traces(pickle, trace, layout, &mut frames)?;
        pickle.text("allocator_settings")?;
        write_settings(pickle)?;
        pickle.text("external_annotations")?;
        pickle.list([(); 0], |_, ()| Ok(()))
    })?;
    pickle.end()
}

/// The call stacks already written, one per tag, with their memo indices.
#[derive(Debug, Default)]
struct StackFrames(HashMap<AllocTag, u32>);

impl StackFrames {
    /// Writes the call stack of a tag, under the key `frames`.
    fn write<W: Write>(&mut self, pickle: &mut Pickler<W>, tag: AllocTag) -> io::Result<()> {
        pickle.text("frames")?;
        if let Some(&number) = self.0.get(&tag) {
            return pickle.recall(number);
        }
        pickle.list([tag], |pickle, tag| {
            pickle.dict(|pickle| {
                pickle.text_pair("name", tag.name())?;
                pickle.text_pair("filename", "tag")?;
                pickle.int_pair("line", 0)
            })
        })?;
        self.0.insert(tag, pickle.memoize()?);
        Ok(())
    }
}

/// A part of a segment at the end of the run: a live block or free space.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    bytes: u64,
    /// The allocation that is live in it, if any.
    live: Option<Event>,
}

fn write_segments<W: Write>(
    pickle: &mut Pickler<W>,
    trace: &Trace,
    layout: &TraceLayout,
    frames: &mut StackFrames,
) -> io::Result<()> {
    let live = live_at_the_end(trace, layout);
    pickle.list(&layout.segments, |pickle, segment| {
        let pieces = pieces(segment, &live);
        let active = pieces.iter().filter(|piece| piece.live.is_some()).map(|piece| piece.bytes).sum();
        let requested = pieces.iter().filter_map(|piece| piece.live).map(|event| event.bytes).sum();
        pickle.dict(|pickle| {
            pickle.int_pair("device", segment.device.into())?;
            pickle.int_pair("address", segment.address)?;
            pickle.int_pair("total_size", segment.bytes)?;
            pickle.int_pair("allocated_size", active)?;
            pickle.int_pair("active_size", active)?;
            pickle.int_pair("requested_size", requested)?;
            pickle.text("stream")?;
            pickle.signed(segment.stream)?;
            pickle.text_pair("segment_type", "large")?;
            pickle.text("segment_pool_id")?;
            pickle.pair(0, 0)?;
            pickle.bool_pair("is_expandable", true)?;
            frames.write(pickle, AllocTag::UNTAGGED)?;
            pickle.text("blocks")?;
            pickle.list(&pieces, |pickle, piece| write_piece(pickle, piece, frames))
        })
    })
}

fn write_piece<W: Write>(pickle: &mut Pickler<W>, piece: &Piece, frames: &mut StackFrames) -> io::Result<()> {
    let state = if piece.live.is_some() { "active_allocated" } else { "inactive" };
    pickle.dict(|pickle| {
        pickle.int_pair("address", piece.address)?;
        pickle.int_pair("size", piece.bytes)?;
        pickle.int_pair("requested_size", piece.live.map_or(0, |event| event.bytes))?;
        pickle.text_pair("state", state)?;
        frames.write(pickle, piece.live.map_or(AllocTag::UNTAGGED, |event| event.tag))
    })
}

/// Returns the blocks that were never freed, by device and address.
fn live_at_the_end(trace: &Trace, layout: &TraceLayout) -> BTreeMap<(u8, u64), Event> {
    let mut live: HashMap<u32, Event> = HashMap::new();
    for event in &trace.events {
        match event.kind {
            EventKind::Allocate => drop(live.insert(event.block, *event)),
            EventKind::Free => drop(live.remove(&event.block)),
            EventKind::Fail => {}
        }
    }
    let address = |event: &Event| layout.addresses.get(event.block as usize).copied();
    live.into_values().filter_map(|event| Some(((event.device, address(&event)?), event))).collect()
}

/// Splits a segment into live and free pieces. The piece of a live block reaches to the next multiple of 512, or to the next
/// block.
fn pieces(segment: &Segment, live: &BTreeMap<(u8, u64), Event>) -> Vec<Piece> {
    let end = segment.address.saturating_add(segment.bytes);
    let mut pieces = Vec::new();
    let mut at = segment.address;
    let mut inside = live.range((segment.device, segment.address)..(segment.device, end)).peekable();
    while let Some((&(_, address), event)) = inside.next() {
        let end = inside.peek().map_or(end, |((_, next), _)| *next);
        if at < address {
            pieces.push(Piece { address: at, bytes: address - at, live: None });
        }
        let bytes = event.bytes.checked_next_multiple_of(512).unwrap_or(event.bytes).min(end - address);
        pieces.push(Piece { address, bytes, live: Some(Event { bytes: event.bytes.min(bytes), ..*event }) });
        at = address + bytes;
    }
    if at < end {
        pieces.push(Piece { address: at, bytes: end - at, live: None });
    }
    pieces
}

fn write_traces<W: Write>(
    pickle: &mut Pickler<W>,
    trace: &Trace,
    layout: &TraceLayout,
    frames: &mut StackFrames,
) -> io::Result<()> {
    let devices = trace.events.iter().map(|event| u16::from(event.device) + 1).max().unwrap_or(1);
    pickle.list(0..devices, |pickle, device| {
        let entries = rows(trace, layout)
            .filter(|row| row.as_ref().map_or(true, |row| u16::from(row.event.device) == device))
            .flat_map(|row| match row {
                Ok(row) if row.event.kind == EventKind::Free => {
                    [Some(Ok((row, "free_requested"))), Some(Ok((row, "free_completed")))]
                }
                Ok(row) if row.event.kind == EventKind::Fail => [Some(Ok((row, "oom"))), None],
                Ok(row) => [Some(Ok((row, "alloc"))), None],
                Err(error) => [Some(Err(error)), None],
            })
            .flatten();
        pickle.list(entries, |pickle, entry| {
            let (row, action) = entry?;
            write_entry(pickle, row, action, frames)
        })
    })
}

fn write_entry<W: Write>(pickle: &mut Pickler<W>, row: Row, action: &str, frames: &mut StackFrames) -> io::Result<()> {
    pickle.dict(|pickle| {
        pickle.text_pair("action", action)?;
        pickle.int_pair(if action == "oom" { "device_free" } else { "addr" }, row.address)?;
        // PyTorch's sizes are signed, and its viewer fails on more; only a failed request can be that large.
        pickle.int_pair("size", row.event.bytes.min(i64::MAX as u64))?;
        pickle.text("stream")?;
        pickle.signed(row.stream)?;
        pickle.int_pair("time_us", row.time_us)?;
        pickle.text_pair("compile_context", "N/A")?;
        pickle
            .text_pair("user_metadata", if row.event.tag == AllocTag::UNTAGGED { "" } else { row.event.tag.name() })?;
        frames.write(pickle, row.event.tag)
    })
}

fn write_settings<W: Write>(pickle: &mut Pickler<W>) -> io::Result<()> {
    pickle.dict(|pickle| {
        pickle.text_pair("PYTORCH_CUDA_ALLOC_CONF", "")?;
        pickle.int_pair("max_split_size", i64::MAX as u64)?;
        pickle.text("garbage_collection_threshold")?;
        pickle.float(0.0)?;
        pickle.bool_pair("expandable_segments", true)?;
        pickle.int_pair("pinned_num_register_threads", 1)?;
        pickle.bool_pair("release_lock_on_cudamalloc", false)?;
        pickle.bool_pair("pinned_use_cuda_host_register", false)?;
        pickle.bool_pair("graph_capture_record_stream_reuse", false)?;
        pickle.text("roundup_power2_divisions")?;
        pickle.dict(|pickle| (0..16).try_for_each(|power| pickle.int_pair(&(1u32 << power).to_string(), 0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_closer_than_a_rounded_size_all_have_a_piece() {
        let event = Event {
            bytes: 256,
            block: 0,
            tag: AllocTag::UNTAGGED,
            thread: 0,
            stream: 0,
            kind: EventKind::Allocate,
            device: 0,
        };
        let live = [0x1100, 0x1200, 0x1600].map(|address| ((0, address), event));
        let segment = Segment { device: 0, stream: 0, address: 0x1000, bytes: 0x1000 };
        let pieces = pieces(&segment, &live.into());
        let found: Vec<_> = pieces.iter().map(|piece| (piece.address, piece.bytes, piece.live.is_some())).collect();
        let expected = [
            (0x1000, 0x100, false),
            (0x1100, 0x100, true),
            (0x1200, 0x200, true),
            (0x1400, 0x200, false),
            (0x1600, 0x200, true),
            (0x1800, 0x800, false),
        ];
        assert_eq!(found, expected);
    }
}
