//! Plans a window before the clock starts: which thread runs each operation, and which slot holds each block meanwhile.

use crate::trace::AddressState;
use crate::{Event, EventKind};
use bursar_core::AllocTag;
use std::collections::{HashMap, HashSet};

/// One operation of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) bytes: u64,
    pub(super) slot: Slot,
    pub(super) block: u32,
    pub(super) tag: AllocTag,
    pub(super) stream: u16,
    pub(super) thread: u16,
    pub(super) device: u8,
    pub(super) is_free: bool,
}

impl Operation {
    fn new(event: &Event, slot: Slot) -> Self {
        let Event { bytes, block, tag, stream, thread, device, kind } = *event;
        Self { bytes, slot, block, tag, stream, thread, device, is_free: kind == EventKind::Free }
    }

    /// Returns the event of the trace that this operation replays.
    pub(super) fn event(&self) -> Event {
        let Self { bytes, block, tag, stream, thread, device, is_free, .. } = *self;
        let kind = if is_free { EventKind::Free } else { EventKind::Allocate };
        Event { bytes, block, tag, thread, stream, kind, device }
    }
}

/// The slot that holds a block between its allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A slot of the one thread that uses the block. It is reused once the block is freed, so a thread has as many as it has
    /// live blocks at a time.
    Own(u32),
    /// A slot that all threads reach, for a block that one allocates and another frees.
    Shared(u32),
}

/// A block that is live when a window begins or ends, and its slot at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CarriedBlock {
    pub(super) block: u32,
    pub(super) thread: u16,
    pub(super) slot: Slot,
}

/// A window of a trace, prepared to be run.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order of the trace.
    pub(super) operations: Vec<Operation>,
    /// The number of slots of its own that each thread needs.
    pub(super) own_slots: Vec<u32>,
    pub(super) shared_slots: u32,
    /// Blocks of earlier windows that are freed in this one.
    pub(super) arriving: Vec<CarriedBlock>,
    /// Blocks that are allocated in this window and live beyond it.
    pub(super) leaving: Vec<CarriedBlock>,
}

/// Plans one window after the other. From one to the next it keeps only the live blocks.
#[derive(Debug)]
pub(super) struct Planner {
    threads: usize,
    live: HashMap<u32, BlockLocation, AddressState>,
}

/// The location of a live block while a window is planned.
#[derive(Clone, Copy, Debug)]
enum BlockLocation {
    /// It was allocated in this window.
    Slot { thread: u16, slot: Slot },
    /// It was allocated in an earlier window, and the pass carries it.
    Pass,
}

#[derive(Clone, Debug, Default)]
struct Slots {
    free: Vec<u32>,
    used: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.take_new())
    }

    /// Returns a slot that no block of this window has used before.
    fn take_new(&mut self) -> u32 {
        self.used += 1;
        self.used - 1
    }
}

