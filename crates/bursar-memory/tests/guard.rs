//! G3: what is written outside a block or after its end is found and named.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    Action, Actions, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, DevicePtr, Error,
    Generation, Holder, Holding, Observer, Record, Stack, Status, Stream, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, Guard, Statistics};
use bursar_sim::{Call, Faults, Sim};
use common::{context, stall};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One byte written by a copy, in stream order, wherever it is.
fn plant(context: &DeviceContext, ptr: DevicePtr, stream: Stream) {
    static BYTE: u8 = 0x11;
    let raw = context.resolve(stream).expect("a stream of this device");
    // SAFETY: the address lies in the margin of a block or in one in quarantine, which the driver still has given out.
    let copied = unsafe { context.driver().copy_to_device(context.device(), raw, ptr, &raw const BYTE, 1) };
    copied.expect("the device works");
}

fn at(block: &DeviceBlock, offset: i64) -> DevicePtr {
    DevicePtr(block.ptr().0.wrapping_add_signed(offset))
}

fn overrun(block: &DeviceBlock, offset: i64) -> Error {
    let (ptr, generation, tag) = (block.ptr(), block.generation(), block.tag());
    Error::OutOfBounds { ptr, generation, tag, offset }
}

fn late(block: &DeviceBlock) -> Error {
    Error::UseAfterFree { ptr: block.ptr(), generation: block.generation(), tag: block.tag() }
}

struct Desk {
    sim: Arc<Sim>,
    context: Arc<DeviceContext>,
    stream: Stream,
    guard: Guard,
}

impl Desk {
    fn new(seed: u64, guard: Guard) -> Self {
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        let stream = context.create_stream(0).expect("a stream");
        Self { sim, context, stream, guard }
    }

    fn memory(&self) -> impl DeviceMemoryResource + use<> {
        Stack::new().layer(self.guard.clone()).over(leaf::Async).build(&self.context).expect("a stack")
    }
}

#[test]
fn g3_one_byte_either_side_is_found_with_its_tag_and_offset() {
    for seed in 0..16 {
        for (bytes, offset) in [(1000, -1), (1000, 1000), (256, 256), (1, 1), (1, -256), (4096, 4096 + 255)] {
            let desk = Desk::new(seed, Guard::default());
            let memory = desk.memory();
            let innocent = memory.allocate(bytes, 256, desk.stream, tag!("innocent")).expect("room");
            let block = memory.allocate(bytes, 256, desk.stream, tag!("guilty")).expect("room");
            let expected = overrun(&block, offset);
            plant(&desk.context, at(&block, offset), desk.stream);
            assert_eq!(desk.guard.check(), Ok(vec![expected]), "seed {seed}, {bytes} bytes, offset {offset}");
            assert_eq!(desk.guard.check(), Ok(Vec::new()), "reported once");
            for block in [block, innocent] {
                memory.deallocate(block, desk.stream).expect("a free never fails for it");
            }
            assert!(memory.reap_blocking(Duration::MAX).is_ok(), "and not again when it is freed");
        }
    }
}

#[test]
fn g3_the_first_and_last_byte_of_a_block_are_its_own() {
    let desk = Desk::new(1, Guard::default());
    let memory = desk.memory();
    for bytes in [1, 2, 255, 256, 257, 5000] {
        let block = memory.allocate(bytes, 256, desk.stream, tag!("whole")).expect("room");
        plant(&desk.context, block.ptr(), desk.stream);
        plant(&desk.context, block.ptr().offset(bytes - 1), desk.stream);
        memory.deallocate(block, desk.stream).expect("its own");
    }
    assert_eq!(desk.guard.check(), Ok(Vec::new()));
    desk.sim.assert_clean();
}

#[test]
fn g3_an_overrun_is_reported_by_the_next_fallible_call_and_the_free_happens() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Guard::default().quarantine(Bytes::ZERO));
        let memory = desk.memory();
        let block = memory.allocate(1000, 256, desk.stream, tag!("guilty")).expect("room");
        let expected = overrun(&block, 1003);
        plant(&desk.context, at(&block, 1003), desk.stream);
        memory.deallocate(block, desk.stream).expect("a free never fails for it");
        desk.context.synchronize(desk.stream).expect("the device works");
        let refused = memory.allocate(1, 256, desk.stream, tag!("next")).expect_err("told");
        assert_eq!(refused, expected);
        assert!(refused.to_string().contains("guilty") && refused.to_string().contains("1003"), "{refused}");
        memory.reap_blocking(Duration::MAX).expect("reported once");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "nothing leaks");
    }
}

