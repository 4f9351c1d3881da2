//! The contents of memory that sleeps: packed into pieces of host memory, copied there and back.
//!
//! Host memory is lent by a thread of its own while earlier pieces are being filled, since to pin a piece takes longer than
//! to copy it. Pieces are filled in turn by two streams of the context, so that the end of one copy and the beginning of the
//! next overlap.
//!
//! **Host memory is given back only once nothing is being copied**, whatever failed before; where not even that can be
//! found out, it is leaked, and frames stay mapped.

use super::driver_calls;
use bursar_core::{Bytes, DeviceContext, DevicePtr, Error, HostMemory, HostStore, Result, Stream};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// The number of streams that copy.
const STREAMS: usize = 2;

/// The number of pieces of host memory that are lent ahead of the copies.
const AHEAD: usize = 1;

/// The shortest piece of host memory, so that a little more than before fits into what was pinned then.
const SHORTEST: u64 = 2 << 20;

/// The longest: no device has as much.
const LONGEST: u64 = 1 << 62;

/// The number of times that a stream is waited for which cannot be, and the pause between.
const WAIT_ATTEMPTS: u32 = 1000;
const WAIT_PAUSE: Duration = Duration::from_millis(1);

/// The longest wait for copies that could not be waited for when they were made.
const LEFT_COPIES_PATIENCE: Duration = Duration::from_secs(60);

/// A range of device memory, and where its contents lie in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedRange {
    ptr: DevicePtr,
    bytes: u64,
    piece: usize,
    offset: usize,
}

impl SavedRange {
    /// Returns the part that lies within addresses.
    fn within(&self, within: &Range<DevicePtr>) -> Option<Self> {
        let (start, end) = (self.ptr.max(within.start), self.ptr.offset(self.bytes).min(within.end));
        let offset = self.offset + start.0.checked_sub(self.ptr.0)? as usize;
        (start < end).then(|| Self { ptr: start, bytes: end.0 - start.0, piece: self.piece, offset })
    }
}

/// The plan for contents: the lengths of pieces of host memory, and what lies where in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContentsPlan {
    lens: Vec<u64>,
    ranges: Vec<SavedRange>,
}

impl ContentsPlan {
    /// Plans for ranges of device memory, in pieces of at most `piece`. For each of the `frames`, which are lists of
    /// ranges, the ranges of the plan that are its own are returned too.
    pub(super) fn new(frames: &[Vec<Range<u64>>], piece: Bytes) -> (Self, Vec<Range<usize>>) {
        let total: u64 = frames.iter().flatten().map(|range| range.end - range.start).sum();
        let longest = piece.get().clamp(SHORTEST, LONGEST).next_multiple_of(SHORTEST);
        let mut plan = Self::default();
        let (mut left, mut used, mut of_frames) = (total, 0, Vec::with_capacity(frames.len()));
        for frame in frames {
            let first = plan.ranges.len();
            for range in frame {
                let mut at = range.start;
                while at < range.end {
                    if plan.lens.last().is_none_or(|&len| used == len) {
                        plan.lens.push(longest.min(left.next_power_of_two().max(SHORTEST)));
                        used = 0;
                    }
                    let len = plan.lens.last().copied().unwrap_or(longest);
                    let bytes = (range.end - at).min(len - used);
                    let (piece, offset) = (plan.lens.len() - 1, used as usize);
                    plan.ranges.push(SavedRange { ptr: DevicePtr(at), bytes, piece, offset });
                    (at, used, left) = (at + bytes, used + bytes, left - bytes);
                }
            }
            of_frames.push(first..plan.ranges.len());
        }
        (plan, of_frames)
    }

