//! Addresses for a trace, which keeps none: where each block would have been.

use crate::{EventKind, Limit, Trace};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Memory of one device taken from the driver in one piece.
///
/// ```
/// use bursar_trace::Segment;
///
/// let segment = Segment { device: 0, stream: 0, address: 0x7f00_0000_0000, bytes: 2 << 20 };
/// assert_eq!(segment.bytes, 2_097_152);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's ordinal.
    pub device: u8,
    /// The stream it serves, as the recording names it.
    pub stream: u64,
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Where the blocks of a trace are: an address a block, and the segments they lie in. A run that was really made brings its
/// own; [`Layout::best_fit`] makes one up.
///
/// ```
/// use bursar_trace::Layout;
///
/// let layout = Layout::best_fit(&bursar_trace::bundled())?;
/// let segment = layout.segments[0];
/// assert!((segment.address..segment.address + segment.bytes).contains(&layout.addresses[0]));
/// # Ok::<(), bursar_trace::Limit>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The address of each block.
    pub addresses: Vec<u64>,
    /// The segments, none overlapping.
    pub segments: Vec<Segment>,
}

/// Where made-up addresses begin: where drivers put device memory, and small enough for a JavaScript number.
const BASE: u64 = 0x7f00_0000_0000;
const BLOCK_ALIGN: u64 = 512;
const SEGMENT_ALIGN: u64 = 2 << 20;

impl Layout {
    /// Places the blocks by best fit, in one growing segment for each device and stream. No two live blocks overlap.
    pub fn best_fit(trace: &Trace) -> Result<Self, Limit> {
        let mut arenas: Vec<((u8, u16), Arena)> = Vec::new();
        let mut numbers = HashMap::new();
        // The arena of each block, and its offset and length there.
        let mut placed = vec![(0usize, 0u64, 0u64); trace.blocks as usize];
        for event in &trace.events {
            let Some(place) = placed.get_mut(event.block as usize) else { continue };
            match event.kind {
                EventKind::Allocate => {
                    let key = (event.device, event.stream);
                    let number = *numbers.entry(key).or_insert_with(|| {
                        arenas.push((key, Arena::default()));
                        arenas.len() - 1
                    });
                    let length = event.bytes.max(1).checked_next_multiple_of(BLOCK_ALIGN).ok_or(Limit::LiveBytes)?;
                    *place = (number, arenas[number].1.take(length)?, length);
                }
                EventKind::Free if place.2 > 0 => {
                    arenas[place.0].1.give(place.1, place.2);
                    place.2 = 0;
                }
                EventKind::Free | EventKind::Fail => {}
            }
        }
        let mut address = BASE;
        let mut segments = Vec::with_capacity(arenas.len());
        for ((device, stream), arena) in &arenas {
            let bytes = arena.top.checked_next_multiple_of(SEGMENT_ALIGN).ok_or(Limit::LiveBytes)?;
            let stream = trace.streams.get(*stream as usize).copied().unwrap_or_default();
            segments.push(Segment { device: *device, stream, address, bytes });
            address = address.checked_add(bytes).ok_or(Limit::LiveBytes)?;
        }
        let addresses = placed
            .iter()
            .map(|&(arena, offset, _)| segments.get(arena).map_or(BASE, |segment| segment.address) + offset);
        Ok(Self { addresses: addresses.collect(), segments })
    }
}

/// A growing range and its free pieces, by offset and by length.
#[derive(Debug, Default)]
struct Arena {
    top: u64,
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Arena {
    fn take(&mut self, length: u64) -> Result<u64, Limit> {
        if let Some(&(found, offset)) = self.by_length.range((length, 0)..).next() {
            self.forget(offset, found);
            if found > length {
                self.remember(offset + length, found - length);
            }
            return Ok(offset);
        }
        // The last free piece may end at the top, and then only the rest has to grow.
        let offset = match self.by_offset.last_key_value() {
            Some((&offset, &found)) if offset + found == self.top => {
                self.forget(offset, found);
                offset
            }
            _ => self.top,
        };
        self.top = offset.checked_add(length).ok_or(Limit::LiveBytes)?;
        Ok(offset)
    }

    fn give(&mut self, mut offset: u64, mut length: u64) {
        if let Some((&before, &found)) = self.by_offset.range(..offset).next_back()
            && before + found == offset
        {
            self.forget(before, found);
            (offset, length) = (before, found + length);
        }
        if let Some(&found) = self.by_offset.get(&(offset + length)) {
            self.forget(offset + length, found);
            length += found;
        }
        self.remember(offset, length);
    }

    fn remember(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn forget(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}
