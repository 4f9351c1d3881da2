//! Each kind of hazard is found with every seed, and the corrected program is clean with every seed.

#[path = "oracle/blocks.rs"]
mod blocks;
#[path = "oracle/host.rs"]
mod host;
#[path = "oracle/memory.rs"]
mod memory;
#[path = "oracle/order.rs"]
mod order;
mod rig;

use bursar_core::tag;
use bursar_sim::{Hazard, HazardKind, Sim};
use rig::{PAGE, Rig, SEEDS};

/// Runs `wrong` and `right` with every seed: the first has exactly one hazard, the same each time; the second none.
#[track_caller]
fn judge(kind: HazardKind, wrong: impl Fn(&Rig), right: impl Fn(&Rig)) -> Hazard {
    let mut found: Option<Hazard> = None;
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        wrong(&rig);
        rig.sim.settle();
        let hazard = rig.only_hazard();
        assert_eq!(hazard.kind, kind, "{hazard}");
        found = Some(hazard);
        let rig = Rig::seeded(seed);
        right(&rig);
        rig.sim.settle();
        rig.sim.assert_clean();
    }
    found.expect("at least one seed")
}

#[test]
fn the_report_names_the_seed_both_sides_and_the_calls() {
    let rig = Rig::seeded(1234);
    let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
    rig.fill(a, ptr, 1, 64);
    rig.fill(b, ptr, 2, 64);
    rig.sim.settle();
    let report = rig.sim.check().unwrap_err().to_string();
    for part in [
        "1 hazard with seed 1234",
        "conflicting accesses on gpu0",
        "fill on stream 2 (call 5) and fill on stream 1 (call 4)",
        "3: gpu0 allocate of 4 KiB -> 0x",
        "4: gpu0 fill on stream 1 at 0x",
        "4 runs: fill",
    ] {
        assert!(report.contains(part), "{part:?} is missing in:\n{report}");
    }
    assert!(std::panic::catch_unwind(|| rig.sim.assert_clean()).is_err());
}

#[test]
fn what_is_still_held_is_listed_by_kind_and_tag() {
    let rig = Rig::seeded(0);
    let (a, base) = (rig.stream(), rig.reserve(2 * PAGE));
    let pages = rig.mapped(base);
    rig.granted(base, 512, a, tag!("pooled"));
    rig.granted(base.offset(512), 512, a, tag!("pooled"));
    let ptr = rig.alloc_on(a, 1000);
    rig.granted(ptr, 1000, a, tag!("weights"));
    rig.event();
    let host = rig.pinned(100);
    let expected = "still held:\n\
                    - host: 1 pinned host memory, 100 B\n\
                    - gpu0: 1 allocation, 1 KiB, weights\n\
                    - gpu0: 2 block, 1 KiB, pooled\n\
                    - gpu0: 1 physical pages, 2 MiB\n\
                    - gpu0: 1 reserved addresses, 4 MiB\n\
                    - gpu0: 1 stream\n\
                    - gpu0: 1 event";
    assert_eq!(rig.sim.leaks().to_string(), expected);
    rig.freed(ptr, a);
    rig.free_on(a, ptr);
    rig.freed(base, a);
    rig.freed(base.offset(512), a);
    rig.sync(a);
    rig.unmap(base, PAGE);
    rig.release_pages(pages);
    rig.release_address(base, 2 * PAGE);
    rig.host_free(host.0);
    rig.destroy(a);
    assert_eq!(rig.sim.leaks().to_string(), "still held:\n- gpu0: 1 event");
    rig.sim.assert_clean();
}

#[test]
fn an_immediate_simulator_looks_for_nothing() {
    let rig = Rig::of(Sim::immediate());
    let (a, b) = (rig.stream(), rig.stream());
    let ptr = rig.alloc_on(a, 4096);
    rig.fill(b, ptr, 1, 64);
    rig.free_on(a, ptr);
    assert!(rig.sim.check().is_ok());
}

#[test]
fn a_hazard_names_the_tags_of_both_sides() {
    let rig = Rig::seeded(1);
    let (a, base) = (rig.stream(), rig.reserve(PAGE));
    rig.mapped(base);
    rig.granted(base, 512, a, tag!("old"));
    rig.granted(base, 512, a, tag!("new"));
    let words = rig.only_hazard().to_string();
    assert!(words.contains("(tags \"old\" and \"new\")"), "{words}");
}

#[test]
fn hazards_that_were_taken_are_not_counted_again() {
    let rig = Rig::seeded(1);
    let a = rig.stream();
    let wrong = || assert!(rig.try_fill(a, bursar_core::DevicePtr(0x10), 1, 16).is_err());
    (0..300).for_each(|_| wrong());
    assert!(rig.sim.check().unwrap_err().to_string().starts_with("300 hazards"));
    rig.sim.take_hazards();
    wrong();
    assert!(rig.sim.check().unwrap_err().to_string().starts_with("1 hazard with"));
}
