//! The slots that hold the blocks of a window while it runs.

use super::plan::{CarriedBlock, Plan, Slot};
use bursar_core::DeviceBlock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// The blocks of a window: those of each thread alone, and those that threads hand to each other.
#[derive(Debug)]
pub(super) struct BlockTable {
    pub(super) own: Vec<ThreadBlocks>,
    pub(super) exchange: Exchange,
}

/// The blocks that one thread allocates and frees.
#[derive(Debug)]
pub(super) struct ThreadBlocks {
    blocks: Vec<Option<DeviceBlock>>,
}

/// The blocks that one thread allocates and another frees.
#[derive(Debug)]
pub(super) struct Exchange {
    blocks: Vec<Mutex<Handover>>,
    /// True once a thread has failed, so that nobody waits for it any more.
    is_over: AtomicBool,
}

/// The number of times a thread polls for a block before it sleeps: a few microseconds, in which a thread that is running
/// hands it over. One that is not running would not do so sooner however often it is polled for.
const POLLS_MAX: u32 = 128;

/// A block on its way from one thread to another.
#[derive(Debug, Default)]
enum Handover {
    /// It is not allocated yet.
    #[default]
    Pending,
    /// It is not allocated yet, and the thread that frees it sleeps until it is.
    Sleeping(Thread),
    /// It is allocated.
    Ready(DeviceBlock),
    /// Its allocation was refused.
    Refused,
}

impl BlockTable {
    pub(super) fn new(plan: &Plan) -> Self {
        let own = plan.own_slots.iter().map(|&slots| ThreadBlocks { blocks: (0..slots).map(|_| None).collect() });
        let shared = (0..plan.shared_slots).map(|_| Mutex::default());
        Self { own: own.collect(), exchange: Exchange { blocks: shared.collect(), is_over: AtomicBool::new(false) } }
    }

    pub(super) fn put(&mut self, carried: &CarriedBlock, block: Option<DeviceBlock>) {
        match carried.slot {
            Slot::Own(slot) => *self.own[usize::from(carried.thread)].slot(slot) = block,
            Slot::Shared(slot) => self.exchange.hand_over(slot, block),
        }
    }

    pub(super) fn take(&mut self, carried: &CarriedBlock) -> Option<DeviceBlock> {
        match carried.slot {
            Slot::Own(slot) => self.own[usize::from(carried.thread)].slot(slot).take(),
            Slot::Shared(slot) => self.exchange.take(slot),
        }
    }

    /// Returns the blocks that are still in the table.
    pub(super) fn into_blocks(self) -> impl Iterator<Item = DeviceBlock> {
        let own = self.own.into_iter().flat_map(|own| own.blocks).flatten();
        own.chain(self.exchange.blocks.into_iter().filter_map(|block| {
            match block.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Handover::Ready(block) => Some(block),
                Handover::Pending | Handover::Sleeping(_) | Handover::Refused => None,
            }
        }))
    }
}

impl ThreadBlocks {
    /// Returns a slot of this thread. It is empty if the allocation of its block was refused.
    #[inline]
    pub(super) fn slot(&mut self, slot: u32) -> &mut Option<DeviceBlock> {
        &mut self.blocks[slot as usize]
    }

    /// Calls `inspect` with the block in a slot, if there is one.
    pub(super) fn inspect<T>(
        &self,
        slot: Slot,
        exchange: &Exchange,
        inspect: impl FnOnce(Option<&DeviceBlock>) -> T,
    ) -> T {
        match slot {
            Slot::Own(slot) => inspect(self.blocks[slot as usize].as_ref()),
            Slot::Shared(slot) => match &*exchange.lock(slot) {
                Handover::Ready(block) => inspect(Some(block)),
                Handover::Pending | Handover::Sleeping(_) | Handover::Refused => inspect(None),
            },
        }
    }
}

impl Exchange {
    /// Ends the exchange: nobody waits any more for a block that has not been handed over.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        // A thread that marks its slot after the slot was checked here reads the flag before it sleeps.
        for slot in 0..self.blocks.len() as u32 {
            if let Handover::Sleeping(thread) = &*self.lock(slot) {
                thread.unpark();
            }
        }
    }

    /// Returns a guard that ends the exchange if this thread panics before the guard is dropped.
    pub(super) fn end_on_panic(&self) -> EndOnPanic<'_> {
        EndOnPanic(self)
    }

    fn lock(&self, slot: u32) -> MutexGuard<'_, Handover> {
        self.blocks[slot as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, slot: u32) -> Option<DeviceBlock> {
        match std::mem::take(&mut *self.lock(slot)) {
            Handover::Ready(block) => Some(block),
            Handover::Pending | Handover::Sleeping(_) | Handover::Refused => None,
        }
    }

    /// Hands a block to the thread that frees it; `None` if its allocation was refused.
    pub(super) fn hand_over(&self, slot: u32, block: Option<DeviceBlock>) {
        let handover = block.map_or(Handover::Refused, Handover::Ready);
        let before = std::mem::replace(&mut *self.lock(slot), handover);
        if let Handover::Sleeping(thread) = before {
            thread.unpark();
        }
    }

    /// Waits for the block of a slot; `None` if its allocation was refused.
    pub(super) fn receive(&self, slot: u32) -> Option<DeviceBlock> {
        for _ in 0..POLLS_MAX {
            if let Some(received) = self.poll(slot, || Handover::Pending) {
                return received;
            }
            std::hint::spin_loop();
        }
        self.sleep_until_received(slot)
    }

    #[cold]
    fn sleep_until_received(&self, slot: u32) -> Option<DeviceBlock> {
        let sleeper = std::thread::current();
        loop {
            if let Some(received) = self.poll(slot, || Handover::Sleeping(sleeper.clone())) {
                return received;
            }
            std::thread::park();
        }
    }

    /// Takes the block of a slot: `Some(None)` if it will never come. While that is not known, leaves `waiting` in the slot
    /// and returns `None`.
    fn poll(&self, slot: u32, waiting: impl FnOnce() -> Handover) -> Option<Option<DeviceBlock>> {
        let mut handover = self.lock(slot);
        match std::mem::take(&mut *handover) {
            Handover::Ready(block) => Some(Some(block)),
            Handover::Refused => Some(None),
            Handover::Pending | Handover::Sleeping(_) => {
                *handover = waiting();
                drop(handover);
                self.is_over.load(Ordering::Acquire).then_some(None)
            }
        }
    }
}

/// A guard that ends the exchange when its thread unwinds.
#[derive(Debug)]
pub(super) struct EndOnPanic<'a>(&'a Exchange);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}
