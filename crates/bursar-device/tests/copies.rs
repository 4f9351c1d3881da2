//! The copies of a context: they have run when they return, whatever happens on the way.
#![allow(unsafe_code)]

use bursar_core::{
    Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, DriverError, Error, Gate,
    HostFunction, Pattern, Progress, Stack, Status, Stream, StreamMisuse, leaf, tag,
};
use bursar_device::Gpu;
use bursar_sim::{Call, Faults, Sim};
use std::sync::Arc;
use std::time::Duration;

const GPU0: DeviceId = DeviceId(0);
const LEN: usize = 64;

/// Work on a block, on a stream.
type Work<'a> = Box<dyn Fn(&mut DeviceBlock, Stream) -> Result<(), Error> + 'a>;

struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    context: Arc<DeviceContext>,
    memory: Box<dyn DeviceMemoryResource>,
    home: Stream,
    other: Stream,
}

impl Rig {
    fn new(sim: Arc<Sim>) -> Self {
        let faults = Faults::new(sim.clone());
        let context = DeviceContext::open(faults.clone(), GPU0).expect("a simulated device opens");
        let memory = Box::new(Stack::new().over(leaf::Async).build(&context).expect("builds"));
        let [home, other] = [(); 2].map(|()| context.create_stream(0).expect("room"));
        Self { sim, faults, context, memory, home, other }
    }

    fn block(&self) -> DeviceBlock {
        let mut block = self.memory.allocate(LEN as u64, 256, self.home, tag!("test")).expect("room");
        self.context.copy_from_host(&mut block, 0, &[0; LEN], self.home).expect("written");
        block
    }

    fn read(&self, block: &DeviceBlock) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.context.copy_to_host(block, 0, &mut bytes, self.home).expect("read");
        bytes
    }

    fn is_quiet(&self, stream: Stream) -> bool {
        let raw = self.context.resolve(stream).expect("its own");
        // SAFETY: the table resolves live streams only.
        let progress = unsafe { self.faults.stream_query(GPU0, raw) };
        progress == Ok(Progress::Complete)
    }

    /// Each kind of work.
    fn works<'a>(&'a self, source: &'a DeviceBlock) -> [(Call, Work<'a>); 5] {
        let context = &self.context;
        [
            (Call::CopyToDevice, Box::new(|block, stream| context.copy_from_host(block, 1, &[5; 9], stream))),
            (Call::CopyToHost, Box::new(|block, stream| context.copy_to_host(block, 1, &mut [0; 9], stream))),
            (Call::CopyOnDevice, Box::new(|block, stream| context.copy_blocks(block, 1, source, 2, 9, stream))),
            (Call::Fill, Box::new(|block, stream| context.fill(block, 4, Pattern::U32(7), 3, stream))),
            (Call::CopyOnDevice, Box::new(|block, stream| context.fill_with(block, 1, b"abc", 20, stream))),
        ]
    }
}

fn invalid(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::InvalidValue { .. }))
}

#[test]
fn copies_land_where_they_are_told() {
    let rig = Rig::new(Sim::seeded(1));
    let (context, home) = (&rig.context, rig.home);
    let (mut block, mut other) = (rig.block(), rig.block());
    context.copy_from_host(&mut block, 60, b"last", home).expect("inside");
    context.fill(&mut block, 2, Pattern::U16(u16::from_ne_bytes(*b"xy")), 2, home).expect("inside");
    context.fill_with(&mut block, 7, b"abc", 4, home).expect("inside");
    let mut expected = [0; LEN];
    expected[60..].copy_from_slice(b"last");
    expected[2..6].copy_from_slice(b"xyxy");
    expected[7..19].copy_from_slice(b"abcabcabcabc");
    assert_eq!(rig.read(&block), expected);
    context.copy_blocks(&mut other, 0, &block, 58, 6, home).expect("inside");
    assert_eq!(rig.read(&other)[..7], *b"\0\0last\0");
}