impl Planner {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads, live: HashMap::default() }
    }

    /// Plans the next window.
    pub(super) fn plan(&mut self, events: &[Event]) -> Plan {
        let handed_over = self.handed_over(events);
        let mut own = vec![Slots::default(); self.threads];
        let mut plan = Plan { operations: Vec::with_capacity(events.len()), ..Plan::default() };
        for event in events {
            let (block, thread) = (event.block, event.thread);
            let mine = &mut own[usize::from(thread)];
            let slot = match event.kind {
                EventKind::Fail => continue,
                EventKind::Allocate if handed_over.contains(&block) => {
                    plan.shared_slots += 1;
                    Slot::Shared(plan.shared_slots - 1)
                }
                EventKind::Allocate => Slot::Own(mine.take()),
                EventKind::Free => match self.live.remove(&block) {
                    Some(BlockLocation::Slot { slot, .. }) => slot,
                    Some(BlockLocation::Pass) => {
                        let slot = Slot::Own(mine.take_new());
                        plan.arriving.push(CarriedBlock { block, thread, slot });
                        slot
                    }
                    None => continue,
                },
            };
            match (event.kind, slot) {
                (EventKind::Free, Slot::Own(slot)) => mine.free.push(slot),
                (EventKind::Free, Slot::Shared(_)) => {}
                _ => drop(self.live.insert(block, BlockLocation::Slot { thread, slot })),
            }
            plan.operations.push(Operation::new(event, slot));
        }
        plan.own_slots = own.iter().map(|slots| slots.used).collect();
        plan.leaving = self.move_to_pass();
        plan
    }

    /// Moves the blocks that are live at the end of the window to the pass, and returns them.
    fn move_to_pass(&mut self) -> Vec<CarriedBlock> {
        let mut leaving = Vec::new();
        for (&block, location) in &mut self.live {
            if let BlockLocation::Slot { thread, slot } = std::mem::replace(location, BlockLocation::Pass) {
                leaving.push(CarriedBlock { block, thread, slot });
            }
        }
        leaving
    }

    /// Returns the blocks that one thread allocates and another frees, both in this window.
    fn handed_over(&self, events: &[Event]) -> HashSet<u32, AddressState> {
        let mut handed_over = HashSet::default();
        if self.threads < 2 {
            return handed_over;
        }
        let mut owners: HashMap<u32, u16, AddressState> = HashMap::default();
        for event in events {
            match event.kind {
                EventKind::Allocate => drop(owners.insert(event.block, event.thread)),
                EventKind::Free if owners.remove(&event.block).is_some_and(|owner| owner != event.thread) => {
                    handed_over.insert(event.block);
                }
                _ => {}
            }
        }
        handed_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans a trace in windows of `window` events.
    fn plans(rows: &[(u64, &str, u64)], window: usize) -> Vec<Plan> {
        let rows =
            rows.iter().map(|(thread, action, pointer)| format!("{thread},00:00:00.0,{action},{pointer:#x},64,0\n"));
        let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.collect::<String>());
        let trace = crate::read_from(log.as_bytes(), "test.csv").expect("a trace");
        let mut planner = Planner::new(trace.threads.len());
        trace.events.chunks(window).map(|events| planner.plan(events)).collect()
    }

    fn slots(plan: &Plan) -> Vec<Slot> {
        plan.operations.iter().map(|operation| operation.slot).collect()
    }

    #[test]
    fn slots_are_reused_so_that_they_are_bounded_by_what_is_live() {
        let rows: Vec<_> = (0..1000).flat_map(|n| [(1, "allocate", n * 64 + 64), (1, "free", n * 64 + 64)]).collect();
        let plan = &plans(&rows, usize::MAX)[0];
        assert_eq!((plan.operations.len(), &plan.own_slots[..], plan.shared_slots), (2000, &[1][..], 0));
    }

    #[test]
    fn a_block_that_changes_hands_is_kept_where_both_find_it() {
        let rows = [(1, "allocate", 64), (1, "allocate", 128), (2, "free", 64), (1, "free", 128)];
        let plan = &plans(&rows, usize::MAX)[0];
        assert_eq!(slots(plan), [Slot::Shared(0), Slot::Own(0), Slot::Shared(0), Slot::Own(0)]);
        assert_eq!(plan.own_slots, [1, 0]);
    }

    #[test]
    fn a_block_that_outlives_its_window_comes_back_to_the_thread_that_frees_it() {
        let rows = [
            (1, "allocate", 64),
            (1, "allocate", 128),
            (1, "free", 128),
            (2, "allocate", 192),
            (2, "free", 192),
            (2, "free", 64),
        ];
        let [first, second] = &plans(&rows, 3)[..] else { panic!("six events") };
        let own = |block, thread, slot| CarriedBlock { block, thread, slot: Slot::Own(slot) };
        assert_eq!((&first.arriving[..], &first.leaving[..]), (&[][..], &[own(0, 0, 0)][..]));
        // Its slot is filled before the window begins, so nothing else may have it first.
        assert_eq!((&second.arriving[..], &second.leaving[..]), (&[own(0, 1, 1)][..], &[][..]));
        assert_eq!(slots(second), [Slot::Own(0), Slot::Own(0), Slot::Own(1)]);
    }
}
