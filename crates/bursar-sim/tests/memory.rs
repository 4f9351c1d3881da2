//! The contents and the amount of memory, and the facts of a device.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{Bytes, DeviceId, DevicePtr, Driver, DriverResult, Gate, HostFunction, LinkKind, NumaNode, Pattern};
use bursar_core::{RawStream, Status};
use bursar_sim::Sim;
use proptest::prelude::*;
use rig::{PAGE, Rig, SEEDS};

#[track_caller]
fn status<T: std::fmt::Debug>(answer: DriverResult<T>) -> Status {
    answer.unwrap_err().status
}

#[test]
fn bytes_move_with_their_physical_memory() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (a, base) = (rig.stream(), rig.reserve(4 * PAGE));
        let (low, high) = (rig.mapped(base), rig.mapped(base.offset(PAGE)));
        // One access may reach over several mappings.
        rig.fill(a, base.offset(PAGE - 4), 7, 8);
        rig.sync(a);
        rig.unmap(base, 2 * PAGE);
        for (pages, at) in [(high, base.offset(2 * PAGE)), (low, base.offset(3 * PAGE))] {
            rig.map(at, PAGE, pages);
            rig.allow(at, PAGE);
        }
        assert_eq!(rig.peek(base.offset(2 * PAGE), 4), [7; 4]);
        assert_eq!(rig.peek(base.offset(4 * PAGE - 4), 4), [7; 4]);
        rig.sim.assert_clean();
    }
}

#[test]
fn pages_that_are_not_allowed_yet_are_out_of_reach() {
    let rig = Rig::of(Sim::immediate());
    let (a, base, pages) = (rig.stream(), rig.reserve(PAGE), rig.pages(PAGE));
    rig.map(base, PAGE, pages);
    let filled = rig.try_fill(a, base, 1, 64);
    assert_eq!(status(filled), Status::InvalidValue);
    rig.allow(base, PAGE);
    assert_ne!(rig.peek(base, 64), [1; 64]);
}

#[test]
fn one_handle_may_be_mapped_twice() {
    let rig = Rig::seeded(1);
    let (a, base) = (rig.stream(), rig.reserve(2 * PAGE));
    let pages = rig.mapped(base);
    rig.map(base.offset(PAGE), PAGE, pages);
    rig.allow(base.offset(PAGE), PAGE);
    rig.fill(a, base, 3, 16);
    rig.sync(a);
    assert_eq!(rig.peek(base.offset(PAGE), 16), [3; 16]);
}

#[test]
fn physical_memory_is_held_until_it_is_released_and_mapped_nowhere() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let base = rig.reserve(PAGE);
        assert_eq!(rig.used(), 0, "addresses cost no memory");
        let pages = rig.mapped(base);
        rig.release_pages(pages);
        assert_eq!(rig.used(), PAGE);
        rig.unmap(base, PAGE);
        assert_eq!(rig.used(), 0);
        rig.release_address(base, PAGE);
    }
}

#[test]
fn pages_that_make_no_sense_are_refused() {
    let rig = Rig::seeded(1);
    let (base, pages) = (rig.reserve(2 * PAGE), rig.pages(PAGE));
    let (sim, device) = (&rig.sim, rig.device);
    assert_eq!(status(sim.address_reserve(device, PAGE - 1, 0)), Status::InvalidValue);
    assert_eq!(status(sim.address_reserve(device, 0, 0)), Status::InvalidValue);
    assert_eq!(status(sim.pages_create(device, 1)), Status::InvalidValue);
    let map = |ptr, bytes, pages| {
        // SAFETY: the simulator checks it.
        unsafe { sim.pages_map(device, ptr, bytes, pages) }
    };
    assert_eq!(status(map(base.offset(2 * PAGE), PAGE, pages)), Status::InvalidValue, "not reserved");
    assert_eq!(status(map(base, 2 * PAGE, pages)), Status::InvalidValue, "not its size");
    map(base, PAGE, pages).unwrap();
    assert_eq!(status(map(base, PAGE, pages)), Status::InvalidValue, "taken");
    // SAFETY: the simulator checks it.
    let unmapped = unsafe { sim.pages_unmap(device, base, 2 * PAGE) };
    assert_eq!(status(unmapped), Status::InvalidValue, "half of it is not mapped");
    // SAFETY: the simulator checks it.
    let released = unsafe { sim.address_release(device, base, 2 * PAGE) };
    assert_eq!(status(released), Status::InvalidValue, "pages are mapped in it");
    let gap = rig.reserve(3 * PAGE);
    rig.mapped(gap);
    rig.mapped(gap.offset(2 * PAGE));
    // SAFETY: the simulator checks it.
    let unmapped = unsafe { sim.pages_unmap(device, gap, 3 * PAGE) };
    assert_eq!(status(unmapped), Status::InvalidValue, "the middle of it is not mapped");
    rig.release_pages(pages);
    // SAFETY: the simulator checks it.
    let again = unsafe { sim.pages_release(device, pages) };
    assert_eq!(status(again), Status::InvalidValue, "released already");
    let aligned = sim.address_reserve(device, PAGE, 64 * PAGE).unwrap();
    assert!(aligned.0.is_multiple_of(64 * PAGE));
}