    /// Copies everything to memory that is lent by `store`, and returns once it is there.
    pub(super) fn save(self, context: &DeviceContext, store: &dyn HostStore) -> Result<Contents> {
        let pieces = Vec::with_capacity(self.lens.len());
        let mut contents = Contents { pieces, ranges: self.ranges, may_be_copied: false };
        if self.lens.is_empty() {
            return Ok(contents);
        }
        let streams = CopyStreams::take(context)?;
        let lens = self.lens;
        let copied = std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(AHEAD);
            scope.spawn(move || {
                // Whoever copies has gone where it takes no more.
                let _ = lens.iter().try_for_each(|&len| sender.send(lend(store, len)));
            });
            contents.fill(&streams, receiver)
        });
        let settled = streams.settle().inspect_err(|unsettled| {
            if unsettled.may_be_in_flight {
                contents.pieces.drain(..).for_each(std::mem::forget);
                // The memory stays awake, and whoever frees it or writes to it comes after the copies.
                streams.precede_all();
            }
        });
        copied.and(settled.map_err(|unsettled| unsettled.error)).map(|()| contents)
    }
}

/// Lends host memory. A store that panics has failed like any other: what was to sleep is awake.
fn lend(store: &dyn HostStore, len: u64) -> Result<Box<dyn HostMemory>> {
    let bytes = usize::try_from(len).map_err(|_| Error::InvalidSize { requested: len })?;
    let lend = || store.lend(bytes).map(|piece| (piece.host_len(), piece));
    match catch_unwind(AssertUnwindSafe(lend)) {
        Ok(Ok((found, piece))) if found >= bytes => Ok(piece),
        Ok(Ok((found, _))) => Err(Error::SizeMismatch { expected: bytes, found }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::InvalidValue { what: "the host store panicked" }),
    }
}

/// Contents of device memory in host memory.
#[derive(Default)]
pub(super) struct Contents {
    pieces: Vec<Box<dyn HostMemory>>,
    ranges: Vec<SavedRange>,
    /// Set where copies back were submitted that could not be waited for.
    may_be_copied: bool,
}

