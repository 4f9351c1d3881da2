//! Where searches begin.

use super::Place;

/// The powers of two that lengths are told apart by.
const CLASSES: usize = 40;

/// The power of two that a length is told by.
#[inline]
pub(super) fn class(len: u64) -> usize {
    (len.ilog2() as usize).min(CLASSES - 1)
}

/// For each power of two: no chunk before this one has a run that long. They never decrease.
#[derive(Debug)]
pub(super) struct Starts([Place; CLASSES]);

impl Default for Starts {
    fn default() -> Self {
        Self([Place { group: 0, chunk: 0 }; CLASSES])
    }
}

impl Starts {
    #[inline]
    pub(super) fn of(&self, class: usize) -> Place {
        self.0[class]
    }

    /// A search for a class, and so for those above, need not begin before a place.
    pub(super) fn move_up(&mut self, class: usize, to: Place) {
        self.0[class..].iter_mut().take_while(|start| **start < to).for_each(|start| *start = to);
    }

    /// There is a run as long as a class at a place.
    #[inline]
    pub(super) fn move_down(&mut self, class: usize, to: Place) {
        // The first that is right ends this, since they never decrease.
        self.0[..=class].iter_mut().rev().take_while(|start| **start > to).for_each(|start| *start = to);
    }

    /// A chunk was put in after that at a place.
    pub(super) fn chunk_added(&mut self, after: Place) {
        let behind = self.0.iter_mut().filter(|start| start.group == after.group && start.chunk > after.chunk);
        behind.for_each(|start| start.chunk += 1);
    }

    /// The chunk at a place was taken out.
    pub(super) fn chunk_removed(&mut self, at: Place) {
        let behind = self.0.iter_mut().filter(|start| start.group == at.group && start.chunk > at.chunk);
        behind.for_each(|start| start.chunk -= 1);
    }

    /// What lay in a group from a chunk on is now the group after it.
    pub(super) fn group_split(&mut self, at: Place) {
        for start in &mut self.0 {
            if start.group > at.group {
                start.group += 1;
            } else if start.group == at.group && start.chunk >= at.chunk {
                (start.group, start.chunk) = (at.group + 1, start.chunk - at.chunk);
            }
        }
    }

    /// A group was taken out.
    pub(super) fn group_removed(&mut self, group: usize) {
        for start in &mut self.0 {
            if start.group > group {
                start.group -= 1;
            } else if start.group == group {
                start.chunk = 0;
            }
        }
    }
}