#[test]
fn memory_that_is_only_held_costs_nothing() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (a, ptr, other) = (rig.stream(), rig.alloc(79 << 30), rig.on(1).alloc(80 << 30));
        assert_eq!(rig.sim.resident_bytes(rig.device), 0);
        rig.fill_with(a, ptr, Pattern::U32(0x3f80_0000), 1 << 30);
        rig.copy(a, other, ptr, 1 << 30);
        rig.fill(a, ptr.offset(70 << 30), 1, 100);
        rig.sync(a);
        assert!(rig.sim.resident_bytes(rig.device) <= 128 << 10);
        assert_eq!(rig.sim.resident_bytes(DeviceId(1)), 0);
        assert_eq!(rig.peek(other.offset((1 << 30) - 4), 4), 1.0f32.to_ne_bytes());
        rig.free(ptr);
        assert_eq!(rig.sim.resident_bytes(rig.device), 0, "a free forgets what was touched");
    }
}

#[test]
fn an_exact_fit_succeeds_and_the_next_byte_does_not() {
    for builder in [Sim::builder().seed(1), Sim::builder().immediate()] {
        let rig = Rig::of(builder.device(Bytes(1 << 20)).build());
        let a = rig.stream();
        let (half, quarter) = (rig.alloc(1 << 19), rig.alloc_on(a, 1 << 18));
        rig.alloc((1 << 18) - 256);
        rig.alloc(1);
        assert_eq!(rig.sim.memory(rig.device).unwrap().free, Bytes::ZERO);
        assert_eq!(status(rig.sim.allocate(rig.device, 1)), Status::OutOfMemory);
        assert_eq!(status(rig.sim.pages_create(rig.device, PAGE)), Status::OutOfMemory);
        assert_eq!(status(rig.sim.allocate(rig.device, 0)), Status::InvalidValue);
        assert_eq!(status(rig.sim.allocate(rig.device, u64::MAX)), Status::OutOfMemory);
        rig.free(half);
        assert_eq!(rig.sim.memory(rig.device).unwrap().free, Bytes(1 << 19));
        rig.alloc(1 << 19);
        rig.free_on(a, quarter);
        rig.sync(a);
        assert_eq!(rig.sim.memory(rig.device).unwrap().free, Bytes(1 << 18));
    }
}

#[test]
fn memory_freed_in_stream_order_is_held_until_the_free_has_run() {
    for seed in SEEDS {
        let rig = Rig::of(Sim::builder().seed(seed).device(Bytes(1 << 20)).build());
        let a = rig.stream();
        let ptr = rig.alloc_on(a, 1 << 20);
        rig.free_on(a, ptr);
        assert_eq!(rig.used(), 1 << 20);
        // The same stream may reuse it at once: that is stream order.
        let again = rig.alloc_on(a, 1 << 20);
        assert_eq!((again, rig.used()), (ptr, 1 << 20));
        rig.free_on(a, again);
        // Another allocation makes the device wait for the free.
        let other = rig.alloc(1 << 20);
        assert_eq!(rig.used(), 1 << 20);
        rig.free(other);
        assert_eq!(rig.used(), 0);
        rig.sim.assert_clean();
    }
}

#[test]
fn an_allocation_does_not_wait_for_a_gate() {
    let rig = Rig::of(Sim::builder().seed(1).device(Bytes(1 << 20)).build());
    let (a, b, gate) = (rig.stream(), rig.stream(), Gate::default());
    let ptr = rig.alloc_on(a, 1 << 20);
    rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
    rig.free_on(a, ptr);
    // SAFETY: the simulator checks it.
    let refused = unsafe { rig.sim.allocate_async(rig.device, b, 256) };
    assert_eq!(status(refused), Status::OutOfMemory);
    gate.open();
    rig.alloc_on(b, 256);
}