#[test]
fn nothing_outside_the_block_is_touched() {
    let rig = Rig::new(Sim::immediate());
    let (context, home) = (&rig.context, rig.home);
    let (mut block, source) = (rig.block(), rig.block());
    rig.faults.reset_counts();
    let mut one_too_many = [1; LEN + 1];
    assert!(invalid(context.copy_from_host(&mut block, 0, &one_too_many, home)));
    assert!(invalid(context.copy_from_host(&mut block, LEN as u64, &[1], home)));
    assert!(invalid(context.copy_from_host(&mut block, u64::MAX, &[1], home)));
    assert!(invalid(context.copy_to_host(&block, 0, &mut one_too_many, home)));
    assert!(invalid(context.copy_blocks(&mut block, 1, &source, 0, LEN as u64, home)));
    assert!(invalid(context.copy_blocks(&mut block, 0, &source, 1, LEN as u64, home)));
    assert!(invalid(context.fill(&mut block, 0, Pattern::U16(1), LEN as u64 / 2 + 1, home)));
    assert!(invalid(context.fill(&mut block, 0, Pattern::U32(1), u64::MAX / 2, home)));
    assert!(invalid(context.fill(&mut block, 2, Pattern::U32(1), 1, home)), "not aligned");
    assert!(invalid(context.fill_with(&mut block, 0, b"abc", 22, home)));
    assert!(invalid(context.fill_with(&mut block, 0, b"abc", u64::MAX, home)));
    assert_eq!(rig.faults.total_calls(), 0);
    context.copy_from_host(&mut block, LEN as u64, &[], home).expect("nothing at the very end");
    assert_eq!(rig.read(&block), [0; LEN]);
}

#[test]
fn r5_blocks_and_streams_of_others_are_refused() {
    let sim = Sim::immediate();
    let (rig, stranger) = (Rig::new(sim.clone()), Rig::new(sim));
    let (mut block, source) = (rig.block(), rig.block());
    let foreign = stranger.block();
    let misuse = |result| matches!(result, Err(Error::StreamMisuse { why: StreamMisuse::OtherContext, .. }));
    for (_, work) in rig.works(&source) {
        assert!(misuse(work(&mut block, stranger.home)));
    }
    let copied = rig.context.copy_blocks(&mut block, 0, &foreign, 0, 1, rig.home);
    assert!(misuse(copied));
    assert!(misuse(rig.context.copy_to_host(&foreign, 0, &mut [0], rig.home)));
    assert!(misuse(rig.context.order(rig.home, stranger.home)));
}

#[test]
fn r5_a_stream_that_is_being_captured_is_refused() {
    let rig = Rig::new(Sim::seeded(1));
    let (mut block, source) = (rig.block(), rig.block());
    let raw = rig.context.resolve(rig.other).expect("its own");
    rig.sim.begin_capture(GPU0, raw).expect("its own stream");
    let captured = |result| matches!(result, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }));
    for (call, work) in rig.works(&source) {
        assert!(captured(work(&mut block, rig.other)), "{call}");
    }
    assert!(captured(rig.context.order(rig.home, rig.other)) && captured(rig.context.order(rig.other, rig.home)));
    rig.sim.assert_clean();
}

#[test]
fn work_on_another_stream_follows_the_blocks_own() {
    for seed in 0..16 {
        let rig = Rig::new(Sim::seeded(seed));
        let mut block = rig.block();
        let gate = Gate::default();
        let raw = rig.context.resolve(rig.home).expect("its own");
        // SAFETY: the table resolves live streams only.
        unsafe { rig.faults.host_function(GPU0, raw, HostFunction::behind(gate.clone(), || ())) }.expect("submitted");
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| rig.context.copy_from_host(&mut block, 0, &[seed as u8; LEN], rig.other));
            std::thread::sleep(Duration::from_millis(2));
            assert!(!copy.is_finished(), "seed {seed}: the block's own stream has not got there");
            gate.open();
            copy.join().expect("no panic").expect("copied");
        });
        assert!(rig.is_quiet(rig.home));
        assert_eq!(rig.read(&block), [seed as u8; LEN]);
        rig.memory.deallocate(block, rig.other).expect("its own memory");
        rig.sim.assert_clean();
    }
}

