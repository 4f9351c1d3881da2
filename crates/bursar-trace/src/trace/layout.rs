//! Addresses for a trace, which keeps none: a plausible address for each block.

use super::{EventKind, Trace, TraceLimit};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A range of device memory that was allocated from the driver in one piece.
///
/// ```
/// use bursar::trace::Segment;
///
/// let segment = Segment { device: 0, stream: 0, address: 0x7f00_0000_0000, bytes: 2 << 20 };
/// assert_eq!(segment.bytes, 2_097_152);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's ordinal.
    pub device: u8,
    /// The recording's identifier of the stream it serves.
    pub stream: u64,
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The addresses of the blocks of a trace, and the segments that contain them. A replayed run has addresses of its own
/// ([`TraceRecorder`](crate::TraceRecorder)); [`TraceLayout::best_fit`] makes them up.
///
/// ```
/// use bursar::trace::TraceLayout;
///
/// let layout = TraceLayout::best_fit(&bursar::trace::bundled())?;
/// let segment = layout.segments[0];
/// assert!((segment.address..segment.address + segment.bytes).contains(&layout.addresses[0]));
/// # Ok::<(), bursar::trace::TraceLimit>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLayout {
    /// The address of each block.
    pub addresses: Vec<u64>,
    /// The segments, none overlapping.
    pub segments: Vec<Segment>,
}

/// The first of the made-up addresses: in the range where drivers put device memory, and small enough for a JavaScript
/// number.
const BASE: u64 = 0x7f00_0000_0000;
const BLOCK_ALIGN: u64 = 512;
const SEGMENT_ALIGN: u64 = 2 << 20;

impl TraceLayout {
    /// Places the blocks by best fit, in one growing segment per device and stream. No two live blocks overlap.
    pub fn best_fit(trace: &Trace) -> Result<Self, TraceLimit> {
        let mut arenas: Vec<((u8, u16), Arena)> = Vec::new();
        let mut numbers = HashMap::new();
        // The arena of each block, and its offset and length there. The length of a block that is not live is 0.
        let mut placed = vec![(0usize, 0u64, 0u64); trace.blocks as usize];
        for event in &trace.events {
            let Some(slot) = placed.get_mut(event.block as usize) else { continue };
            match event.kind {
                EventKind::Allocate => {
                    let key = (event.device, event.stream);
                    let number = *numbers.entry(key).or_insert_with(|| {
                        arenas.push((key, Arena::default()));
                        arenas.len() - 1
                    });
                    let length =
                        event.bytes.max(1).checked_next_multiple_of(BLOCK_ALIGN).ok_or(TraceLimit::LiveBytes)?;
                    *slot = (number, arenas[number].1.allocate(length)?, length);
                }
                EventKind::Free if slot.2 > 0 => {
                    arenas[slot.0].1.free(slot.1, slot.2);
                    slot.2 = 0;
                }
                EventKind::Free | EventKind::Fail => {}
            }
        }
        let mut address = BASE;
        let mut segments = Vec::with_capacity(arenas.len());
        for ((device, stream), arena) in &arenas {
            let bytes = arena.top.checked_next_multiple_of(SEGMENT_ALIGN).ok_or(TraceLimit::LiveBytes)?;
            let stream = trace.streams.get(*stream as usize).copied().unwrap_or_default();
            segments.push(Segment { device: *device, stream, address, bytes });
            address = address.checked_add(bytes).ok_or(TraceLimit::LiveBytes)?;
        }
        let addresses = placed
            .iter()
            .map(|&(arena, offset, _)| segments.get(arena).map_or(BASE, |segment| segment.address) + offset);
        Ok(Self { addresses: addresses.collect(), segments })
    }
}

/// A growing range of addresses and its free ranges, by offset and by length.
#[derive(Debug, Default)]
struct Arena {
    top: u64,
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Arena {
    fn allocate(&mut self, length: u64) -> Result<u64, TraceLimit> {
        if let Some(&(found, offset)) = self.by_length.range((length, 0)..).next() {
            self.remove_free(offset, found);
            if found > length {
                self.insert_free(offset + length, found - length);
            }
            return Ok(offset);
        }
        // The last free range may end at the top; then the arena grows by the rest only.
        let offset = match self.by_offset.last_key_value() {
            Some((&offset, &found)) if offset + found == self.top => {
                self.remove_free(offset, found);
                offset
            }
            _ => self.top,
        };
        self.top = offset.checked_add(length).ok_or(TraceLimit::LiveBytes)?;
        Ok(offset)
    }

    fn free(&mut self, mut offset: u64, mut length: u64) {
        if let Some((&before, &found)) = self.by_offset.range(..offset).next_back()
            && before + found == offset
        {
            self.remove_free(before, found);
            (offset, length) = (before, found + length);
        }
        if let Some(&found) = self.by_offset.get(&(offset + length)) {
            self.remove_free(offset + length, found);
            length += found;
        }
        self.insert_free(offset, length);
    }

    fn insert_free(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove_free(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}
