//! Memory is touched only while it is allocated, by work that is ordered after the allocation.

use super::judge;
use super::rig::{PAGE, Rig, SEEDS};
use bursar_core::{Gate, HostFunction, tag};
use bursar_sim::{Executor, HazardKind, Launch};

#[test]
fn memory_is_not_touched_before_it_is_allocated() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let ptr = rig.alloc_on(a, 4096);
        if ordered {
            rig.order(a, b);
        }
        rig.fill(b, ptr, 1, 64);
        rig.order(b, a);
        rig.free_on(a, ptr);
    };
    let hazard = judge(HazardKind::UseBeforeAllocation, |rig| program(rig, false), |rig| program(rig, true));
    let first = hazard.first.expect("the allocation");
    assert_eq!((first.what, first.executor), ("allocate_async", Executor::Stream(1)));
    assert_eq!((hazard.second.what, hazard.second.executor), ("fill", Executor::Stream(2)));
    assert_eq!(hazard.range.end - hazard.range.start, 64);
}

#[test]
fn memory_is_not_touched_after_it_was_freed() {
    let program = |rig: &Rig, late: bool| {
        let a = rig.stream();
        let ptr = rig.alloc_on(a, 4096);
        rig.granted(ptr, 4096, a, tag!("weights"));
        if !late {
            rig.fill(a, ptr, 1, 16);
        }
        rig.freed(ptr, a);
        rig.free_on(a, ptr);
        if late {
            rig.fill(a, ptr, 1, 16);
            rig.sync(a);
            assert_ne!(rig.peek(ptr, 1), [1], "what reaches nowhere does nothing");
        }
    };
    let hazard = judge(HazardKind::UseAfterFree, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.what), Some("free_async"));
    assert_eq!(hazard.tag, tag!("weights"));
    let words = hazard.to_string();
    assert!(words.contains("(tag \"weights\")") && words.contains("fill on stream 1"), "{words}");
}

#[test]
fn a_stale_address_is_recognised_when_it_has_been_given_out_again() {
    let program = |rig: &Rig, stale: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let old = rig.alloc_on(a, 4096);
        rig.fill(a, old, 1, 4096);
        rig.order(a, b);
        rig.free_on(a, old);
        let new = rig.alloc_on(a, 4096);
        assert_eq!(old, new, "addresses are given out again eagerly");
        rig.fill(a, new, 2, 4096);
        if stale {
            // Stream b knows only the first lifetime of the address.
            rig.sim.launch(rig.device, b, Launch::new("stale").reads(old, 16)).unwrap();
        }
    };
    let wrong = |rig: &Rig| {
        program(rig, true);
        // Reading unordered with the new owner's write is a second mistake.
        let hazards = rig.sim.take_hazards();
        assert!(hazards.iter().any(|hazard| hazard.kind == HazardKind::Conflict));
        let stale = hazards.into_iter().find(|hazard| hazard.kind == HazardKind::UseAfterFree);
        let stale = stale.expect("use after free");
        assert_eq!(stale.first.map(|first| first.what), Some("free_async"));
        assert_eq!(stale.reused.map(|reused| reused.what), Some("allocate_async"));
        assert!(stale.to_string().contains("given out again by allocate_async"), "{stale}");
    };
    for seed in SEEDS {
        wrong(&Rig::seeded(seed));
        let rig = Rig::seeded(seed);
        program(&rig, false);
        rig.sim.assert_clean();
    }
}

#[test]
fn memory_is_not_freed_while_another_stream_uses_it() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let ptr = rig.alloc_on(a, 4096);
        rig.order(a, b);
        rig.sim.launch(rig.device, b, Launch::new("reader").reads(ptr, 128)).unwrap();
        if ordered {
            rig.order(b, a);
        }
        rig.free_on(a, ptr);
    };
    let hazard = judge(HazardKind::FreeUnordered, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.first.map(|first| first.what), Some("reader"));
    assert_eq!(hazard.second.what, "free_async");
    assert_eq!(hazard.range.end - hazard.range.start, 128);
}

