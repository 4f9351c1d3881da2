//! What is worked out before the clock starts: who does what, and where each block is kept meanwhile.

use crate::{Event, EventKind, Trace};
use bursar_core::AllocTag;
use std::collections::HashMap;

/// One operation of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) bytes: u64,
    pub(super) slot: Slot,
    pub(super) tag: AllocTag,
    pub(super) stream: u16,
    pub(super) thread: u16,
    pub(super) is_free: bool,
}

/// Where a block is kept between its allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// With the one thread that uses it; reused once the block is freed, so there are as many as blocks are live at once.
    Own(u32),
    /// Where the thread that frees it can find it.
    Shared(u32),
}

/// A trace as passes run it.
#[derive(Debug)]
pub(super) struct Plan {
    /// In the order of the trace.
    pub(super) operations: Vec<Operation>,
    /// How many slots of its own each thread needs.
    pub(super) own_slots: Vec<u32>,
    pub(super) shared_slots: u32,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    used: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        })
    }
}

impl Plan {
    pub(super) fn new(trace: &Trace) -> Self {
        let handed_over = handed_over(trace);
        let mut own: Vec<Slots> = trace.threads.iter().map(|_| Slots::default()).collect();
        let mut kept: HashMap<u32, Slot> = HashMap::new();
        let mut shared_slots = 0;
        let mut operations = Vec::with_capacity(trace.events.len());
        for event in &trace.events {
            let thread = usize::from(event.thread);
            let slot = match event.kind {
                EventKind::Fail => continue,
                EventKind::Allocate if handed_over.contains_key(&event.block) => {
                    shared_slots += 1;
                    Slot::Shared(shared_slots - 1)
                }
                EventKind::Allocate => Slot::Own(own[thread].take()),
                EventKind::Free => match kept.remove(&event.block) {
                    Some(slot) => slot,
                    None => continue,
                },
            };
            match (event.kind, slot) {
                (EventKind::Free, Slot::Own(slot)) => own[thread].free.push(slot),
                (EventKind::Free, Slot::Shared(_)) => {}
                _ => drop(kept.insert(event.block, slot)),
            }
            operations.push(operation(event, slot));
        }
        Self { operations, own_slots: own.iter().map(|slots| slots.used).collect(), shared_slots }
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations.len() as u64
    }
}

fn operation(event: &Event, slot: Slot) -> Operation {
    let Event { bytes, tag, stream, thread, kind, .. } = *event;
    Operation { bytes, slot, tag, stream, thread, is_free: kind == EventKind::Free }
}

/// The blocks that one thread allocates and another frees.
fn handed_over(trace: &Trace) -> HashMap<u32, ()> {
    if trace.threads.len() < 2 {
        return HashMap::new();
    }
    let (mut owners, mut handed_over) = (HashMap::new(), HashMap::new());
    for event in &trace.events {
        match event.kind {
            EventKind::Allocate => drop(owners.insert(event.block, event.thread)),
            EventKind::Free if owners.remove(&event.block) != Some(event.thread) => {
                handed_over.insert(event.block, ());
            }
            _ => {}
        }
    }
    handed_over
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: &[(u64, &str, u64)]) -> Plan {
        let rows =
            rows.iter().map(|(thread, action, pointer)| format!("{thread},00:00:00.0,{action},{pointer:#x},64,0\n"));
        let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.collect::<String>());
        Plan::new(&crate::read_from(log.as_bytes(), "test.csv").expect("a trace"))
    }

    #[test]
    fn slots_are_reused_so_that_they_are_bounded_by_what_is_live() {
        let rows: Vec<_> = (0..1000).flat_map(|n| [(1, "allocate", n * 64 + 64), (1, "free", n * 64 + 64)]).collect();
        let plan = plan(&rows);
        assert_eq!((plan.operations(), plan.own_slots, plan.shared_slots), (2000, vec![1], 0));
    }

    #[test]
    fn a_block_that_changes_hands_is_kept_where_both_find_it() {
        let plan = plan(&[(1, "allocate", 64), (1, "allocate", 128), (2, "free", 64), (1, "free", 128)]);
        let slots: Vec<_> = plan.operations.iter().map(|operation| operation.slot).collect();
        assert_eq!(slots, [Slot::Shared(0), Slot::Own(0), Slot::Shared(0), Slot::Own(0)]);
        assert_eq!(plan.own_slots, [1, 0]);
    }
}
