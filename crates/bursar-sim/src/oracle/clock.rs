//! Vector clocks: the points of all streams that something is ordered after.

/// A point of one stream: after its `time`th submission. Time zero precedes everything; operations that the host carries out
/// at once have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) stream: usize,
    pub(crate) time: u64,
}

impl Epoch {
    /// The epoch of an operation of the host: every later submission is ordered after it.
    pub(crate) const HOST: Self = Self { stream: 0, time: 0 };
}

/// For each stream, the last point that is known to come before.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorClock(Vec<u64>);

impl VectorClock {
    fn at(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    /// Returns whether whatever has this clock is ordered after `epoch`.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.at(epoch.stream) >= epoch.time
    }

    /// Orders it after everything that `other` is ordered after. Returns whether that added anything.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut news = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            news |= *mine < *theirs;
            *mine = (*mine).max(*theirs);
        }
        news
    }

    /// Advances `stream` by one submission. Returns the new point.
    pub(crate) fn tick(&mut self, stream: usize) -> Epoch {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        self.epoch(stream)
    }

    /// Returns the point that `stream` has reached.
    pub(crate) fn epoch(&self, stream: usize) -> Epoch {
        Epoch { stream, time: self.at(stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_covers_its_own_past_and_what_it_joined() {
        let (mut a, mut b) = (VectorClock::default(), VectorClock::default());
        let first = a.tick(0);
        let other = b.tick(3);
        assert!(a.covers(first) && !a.covers(other) && !b.covers(first));
        assert!(b.join(&a), "the first join tells it something");
        assert!(!b.join(&a), "the second does not");
        assert!(b.covers(first) && b.covers(other));
        let second = a.tick(0);
        assert!(a.covers(second) && !b.covers(second));
    }

    #[test]
    fn what_the_host_did_is_before_everything() {
        assert!(VectorClock::default().covers(Epoch::HOST));
    }
}
