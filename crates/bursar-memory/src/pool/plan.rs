//! How a request that no run fits is to be met, and what is left of that where it cannot be carried out.

use super::runs::{Run, UNIT};
use bursar_core::{Bytes, Frame};

/// The length of a frame, in units.
pub(super) fn units(bytes: Bytes) -> u64 {
    bytes.get() / UNIT
}

/// A frame in its place.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) frame: Frame,
    /// How much of it can be granted.
    pub(super) len: u64,
}

/// A frame to be taken from where it is.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) from: u64,
    pub(super) placed: Placed,
}

/// How a request that no run fits will be met: a stretch of addresses, and the frames to map there, in this order.
#[derive(Debug)]
pub(super) struct Growth {
    /// Where the addresses begin, and how much is missing there.
    pub(super) at: u64,
    pub(super) need: u64,
    /// The free run just before, which becomes one with them.
    pub(super) base: Option<Run>,
    /// Frames that are mapped nowhere.
    pub(super) spare: Vec<Frame>,
    /// Frames that are free where they are.
    pub(super) moves: Vec<Move>,
    /// Small frames that are free where they are, to be given back and made anew as larger ones.
    pub(super) melt: Vec<Move>,
    /// Where those were that have been given back.
    pub(super) melted: Vec<(u64, u64)>,
    /// Frames to be made: more memory, and what was melted.
    pub(super) make: Vec<u64>,
    pub(super) remake: Vec<u64>,
    /// Frames to be made besides, if there is memory for them; they come last.
    pub(super) slack: Vec<u64>,
}

impl Growth {
    /// What is left of it once some frames have been unmapped and some made.
    pub(super) fn undone(self, moved: Vec<Move>, made: Vec<Frame>) -> Undone {
        let Self { at, need, base, spare, mut moves, mut melt, melted, .. } = self;
        moves.append(&mut melt);
        let vacated = moved.iter().map(|moved| (moved.from, moved.placed.len)).chain(melted).collect();
        let loose = spare.into_iter().chain(moved.into_iter().map(|moved| moved.placed.frame)).chain(made).collect();
        Undone { at, need, base, still: moves, vacated, loose, stuck: None }
    }
}

/// What is left of a plan that could not be carried out.
#[derive(Debug)]
pub(super) struct Undone {
    pub(super) at: u64,
    pub(super) need: u64,
    pub(super) base: Option<Run>,
    /// Frames that are where they were.
    pub(super) still: Vec<Move>,
    /// Where frames were that are mapped nowhere now.
    pub(super) vacated: Vec<(u64, u64)>,
    /// In the order in which they were to be mapped.
    pub(super) loose: Vec<Frame>,
    pub(super) stuck: Option<Stuck>,
}

impl Undone {
    /// The first frames, so many units long, are mapped where they were to be and cannot be unmapped.
    pub(super) fn stick(&mut self, len: u64) {
        let mut mapped = 0;
        let is_mapped = |frame: &&Frame| {
            mapped += units(frame.bytes());
            mapped <= len
        };
        let count = self.loose.iter().take_while(is_mapped).count();
        let frames: Vec<_> = self.loose.drain(..count).collect();
        if len > 0 {
            self.stuck = Some(Stuck { at: self.at, len, frames });
            (self.at, self.need) = (self.at + len, self.need - len);
        }
    }
}

/// Frames that lie one after the other and could be neither used nor unmapped.
#[derive(Debug)]
pub(super) struct Stuck {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) frames: Vec<Frame>,
}
