//! Blocks that a driver is told of: their bounds, their lifetimes, and their reuse.

use super::judge;
use super::rig::{PAGE, Rig, SEEDS};
use bursar_core::{Note, RawStream, tag};
use bursar_sim::{Hazard, HazardKind};

#[test]
fn blocks_are_used_only_inside_their_bounds() {
    let program = |rig: &Rig, bytes: u64| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 1000, a, tag!("block"));
        rig.fill(a, base, 1, bytes);
    };
    let hazard = judge(HazardKind::OutOfBounds, |rig| program(rig, 1001), |rig| program(rig, 1000));
    assert_eq!(hazard.range.end - hazard.range.start, 1);
}

#[test]
fn blocks_do_not_overlap() {
    let program = |rig: &Rig, second: u64| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("first"));
        rig.granted(base.offset(second), 512, a, tag!("second"));
    };
    judge(HazardKind::Overlap, |rig| program(rig, 256), |rig| program(rig, 512));
}

#[test]
fn a_block_is_given_out_again_on_another_stream_only_with_a_wait() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b, base) = (rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("first life"));
        rig.fill(a, base, 1, 512);
        rig.freed(base, a);
        if ordered {
            rig.order(a, b);
        }
        rig.granted(base, 256, b, tag!("second life"));
        rig.fill(b, base, 2, 256);
    };
    let hazard = judge(HazardKind::ReusedUnordered, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.first.map(|first| (first.what, first.tag)), Some(("freed", tag!("first life"))));
    assert_eq!(hazard.second.tag, tag!("second life"));
}

#[test]
fn an_event_recorded_after_the_last_use_of_a_block_covers_its_free() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, b, base) = (rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("first life"));
        rig.fill(a, base, 1, 512);
        let event = rig.event();
        rig.record(event, a);
        rig.freed(base, a);
        rig.wait(b, event);
        rig.granted(base, 512, b, tag!("second life"));
        rig.sim.assert_clean();
    }
}

#[test]
fn a_block_is_freed_only_after_every_use_of_it() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b, base) = (rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("block"));
        rig.order(a, b);
        rig.fill(b, base, 1, 512);
        if ordered {
            rig.order(b, a);
        }
        rig.freed(base, a);
    };
    judge(HazardKind::FreeUnordered, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn a_block_is_not_used_after_it_was_freed_nor_freed_twice() {
    let program = |rig: &Rig, mistake: u32| {
        let (a, base) = (rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.granted(base, 512, a, tag!("block"));
        rig.freed(base, a);
        match mistake {
            1 => rig.fill(a, base.offset(8), 1, 8),
            2 => rig.freed(base, a),
            _ => {}
        }
    };
    for mistake in [1, 2] {
        let hazard = judge(HazardKind::UseAfterFree, |rig| program(rig, mistake), |rig| program(rig, 0));
        assert_eq!(hazard.tag, tag!("block"));
    }
}

#[test]
fn a_block_is_given_out_only_after_what_touched_its_bytes_before_it_was_one() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b, base) = (rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(base);
        rig.fill(a, base, 0xde, PAGE);
        if ordered {
            rig.order(a, b);
        }
        rig.granted(base, 512, b, tag!("block"));
        rig.fill(b, base, 1, 512);
    };
    let hazard = judge(HazardKind::ReusedUnordered, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.first.map(|first| first.what), Some("fill"));
    assert_eq!((hazard.second.what, hazard.range.end - hazard.range.start), ("granted", 512));
}

#[test]
fn a_note_on_a_blocking_stream_teaches_the_host_nothing_about_the_default_stream() {
    let program = |rig: &Rig, waits: bool, unmaps: bool| {
        let (blocking, other) = (rig.sim.create_blocking_stream(rig.device).unwrap(), rig.stream());
        let (base, elsewhere) = (rig.reserve(PAGE), rig.reserve(PAGE));
        rig.mapped(base);
        rig.mapped(elsewhere);
        rig.fill(RawStream::LEGACY, base, 1, 64);
        rig.granted(elsewhere, 512, blocking, tag!("block"));
        assert!(rig.query(blocking).is_complete(), "nothing was submitted to it");
        if waits {
            rig.sync(RawStream::LEGACY);
        }
        if unmaps {
            rig.unmap(base, PAGE);
        } else {
            rig.fill(other, base, 2, 64);
        }
    };
    judge(HazardKind::Conflict, |rig| program(rig, false, false), |rig| program(rig, true, false));
    judge(HazardKind::UnmapUnderUse, |rig| program(rig, false, true), |rig| program(rig, true, true));
}

#[test]
fn a_block_freed_on_a_blocking_stream_is_still_used_by_the_default_stream() {
    let program = |rig: &Rig, waits: bool| {
        let (blocking, other) = (rig.sim.create_blocking_stream(rig.device).unwrap(), rig.stream());
        let base = rig.reserve(PAGE);
        rig.mapped(base);
        rig.granted(base, 512, blocking, tag!("first"));
        rig.fill(RawStream::LEGACY, base, 1, 64);
        rig.freed(base, blocking);
        while !rig.query(blocking).is_complete() {}
        if waits {
            rig.sync(RawStream::LEGACY);
        }
        rig.granted(base, 512, other, tag!("second"));
    };
    let hazard = judge(HazardKind::ReusedUnordered, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.first.map(|first| first.what), Some("fill"));
}

/// Room that was divided is given back as a block is: after every use, but while it sleeps also before the copy has run that brings
/// its contents back, since whoever copies keeps it until then.
#[test]
fn z9_divided_room_rejoins_its_block_before_what_brings_it_back_only_while_it_sleeps() {
    let program = |rig: &Rig, sleeps: bool| {
        let (a, copies, ptr) = (rig.stream(), rig.stream(), rig.reserve(PAGE));
        rig.mapped(ptr);
        rig.granted(ptr, PAGE, a, tag!("segment"));
        rig.note(Note::Divided { ptr, bytes: PAGE, stream: a });
        rig.sync(a);
        if sleeps {
            rig.note(Note::Asleep { ptr, bytes: PAGE });
        }
        rig.fill(copies, ptr, 1, PAGE);
        rig.note(Note::Rejoined { ptr, stream: a });
        rig.sync(copies);
        if sleeps {
            rig.note(Note::Awake { ptr, bytes: PAGE });
        }
        rig.freed(ptr, a);
    };
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        program(&rig, true);
        rig.sim.assert_clean();
        let rig = Rig::seeded(seed);
        program(&rig, false);
        let is_late = |hazard: &Hazard| hazard.kind == HazardKind::FreeUnordered && hazard.second.what == "rejoined";
        assert!(rig.sim.hazards().iter().any(is_late), "seed {seed}");
    }
}
