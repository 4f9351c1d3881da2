//! Where searches begin.

/// The powers of two that lengths are told apart by.
const CLASSES: usize = 40;

/// The power of two that a length is told by.
#[inline]
pub(super) fn class(len: u64) -> usize {
    (len.ilog2() as usize).min(CLASSES - 1)
}

/// For each power of two: no group before this one has a run that long. They never decrease.
#[derive(Debug)]
pub(super) struct Starts([usize; CLASSES]);

impl Default for Starts {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl Starts {
    pub(super) fn of(&self, class: usize) -> usize {
        self.0[class]
    }

    /// A search for a class, and so for those above, need not begin before a group.
    pub(super) fn move_up(&mut self, class: usize, to: usize) {
        self.0[class..].iter_mut().take_while(|start| **start < to).for_each(|start| *start = to);
    }

    /// There is a run as long as a class in a group.
    pub(super) fn move_down(&mut self, class: usize, to: usize) {
        // The first that is right ends this, since they never decrease.
        self.0[..=class].iter_mut().rev().take_while(|start| **start > to).for_each(|start| *start = to);
    }

    /// Some of what lay in a group is now the one after it.
    pub(super) fn group_split(&mut self, group: usize) {
        self.0.iter_mut().filter(|start| **start > group).for_each(|start| *start += 1);
    }

    /// A group was taken out.
    pub(super) fn group_removed(&mut self, group: usize) {
        self.0.iter_mut().filter(|start| **start > group).for_each(|start| *start -= 1);
    }
}
