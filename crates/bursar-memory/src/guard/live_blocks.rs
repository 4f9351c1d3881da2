//! The blocks that users have.

use bursar_core::{FencedBlock, Generation};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A block that a user has, and whether it was reported.
#[derive(Debug)]
pub(super) struct LiveBlock {
    pub(super) fenced: FencedBlock,
    pub(super) reported: ReportOnce,
}

impl LiveBlock {
    pub(super) fn new(fenced: FencedBlock) -> Self {
        Self { fenced, reported: ReportOnce::default() }
    }
}

/// A flag that is set once, by whichever clone comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportOnce(Arc<AtomicBool>);

impl ReportOnce {
    /// Sets the flag and returns whether it was unset.
    pub(super) fn set_first(&self) -> bool {
        !self.0.swap(true, Relaxed)
    }
}

/// The blocks that users have, by generation; `None` while one is being inspected. Whoever frees that one waits until
/// the inspection has been submitted, so that it comes before the free.
#[derive(Debug, Default)]
pub(super) struct LiveBlocks {
    blocks: Mutex<HashMap<Generation, Option<LiveBlock>>>,
    returned: Condvar,
}

impl LiveBlocks {
    /// Puts a block in, or back.
    pub(super) fn put(&self, live: LiveBlock) {
        let generation = live.fenced.generation();
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(generation, Some(live));
        self.returned.notify_all();
    }

    /// Takes a block out for good.
    pub(super) fn remove(&self, generation: Generation) -> Option<LiveBlock> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(blocks.get(&generation), Some(None)) {
            blocks = self.returned.wait(blocks).unwrap_or_else(PoisonError::into_inner);
        }
        blocks.remove(&generation).flatten()
    }

    /// Calls `inspect` for each block that is live throughout. Returns the first failure, after all of them.
    pub(super) fn try_for_each<E>(&self, mut inspect: impl FnMut(&mut LiveBlock) -> Result<(), E>) -> Result<(), E> {
        let generations: Vec<_> = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let mut outcome = Ok(());
        for generation in generations {
            let lent = {
                let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.get_mut(&generation).and_then(Option::take)
            };
            if let Some(mut live) = lent {
                outcome = outcome.and(inspect(&mut live));
                self.put(live);
            }
        }
        outcome
    }
}
