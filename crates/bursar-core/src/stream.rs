//! Streams, and the one table that makes them.

use crate::{DeviceId, Error, RawStream, Result, StreamMisuse, StreamNumber};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many streams one [`DeviceContext`](crate::DeviceContext) can know at a time, its own and adopted ones together.
pub const STREAM_SLOTS: usize = 1024;

/// A stream of one device: a small token that only a [`DeviceContext`](crate::DeviceContext) makes. It names the
/// stream; the context keeps it alive.
///
/// ```
/// # use bursar_core::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let stream = context.create_stream(0)?;
/// assert_eq!(stream.device(), context.device());
/// assert!(context.default_stream().is_default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    context: u32,
    slot: u32,
    epoch: u32,
    device: DeviceId,
}

impl Stream {
    /// The device it belongs to.
    #[inline]
    pub const fn device(self) -> DeviceId {
        self.device
    }

    /// Its place in the context's table, below [`STREAM_SLOTS`]: to index per-stream state by. An adopted stream's place
    /// is given to another once its adoption has ended.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// Whether it is the legacy default stream.
    #[inline]
    pub const fn is_default(self) -> bool {
        self.slot == 0
    }

    /// Its number, as messages name it.
    pub const fn number(self) -> StreamNumber {
        StreamNumber(self.slot)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} of {}", self.number(), self.device))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}:{})", self.device, self.slot)
    }
}

/// One place in the table. The epoch is odd while the place is taken and moves on when it is vacated, so that a token
/// of an earlier occupant is recognised.
#[derive(Debug, Default)]
struct Slot {
    raw: AtomicU64,
    epoch: AtomicU32,
}

#[derive(Debug, Default)]
struct Places {
    next: u32,
    vacant: Vec<u32>,
    owned: Vec<RawStream>,
    known: HashMap<RawStream, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    slot: u32,
    adoptions: u32,
    owned: bool,
}

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct StreamTable {
    context: u32,
    device: DeviceId,
    slots: Box<[Slot]>,
    places: Mutex<Places>,
}

/// What became of an adoption that was given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Somebody else still holds the stream.
    Kept,
    /// It was the last one: say goodbye, then [`StreamTable::vacate`].
    Last,
}

impl StreamTable {
    pub(crate) fn new(context: u32, device: DeviceId) -> Self {
        let table = Self {
            context,
            device,
            slots: (0..STREAM_SLOTS).map(|_| Slot::default()).collect(),
            places: Mutex::default(),
        };
        let placed = table.own(RawStream::LEGACY);
        debug_assert!(placed.is_ok_and(Stream::is_default));
        table
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self, slot: u32) -> Stream {
        let epoch = self.slots[slot as usize].epoch.load(Ordering::Relaxed);
        Stream { context: self.context, slot, epoch, device: self.device }
    }

    pub(crate) fn default_stream(&self) -> Stream {
        self.token(0)
    }

    /// Enters a stream that this context created.
    pub(crate) fn own(&self, raw: RawStream) -> Result<Stream> {
        self.place(&mut self.places(), raw, true)
    }

    /// Enters a stream that somebody else created, or counts one more adoption of it.
    pub(crate) fn adopt(&self, raw: RawStream) -> Result<Stream> {
        if raw == RawStream::PER_THREAD {
            return Err(Error::StreamMisuse {
                device: self.device,
                stream: StreamNumber(raw.0 as u32),
                why: StreamMisuse::PerThread,
            });
        }
        let raw = if raw.0 == 0 { RawStream::LEGACY } else { raw };
        let mut places = self.places();
        if let Some(known) = places.known.get_mut(&raw) {
            known.adoptions += 1;
            return Ok(self.token(known.slot));
        }
        self.place(&mut places, raw, false)
    }

    fn place(&self, places: &mut Places, raw: RawStream, owned: bool) -> Result<Stream> {
        let slot = match places.vacant.pop() {
            Some(slot) => slot,
            None if (places.next as usize) < STREAM_SLOTS => {
                places.next += 1;
                places.next - 1
            }
            None => return Err(Error::Capacity { max: STREAM_SLOTS }),
        };
        places.known.insert(raw, Known { slot, adoptions: u32::from(!owned), owned });
        if owned && raw != RawStream::LEGACY {
            places.owned.push(raw);
        }
        let entry = &self.slots[slot as usize];
        entry.raw.store(raw.0, Ordering::Relaxed);
        entry.epoch.fetch_add(1, Ordering::Release);
        Ok(self.token(slot))
    }

    /// Gives one adoption up.
    pub(crate) fn release(&self, stream: Stream) -> Release {
        let raw = RawStream(self.slots[stream.slot()].raw.load(Ordering::Relaxed));
        let mut places = self.places();
        match places.known.get_mut(&raw) {
            Some(known) => {
                known.adoptions = known.adoptions.saturating_sub(1);
                if known.adoptions == 0 && !known.owned { Release::Last } else { Release::Kept }
            }
            None => Release::Kept,
        }
    }