impl Contents {
    /// Returns how much device memory they are the contents of.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes(self.ranges.iter().map(|range| range.bytes).sum())
    }

    /// Returns how much host memory they lie in.
    pub(super) fn on_host(&self) -> Bytes {
        Bytes(self.pieces.iter().map(|piece| piece.host_len() as u64).sum())
    }

    /// Submits the copies to each piece as it comes.
    fn fill(&mut self, streams: &CopyStreams<'_>, pieces: Receiver<Result<Box<dyn HostMemory>>>) -> Result<()> {
        let mut next = 0;
        for piece in pieces {
            let nth = self.pieces.len();
            self.pieces.push(piece?);
            let base = self.pieces[nth].host_ptr();
            while let Some(&SavedRange { ptr, bytes, piece, offset }) = self.ranges.get(next)
                && piece == nth
            {
                let to = base.wrapping_add(offset);
                streams.submit(nth, |context, raw| driver_calls::copy_to_host(context, raw, to, ptr, bytes))?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Says that copies back were submitted which could not be waited for.
    pub(super) const fn leave_copies(&mut self) {
        self.may_be_copied = true;
    }

    /// Waits for [copies that were left](Self::leave_copies), on whichever streams they are.
    pub(super) fn wait_for_copies(&mut self, context: &DeviceContext) -> Result<()> {
        if self.may_be_copied {
            context.wait_for_all_streams(LEFT_COPIES_PATIENCE)?;
            self.may_be_copied = false;
        }
        Ok(())
    }

    /// Submits the copies of some ranges back to where they were, as far as they lie `within` addresses; returns how much
    /// that is.
    pub(super) fn restore(
        &mut self,
        streams: &CopyStreams<'_>,
        ranges: Range<usize>,
        within: &Range<DevicePtr>,
    ) -> Result<Bytes> {
        let mut restored = 0;
        for SavedRange { ptr, bytes, piece, offset } in
            self.ranges[ranges].iter().filter_map(|saved| saved.within(within))
        {
            let from = self.pieces[piece].host_ptr().wrapping_add(offset).cast_const();
            streams.submit(piece, |context, raw| driver_calls::copy_to_device(context, raw, ptr, from, bytes))?;
            restored += bytes;
        }
        Ok(Bytes(restored))
    }
}

impl Drop for Contents {
    /// Leaks what may still be copied from.
    fn drop(&mut self) {
        if self.may_be_copied {
            self.pieces.drain(..).for_each(std::mem::forget);
        }
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("bytes", &self.bytes()).field("on_host", &self.on_host()).finish()
    }
}

/// Streams of the context that copy, returned when this is dropped.
#[derive(Debug)]
pub(super) struct CopyStreams<'a> {
    context: &'a DeviceContext,
    streams: Vec<Stream>,
}

impl<'a> CopyStreams<'a> {
    pub(super) fn take(context: &'a DeviceContext) -> Result<Self> {
        let mut taken = Self { context, streams: Vec::with_capacity(STREAMS) };
        for _ in 0..STREAMS {
            taken.streams.push(context.take_idle_stream()?);
        }
        Ok(taken)
    }

    fn submit(
        &self,
        nth: usize,
        copy: impl FnOnce(&DeviceContext, bursar_core::RawStream) -> Result<(), bursar_core::DriverError>,
    ) -> Result<()> {
        let held = self.context.hold(self.streams[nth % self.streams.len()])?;
        copy(self.context, held.raw()).map_err(|error| self.context.failed(error))
    }

    /// Has everything that streams are given from now on come after the copies.
    fn precede_all(&self) {
        for &stream in &self.streams {
            if let Err(error) = self.context.precede_all(stream) {
                self.context.fault().record(error);
            }
        }
    }

    /// Waits until nothing is being copied. A failure to wait is the error even where a later attempt succeeds, since a
    /// copy may have failed then.
    pub(super) fn settle(&self) -> Result<(), UnsettledCopies> {
        let mut outcome = Ok(());
        for &stream in &self.streams {
            for attempt in 0..WAIT_ATTEMPTS {
                let Err(error) = self.context.synchronize(stream) else { break };
                let is_lost = error.driver_error().is_none_or(|error| error.is_sticky());
                let may_be_in_flight = !is_lost && attempt + 1 == WAIT_ATTEMPTS;
                outcome = match outcome {
                    Err(UnsettledCopies { error, may_be_in_flight: before }) => {
                        Err(UnsettledCopies { error, may_be_in_flight: before || may_be_in_flight })
                    }
                    Ok(()) => Err(UnsettledCopies { error, may_be_in_flight }),
                };
                if is_lost {
                    break;
                }
                std::thread::sleep(WAIT_PAUSE);
            }
        }
        outcome
    }
}

/// Copies that failed, or could not be waited for.
#[derive(Debug)]
pub(super) struct UnsettledCopies {
    pub(super) error: Error,
    /// False where the device runs nothing any more, or a later attempt to wait succeeded.
    pub(super) may_be_in_flight: bool,
}

impl Drop for CopyStreams<'_> {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            self.context.take_back_stream(stream, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each byte lies in one place, in order, and no piece is longer than it has to be.
        #[test]
        fn z5_each_range_has_a_place_of_its_own(
            lens in prop::collection::vec(prop::collection::vec(1u64..64, 0..4), 0..12),
            piece in 1u64..24,
        ) {
            let (unit, mut at) = (1 << 18, 0);
            let mut range = |len: &u64| { at += len * unit + unit; at - len * unit..at };
            let frames: Vec<Vec<Range<u64>>> = lens.iter().map(|lens| lens.iter().map(&mut range).collect()).collect();
            let (plan, of_frames) = ContentsPlan::new(&frames, Bytes(piece << 20));
            for (frame, of) in frames.iter().zip(of_frames) {
                let mut saved = plan.ranges[of].iter();
                for range in frame {
                    let mut at = range.start;
                    while at < range.end {
                        let next = saved.next().expect("all of it");
                        prop_assert_eq!(next.ptr, DevicePtr(at));
                        at += next.bytes;
                    }
                    prop_assert_eq!(at, range.end);
                }
                prop_assert!(saved.next().is_none());
            }
            let mut filled = vec![0; plan.lens.len()];
            for saved in &plan.ranges {
                prop_assert_eq!(saved.offset as u64, filled[saved.piece]);
                filled[saved.piece] += saved.bytes;
            }
            for (nth, (filled, len)) in filled.iter().zip(&plan.lens).enumerate() {
                prop_assert!(filled == len || nth + 1 == plan.lens.len(), "all but the last are full");
                prop_assert!(filled * 2 > *len || *len == SHORTEST);
            }
        }
    }
}
