//! Pieces that a stream may still be using.
//!
//! Returning a piece on a stream costs no driver call: it is only stored with its stream. When somebody needs memory, each
//! stream is queried. An idle one has finished with every piece returned on it; a busy one gets one event, to be queried
//! later, which covers all pieces returned until then.

use super::stream_marker::{StreamMarker, is_idle};
use crate::memory::Piece;
use bursar_core::{Bytes, DeviceContext, Error, Result, Stream, StreamMisuse};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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

/// The pieces returned on one stream.
#[derive(Debug)]
pub(super) struct Lane {
    context: Arc<DeviceContext>,
    stream: Stream,
    /// The pieces that the marker covers.
    marked: Vec<BinnedPiece>,
    marker: Option<StreamMarker>,
    /// The pieces that it does not.
    loose: Vec<BinnedPiece>,
}

impl InFlight {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece that was returned on a stream.
    pub(super) fn add(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.lanes().lane(context, stream).loose.push((piece, bin));
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
        taken.retain(|lane| !lane.is_empty());
        taken.into_iter().for_each(|lane| lanes.merge(lane));
        lanes.is_collecting = false;
        drop(lanes);
        self.collected.notify_all();
        (reusable, result)
    }

    /// Returns the bytes in flight, except those that another thread is collecting.
    pub(super) fn bytes(&self) -> Bytes {
        let lanes = self.lanes();
        let pieces = lanes.lanes.iter().flat_map(|lane| lane.marked.iter().chain(&lane.loose));
        Bytes(pieces.map(|(piece, _)| piece.len() as u64).sum())
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
            self.lanes.push(Lane { context, stream, marked: Vec::new(), marker: None, loose: Vec::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Puts a lane back. Other pieces may have been returned on its stream meanwhile.
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

    /// Moves the pieces that the stream has finished with to `reusable`, and marks its current point if it has no marker
    /// yet.
    fn query(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
        match self.query_stream(reusable) {
            // A stream that is being captured cannot be queried until the capture has ended.
            Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => Ok(()),
            result => result,
        }
    }

    fn query_stream(&mut self, reusable: &mut Vec<BinnedPiece>) -> Result<()> {
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

    /// Waits for the stream. Where that fails the device may still be using the memory, so it is leaked.
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
