//! Fills and copies stay inside memory: an access beyond it is refused as CUDA refuses it, in every kind of simulator.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{Bytes, DevicePtr, Driver, DriverResult, Pattern, Status};
use bursar_sim::{HazardKind, Sim};
use proptest::prelude::*;
use rig::{PAGE, Rig};

/// A range of addresses that is passed to a call.
#[derive(Clone, Copy, Debug)]
struct Span {
    at: u64,
    bytes: u64,
}

/// The calls.
#[derive(Clone, Copy, Debug)]
enum Call {
    Fill(Pattern, Span),
    ToDevice(Span),
    ToHost(Span),
    OnDevice { dst: Span, src: u64 },
}

/// Places in the address space at which ranges begin and end: the ends of memory, a little on either side of them, and the
/// ends of the whole space.
fn spans(edges: Vec<u64>) -> BoxedStrategy<Span> {
    let edge = prop::sample::select(edges).prop_flat_map(|edge| {
        prop_oneof![Just(edge), Just(edge.wrapping_sub(1)), Just(edge.wrapping_add(1)), Just(edge.wrapping_sub(4))]
    });
    let length = prop_oneof![4 => 0u64..600, 1 => Just(u64::MAX), 1 => Just(1 << 63), 1 => Just(1 << 46)];
    prop_oneof![
        2 => (edge.clone(), edge.clone()).prop_map(|(from, to)| Span { at: from, bytes: to.wrapping_sub(from) }),
        2 => (edge.clone(), length.clone()).prop_map(|(at, bytes)| Span { at, bytes }),
        1 => (edge, length).prop_map(|(end, bytes)| Span { at: end.wrapping_sub(bytes), bytes }),
    ]
    .boxed()
}

fn calls(edges: Vec<u64>) -> impl Strategy<Value = Call> {
    let spans = spans(edges);
    let pattern = prop_oneof![Just(Pattern::U8(7)), Just(Pattern::U16(7)), Just(Pattern::U32(7))];
    prop_oneof![
        (pattern, spans.clone()).prop_map(|(pattern, span)| Call::Fill(pattern, span)),
        spans.clone().prop_map(Call::ToDevice),
        spans.clone().prop_map(Call::ToHost),
        (spans.clone(), spans).prop_map(|(dst, src)| Call::OnDevice { dst, src: src.at }),
    ]
}

/// The longest piece of memory. A call with a longer range must be refused.
const HOST: u64 = 2 * PAGE;

/// Memory of several kinds, and its addresses.
struct World {
    rig: Rig,
    /// The pieces of memory, which an access may not leave.
    memory: Vec<Span>,
}

impl World {
    /// Allocates the same memory in every simulator: two adjacent allocations of odd sizes, one of a stream, pages with a
    /// gap.
    fn new(sim: std::sync::Arc<Sim>) -> Self {
        let rig = Rig::of(sim);
        let stream = rig.stream();
        let (first, second, ordered) = (rig.alloc(1000), rig.alloc(1), rig.alloc_on(stream, 300));
        let base = rig.reserve(4 * PAGE);
        rig.mapped(base);
        rig.mapped(base.offset(PAGE));
        rig.mapped(base.offset(3 * PAGE));
        rig.sync(stream);
        let span = |ptr: DevicePtr, bytes| Span { at: ptr.0, bytes };
        let memory = vec![
            span(first, 1024),
            span(second, 256),
            span(ordered, 512),
            span(base, 2 * PAGE),
            span(base.offset(3 * PAGE), PAGE),
        ];
        Self { rig, memory }
    }

    fn edges(&self) -> Vec<u64> {
        let edges = self.memory.iter().flat_map(|span| [span.at, span.at + span.bytes / 2, span.at + span.bytes]);
        edges.chain([0, 1 << 46, 1 << 63, u64::MAX]).collect()
    }

    /// Returns whether a range lies in one piece of memory. An empty range lies everywhere.
    fn holds(&self, span: Span) -> bool {
        let end = u128::from(span.at) + u128::from(span.bytes);
        let is_inside = |piece: &Span| piece.at <= span.at && end <= u128::from(piece.at) + u128::from(piece.bytes);
        span.bytes == 0 || self.memory.iter().any(is_inside)
    }

    /// Returns the result of a driver that checks every range.
    fn expected(&self, call: Call) -> Result<(), Status> {
        let is_good = match call {
            Call::Fill(pattern, span) => {
                let span = Span { bytes: span.bytes - span.bytes % pattern.width(), ..span };
                self.holds(span) && span.at.is_multiple_of(pattern.width())
            }
            Call::ToDevice(span) | Call::ToHost(span) => self.holds(span),
            Call::OnDevice { dst, src } => self.holds(dst) && self.holds(Span { at: src, ..dst }),
        };
        if is_good { Ok(()) } else { Err(Status::InvalidValue) }
    }

