//! Pieces that a stream may still be using.
//!
//! Returning a piece on a stream costs no driver call: it is only stored with its stream. When somebody needs memory, the
//! progress of each stream is queried. A busy one gets one event at a time, which covers all pieces returned until then.

use crate::memory::Piece;
use bursar_core::{DeviceContext, Error, Result, Stream, StreamMisuse, StreamProgress};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A piece and its bin.
type BinnedPiece = (Piece, u32);

/// The pieces returned on all streams.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    lanes: Mutex<Lanes>,
    /// Notified when another thread has finished collecting.
    collected: Condvar,
}

#[derive(Debug, Default)]
struct Lanes {
    lanes: Vec<Lane>,
    /// True while a thread has taken the lanes out to query their streams.
    is_collecting: bool,
}

/// The pieces returned on one stream, in that order.
#[derive(Debug)]
pub(super) struct Lane {
    context: Arc<DeviceContext>,
    stream: Stream,
    pieces: VecDeque<BinnedPiece>,
    /// The number of pieces ever returned here, which is the position of the stream after the last of them.
    returned: u64,
    progress: StreamProgress,
}

impl InFlight {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece that was returned on a stream.
    pub(super) fn add(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.lanes().lane(context, stream).push((piece, bin));
    }

    /// Queries every stream. Returns the pieces that are reusable, and the first failure.
    pub(super) fn collect(&self) -> (Vec<BinnedPiece>, Result<()>) {
        let mut lanes = self.lanes();
        if lanes.is_collecting {
            // The other thread collects for everybody.
            while lanes.is_collecting {
                lanes = self.collected.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            }
            return (Vec::new(), Ok(()));
        }
        if lanes.lanes.is_empty() {
            return (Vec::new(), Ok(()));
        }
        lanes.is_collecting = true;
        let mut taken = std::mem::take(&mut lanes.lanes);
        drop(lanes);
        let (mut reusable, mut result) = (Vec::new(), Ok(()));
        for lane in &mut taken {
            result = result.and(lane.query(&mut reusable));
        }
        let mut lanes = self.lanes();
        taken.retain(|lane| !lane.pieces.is_empty());
        taken.into_iter().for_each(|lane| lanes.put_back(lane));
        lanes.is_collecting = false;
        drop(lanes);
        self.collected.notify_all();
        (reusable, result)
    }

    /// Takes all lanes out.
    pub(super) fn take(&self) -> Vec<Lane> {
        std::mem::take(&mut self.lanes().lanes)
    }
}

impl Lanes {
    fn lane(&mut self, context: &Arc<DeviceContext>, stream: Stream) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.stream == stream).unwrap_or_else(|| {
            let context = context.clone();
            let (pieces, progress) = (VecDeque::new(), StreamProgress::default());
            self.lanes.push(Lane { context, stream, pieces, returned: 0, progress });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Puts a lane back. Other pieces may have been returned on its stream meanwhile, in a new lane.
    fn put_back(&mut self, mut collected: Lane) {
        match self.lanes.iter_mut().find(|lane| lane.stream == collected.stream) {
            Some(newer) => {
                newer.pieces.drain(..).for_each(|piece| collected.push(piece));
                *newer = collected;
            }
            None => self.lanes.push(collected),
        }
    }
}

impl Lane {
    fn push(&mut self, piece: BinnedPiece) {
        self.pieces.push_back(piece);
        self.returned += 1;
    }

    /// Moves the pieces that the stream has finished with to `reusable`, and marks its position if nothing marks it yet.
    fn query(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        match self.query_stream(reusable) {
            // A stream that is being captured cannot be queried until the capture has ended.
            Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => Ok(()),
            // Nothing is ordered after a stream that ended unordered; the device's fault has told that failure.
            Err(_) if self.context.order_error(self.stream).is_some() => Ok(()),
            outcome => outcome,
        }
    }

    fn query_stream(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        let context = &*self.context;
        let held = context.on_lasting(self.stream, |stream| context.hold_for_question(stream))?;
        let passed = self.progress.ask(context, Some(&held), self.returned).map_err(|error| context.failed(error))?;
        if let Some(passed) = passed {
            let waiting = (self.returned - passed) as usize;
            reusable.extend(self.pieces.drain(..self.pieces.len() - waiting));
        }
        if !self.pieces.is_empty() && !self.progress.is_marked() {
            self.progress.mark(context, &held, self.returned).map_err(|error| context.failed(error))?;
        }
        Ok(())
    }

    /// Returns the bytes of its pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(piece, _)| piece.len() as u64).sum()
    }

    /// Waits for the stream or, if that ended with nothing ordered after it, for the whole device. Where that fails the device
    /// may still be using the memory, and the lane comes back with it.
    pub(super) fn settle(mut self) -> std::result::Result<Vec<Piece>, Self> {
        if self.context.order_error(self.stream).is_some() {
            self.context.order_ended(Duration::MAX);
        }
        // To wait for a stream that is being captured would end the capture.
        let wait = |stream| self.context.hold_for_question(stream).and_then(|_held| self.context.synchronize(stream));
        match self.context.on_lasting(self.stream, wait) {
            Ok(()) => Ok(self.pieces.drain(..).map(|(piece, _)| piece).collect()),
            Err(error) => {
                tracing::warn!(%error, stream = %self.stream, "pinned memory that a stream may be using is kept");
                Err(self)
            }
        }
    }

    /// Gives up on the memory: nobody is left to try again, and the device may still be using it.
    pub(super) fn leak(mut self) {
        tracing::error!(stream = %self.stream, bytes = self.bytes(), "pinned memory that a stream may be using stays");
        self.pieces.drain(..).for_each(std::mem::forget);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.progress.forget(&self.context);
    }
}