#[test]
fn g3_a_write_after_free_is_found_when_the_block_leaves_quarantine() {
    for seed in 0..16 {
        for offset in [-256, -1, 0, 499, 999, 1000, 1255] {
            let desk = Desk::new(seed, Guard::default().quarantine(Bytes::kib(8)));
            let memory = desk.memory();
            let block = memory.allocate(1000, 256, desk.stream, tag!("gone")).expect("room");
            let (place, expected) = (at(&block, offset), late(&block));
            memory.deallocate(block, desk.stream).expect("its own");
            plant(&desk.context, place, desk.stream);
            for _ in 0..8 {
                let block = memory.allocate(1000, 256, desk.stream, tag!("innocent")).expect("nothing is found yet");
                memory.deallocate(block, desk.stream).expect("its own");
            }
            desk.context.synchronize(desk.stream).expect("the device works");
            assert_eq!(memory.reap(), Err(expected), "seed {seed}, offset {offset}");
            memory.reap_blocking(Duration::MAX).expect("reported once");
            assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
        }
    }
}

#[test]
fn g3_check_finds_what_is_in_quarantine_and_lets_it_stay() {
    let desk = Desk::new(3, Guard::default());
    let memory = desk.memory();
    let block = memory.allocate(700 << 10, 256, desk.stream, tag!("gone")).expect("room");
    let (place, expected, granted) = (at(&block, (700 << 10) - 1), late(&block), block.granted());
    memory.deallocate(block, desk.stream).expect("its own");
    assert_eq!(desk.guard.check(), Ok(Vec::new()));
    plant(&desk.context, place, desk.stream);
    assert_eq!(desk.guard.check(), Ok(vec![expected]));
    assert_eq!(memory.bytes_outstanding(), granted, "still there");
    memory.reap_blocking(Duration::MAX).expect("reported once");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
}

#[test]
fn g3_what_is_found_as_the_memory_goes_away_can_still_be_asked_for() {
    let desk = Desk::new(4, Guard::default());
    let memory = desk.memory();
    let block = memory.allocate(1000, 256, desk.stream, tag!("gone")).expect("room");
    let (place, expected) = (at(&block, 5), late(&block));
    memory.deallocate(block, desk.stream).expect("its own");
    plant(&desk.context, place, desk.stream);
    drop(memory);
    assert_eq!(desk.guard.check(), Ok(vec![expected]));
    assert_eq!(desk.guard.check(), Ok(Vec::new()));
    let Desk { sim, context, .. } = desk;
    drop(context);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn g3_memory_that_goes_away_waits_for_what_is_being_looked_at() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Guard::default().quarantine(Bytes::ZERO));
        let memory = desk.memory();
        for _ in 0..4 {
            let block = memory.allocate(1000, 256, desk.stream, tag!("gone")).expect("room");
            memory.deallocate(block, desk.stream).expect("its own");
        }
        drop(memory);
        desk.sim.settle();
        desk.sim.assert_clean();
        assert_eq!(desk.guard.check(), Ok(Vec::new()));
    }
}

#[test]
fn g3_a_fresh_block_is_not_a_number_and_a_freed_one_is_overwritten() {
    let desk = Desk::new(5, Guard::default());
    let memory = desk.memory();
    let block = memory.allocate(4096, 256, desk.stream, tag!("fresh")).expect("room");
    let mut bytes = [0; 4096];
    desk.context.copy_to_host(&block, 0, &mut bytes, desk.stream).expect("the device works");
    assert!(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan());
    assert_eq!(bytes, [0xff; 4096]);
    let ptr = block.ptr();
    memory.deallocate(block, desk.stream).expect("its own");
    desk.context.synchronize(desk.stream).expect("the device works");
    assert_eq!(desk.sim.peek(ptr, 4096), [0xdb; 4096]);
}

type Damage = (Error, Option<Generation>, &'static str);

#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<Damage>>>);

impl Observer for Told {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Fail])
    }
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    fn record(&self, record: &Record<'_>) {
        let error = record.error.expect("a failure says why").clone();
        self.0.lock().expect("no panic").push((error, record.generation, record.tag.name()));
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[test]
fn g3_what_is_found_reaches_the_sink_and_is_no_failed_request() {
    let desk = Desk::new(6, Guard::default());
    let (told, statistics) = (Told::default(), Statistics::default());
    let stack = Stack::new().observe(told.clone()).observe(statistics.clone());
    let memory = stack.layer(desk.guard.clone()).over(leaf::Async).build(&desk.context).expect("a stack");
    let block = memory.allocate(1000, 256, desk.stream, tag!("guilty")).expect("room");
    let (expected, generation) = (overrun(&block, 1000), block.generation());
    plant(&desk.context, at(&block, 1000), desk.stream);
    assert_eq!(desk.guard.check(), Ok(vec![expected.clone()]));
    assert_eq!(*told.0.lock().expect("no panic"), [(expected, Some(generation), "guilty")]);
    assert_eq!(statistics.failed(), 0);
    memory.deallocate(block, desk.stream).expect("its own");
}

#[test]
fn g3_the_quarantine_is_given_up_before_anything_is_refused() {
    let limit = Bytes::mib(1);
    type Recipe = fn(Guard, GlobalDeviceBudget, &Arc<DeviceContext>) -> Box<dyn DeviceMemoryResource>;
    let over: Recipe = |guard, budget, context| {
        let stack = Stack::new().layer(guard).layer(budget).over(leaf::Async);
        Box::new(stack.build(context).expect("a stack"))
    };
    let under: Recipe = |guard, budget, context| {
        let stack = Stack::new().layer(budget).layer(guard).over(leaf::Async);
        Box::new(stack.build(context).expect("a stack"))
    };
    for build in [over, under] {
        let context = context(Sim::immediate());
        let stream = context.create_stream(0).expect("a stream");
        let memory = build(Guard::default(), GlobalDeviceBudget::of(limit), &context);
        let most = limit.get() - 512;
        for _ in 0..4 {
            let block = memory.allocate(most, 256, stream, tag!("most")).expect("what is in quarantine makes room");
            assert_eq!(memory.bytes_outstanding(), limit, "the margins are counted");
            memory.deallocate(block, stream).expect("its own");
            assert_eq!(memory.bytes_outstanding(), limit, "so is the quarantine");
        }
        let half = memory.allocate(most / 2, 256, stream, tag!("half")).expect("it fits");
        let remaining = limit.saturating_sub(half.granted());
        let refused = memory.allocate(most, 256, stream, tag!("too much")).expect_err("over the limit");
        assert_eq!(refused.plain(), Error::out_of_budget(limit, remaining, limit));
        memory.deallocate(half, stream).expect("its own");
        context.trim();
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "nothing is left in quarantine");
    }
}

