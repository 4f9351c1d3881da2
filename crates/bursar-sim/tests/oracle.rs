//! Each kind of hazard is found with every seed, and the program that does it right is clean with every seed.

mod rig;

use bursar_core::{Gate, HostFunction, RawStream, tag};
use bursar_sim::{Access, Hazard, HazardKind, Launch, Place, Sim};
use rig::{PAGE, Rig, SEEDS};

/// Runs `wrong` and `right` with every seed: the first shows exactly one hazard, the same each time; the second none.
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
    assert_eq!((first.what, first.place), ("allocate_async", Place::Stream(1)));
    assert_eq!((hazard.second.what, hazard.second.place), ("fill", Place::Stream(2)));
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
            // Stream b knows the first life of the address only.
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
fn conflicting_accesses_are_ordered() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
        rig.fill(a, ptr, 1, 100);
        if ordered {
            rig.order(a, b);
        }
        rig.fill(b, ptr.offset(90), 2, 100);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.range.end - hazard.range.start, 10);
}

#[test]
fn readers_need_no_order_but_a_writer_waits_for_all_of_them() {
    let program = |rig: &Rig, forgets_one: bool| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let ptr = rig.alloc(4096);
        for stream in streams {
            rig.sim.launch(rig.device, stream, Launch::new("reader").reads(ptr, 64)).unwrap();
        }
        rig.order(streams[1], streams[0]);
        if !forgets_one {
            rig.order(streams[2], streams[0]);
        }
        rig.fill(streams[0], ptr, 1, 64);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.place), Some(Place::Stream(3)));
}

#[test]
fn order_may_come_from_a_query_a_synchronisation_or_a_host_function() {
    for seed in SEEDS {
        for way in 0..4 {
            let rig = Rig::seeded(seed);
            let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
            rig.fill(a, ptr, 1, 64);
            match way {
                0 => rig.sync(a),
                1 => while !rig.query(a).is_complete() {},
                2 => {
                    let event = rig.event();
                    rig.record(event, a);
                    while !rig.query_event(event).is_complete() {}
                }
                _ => {
                    let gate = Gate::default();
                    let heard = gate.clone();
                    rig.host(a, move || heard.open());
                    while !gate.is_open() {
                        rig.sim.step();
                    }
                }
            }
            rig.fill(b, ptr, 2, 64);
            rig.sim.assert_clean();
        }
    }
}

#[test]
fn a_query_that_says_pending_orders_nothing() {
    let rig = Rig::seeded(3);
    let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
    let gate = Gate::default();
    rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
    rig.fill(a, ptr, 1, 64);
    assert!(!rig.query(a).is_complete());
    rig.fill(b, ptr, 2, 64);
    assert_eq!(rig.only_hazard().kind, HazardKind::Conflict);
    gate.open();
}

#[test]
fn waiting_for_an_event_means_its_latest_record_at_that_time() {
    let program = |rig: &Rig, record_again: bool| {
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
        let event = rig.event();
        rig.record(event, a);
        rig.fill(a, ptr, 1, 64);
        if record_again {
            rig.record(event, a);
        }
        rig.wait(b, event);
        rig.record(event, a);
        rig.fill(b, ptr, 2, 64);
    };
    judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn the_default_stream_orders_blocking_streams_and_no_others() {
    let program = |rig: &Rig, blocking: bool| {
        let stream = |rig: &Rig| match blocking {
            true => rig.sim.create_blocking_stream(rig.device).unwrap(),
            false => rig.stream(),
        };
        let (a, ptr) = (stream(rig), rig.alloc(4096));
        rig.fill(a, ptr, 1, 64);
        rig.fill(RawStream::LEGACY, ptr, 2, 64);
    };
    judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    let program = |rig: &Rig, device: u32| {
        let (a, ptr) = (rig.sim.create_blocking_stream(rig.device).unwrap(), rig.alloc(4096));
        let other = rig.on(device);
        rig.fill(a, ptr, 1, 64);
        other.fill(RawStream::LEGACY, ptr, 2, 64);
        other.sync(RawStream::LEGACY);
        rig.sync(a);
    };
    judge(HazardKind::Conflict, |rig| program(rig, 1), |rig| program(rig, 0));
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
        rig.fill(a, base, 1, 64);
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
fn a_source_in_pinned_memory_is_not_written_before_its_copy_is_done() {
    let program = |rig: &Rig, early: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        host.write(5, 1);
        rig.upload(a, ptr, host.0, 64);
        if !early {
            rig.sync(a);
        }
        host.write(5, 2);
        rig.sync(a);
        assert_eq!(rig.peek(ptr, 6)[5], if early { 2 } else { 1 }, "it is read when the copy runs");
        rig.host_free(host.0);
    };
    let hazard = judge(HazardKind::HostTouched, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.what), Some("copy_to_device"));
    assert_eq!(hazard.device, None);
}

