//! Comparison of device memory with an expected byte, in stream order and without waiting.
//!
//! A range is copied to pinned host memory piece by piece, and a host function after each piece compares what arrived.
//! All of it is ordered by one stream, so one piece of host memory serves any length, and can be used for the next
//! inspection on the same stream as soon as this one is submitted. Only inspections that several threads submit at once
//! need a piece each.
#![allow(unsafe_code)]

use crate::{
    Bytes, DeviceBlock, DeviceContext, DevicePtr, DriverError, Error, FencedBlock, HostFlags, HostFunction, Pattern,
    RawStream, Remains, Result, Stream, StreamMisuse,
};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of bytes that are copied at a time.
const PIECE: u64 = 256 << 10;

/// Pinned host memory of [`PIECE`] bytes.
#[derive(Clone, Copy, Debug)]
struct Piece(*mut u8);

// SAFETY: a piece is an address; stream order decides who may touch the memory behind it.
unsafe impl Send for Piece {}

/// The function that receives the result of an inspection: the offset of the first byte that was not as expected, from
/// the start of the range.
type Verdict = dyn FnOnce(Option<u64>) + Send;

/// An inspector that compares device memory with an expected byte, in stream order and without waiting.
///
/// Dropping it waits for the streams it inspected on, since they write to its memory.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::Inspector;
/// # use bursar::prelude::*;
/// # use std::sync::{Arc, mpsc};
/// # fn show(context: &Arc<DeviceContext>, block: &mut DeviceBlock, stream: Stream) -> Result<()> {
/// let inspector = Inspector::new(context.clone());
/// let (send, receive) = mpsc::channel();
/// context.submit_fill(block, 0, 7, 100, stream)?;
/// inspector.inspect(block, 0..100, 7, stream, move |damage| drop(send.send(damage)))?;
/// context.synchronize(stream)?;
/// assert_eq!(receive.recv(), Ok(None), "as it should be");
/// # Ok(())
/// # }
/// ```
pub struct Inspector {
    context: Arc<DeviceContext>,
    /// The pieces that no thread is submitting with, and the stream each was last used on.
    spare: Mutex<Vec<(Stream, Piece)>>,
}

impl Inspector {
    /// Makes an inspector of one device's memory.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self { context, spare: Mutex::default() }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<(Stream, Piece)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that every byte of a range of the block is `expected`, after what `stream` was given before. `verdict` is
    /// called with the offset of the first that is not, from the start of the block; it runs in stream order and must
    /// not call the driver. The block is to be freed after the inspection, as after any other use. A range of which
    /// something [sleeps](crate::Sleeper) is refused.
    ///
    /// # Panics
    /// If the range does not lie in what was requested with the block.
    pub fn inspect(
        &self,
        block: &DeviceBlock,
        range: std::ops::Range<u64>,
        expected: u8,
        stream: Stream,
        verdict: impl FnOnce(Option<u64>) + Send + 'static,
    ) -> Result<()> {
        assert!(range.start <= range.end && range.end <= block.requested().get(), "the range lies in the block");
        let start = range.start;
        let verdict = move |found: Option<u64>| verdict(found.map(|at| start + at));
        let ranges = [(block.ptr().offset(start), range.end - start)];
        self.inspect_ranges(&ranges, expected, stream, Box::new(verdict))
    }

    /// Checks that every byte of the margins of a block is `expected`, at most `width` of them on either side.
    /// `verdict` is called with the offset of the first that is not, from the start of the user's block. Margins that
    /// [sleep](crate::Sleeper) are refused.
    pub fn inspect_margins(
        &self,
        fenced: &FencedBlock,
        width: u64,
        expected: u8,
        stream: Stream,
        verdict: impl FnOnce(Option<i64>) + Send + 'static,
    ) -> Result<()> {
        let margins = fenced.margins(width);
        let (before, bytes) = (margins[0].1, fenced.requested().get());
        let verdict = move |found: Option<u64>| {
            let offset = |at: u64| if at < before { at } else { at + bytes };
            verdict(found.map(|at| offset(at).cast_signed() - before.cast_signed()));
        };
        self.inspect_ranges(&margins, expected, stream, Box::new(verdict))
    }

    /// Inspects ranges one after the other, as if they were one.
    fn inspect_ranges(
        &self,
        ranges: &[(DevicePtr, u64)],
        expected: u8,
        stream: Stream,
        verdict: Box<Verdict>,
    ) -> Result<()> {
        let context = &self.context;
        context.check_stream(stream)?;
        let _using = context.use_awake_ranges(ranges.iter().copied())?;
        let piece = self.take(stream)?;
        let submitted = context.hold_for_question(stream).and_then(|held| {
            let submitted = self.submit(piece, ranges, expected, held.raw(), verdict);
            submitted.map_err(|error| context.failed(error))
        });
        // Later work on this stream comes after everything above, whether or not all of it was submitted.
        self.spare().push((stream, piece));
        submitted
    }