#[test]
fn pointers_that_are_nobodys_are_refused_with_nothing_released() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let a = rig.stream();
        let (direct, ordered) = (rig.alloc(512), rig.alloc_on(a, 512));
        // SAFETY: the simulator checks it.
        let free = |ptr| unsafe { rig.sim.free(rig.device, ptr) };
        // SAFETY: the simulator checks it.
        let free_on = |ptr| unsafe { rig.sim.free_async(rig.device, a, ptr) };
        for ptr in [DevicePtr(0), direct.offset(256), ordered] {
            assert_eq!(status(free(ptr)), Status::InvalidValue);
        }
        assert_eq!(status(free_on(direct)), Status::InvalidValue);
        assert_eq!(rig.used(), 1024);
        free_on(ordered).unwrap();
        assert_eq!(status(free_on(ordered)), Status::InvalidValue, "freed twice");
        free(direct).unwrap();
        assert_eq!(status(free(direct)), Status::InvalidValue, "freed twice");
        assert_eq!(rig.used(), 0);
    }
}

#[test]
fn fresh_memory_shows_that_nothing_was_written() {
    let fresh = |seed| {
        let rig = Rig::seeded(seed);
        let (a, ptr) = (rig.stream(), rig.alloc(64));
        rig.fill(a, ptr, 0, 64);
        rig.free(ptr);
        let again = rig.alloc(64);
        assert_eq!(ptr, again);
        rig.peek(again, 64)
    };
    assert!(SEEDS.map(fresh).all(|bytes| bytes.iter().all(|byte| *byte >= 0x80)));
    assert!(SEEDS.map(fresh).collect::<std::collections::BTreeSet<_>>().len() > 8);
    assert_eq!(fresh(3), fresh(3));
}

#[test]
fn registered_memory_is_reached_when_the_copy_runs() {
    let rig = Rig::seeded(1);
    let (a, ptr, mut memory) = (rig.stream(), rig.alloc(4096), vec![5u8; 4096]);
    let start = memory.as_mut_ptr();
    rig.register(&mut memory).unwrap();
    assert_eq!(status(rig.register(&mut memory[..16])), Status::AlreadyRegistered);
    rig.upload(a, ptr, start, 4096);
    assert_ne!(rig.peek(ptr, 1), [5]);
    let reached = |offset: usize| rig.sim.host_device_pointer(rig.device, start.wrapping_add(offset));
    assert_eq!(reached(100).unwrap().0, reached(0).unwrap().0 + 100, "devices reach every byte of it");
    assert_eq!(status(reached(4096)), Status::InvalidValue, "and none beyond");
    rig.host_unregister(start);
    assert_eq!(status(reached(0)), Status::InvalidValue, "or any more");
    assert_eq!(rig.peek(ptr, 4096), [5; 4096]);
    // SAFETY: the simulator checks it.
    let again = unsafe { rig.sim.host_unregister(rig.device, start) };
    assert_eq!(status(again), Status::NotRegistered);
    // SAFETY: the simulator checks it.
    let free = unsafe { rig.sim.host_free(rig.device, start) };
    assert_eq!(status(free), Status::InvalidValue);
    rig.sim.assert_clean();
}

#[test]
fn devices_are_what_they_were_built_as() {
    let plain = Sim::seeded(0);
    let facts = plain.facts(DeviceId(1)).unwrap();
    assert_eq!((plain.device_count(), facts.total), (2, Bytes::gib(80)));
    assert_eq!((facts.numa_node, facts.stream_priorities), (NumaNode::UNKNOWN, -5..=0));
    assert_eq!(facts.capabilities.page_granularity, Some(Bytes::mib(2)));
    assert_eq!(plain.links(DeviceId(0)).unwrap(), []);

    let built = Sim::builder()
        .device(Bytes::gib(1))
        .devices(2, Bytes::gib(2))
        .without_pages()
        .without_stream_ordered()
        .numa_node(3)
        .linked()
        .build();
    assert_eq!(built.device_count(), 3);
    assert_eq!(built.facts(DeviceId(2)).unwrap().numa_node, NumaNode::new(3));
    let links = built.links(DeviceId(1)).unwrap();
    assert!(links.iter().all(|link| matches!(link.kind, LinkKind::NvLink { .. })));
    assert_eq!(links.iter().map(|link| link.to.0).collect::<Vec<_>>(), [0, 2]);
    let device = DeviceId(0);
    assert_eq!(status(built.pages_create(device, PAGE)), Status::NotSupported);
    // SAFETY: the simulator checks it.
    let refused = unsafe { built.allocate_async(device, RawStream::LEGACY, 64) };
    assert_eq!(status(refused), Status::NotSupported);
    assert_eq!(status(built.facts(DeviceId(3))), Status::InvalidDevice);
    let small = Sim::builder().page_granularity(Bytes::kib(64)).build();
    small.pages_create(device, 64 << 10).unwrap();
}