#[test]
fn a_target_in_pinned_memory_is_not_written_before_its_copy_is_done() {
    let program = |rig: &Rig, early: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, ptr, 9, 64);
        rig.download(a, host.0, ptr, 64);
        if early {
            host.write(5, 2);
        }
        rig.sync(a);
        assert_eq!(host.read(5), 9);
        rig.host_free(host.0);
    };
    judge(HazardKind::HostTouched, |rig| program(rig, true), |rig| program(rig, false));
}

#[test]
fn declared_host_accesses_are_judged_against_the_copies_in_flight() {
    let program = |rig: &Rig, waits: bool, access: Access| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, ptr, 9, 64);
        rig.download(a, host.0, ptr, 64);
        if waits {
            rig.sync(a);
        }
        rig.sim.touch_host(host.0.wrapping_add(63), 100, access);
        rig.sync(a);
        rig.host_free(host.0);
    };
    for access in [Access::Read, Access::Write] {
        let (wrong, right) = (|rig: &Rig| program(rig, false, access), |rig: &Rig| program(rig, true, access));
        let hazard = judge(HazardKind::HostTouched, wrong, right);
        assert_eq!(hazard.range.end - hazard.range.start, 1);
    }
    let reading_a_source = |rig: &Rig, access: Access| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.upload(a, ptr, host.0, 64);
        rig.sim.touch_host(host.0, 64, access);
        rig.sync(a);
    };
    judge(
        HazardKind::HostTouched,
        |rig| reading_a_source(rig, Access::Write),
        |rig| reading_a_source(rig, Access::Read),
    );
}

#[test]
fn pinned_memory_is_not_freed_before_its_copy_is_done() {
    let program = |rig: &Rig, waits: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        host.write(0, 7);
        rig.upload(a, ptr, host.0, 64);
        if waits {
            rig.sync(a);
        }
        rig.host_free(host.0);
        rig.sync(a);
        assert_eq!(rig.peek(ptr, 1), [7], "the copy still finds it");
    };
    judge(HazardKind::HostTouched, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn copies_and_host_functions_may_change_pinned_memory_in_stream_order() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, b) = (rig.stream(), rig.stream());
        let (from, to, host) = (rig.alloc(4096), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, from, 3, 64);
        rig.download(a, host.0, from, 64);
        rig.order(a, b);
        rig.upload(b, to, host.0, 64);
        let address = host.0.expose_provenance();
        rig.host(b, move || rig::Host(std::ptr::with_exposed_provenance_mut(address)).write(0, 4));
        rig.upload(b, to, host.0, 1);
        rig.sync(b);
        assert_eq!(rig.peek(to, 2), [4, 3]);
        rig.sim.assert_clean();
    }
}

#[test]
fn two_copies_that_share_pinned_memory_are_ordered() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let (from, to, host) = (rig.alloc(4096), rig.alloc(4096), rig.pinned(64));
        rig.fill(a, from, 0, 64);
        rig.download(a, host.0, from, 64);
        if ordered {
            rig.order(a, b);
        }
        rig.upload(b, to, host.0, 64);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.device, None);
}

#[test]
fn a_host_function_does_not_call_the_driver() {
    let program = |rig: &Rig, calls: bool| {
        let (a, sim, device) = (rig.stream(), rig.sim.clone(), rig.device);
        rig.host(a, move || {
            if calls {
                assert!(bursar_core::Driver::memory(&*sim, device).is_err());
            }
        });
        rig.sync(a);
    };
    judge(HazardKind::CallFromHostFunction, |rig| program(rig, true), |rig| program(rig, false));
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
    let wrong = || rig.fill(a, bursar_core::DevicePtr(0x10), 1, 16);
    (0..300).for_each(|_| wrong());
    assert!(rig.sim.check().unwrap_err().to_string().starts_with("300 hazards"));
    rig.sim.take_hazards();
    wrong();
    assert!(rig.sim.check().unwrap_err().to_string().starts_with("1 hazard with"));
}
