//! Where the blocks of a window are while it runs.

use super::plan::{Carried, Plan, Slot};
use bursar_core::DeviceBlock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

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

/// How often a thread looks for a block before it sleeps: a few microseconds, in which a thread that runs beside it hands it
/// over. One that does not run would not do so sooner however often it is looked for.
const LOOKS_MAX: u32 = 128;

/// A block on its way from one thread to another.
#[derive(Debug, Default)]
enum Handover {
    #[default]
    Awaited,
    /// The thread that frees it sleeps until it comes.
    WaitedFor(Thread),
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
                Handover::Awaited | Handover::WaitedFor(_) | Handover::Gone => None,
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
                Handover::Awaited | Handover::WaitedFor(_) | Handover::Gone => look(None),
            },
        }
    }
}

impl Exchange {
    /// Nobody waits any more for what has not been handed over.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        // Whoever goes to sleep after their slot was looked at here finds out that it is over before they do.
        for slot in 0..self.blocks.len() as u32 {
            if let Handover::WaitedFor(thread) = &*self.block(slot) {
                thread.unpark();
            }
        }
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
            Handover::Awaited | Handover::WaitedFor(_) | Handover::Gone => None,
        }
    }

    /// Leaves a block for the thread that frees it; `None` if its allocation was refused.
    pub(super) fn hand_over(&self, slot: u32, block: Option<DeviceBlock>) {
        let handover = block.map_or(Handover::Gone, Handover::Ready);
        let before = std::mem::replace(&mut *self.block(slot), handover);
        if let Handover::WaitedFor(thread) = before {
            thread.unpark();
        }
    }

    /// Waits for the block; `None` if its allocation was refused.
    pub(super) fn receive(&self, slot: u32) -> Option<DeviceBlock> {
        for _ in 0..LOOKS_MAX {
            if let Some(received) = self.look_for(slot, || Handover::Awaited) {
                return received;
            }
            std::hint::spin_loop();
        }
        self.sleep_for(slot)
    }

    #[cold]
    fn sleep_for(&self, slot: u32) -> Option<DeviceBlock> {
        let sleeper = std::thread::current();
        loop {
            if let Some(received) = self.look_for(slot, || Handover::WaitedFor(sleeper.clone())) {
                return received;
            }
            std::thread::park();
        }
    }

    /// The block, or that it does not come; leaves `awaited` in the slot where that is not known yet.
    fn look_for(&self, slot: u32, awaited: impl FnOnce() -> Handover) -> Option<Option<DeviceBlock>> {
        let mut place = self.block(slot);
        match std::mem::take(&mut *place) {
            Handover::Ready(block) => Some(Some(block)),
            Handover::Gone => Some(None),
            Handover::Awaited | Handover::WaitedFor(_) => {
                *place = awaited();
                drop(place);
                self.over.load(Ordering::Acquire).then_some(None)
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