#[test]
fn g3_a_trim_empties_the_quarantine() {
    let context = context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    let memory = Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack");
    let block = memory.allocate(5000, 256, stream, tag!("kept")).expect("room");
    let granted = block.granted();
    memory.deallocate(block, stream).expect("its own");
    assert_eq!(memory.inner().quarantined(), granted);
    assert_eq!(context.trim(), granted);
    assert_eq!(memory.inner().quarantined(), Bytes::ZERO);
}

#[test]
fn g3_what_is_larger_than_the_quarantine_does_not_empty_it() {
    let desk = Desk::new(7, Guard::default().quarantine(Bytes::kib(4)));
    let stack = Stack::new().layer(desk.guard.clone()).over(leaf::Async);
    let memory = stack.build(&desk.context).expect("a stack");
    let [small, large] =
        [1000, 10_000].map(|bytes| memory.allocate(bytes, 256, desk.stream, tag!("kept")).expect("room"));
    let granted = small.granted();
    memory.deallocate(small, desk.stream).expect("its own");
    memory.deallocate(large, desk.stream).expect("its own");
    assert_eq!(memory.inner().quarantined(), granted);
}

#[test]
fn g3_a_stalled_stream_keeps_nobody_waiting() {
    let faults = Faults::new(Sim::seeded(8));
    let context = context(faults.clone());
    let stream = context.create_stream(0).expect("a stream");
    let memory = Stack::new()
        .layer(Guard::default().quarantine(Bytes::kib(256)))
        .over(leaf::Async)
        .build(&context)
        .expect("a stack");
    let block = memory.allocate(64 << 10, 256, stream, tag!("stalled")).expect("room");
    let stalled = stall(&faults, &context, stream);
    let pinned = faults.calls(Call::HostAllocate);
    memory.deallocate(block, stream).expect("its own");
    for _ in 0..24 {
        let block = memory.allocate(64 << 10, 256, stream, tag!("stalled")).expect("room");
        memory.deallocate(block, stream).expect("its own");
    }
    assert!(faults.calls(Call::HostAllocate) - pinned <= 1, "host memory does not grow with what is in flight");
    drop(stalled);
    memory.reap_blocking(Duration::MAX).expect("nothing is wrong");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
}

#[test]
fn g3_a_look_that_fails_is_reported_and_the_memory_still_comes_back() {
    for call in [Call::CopyToHost, Call::HostFunction, Call::Fill, Call::HostAllocate] {
        let faults = Faults::new(Sim::seeded(9));
        let context = context(faults.clone());
        let stream = context.create_stream(0).expect("a stream");
        let memory = Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack");
        let block = memory.allocate(1000, 256, stream, tag!("unseen")).expect("room");
        faults.fail_next(call, Status::InvalidValue);
        memory.deallocate(block, stream).expect("a free never fails for it");
        match memory.reap_blocking(Duration::MAX) {
            Err(Error::Driver(error)) => assert_eq!(error.status, Status::InvalidValue),
            other => panic!("{call:?}: {other:?}"),
        }
        memory.reap_blocking(Duration::MAX).expect("reported once");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    }
}

#[test]
fn g3_an_allocation_that_cannot_be_filled_fails_and_leaves_nothing_behind() {
    for nth in 1..=2 {
        let faults = Faults::new(Sim::seeded(10));
        let context = context(faults.clone());
        let stream = context.create_stream(0).expect("a stream");
        let memory = Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack");
        faults.fail_nth(Call::Fill, nth, Status::InvalidValue);
        let failed = memory.allocate(1000, 256, stream, tag!("failing")).expect_err("a fill failed");
        assert!(matches!(failed, Error::Driver(error) if error.status == Status::InvalidValue), "{failed:?}");
        memory.reap_blocking(Duration::MAX).expect("the device works");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    }
}