#[test]
fn devices_with_a_name_are_the_same_everywhere_and_others_are_not() {
    let uuid = |sim: &Sim, device| sim.facts(DeviceId(device)).unwrap().uuid.to_string();
    let named = |name: &str| Sim::builder().named(name).build();
    assert_eq!(uuid(&named("pair"), 0), "GPU-0d8d164f-4723-43a8-3d01-1a394c7cca12");
    assert_ne!(uuid(&named("pair"), 0), uuid(&named("pair"), 1));
    assert_ne!(uuid(&named("pair"), 0), uuid(&named("fair"), 0));
    assert_ne!(uuid(&Sim::seeded(0), 0), uuid(&Sim::seeded(0), 0));
}

#[test]
fn opening_and_closing_are_counted() {
    let rig = Rig::seeded(1);
    let context = rig.sim.open(rig.device).unwrap();
    assert_eq!(rig.sim.open(rig.device), Ok(context), "one primary context a device");
    assert!(rig.sim.leaks().to_string().contains("gpu0: 2 open device"));
    rig.close();
    rig.close();
    // SAFETY: the simulator checks it.
    let refused = status(unsafe { rig.sim.close(rig.device) });
    assert_eq!((refused.code(), refused.name()), (201, "CUDA_ERROR_INVALID_CONTEXT"));
}

#[derive(Clone, Debug)]
enum Step {
    Fill(u64, Pattern, u64),
    Copy(u64, u64, u64),
    Upload(u64, Vec<u8>),
    Read(u64, u64),
    Query,
}

const SPACE: u64 = 3 * PAGE;

fn steps() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0..4096u64, PAGE - 4096..PAGE + 4096, 0..SPACE - 8192].prop_map(|at| at & !3);
    let pattern = prop_oneof![
        any::<u8>().prop_map(Pattern::U8),
        any::<u16>().prop_map(Pattern::U16),
        any::<u32>().prop_map(Pattern::U32),
    ];
    prop_oneof![
        (at(), pattern, 0..2048u64).prop_map(|(at, pattern, count)| Step::Fill(at, pattern, count)),
        (at(), at(), 0..8192u64).prop_map(|(to, from, bytes)| Step::Copy(to, from, bytes)),
        (at(), prop::collection::vec(any::<u8>(), 1..300)).prop_map(|(at, bytes)| Step::Upload(at, bytes)),
        (at(), 1..8192u64).prop_map(|(at, bytes)| Step::Read(at, bytes)),
        Just(Step::Query),
    ]
}

