//! What is worked out before the clock starts: who does what in a window, and where each block is kept meanwhile.

use crate::live::AddressState;
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

    /// The event of the trace that it carries out.
    pub(super) fn event(&self) -> Event {
        let Self { bytes, block, tag, stream, thread, device, is_free, .. } = *self;
        let kind = if is_free { EventKind::Free } else { EventKind::Allocate };
        Event { bytes, block, tag, thread, stream, kind, device }
    }
}

/// Where a block is kept between its allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// With the one thread that uses it; reused once the block is freed, so there are as many as blocks are live at once.
    Own(u32),
    /// Where the thread that frees it can find it.
    Shared(u32),
}

/// A block that is live when a window begins or ends, and where it is then kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) block: u32,
    pub(super) thread: u16,
    pub(super) slot: Slot,
}

/// A window of a trace as passes run it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order of the trace.
    pub(super) operations: Vec<Operation>,
    /// How many slots of its own each thread needs.
    pub(super) own_slots: Vec<u32>,
    pub(super) shared_slots: u32,
    /// Blocks of earlier windows that are freed in this one.
    pub(super) arriving: Vec<Carried>,
    /// Blocks that are allocated in this window and live beyond it.
    pub(super) leaving: Vec<Carried>,
}

/// Plans one window after the other. It remembers which blocks are live, and nothing else.
#[derive(Debug)]
pub(super) struct Planner {
    threads: usize,
    kept: HashMap<u32, Kept, AddressState>,
}

/// Where a live block is while its window is planned.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Here { thread: u16, slot: Slot },
    ByThePass,
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

    /// One that nothing in this window has used before.
    fn take_new(&mut self) -> u32 {
        self.used += 1;
        self.used - 1
    }
}

impl Planner {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads, kept: HashMap::default() }
    }

    /// Plans the window that follows the one before.
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
                EventKind::Free => match self.kept.remove(&block) {
                    Some(Kept::Here { slot, .. }) => slot,
                    Some(Kept::ByThePass) => {
                        let slot = Slot::Own(mine.take_new());
                        plan.arriving.push(Carried { block, thread, slot });
                        slot
                    }
                    None => continue,
                },
            };
            match (event.kind, slot) {
                (EventKind::Free, Slot::Own(slot)) => mine.free.push(slot),
                (EventKind::Free, Slot::Shared(_)) => {}
                _ => drop(self.kept.insert(block, Kept::Here { thread, slot })),
            }
            plan.operations.push(Operation::new(event, slot));
        }
        plan.own_slots = own.iter().map(|slots| slots.used).collect();
        plan.leaving = self.leave();
        plan
    }

    /// What is live at the window's end goes to the pass.
    fn leave(&mut self) -> Vec<Carried> {
        let mut leaving = Vec::new();
        for (&block, kept) in &mut self.kept {
            if let Kept::Here { thread, slot } = std::mem::replace(kept, Kept::ByThePass) {
                leaving.push(Carried { block, thread, slot });
            }
        }
        leaving
    }

    /// The blocks that one thread allocates and another frees, both in this window.
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

    /// The plans of a trace whose windows have `window` events.
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
        let own = |block, thread, slot| Carried { block, thread, slot: Slot::Own(slot) };
        assert_eq!((&first.arriving[..], &first.leaving[..]), (&[][..], &[own(0, 0, 0)][..]));
        // Its slot is filled before the window begins, so nothing else may have it first.
        assert_eq!((&second.arriving[..], &second.leaving[..]), (&[own(0, 1, 1)][..], &[][..]));
        assert_eq!(slots(second), [Slot::Own(0), Slot::Own(0), Slot::Own(1)]);
    }
}