#[test]
fn memory_is_not_freed_by_a_stream_that_does_not_know_its_allocation() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let ptr = rig.alloc_on(a, 4096);
        if ordered {
            rig.order(a, b);
        }
        rig.free_on(b, ptr);
    };
    judge(HazardKind::FreeUnordered, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn pages_are_not_unmapped_under_use() {
    let program = |rig: &Rig, waits: bool| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.fill(a, base, 1, 64);
        if waits {
            rig.sync(a);
        }
        rig.unmap(base, PAGE);
    };
    let hazard = judge(HazardKind::UnmapUnderUse, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.second.what, "pages_unmap");
}

#[test]
fn pages_are_not_unmapped_under_a_live_block() {
    let program = |rig: &Rig, frees: bool| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("block"));
        if frees {
            rig.freed(base, a);
        }
        rig.unmap(base, PAGE);
    };
    let hazard = judge(HazardKind::UnmapUnderUse, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.tag, tag!("block"));
}

#[test]
fn memory_that_is_not_there_is_not_touched() {
    let program = |rig: &Rig, allow: bool| {
        let (a, base, pages) = (rig.stream(), rig.reserve(PAGE), rig.pages(PAGE));
        rig.map(base, PAGE, pages);
        if allow {
            rig.allow(base, PAGE);
        }
        let filled = rig.try_fill(a, base, 1, 64);
        assert_eq!(filled.is_ok(), allow, "it is refused, and told");
        rig.sync(a);
        assert_eq!(rig.peek(base, 1) == [1], allow, "what reaches nowhere does nothing");
    };
    judge(HazardKind::NotMapped, |rig| program(rig, false), |rig| program(rig, true));
    let program = |rig: &Rig, unmaps: bool| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        if unmaps {
            rig.unmap(base, PAGE);
        }
        rig.fill(a, base, 1, 64);
    };
    let hazard = judge(HazardKind::NotMapped, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.what), Some("pages_unmap"));
}

#[test]
fn memory_of_another_device_is_judged_on_that_device() {
    let program = |rig: &Rig, ordered: bool| {
        let other = rig.on(1);
        let (here, there) = (rig.alloc(4096), other.alloc(4096));
        let (a, b) = (rig.stream(), other.stream());
        other.fill(b, there, 5, 64);
        if ordered {
            let event = other.event();
            other.record(event, b);
            rig.wait(a, event);
        }
        rig.copy(a, here, there, 64);
        rig.sync(a);
        assert!(!ordered || rig.peek(here, 1) == [5]);
        other.sync(b);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.device.map(|device| device.0), Some(1));
}

#[test]
fn a_free_that_the_host_does_not_know_to_be_over_is_never_forgotten() {
    let program = |rig: &Rig, waits: bool| {
        let (stalled, busy, other, base) = (rig.stream(), rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        let gate = Gate::default();
        rig.host_function(stalled, HostFunction::behind(gate.clone(), || ()));
        rig.granted(base, 256, stalled, tag!("old"));
        rig.fill(stalled, base, 1, 256);
        rig.freed(base, stalled);
        for number in 1..6000 {
            let block = base.offset(number * 256);
            rig.granted(block, 256, busy, tag!("busy"));
            rig.freed(block, busy);
            if number % 500 == 0 {
                rig.sync(busy);
            }
        }
        if waits {
            rig.order(stalled, other);
        }
        rig.granted(base, 256, other, tag!("new"));
        gate.open();
    };
    for seed in 0..4 {
        let rig = Rig::seeded(seed);
        program(&rig, true);
        rig.sim.assert_clean();
        let rig = Rig::seeded(seed);
        program(&rig, false);
        let hazard = rig.only_hazard();
        assert_eq!(
            (hazard.kind, hazard.first.map(|first| first.tag)),
            (HazardKind::ReusedUnordered, Some(tag!("old")))
        );
    }
}
