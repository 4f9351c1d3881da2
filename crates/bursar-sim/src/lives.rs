//! The lives of memory: who was given which range, and who had it before.

use crate::clock::Clock;
use crate::ranges::Moment;
use bursar_core::AllocTag;
use std::collections::BTreeMap;
use std::ops::Range;

/// How many dead lives are remembered for reports, beside those whose death still matters.
const DEAD_KEPT: usize = 4096;

/// One life of a range: from when it was given out to when it was given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) end: u64,
    pub(crate) tag: AllocTag,
    pub(crate) born: Moment,
    pub(crate) died: Option<Moment>,
    /// The death of the life before, of all or part of the range.
    pub(crate) before: Option<Moment>,
}

/// A part of a range, and the life it belongs to if it has or had one.
pub(crate) type Part = (Range<u64>, Option<Life>);

/// The lives in one space of addresses. They do not overlap: a new one takes the place of the dead ones under it.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    lives: BTreeMap<u64, Life>,
    dead: usize,
    /// How many dead there were to stay the last time that some were to be forgotten.
    needed: usize,
}

impl Lives {
    /// Begins a life. What overlaps it is cut away; the caller has looked at [`parts`](Self::parts) before.
    pub(crate) fn begin(&mut self, range: Range<u64>, born: Moment, tag: AllocTag) {
        let deaths = self.parts(range.clone()).into_iter().filter_map(|(_, life)| life?.died);
        let before = deaths.max_by_key(|death| death.op.call);
        self.forget(range.clone());
        let life = Life { end: range.end, tag, born, died: None, before };
        self.lives.insert(range.start, life);
    }

    /// The live life that begins exactly at `start`.
    pub(crate) fn live_at(&self, start: u64) -> Option<Life> {
        self.lives.get(&start).copied().filter(|life| life.died.is_none())
    }

    /// Ends the life that begins at `start`; the host knows `host` to have run.
    pub(crate) fn end(&mut self, start: u64, died: Moment, host: &Clock) {
        if let Some(life) = self.lives.get_mut(&start) {
            life.died = Some(died);
            self.dead += 1;
            self.bound(host);
        }
    }

    pub(crate) fn set_tag(&mut self, start: u64, tag: AllocTag) {
        if let Some(life) = self.lives.get_mut(&start) {
            life.tag = tag;
        }
    }

    /// The range in parts, with gaps where nothing ever lived.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<Part> {
        let before = self.lives.range(..range.start).next_back();
        let touching =
            before.into_iter().chain(self.lives.range(range.clone())).filter(|(_, life)| life.end > range.start);
        let mut parts = Vec::new();
        let mut next = range.start;
        for (start, life) in touching {
            let start = (*start).max(range.start);
            if next < start {
                parts.push((next..start, None));
            }
            next = life.end.min(range.end);
            parts.push((start..next, Some(*life)));
        }
        if next < range.end {
            parts.push((next..range.end, None));
        }
        parts
    }

    /// Forgets what lived in a range, and only there.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<u64> = self.lives.range(range).map(|(start, _)| *start).collect();
        for start in inside {
            self.remove(start);
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Life)> {
        let live = self.lives.iter().filter(|(_, life)| life.died.is_none());
        live.map(|(start, life)| (*start, life))
    }

    fn cut(&mut self, at: u64) {
        let Some((_, life)) = self.lives.range_mut(..at).next_back() else {
            return;
        };
        if life.end > at {
            let tail = *life;
            life.end = at;
            self.dead += usize::from(tail.died.is_some());
            self.lives.insert(at, tail);
        }
    }

    fn remove(&mut self, start: u64) {
        if self.lives.remove(&start).is_some_and(|life| life.died.is_some()) {
            self.dead -= 1;
        }
    }

    /// Forgets dead lives once there are too many: the older half of those that everything later is ordered after. A
    /// death that the host does not know to be over may yet be what a reuse should have waited for.
    fn bound(&mut self, host: &Clock) {
        // Looking through all of them again is worth it when as many have come as had to stay.
        if self.dead <= DEAD_KEPT + 2 * self.needed {
            return;
        }
        let is_over = |death: &Moment| host.covers(death.epoch);
        let deaths = self.lives.values().filter_map(|life| life.died);
        let mut over: Vec<u64> = deaths.filter(is_over).map(|death| death.op.call).collect();
        self.needed = self.dead - over.len();
        if over.is_empty() {
            return;
        }
        let middle = over.len() / 2;
        let (_, oldest_kept, _) = over.select_nth_unstable(middle);
        let oldest_kept = *oldest_kept;
        self.lives
            .retain(|_, life| life.died.as_ref().is_none_or(|death| death.op.call >= oldest_kept || !is_over(death)));
        self.dead = self.lives.values().filter(|life| life.died.is_some()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use crate::clock::Epoch;
    use crate::world::Caller;

    fn moment(call: u64) -> Moment {
        let op = Caller { name: "allocate", number: call, device: 0, location: None }.operation(Place::Host);
        Moment { op, epoch: Epoch::HOST }
    }

    /// A part of a range: which call its life began with, and whether it is live.
    type Shape = (Range<u64>, Option<(u64, bool)>);

    fn shape(lives: &Lives, range: Range<u64>) -> Vec<Shape> {
        let parts = lives.parts(range).into_iter();
        parts.map(|(range, life)| (range, life.map(|life| (life.born.op.call, life.died.is_none())))).collect()
    }

    #[test]
    fn a_new_life_takes_the_place_of_the_dead_and_remembers_them() {
        let mut lives = Lives::default();
        lives.begin(0..100, moment(1), AllocTag::UNTAGGED);
        lives.end(0, moment(2), &Clock::default());
        lives.begin(40..60, moment(3), AllocTag::UNTAGGED);
        let expected =
            [(0..40, Some((1, false))), (40..60, Some((3, true))), (60..100, Some((1, false))), (100..110, None)];
        assert_eq!(shape(&lives, 0..110), expected);
        let before = lives.live_at(40).and_then(|life| life.before);
        assert_eq!(before.map(|death| death.op.call), Some(2));
        assert!(lives.live_at(0).is_none());
    }

    #[test]
    fn the_dead_are_bounded_and_the_latest_stay() {
        let mut lives = Lives::default();
        for call in 0..3 * DEAD_KEPT as u64 {
            lives.begin(call * 10..call * 10 + 5, moment(call), AllocTag::UNTAGGED);
            lives.end(call * 10, moment(call), &Clock::default());
        }
        assert!(lives.lives.len() <= DEAD_KEPT + 1);
        let last = 3 * DEAD_KEPT as u64 - 1;
        assert_eq!(shape(&lives, last * 10..last * 10 + 5), [(last * 10..last * 10 + 5, Some((last, false)))]);
    }
}
