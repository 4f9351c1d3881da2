//! Pieces that a stream may still be using.
//!
//! Returning a piece on a stream costs no driver call: it is only stored with its stream. When somebody needs memory, each
//! stream is asked how far it has come; a busy one gets one event at a time, which covers all pieces returned until then.

use crate::memory::Piece;
use bursar_core::{Bytes, DeviceContext, Error, Result, Stream, StreamMisuse, StreamProgress};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A piece and its bin.
type BinnedPiece = (Piece, u32);

/// The pieces returned on all streams.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    lanes: Mutex<Lanes>,
    /// Notified when the lanes that somebody was collecting from are back.
    collected: Condvar,
}

#[derive(Debug, Default)]
struct Lanes {
    lanes: Vec<Lane>,
    /// True while a thread has taken the lanes out to ask their streams.
    is_collecting: bool,
}

/// The pieces returned on one stream, in that order.
#[derive(Debug)]
pub(super) struct Lane {
    context: Arc<DeviceContext>,
    stream: Stream,
    pieces: VecDeque<BinnedPiece>,
    /// The number of pieces ever returned here: the position of the stream after the last of them.
    given: u64,
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

    /// Asks every stream how far it has come. Returns the pieces that are reusable, and the first failure.
    pub(super) fn collect(&self) -> (Vec<BinnedPiece>, Result<()>) {
        let mut lanes = self.lanes();
        if lanes.is_collecting {
            // Whoever asks already asks for all.
            while lanes.is_collecting {
                lanes = self.collected.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            }
            return (Vec::new(), Ok(()));
        }
        if lanes.lanes.is_empty() {
            return (Vec::new(), Ok(()));
        }
        lanes.is_collecting = true;
        let mut asked = std::mem::take(&mut lanes.lanes);
        drop(lanes);
        let (mut reusable, mut result) = (Vec::new(), Ok(()));
        for lane in &mut asked {
            result = result.and(lane.ask(&mut reusable));
        }
        let mut lanes = self.lanes();
        asked.retain(|lane| !lane.pieces.is_empty());
        asked.into_iter().for_each(|lane| lanes.put_back(lane));
        lanes.is_collecting = false;
        drop(lanes);
        self.collected.notify_all();
        (reusable, result)
    }

    /// Returns the bytes in flight, except those that another thread is collecting.
    pub(super) fn bytes(&self) -> Bytes {
        let lanes = self.lanes();
        let pieces = lanes.lanes.iter().flat_map(|lane| &lane.pieces);
        Bytes(pieces.map(|(piece, _)| piece.len() as u64).sum())
    }

    /// Takes everything out.
    pub(super) fn take(&self) -> Vec<Lane> {
        std::mem::take(&mut self.lanes().lanes)
    }
}

impl Lanes {
    fn lane(&mut self, context: &Arc<DeviceContext>, stream: Stream) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.stream == stream).unwrap_or_else(|| {
            let context = context.clone();
            let (pieces, progress) = (VecDeque::new(), StreamProgress::default());
            self.lanes.push(Lane { context, stream, pieces, given: 0, progress });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Puts a lane back. Other pieces may have been returned on its stream meanwhile, in a lane that nobody collects from.
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
        self.given += 1;
    }

    /// Moves the pieces that the stream has finished with to `reusable`, and marks its current point if it has no mark yet.
    fn ask(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        match self.ask_stream(reusable) {
            // A stream that is being captured cannot be asked; it will be when that is over.
            Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => Ok(()),
            outcome => outcome,
        }
    }

    fn ask_stream(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        let context = &*self.context;
        let held = context.on_lasting(self.stream, |stream| context.hold_for_memory(stream))?;
        let passed = self.progress.ask(context, Some(&held), self.given).map_err(|error| context.failed(error))?;
        if let Some(passed) = passed {
            let waiting = (self.given - passed) as usize;
            reusable.extend(self.pieces.drain(..self.pieces.len() - waiting));
        }
        if !self.pieces.is_empty() && !self.progress.is_marked() {
            self.progress.mark(context, &held, self.given).map_err(|error| context.failed(error))?;
        }
        Ok(())
    }

    /// Waits for the stream. Where that fails the device may still be using the memory, so it is leaked.
    pub(super) fn settle(mut self) -> Vec<Piece> {
        let waited = self.context.on_lasting(self.stream, |stream| self.context.synchronize(stream));
        let pieces = self.pieces.drain(..).map(|(piece, _)| piece).collect();
        match waited {
            Ok(()) => pieces,
            Err(error) => {
                tracing::error!(%error, stream = %self.stream, "pinned memory that a stream may be using stays");
                pieces.into_iter().for_each(std::mem::forget);
                Vec::new()
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.progress.forget(&self.context);
    }
}