    fn make(&self, call: Call) -> DriverResult<()> {
        let (sim, device, stream) = (&self.rig.sim, self.rig.device, bursar_core::RawStream(0));
        let mut host = vec![0u8; HOST as usize];
        let (into, from) = (host.as_mut_ptr(), host.as_ptr());
        match call {
            Call::Fill(pattern, span) => {
                let (at, count) = (DevicePtr(span.at), span.bytes / pattern.width());
                // SAFETY: the simulator checks it.
                unsafe { sim.fill(device, stream, at, pattern, count) }
            }
            Call::ToDevice(Span { at, bytes }) => {
                // SAFETY: the simulator checks it, and host memory is as long as any range that it could accept.
                unsafe { sim.copy_to_device(device, stream, DevicePtr(at), from, bytes) }
            }
            Call::ToHost(Span { at, bytes }) => {
                // SAFETY: as above.
                unsafe { sim.copy_to_host(device, stream, into, DevicePtr(at), bytes) }
            }
            Call::OnDevice { dst, src } => {
                // SAFETY: the simulator checks it.
                unsafe { sim.copy_on_device(device, stream, DevicePtr(dst.at), DevicePtr(src), dst.bytes) }
            }
        }
    }
}

/// Returns simulators of all kinds.
fn sims() -> [std::sync::Arc<Sim>; 2] {
    let sim = || Sim::builder().device(Bytes::gib(1)).page_granularity(Bytes(PAGE));
    [sim().immediate().build(), sim().seed(3).build()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn what_reaches_beyond_memory_is_refused_and_the_rest_is_not(
        calls in {
            let edges: Vec<u64> = sims().into_iter().flat_map(|sim| World::new(sim).edges()).collect();
            prop::collection::vec(calls(edges), 1..12)
        }
    ) {
        for sim in sims() {
            let world = World::new(sim);
            for call in &calls {
                let answer = world.make(*call).map_err(|error| error.status);
                prop_assert_eq!(answer, world.expected(*call), "{:?} of {:?}", call, world.rig.sim);
            }
            world.rig.sim.settle();
            // Nothing outside was written: the bytes after each piece that belong to nobody are unchanged.
            for end in world.memory.iter().map(|piece| piece.at + piece.bytes) {
                let is_free = world.memory.iter().all(|other| other.at != end);
                prop_assert!(!is_free || !world.rig.peek(DevicePtr(end), 64).contains(&7));
            }
        }
    }
}

#[test]
fn freed_memory_is_refused_or_told() {
    let rig = Rig::of(Sim::immediate());
    let (stream, ptr) = (rig.stream(), rig.alloc(4096));
    rig.free(ptr);
    let filled = rig.try_fill(stream, ptr, 1, 1);
    assert_eq!(filled.unwrap_err().status, Status::InvalidValue);

    let rig = Rig::seeded(1);
    let (stream, ptr) = (rig.stream(), rig.alloc(4096));
    rig.free(ptr);
    rig.fill(stream, ptr, 1, 1);
    assert_eq!(rig.only_hazard().kind, HazardKind::UseAfterFree, "with both sides, which a status has not");
}

/// A seeded simulator also reports what it refused, because no program intends it.
#[test]
fn a_refusal_is_told_with_its_operation() {
    let rig = Rig::seeded(1);
    let (stream, ptr) = (rig.stream(), rig.alloc(4096));
    let filled = rig.try_fill(stream, ptr, 1, 4097);
    assert_eq!(filled.unwrap_err().status, Status::InvalidValue);
    let hazard = rig.only_hazard();
    assert_eq!((hazard.kind, hazard.second.what), (HazardKind::NotMapped, "fill"));
    assert_eq!((hazard.range.start, hazard.range.end), (ptr.0 + 4096, ptr.0 + 4097));
    rig.fill(stream, ptr, 2, 4096);
    rig.sync(stream);
    assert_eq!(rig.peek(ptr, 4096), [2; 4096], "and the stream goes on");
    rig.sim.assert_clean();
}

/// Memory is found by addresses inside it while it is allocated, whatever was queried first.
#[test]
fn a_range_inside_an_allocation_is_found_whenever_it_was_made() {
    for sim in sims() {
        let rig = Rig::of(sim);
        let stream = rig.stream();
        let mut live: Vec<DevicePtr> = (0..40).map(|_| rig.alloc(1024)).collect();
        for round in 0..40u64 {
            let ptr = live[(round * 7 % 40) as usize];
            rig.fill(stream, ptr.offset(512), 1, 512);
            rig.sync(stream);
            rig.free(ptr);
            let freed = rig.try_fill(stream, ptr.offset(512), 1, 1);
            assert_eq!(freed.is_err(), rig.sim.seed().is_none());
            live[(round * 7 % 40) as usize] = rig.alloc(1024);
        }
    }
}
