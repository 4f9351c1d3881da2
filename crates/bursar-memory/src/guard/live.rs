//! The blocks that users have.

use bursar_core::{Fenced, Generation};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A block of a user, and whether it was reported.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) fenced: Fenced,
    pub(super) reported: Once,
}

impl Watched {
    pub(super) fn new(fenced: Fenced) -> Self {
        Self { fenced, reported: Once::default() }
    }
}

/// Says yes once, to whichever clone asks first.
#[derive(Clone, Debug, Default)]
pub(super) struct Once(Arc<AtomicBool>);

impl Once {
    pub(super) fn first(&self) -> bool {
        !self.0.swap(true, Relaxed)
    }
}

/// Live blocks by their generation; none where somebody is looking at one just now. Whoever frees that one waits until the
/// look has been submitted, so that it comes before the free.
#[derive(Debug, Default)]
pub(super) struct Live {
    blocks: Mutex<HashMap<Generation, Option<Watched>>>,
    returned: Condvar,
}

impl Live {
    /// Puts a block in, or back.
    pub(super) fn put(&self, watched: Watched) {
        let generation = watched.fenced.generation();
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(generation, Some(watched));
        self.returned.notify_all();
    }

    /// Takes a block out for good.
    pub(super) fn remove(&self, generation: Generation) -> Option<Watched> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(blocks.get(&generation), Some(None)) {
            blocks = self.returned.wait(blocks).unwrap_or_else(PoisonError::into_inner);
        }
        blocks.remove(&generation).flatten()
    }

    /// Looks at each block that is live throughout; the first failure is the answer, and the others are looked at anyway.
    pub(super) fn look<E>(&self, mut look: impl FnMut(&Watched) -> Result<(), E>) -> Result<(), E> {
        let generations: Vec<_> = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let mut outcome = Ok(());
        for generation in generations {
            let lent = {
                let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.get_mut(&generation).and_then(Option::take)
            };
            if let Some(watched) = lent {
                outcome = outcome.and(look(&watched));
                self.put(watched);
            }
        }
        outcome
    }
}
