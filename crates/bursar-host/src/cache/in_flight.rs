//! Pieces that a stream may still be using.
//!
//! Giving one back on a stream costs no driver call: it is noted with its stream. When somebody needs memory, each stream
//! is asked how far it has come; one that is busy has one event at a time recorded on it, for all that had been given back
//! by then.

use crate::memory::Piece;
use bursar_core::{Bytes, DeviceContext, Error, Result, Stream, StreamMisuse, StreamProgress};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A piece, and the bin it belongs to.
type BinnedPiece = (Piece, u32);

/// All streams that pieces were given back on.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    lanes: Mutex<Lanes>,
    /// Notified when lanes that somebody was asking about are back.
    collected: Condvar,
}

#[derive(Debug, Default)]
struct Lanes {
    lanes: Vec<Lane>,
    /// Somebody asks about lanes, and has them.
    is_collecting: bool,
}

/// The pieces that were given back on one stream, in that order.
#[derive(Debug)]
pub(super) struct Lane {
    context: Arc<DeviceContext>,
    stream: Stream,
    pieces: VecDeque<BinnedPiece>,
    /// The number of pieces that were ever given back here: the position of the stream after the last of them.
    given: u64,
    progress: StreamProgress,
}

impl InFlight {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a piece that was given back on a stream.
    pub(super) fn add(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.lanes().lane(context, stream).push((piece, bin));
    }

    /// Asks every stream how far it has come. Answers what has landed, and the first failure.
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
        let (mut reusable, mut answer) = (Vec::new(), Ok(()));
        for lane in &mut asked {
            answer = answer.and(lane.ask(&mut reusable));
        }
        let mut lanes = self.lanes();
        asked.retain(|lane| !lane.pieces.is_empty());
        asked.into_iter().for_each(|lane| lanes.put_back(lane));
        lanes.is_collecting = false;
        drop(lanes);
        self.collected.notify_all();
        (reusable, answer)
    }

    /// How much is in flight, apart from what somebody is asking about.
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

    /// Puts a lane back; others may have given pieces back on its stream meanwhile, in a lane that was not asked about.
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

    /// Takes out the pieces that the stream has passed, and marks where it is if nothing marks it yet.
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

    /// Waits for the stream. Where that cannot be waited for, the device may still use the memory, and it stays.
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
