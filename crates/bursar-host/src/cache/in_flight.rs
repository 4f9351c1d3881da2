//! Pieces that a stream may still be using.
//!
//! Giving one back on a stream costs no driver call: it is noted with its stream. When somebody needs memory, each stream
//! is asked whether it has run dry, which settles everything given back on it before; one that has not is given an event
//! to be asked about later, one at a time, for all that had been given back by then.

use super::stream_marker::{StreamMarker, is_idle};
use crate::memory::Piece;
use bursar_core::{Bytes, DeviceContext, Error, Result, Stream, StreamMisuse};
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

/// What was given back on one stream.
#[derive(Debug)]
pub(super) struct Lane {
    context: Arc<DeviceContext>,
    stream: Stream,
    /// What the event covers.
    marked: Vec<BinnedPiece>,
    marker: Option<StreamMarker>,
    /// What it does not.
    loose: Vec<BinnedPiece>,
}

impl InFlight {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a piece that was given back on a stream.
    pub(super) fn add(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.lanes().lane(context, stream).loose.push((piece, bin));
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
        asked.retain(|lane| !lane.is_empty());
        asked.into_iter().for_each(|lane| lanes.merge(lane));
        lanes.is_collecting = false;
        drop(lanes);
        self.collected.notify_all();
        (reusable, answer)
    }

    /// How much is in flight, apart from what somebody is asking about.
    pub(super) fn bytes(&self) -> Bytes {
        let lanes = self.lanes();
        let pieces = lanes.lanes.iter().flat_map(|lane| lane.marked.iter().chain(&lane.loose));
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
            self.lanes.push(Lane { context, stream, marked: Vec::new(), marker: None, loose: Vec::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Puts a lane back; others may have given pieces back on its stream meanwhile.
    fn merge(&mut self, collected: Lane) {
        let lane = self.lane(&collected.context, collected.stream);
        lane.marked = collected.marked;
        lane.marker = collected.marker;
        lane.loose.extend(collected.loose);
    }
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.marked.is_empty() && self.loose.is_empty()
    }

    /// Finds out how far the stream has come, and marks where it is if nothing marks it yet.
    fn ask(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        match self.ask_stream(reusable) {
            // One that is being captured cannot be asked; it will be when that is over.
            Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => Ok(()),
            answer => answer,
        }
    }

    fn ask_stream(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        if is_idle(&self.context, self.stream)? {
            self.marker = None;
            reusable.append(&mut self.marked);
            reusable.append(&mut self.loose);
            return Ok(());
        }
        if let Some(marker) = &self.marker
            && marker.is_passed()?
        {
            self.marker = None;
            reusable.append(&mut self.marked);
        }
        if self.marker.is_none() && !self.loose.is_empty() {
            self.marker = Some(StreamMarker::record(&self.context, self.stream)?);
            self.marked.append(&mut self.loose);
        }
        Ok(())
    }

    /// Waits for the stream. Where that cannot be waited for, the device may still use the memory, and it stays.
    pub(super) fn settle(mut self) -> Vec<Piece> {
        let waited = match self.context.synchronize(self.stream) {
            Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }) => {
                self.context.heir_of(self.stream).and_then(|heir| self.context.synchronize(heir))
            }
            waited => waited,
        };
        let pieces = self.marked.drain(..).chain(self.loose.drain(..)).map(|(piece, _)| piece).collect();
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
