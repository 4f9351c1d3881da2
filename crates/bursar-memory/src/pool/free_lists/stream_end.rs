//! The end of a stream: what becomes of the memory that was freed on it, or of its blocks elsewhere.

use super::super::address_space::VacatedRange;
use super::super::lane::Lane;
use super::super::limbo::LimboFree;
use super::super::runs::Run;
use super::{FreeLists, UnorderedFree};
use bursar_core::{Stream, StreamProgress};

/// The state of a stream that ends, which decides what becomes of the memory that was freed on it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum StreamEnd {
    /// This stream comes after it, and inherits.
    InheritedBy(Stream),
    /// Its work has run.
    Complete,
    /// Nothing comes after it yet.
    Unordered(Stream),
}

impl FreeLists {
    /// Ends a lane with its stream. Returns its events, which are not needed any more.
    pub(in super::super) fn end_lane(&mut self, slot: usize, end: StreamEnd) -> Option<StreamProgress> {
        self.end_swept(slot, end);
        self.lanes.iter_mut().flatten().for_each(|lane| lane.forget(slot));
        let lane = self.lanes.get_mut(slot)?.as_mut()?;
        let fresh = Lane::following(lane);
        let ended = std::mem::replace(&mut **lane, fresh);
        self.unasked -= ended.unasked;
        for run @ Run { at, len, .. } in ended.runs.iter() {
            match end {
                StreamEnd::InheritedBy(heir) => self.free_own(heir.slot(), at, len),
                StreamEnd::Complete => self.add_common(run),
                StreamEnd::Unordered(stream) => {
                    self.unordered.push(UnorderedFree {
                        at,
                        len,
                        home: stream,
                        stream,
                        unreported: None,
                        is_vacated: false,
                    });
                }
            }
        }
        for vacated in self.space.take_vacated(|vacated| vacated.slot == slot) {
            self.end_vacated(vacated, end);
        }
        for (home, stream, frees) in self.limbo.take_pairs_of(slot) {
            frees.into_iter().for_each(|free| self.end_in_limbo((home, stream), free, slot, end));
        }
        Some(ended.progress)
    }

    /// Moves on addresses that a frame has left which followed a stream that ends.
    fn end_vacated(&mut self, VacatedRange { at, len, .. }: VacatedRange, end: StreamEnd) {
        match end {
            StreamEnd::InheritedBy(heir) => {
                let (slot, stamp) = (heir.slot(), self.lane(heir.slot()).now);
                self.space.vacate(VacatedRange { at, len, slot, stamp });
            }
            StreamEnd::Complete => self.space.vacate(VacatedRange { at, len, slot: 0, stamp: 0 }),
            StreamEnd::Unordered(stream) => {
                let (home, is_vacated) = (stream, true);
                self.unordered.push(UnorderedFree { at, len, home, stream, unreported: None, is_vacated });
            }
        }
    }

    /// Moves on what is in limbo between two streams of which the one at `slot` ends.
    fn end_in_limbo(&mut self, (home, stream): (Stream, Stream), free: LimboFree, slot: usize, end: StreamEnd) {
        let LimboFree { at, len, home_time, time } = free;
        let (other, stamp) = if home.slot() == slot { (stream, time) } else { (home, home_time) };
        match end {
            StreamEnd::InheritedBy(heir) if heir == other => self.free_own(heir.slot(), at, len),
            StreamEnd::InheritedBy(heir) => {
                let entered = match home.slot() == slot {
                    true => self.free_elsewhere(heir, stream, at, len),
                    false => self.free_elsewhere(home, heir, at, len),
                };
                debug_assert!(entered, "{free:?} was in no list");
            }
            StreamEnd::Complete if stamp < self.lane(other.slot()).passed => {
                self.add_common(Run { at, len, stamp: 0 });
            }
            StreamEnd::Complete => self.add_own(other.slot(), Run { at, len, stamp }),
            StreamEnd::Unordered(_) => {
                self.unordered.push(UnorderedFree { at, len, home, stream, unreported: None, is_vacated: false });
            }
        }
    }
}
