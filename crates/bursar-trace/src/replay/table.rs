//! Where the blocks of a window are while it runs.

use super::plan::{Carried, Plan, Slot};
use bursar_core::DeviceBlock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The blocks of a window: what each thread has for itself, and what they exchange.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) own: Vec<Own>,
    pub(super) exchange: Exchange,
}

/// What one thread has for itself.
#[derive(Debug)]
pub(super) struct Own {
    blocks: Vec<Option<DeviceBlock>>,
}

/// What the threads of a window share.
#[derive(Debug)]
pub(super) struct Exchange {
    blocks: Vec<Mutex<Handover>>,
    /// A thread failed: nobody waits for it any more.
    over: AtomicBool,
}

/// A block on its way from one thread to another.
#[derive(Debug, Default)]
enum Handover {
    #[default]
    Awaited,
    Ready(DeviceBlock),
    /// Its allocation was refused.
    Gone,
}

impl Table {
    pub(super) fn new(plan: &Plan) -> Self {
        let own = plan.own_slots.iter().map(|&slots| Own { blocks: (0..slots).map(|_| None).collect() });
        let shared = (0..plan.shared_slots).map(|_| Mutex::default());
        Self { own: own.collect(), exchange: Exchange { blocks: shared.collect(), over: AtomicBool::new(false) } }
    }

    pub(super) fn put(&mut self, carried: &Carried, block: Option<DeviceBlock>) {
        match carried.slot {
            Slot::Own(slot) => *self.own[usize::from(carried.thread)].place(slot) = block,
            Slot::Shared(slot) => self.exchange.hand_over(slot, block),
        }
    }

    pub(super) fn take(&mut self, carried: &Carried) -> Option<DeviceBlock> {
        match carried.slot {
            Slot::Own(slot) => self.own[usize::from(carried.thread)].place(slot).take(),
            Slot::Shared(slot) => self.exchange.take(slot),
        }
    }

    /// Everything that is still there.
    pub(super) fn into_blocks(self) -> impl Iterator<Item = DeviceBlock> {
        let own = self.own.into_iter().flat_map(|own| own.blocks).flatten();
        own.chain(self.exchange.blocks.into_iter().filter_map(|block| {
            match block.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Handover::Ready(block) => Some(block),
                Handover::Awaited | Handover::Gone => None,
            }
        }))
    }
}

impl Own {
    /// Where a block of this thread is kept; `None` is there if its allocation was refused.
    #[inline]
    pub(super) fn place(&mut self, slot: u32) -> &mut Option<DeviceBlock> {
        &mut self.blocks[slot as usize]
    }

    /// Shows `look` what is in the slot.
    pub(super) fn look<T>(&self, slot: Slot, exchange: &Exchange, look: impl FnOnce(Option<&DeviceBlock>) -> T) -> T {
        match slot {
            Slot::Own(slot) => look(self.blocks[slot as usize].as_ref()),
            Slot::Shared(slot) => match &*exchange.block(slot) {
                Handover::Ready(block) => look(Some(block)),
                Handover::Awaited | Handover::Gone => look(None),
            },
        }
    }
}

impl Exchange {
    /// Nobody waits any more for what has not been handed over.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Has the others stop waiting also if this thread panics while the answer lives.
    pub(super) fn ended_by_panic(&self) -> EndedByPanic<'_> {
        EndedByPanic(self)
    }

    fn block(&self, slot: u32) -> MutexGuard<'_, Handover> {
        self.blocks[slot as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, slot: u32) -> Option<DeviceBlock> {
        match std::mem::take(&mut *self.block(slot)) {
            Handover::Ready(block) => Some(block),
            Handover::Awaited | Handover::Gone => None,
        }
    }

    /// Leaves a block for the thread that frees it; `None` if its allocation was refused.
    pub(super) fn hand_over(&self, slot: u32, block: Option<DeviceBlock>) {
        *self.block(slot) = block.map_or(Handover::Gone, Handover::Ready);
    }

    /// Waits for the block; `None` if its allocation was refused.
    pub(super) fn receive(&self, slot: u32) -> Option<DeviceBlock> {
        loop {
            let found = std::mem::take(&mut *self.block(slot));
            match found {
                Handover::Ready(block) => return Some(block),
                Handover::Gone => return None,
                Handover::Awaited if self.over.load(Ordering::Acquire) => return None,
                Handover::Awaited => std::thread::yield_now(),
            }
        }
    }
}

/// Ends the exchange when a thread unwinds.
#[derive(Debug)]
pub(super) struct EndedByPanic<'a>(&'a Exchange);

impl Drop for EndedByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}