#[test]
fn t3_nothing_is_in_flight_even_where_the_answer_to_a_submission_is_lost() {
    for seed in 0..16 {
        let rig = Rig::new(Sim::seeded(seed));
        let (mut block, source) = (rig.block(), rig.block());
        for (call, work) in rig.works(&source) {
            for stream in [rig.home, rig.other] {
                rig.faults.lose_nth_result(call, 1, Status::InvalidValue);
                let error = DriverError::new(call.name(), GPU0, Status::InvalidValue);
                assert_eq!(work(&mut block, stream), Err(error.into()));
                assert!(rig.is_quiet(stream), "{call}, seed {seed}");
            }
        }
        rig.memory.deallocate(block, rig.home).expect("its own memory");
        rig.sim.assert_clean();
    }
}

#[test]
fn t3_a_wait_that_fails_is_tried_again_before_anybody_is_told() {
    for seed in 0..16 {
        let rig = Rig::new(Sim::seeded(seed));
        let mut block = rig.block();
        for nth in 1..=3 {
            rig.faults.fail_nth(Call::StreamSynchronize, nth, Status::InvalidValue);
        }
        let error = DriverError::new("stream_synchronize", GPU0, Status::InvalidValue);
        let written = rig.context.copy_from_host(&mut block, 0, &[1; LEN], rig.other);
        assert_eq!(written, Err(error.into()));
        assert!(rig.is_quiet(rig.other), "seed {seed}");
        assert_eq!(rig.read(&block), [1; LEN]);
        rig.sim.assert_clean();
    }
}

#[test]
fn t7_elements_that_are_read_from_a_stream_which_cannot_be_waited_for_are_an_error() {
    let sim = Sim::seeded(1);
    let faults = Faults::new(sim.clone());
    let gpu = Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("a simulated device opens");
    let stream = gpu.streams().lease().expect("a stream");
    let buffer = gpu.buffer_from(&[7u32; LEN], &stream, tag!("read")).expect("room");
    faults.fail_always(Call::StreamSynchronize, Status::NotSupported);
    let error = DriverError::new("stream_synchronize", GPU0, Status::NotSupported);
    assert_eq!(buffer.to_vec(), Err(error.into()));
    faults.heal();
    assert_eq!(buffer.to_vec(), Ok(vec![7; LEN]));
    drop((buffer, stream));
    gpu.close().expect("nothing is held");
    sim.assert_clean();
}

#[test]
fn r6_a_lost_device_is_reported_by_every_copy() {
    let rig = Rig::new(Sim::immediate());
    let mut block = rig.block();
    rig.faults.lose(GPU0);
    for _ in 0..3 {
        let written = rig.context.copy_from_host(&mut block, 0, &[1], rig.home);
        assert!(matches!(written, Err(Error::Driver(error)) if error.is_sticky()), "{written:?}");
    }
}

#[test]
fn r6_a_remembered_fault_is_reported_by_the_next_copy() {
    let rig = Rig::new(Sim::immediate());
    let (mut block, freed) = (rig.block(), rig.block());
    rig.faults.fail_next(Call::FreeAsync, Status::InvalidValue);
    rig.memory.deallocate(freed, rig.home).expect("its own memory");
    assert!(rig.context.copy_from_host(&mut block, 0, &[1], rig.home).is_err());
    assert_eq!(rig.context.copy_from_host(&mut block, 0, &[1], rig.home), Ok(()));
    rig.memory.reap().expect("tried again");
    assert_eq!(rig.memory.bytes_outstanding(), Bytes(256));
}

#[test]
fn order_takes_events_and_gives_them_back() {
    let rig = Rig::new(Sim::immediate());
    for _ in 0..100 {
        rig.context.order(rig.home, rig.other).expect("ordered");
        rig.context.order(rig.home, rig.home).expect("nothing to do");
    }
    assert!(rig.faults.calls(Call::EventCreate) <= 1);
    assert_eq!(rig.faults.calls(Call::StreamWait), 100);
    for call in [Call::EventRecord, Call::StreamWait] {
        rig.faults.fail_next(call, Status::InvalidValue);
        let error = DriverError::new(call.name(), GPU0, Status::InvalidValue);
        assert_eq!(rig.context.order(rig.home, rig.other), Err(error.into()));
    }
    assert!(rig.faults.calls(Call::EventCreate) <= 1);
}