/// Applies a step to plain memory. Returns the bytes that it reads.
fn model(memory: &mut [u8], step: &Step) -> Option<Vec<u8>> {
    match step {
        Step::Fill(at, pattern, count) => {
            let bytes = pattern.bytes().as_ref().repeat(*count as usize);
            memory[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Step::Copy(to, from, bytes) => {
            let (to, from, bytes) = (*to as usize, *from as usize, *bytes as usize);
            memory.copy_within(from..from + bytes, to);
        }
        Step::Upload(at, bytes) => memory[*at as usize..][..bytes.len()].copy_from_slice(bytes),
        Step::Read(at, bytes) => return Some(memory[*at as usize..][..*bytes as usize].to_vec()),
        Step::Query => {}
    }
    None
}

fn simulate(rig: &Rig, base: DevicePtr, stream: RawStream, step: &Step) -> Option<Vec<u8>> {
    match step {
        Step::Fill(at, pattern, count) => rig.fill_with(stream, base.offset(*at), *pattern, *count),
        Step::Copy(to, from, bytes) => rig.copy(stream, base.offset(*to), base.offset(*from), *bytes),
        Step::Upload(at, bytes) => rig.upload(stream, base.offset(*at), bytes.as_ptr(), bytes.len() as u64),
        Step::Read(at, bytes) => {
            let mut back = vec![0; *bytes as usize];
            rig.download(stream, back.as_mut_ptr(), base.offset(*at), *bytes);
            return Some(back);
        }
        Step::Query => drop(rig.query(stream)),
    }
    None
}

/// Ranges of a copy that overlap break the driver's contract.
fn is_sound(step: &Step) -> bool {
    !matches!(step, Step::Copy(to, from, bytes) if to.abs_diff(*from) < *bytes)
}

#[derive(Clone, Copy, Debug)]
enum Demand {
    Allocate { bytes: u64, stream: usize },
    Free { which: usize },
    Order { from: usize, to: usize },
    Query { stream: usize },
}

fn demands() -> impl Strategy<Value = Demand> {
    prop_oneof![
        4 => (1..5000u64, 0..3usize).prop_map(|(bytes, stream)| Demand::Allocate { bytes, stream }),
        3 => any::<usize>().prop_map(|which| Demand::Free { which }),
        1 => (0..3usize, 0..3usize).prop_map(|(from, to)| Demand::Order { from, to }),
        1 => (0..3usize).prop_map(|stream| Demand::Query { stream }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_stream_does_what_plain_memory_would(
        seed in any::<u64>(),
        immediate in any::<bool>(),
        paged in any::<bool>(),
        steps in prop::collection::vec(steps().prop_filter("copies do not overlap", is_sound), 1..40),
    ) {
        let builder = Sim::builder();
        let rig = Rig::of(if immediate { builder.immediate().build() } else { builder.seed(seed).build() });
        let stream = rig.stream();
        let base = if paged { rig.reserve(SPACE) } else { rig.alloc(SPACE) };
        if paged {
            for page in 0..3 {
                rig.mapped(base.offset(page * PAGE));
            }
        }
        let mut memory = vec![0; SPACE as usize];
        rig.fill(stream, base, 0, SPACE);
        for step in &steps {
            prop_assert_eq!(simulate(&rig, base, stream, step), model(&mut memory, step));
        }
        rig.sync(stream);
        prop_assert!(rig.peek(base, SPACE as usize) == memory);
        rig.sim.assert_clean();
    }

    #[test]
    fn live_allocations_never_overlap_and_every_byte_is_counted(
        seed in any::<u64>(),
        demands in prop::collection::vec(demands(), 1..120),
    ) {
        let total = 64 << 10;
        let rig = Rig::of(Sim::builder().seed(seed).device(Bytes(total)).build());
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let mut live: Vec<(u64, u64, RawStream)> = Vec::new();
        for demand in demands {
            match demand {
                Demand::Allocate { bytes, stream } => {
                    let granted = bytes.next_multiple_of(256);
                    // SAFETY: the simulator checks it.
                    match unsafe { rig.sim.allocate_async(rig.device, streams[stream], bytes) } {
                        Ok(DevicePtr(at)) => {
                            let overlap = live.iter().any(|(other, len, _)| at < other + len && *other < at + granted);
                            prop_assert!(!overlap && at.is_multiple_of(256));
                            live.push((at, granted, streams[stream]));
                        }
                        Err(error) => {
                            prop_assert_eq!(error.status, Status::OutOfMemory);
                            let held: u64 = live.iter().map(|(_, len, _)| len).sum();
                            prop_assert!(held + granted > total, "nothing but live memory stays in the way");
                        }
                    }
                }
                Demand::Free { which } if !live.is_empty() => {
                    let (at, _, stream) = live.swap_remove(which % live.len());
                    rig.free_on(stream, DevicePtr(at));
                }
                Demand::Free { .. } => {}
                Demand::Order { from, to } => rig.order(streams[from], streams[to]),
                Demand::Query { stream } => drop(rig.query(streams[stream])),
            }
            let held: u64 = live.iter().map(|(_, len, _)| len).sum();
            prop_assert!(rig.used() >= held && rig.used() <= total);
        }
        streams.into_iter().for_each(|stream| rig.sync(stream));
        prop_assert_eq!(rig.used(), live.iter().map(|(_, len, _)| len).sum::<u64>());
        rig.sim.assert_clean();
    }
}

#[test]
fn an_immediate_simulator_does_not_run_out_of_addresses() {
    let rig = Rig::of(Sim::immediate());
    let kept = rig.alloc(256);
    for number in 1..=200_000 {
        let ptr = rig.alloc(number * 20 * 256);
        rig.free(ptr);
    }
    rig.free(kept);
}

#[test]
fn existing_memory_cannot_become_write_combined() {
    for sim in [Sim::seeded(1), Sim::immediate()] {
        let mut memory = vec![0; 4096];
        let flags = bursar_core::HostFlags { write_combined: true };
        // SAFETY: it is refused.
        let refused = unsafe { sim.host_register(DeviceId(0), memory.as_mut_ptr(), memory.len(), flags) };
        assert_eq!(status(refused), Status::NotSupported);
    }
}

#[test]
fn a_device_that_does_not_exist_holds_nothing() {
    assert_eq!(Sim::seeded(1).resident_bytes(DeviceId(9)), 0);
}