    fn submit(
        &self,
        piece: Piece,
        ranges: &[(DevicePtr, u64)],
        expected: u8,
        raw: RawStream,
        verdict: Box<Verdict>,
    ) -> Result<(), DriverError> {
        let (driver, device) = (self.context.driver(), self.context.device());
        let found = Arc::new(Mutex::new(None));
        // The bytes in the piece, and the bytes that came before it.
        let (mut filled, mut passed) = (0, 0);
        for &(start, bytes) in ranges {
            let mut at = 0;
            while at < bytes {
                let part = (PIECE - filled).min(bytes - at);
                // SAFETY: the stream is held. The range lies in a block that its owner frees in stream order after
                // this, and the piece lives until the inspector has waited for the stream; only this stream uses it.
                unsafe { driver.copy_to_host(device, raw, piece.at(filled), start.offset(at), part) }?;
                (at, filled) = (at + part, filled + part);
                if filled == PIECE {
                    let found = found.clone();
                    let compare = HostFunction::new(move || piece.compare(expected, PIECE, passed, &found));
                    // SAFETY: the stream is held.
                    unsafe { driver.host_function(device, raw, compare) }?;
                    (filled, passed) = (0, passed + PIECE);
                }
            }
        }
        let finish = HostFunction::new(move || {
            piece.compare(expected, filled, passed, &found);
            verdict(*found.lock().unwrap_or_else(PoisonError::into_inner));
        });
        // SAFETY: the stream is held.
        unsafe { driver.host_function(device, raw, finish) }
    }

    /// Takes a piece for an inspection on `stream`: one that was used there, one whose stream has ended, or a new one.
    fn take(&self, stream: Stream) -> Result<Piece> {
        if let Some((_, piece)) = self.take_if(|last| last == stream) {
            return Ok(piece);
        }
        let ended = |last| matches!(self.context.hold(last), Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }));
        if let Some(spare) = self.take_if(ended) {
            if self.context.order_after(spare.0, stream).is_ok() {
                return Ok(spare.1);
            }
            self.spare().push(spare);
        }
        let context = &self.context;
        let made = context.driver().host_allocate(context.device(), PIECE as usize, HostFlags::default());
        made.map(Piece).map_err(|error| context.failed(error))
    }

    fn take_if(&self, wanted: impl Fn(Stream) -> bool) -> Option<(Stream, Piece)> {
        let mut spare = self.spare();
        let at = spare.iter().position(|(last, _)| wanted(*last))?;
        Some(spare.swap_remove(at))
    }
}

impl Piece {
    /// Returns the address `offset` bytes into it, for the driver to write to.
    const fn at(self, offset: u64) -> *mut u8 {
        self.0.wrapping_add(offset as usize)
    }

    /// Records the first of `bytes` that is not as expected, as one that comes after `passed` others. Runs as a host
    /// function, between the copies that wrote the piece and the next one.
    fn compare(self, expected: u8, bytes: u64, passed: u64, found: &Mutex<Option<u64>>) {
        // SAFETY: the memory is live, at least this long and written by the copies that came before; what would write
        // it next comes after this host function.
        let bytes = unsafe { std::slice::from_raw_parts(self.0, bytes as usize) };
        if let Some(at) = bytes.iter().position(|&byte| byte != expected) {
            found.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(passed + at as u64);
        }
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, pieces) = (self.context.device(), self.spare().len());
        f.debug_struct("Inspector").field("device", &device).field("pieces", &pieces).finish_non_exhaustive()
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        let mut left = LeftPieces(std::mem::take(&mut *self.spare()));
        left.give_back(&self.context, Duration::MAX);
        self.context.leave(left);
    }
}

/// Pieces that the device may still write to, and the stream each was last used on.
#[derive(Debug)]
struct LeftPieces(Vec<(Stream, Piece)>);

impl Remains for LeftPieces {
    fn give_back(&mut self, context: &DeviceContext, patience: Duration) -> Bytes {
        if patience == Duration::MAX {
            context.order_ended(patience);
        }
        self.0.retain(|&(stream, piece)| {
            let freed = context.has_run(stream, patience).map(|has_run| {
                // SAFETY: made by this driver, and everything that used it has run; it is forgotten once it is freed.
                has_run.then(|| unsafe { context.driver().host_free(context.device(), piece.0) })
            });
            match freed {
                Ok(Some(Ok(()))) => false,
                Ok(None) => true,
                Ok(Some(Err(error))) | Err(Error::Driver(error) | Error::CreateFailed(error)) => {
                    context.fault().record(error);
                    true
                }
                Err(_) => true,
            }
        });
        Bytes::ZERO
    }

    fn bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeviceContext {
    /// Stream-ordered: writes `byte` to a range of the block, after what `stream` was given before, and returns at
    /// once. Whoever reads it on another stream, or frees the block on one, is ordered after this. A range of which
    /// something [sleeps](crate::Sleeper) is refused.
    ///
    /// # Panics
    /// If the range does not lie in what was requested with the block.
    pub fn submit_fill(
        &self,
        block: &mut DeviceBlock,
        offset: u64,
        byte: u8,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= block.requested().get()), "the range lies in the block");
        let held = self.hold_for_question(stream)?;
        let _using = self.use_awake_ranges([(block.ptr().offset(offset), bytes)])?;
        // SAFETY: the stream is held, and the range lies in a block that is the caller's alone.
        unsafe { self.driver().fill(self.device(), held.raw(), block.ptr().offset(offset), Pattern::U8(byte), bytes) }
            .map_err(|error| self.failed(error))
    }

    /// Writes `byte` to the margins of a block as [`submit_fill`](Self::submit_fill) does, each at most `width` wide.
    pub fn submit_fill_margins(&self, fenced: &mut FencedBlock, width: u64, byte: u8, stream: Stream) -> Result<()> {
        let held = self.hold_for_question(stream)?;
        let _using = self.use_awake_ranges(fenced.margins(width))?;
        fenced.margins(width).into_iter().filter(|(_, bytes)| *bytes > 0).try_for_each(|(ptr, bytes)| {
            // SAFETY: the stream is held, and the range lies in a block that is the caller's alone, outside its user's.
            unsafe { self.driver().fill(self.device(), held.raw(), ptr, Pattern::U8(byte), bytes) }
                .map_err(|error| self.failed(error))
        })
    }
}