    /// Frees the place of a stream whose last adoption was given up, unless it was adopted again meanwhile.
    pub(crate) fn vacate(&self, stream: Stream) {
        let entry = &self.slots[stream.slot()];
        let raw = RawStream(entry.raw.load(Ordering::Relaxed));
        let mut places = self.places();
        if places.known.get(&raw).is_some_and(|known| known.adoptions > 0) {
            return;
        }
        places.known.remove(&raw);
        places.vacant.push(stream.slot);
        entry.epoch.fetch_add(1, Ordering::Release);
    }

    /// The driver's handle, for a stream that may be used here.
    #[inline]
    pub(crate) fn resolve(&self, stream: Stream) -> Result<RawStream> {
        if stream.context == self.context {
            let slot = &self.slots[stream.slot()];
            if slot.epoch.load(Ordering::Acquire) == stream.epoch {
                return Ok(RawStream(slot.raw.load(Ordering::Relaxed)));
            }
        }
        Err(self.misuse(stream))
    }

    /// The driver's handle of whichever stream is at a place now.
    pub(crate) fn resolve_slot(&self, slot: usize) -> Option<RawStream> {
        let entry = &self.slots[slot];
        let taken = entry.epoch.load(Ordering::Acquire) % 2 == 1;
        taken.then(|| RawStream(entry.raw.load(Ordering::Relaxed)))
    }

    #[cold]
    fn misuse(&self, stream: Stream) -> Error {
        let why = match () {
            () if stream.device != self.device => StreamMisuse::OtherDevice { device: stream.device },
            () if stream.context != self.context => StreamMisuse::OtherContext,
            () => StreamMisuse::Ended,
        };
        Error::StreamMisuse { device: self.device, stream: stream.number(), why }
    }

    /// The streams that must be destroyed with the context.
    pub(crate) fn take_owned(&self) -> Vec<RawStream> {
        std::mem::take(&mut self.places().owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> StreamTable {
        StreamTable::new(1, DeviceId(0))
    }

    #[test]
    fn s3_a_token_of_an_ended_adoption_is_recognised_when_its_place_is_taken_again() {
        let table = table();
        let first = table.adopt(RawStream(100)).expect("room");
        assert_eq!(table.resolve(first), Ok(RawStream(100)));
        assert_eq!(table.release(first), Release::Last);
        table.vacate(first);
        let second = table.adopt(RawStream(200)).expect("room");
        assert_eq!(second.slot(), first.slot());
        assert_eq!(table.resolve(second), Ok(RawStream(200)));
        assert!(matches!(table.resolve(first), Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. })));
    }

    #[test]
    fn s5_one_stream_adopted_twice_is_one_stream_until_both_are_gone() {
        let table = table();
        let stream = table.adopt(RawStream(100)).expect("room");
        assert_eq!(table.adopt(RawStream(100)), Ok(stream));
        assert_eq!(table.release(stream), Release::Kept);
        assert_eq!(table.release(stream), Release::Last);
    }

    #[test]
    fn r5_the_default_streams_are_told_apart() {
        let table = table();
        for raw in [RawStream(0), RawStream::LEGACY] {
            assert_eq!(table.adopt(raw), Ok(table.default_stream()));
            assert_eq!(table.release(table.default_stream()), Release::Kept);
        }
        assert!(matches!(
            table.adopt(RawStream::PER_THREAD),
            Err(Error::StreamMisuse { why: StreamMisuse::PerThread, .. })
        ));
    }

    #[test]
    fn r5_streams_of_others_are_refused_and_named() {
        let (here, sibling, elsewhere) = (table(), StreamTable::new(2, DeviceId(0)), StreamTable::new(3, DeviceId(1)));
        let why = |stream| match here.resolve(stream) {
            Err(Error::StreamMisuse { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(sibling.default_stream()), StreamMisuse::OtherContext);
        assert_eq!(why(elsewhere.default_stream()), StreamMisuse::OtherDevice { device: DeviceId(1) });
    }

    #[test]
    fn the_table_refuses_when_full_and_recovers() {
        let table = table();
        let streams: Vec<_> =
            (1..STREAM_SLOTS as u64).map(|n| table.adopt(RawStream(n + 100)).expect("room")).collect();
        assert_eq!(table.adopt(RawStream(9999)), Err(Error::Capacity { max: STREAM_SLOTS }));
        assert_eq!(table.release(streams[0]), Release::Last);
        table.vacate(streams[0]);
        assert!(table.adopt(RawStream(9999)).is_ok());
    }
}
