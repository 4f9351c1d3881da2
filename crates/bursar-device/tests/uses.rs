//! Use tracking: what one stream does with a buffer waits for what others do with it, and for nothing else.
#![allow(unsafe_code)]

#[path = "uses/raw.rs"]
mod raw;
#[path = "uses/untracked.rs"]
mod untracked;

use bursar_core::{
    Action, Actions, Bytes, DeviceId, Driver, DriverError, Error, Gate, Holding, HostFunction, Observer, Record,
    Result, Stack, Status, Stream, StreamMisuse, leaf, tag,
};
use bursar_device::{DeviceBuffer, Gpu, StreamLease, Work};
use bursar_sim::{Call, Faults, Launch, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const GPU0: DeviceId = DeviceId(0);
const LEN: usize = 64;
const SEEDS: u64 = 32;

struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    gpu: Gpu,
}

impl Rig {
    fn new(sim: Arc<Sim>) -> Self {
        let faults = Faults::new(sim.clone());
        let gpu = Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("a simulated device opens");
        Self { sim, faults, gpu }
    }

    fn leases<const N: usize>(&self) -> [StreamLease; N] {
        [(); N].map(|()| self.gpu.streams().lease().expect("room"))
    }

    fn buffer(&self, stream: impl Into<Stream>) -> DeviceBuffer<u8> {
        self.gpu.buffer(LEN, stream, tag!("test")).expect("room")
    }

    /// Holds a stream until the gate is opened.
    fn hold(&self, stream: Stream) -> Gate {
        let (gate, raw) = (Gate::default(), self.gpu.context().resolve(stream).expect("its own"));
        let function = HostFunction::behind(gate.clone(), || ());
        // SAFETY: the table resolves live streams only.
        unsafe { self.faults.host_function(GPU0, raw, function) }.expect("submitted");
        gate
    }

    /// A kernel that adds one to every byte.
    fn add_one(&self, work: &mut Work<'_>, buffer: &mut DeviceBuffer<u8>) -> Result<()> {
        let ptr = work.update(buffer)?;
        let kernel = Launch::new("add one").writes(ptr, LEN as u64).body(move |memory| {
            let sum: Vec<u8> = memory.read(ptr, LEN).iter().map(|byte| byte + 1).collect();
            memory.write(ptr, &sum);
        });
        Ok(self.sim.launch(GPU0, work.raw_stream()?, kernel)?)
    }

    /// A kernel that only reads.
    fn look(&self, work: &mut Work<'_>, buffer: &DeviceBuffer<u8>) -> Result<()> {
        let ptr = work.read(buffer)?;
        Ok(self.sim.launch(GPU0, work.raw_stream()?, Launch::new("look").reads(ptr, LEN as u64))?)
    }

    fn waits(&self) -> u64 {
        self.faults.calls(Call::StreamWait)
    }

    fn events(&self) -> u64 {
        [Call::EventCreate, Call::EventRecord, Call::StreamWait].map(|call| self.faults.calls(call)).iter().sum()
    }

    /// Everything runs, and nothing was wrong or is left.
    fn end(self, seed: u64) {
        let Self { sim, faults, gpu } = self;
        drop(gpu);
        sim.settle();
        sim.assert_clean();
        assert_eq!(faults.held(GPU0), Bytes::ZERO, "seed {seed}");
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

#[test]
fn t1_work_on_another_stream_sees_the_last_write_and_a_write_spares_the_readers() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let gate = rig.hold(*a);
        a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        a.submit(|work| rig.look(work, &buffer)).expect("submitted");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        gate.open();
        let seen = c.submit(|work| work.read_back(&buffer)).expect("submitted");
        assert_eq!(seen.wait().expect("it runs"), [3; LEN], "seed {seed}");
        drop((buffer, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_a_stream_that_waited_once_waits_again_for_what_came_later() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let [mut buffer, other] = [(); 2].map(|()| rig.buffer(&a));
        b.submit(|work| rig.look(work, &other)).expect("submitted");
        a.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        assert_eq!(rig.waits(), 2);
        drop((buffer, other, a, b));
        rig.end(seed);
    }
}

#[test]
fn t1_the_wait_is_submitted_when_the_address_is_asked_for() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    b.submit(|work| {
        assert_eq!(rig.waits(), 0);
        work.read(&buffer).expect("its own");
        assert_eq!(rig.waits(), 1);
    });
    drop((buffer, a, b));
    rig.end(1);
}

#[test]
fn t1_every_kind_of_submitted_work_is_ordered_and_keeps_its_values() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let [mut from, mut to] = [&a, &b].map(|home| rig.gpu.buffer::<[u8; 3]>(21, home, tag!("test")).expect("room"));
        let values: Vec<_> = (0..21).map(|nth| [nth, seed as u8, 255 - nth]).collect();
        let upload = a.submit(|work| work.copy_from_host(&mut from, values.clone())).expect("submitted");
        b.submit(|work| work.copy(&from, &mut to)).expect("submitted");
        let part = to.slice_mut(3..9).expect("inside");
        c.submit(|work| work.fill(part, [1, 2, 3])).expect("submitted");
        let part = from.slice(..7).expect("inside");
        a.submit(|work| work.copy(part, to.slice_mut(9..16)?)).expect("submitted");
        let seen = b.submit(|work| work.read_back(to.slice(2..)?)).expect("submitted");
        let mut expected = values.clone();
        expected[3..9].fill([1, 2, 3]);
        expected[9..16].copy_from_slice(&values[..7]);
        assert_eq!(seen.wait().expect("it runs"), expected[2..], "seed {seed}");
        assert_eq!(upload.wait().expect("it runs"), values);
        drop((from, to, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_a_synchronous_copy_waits_for_what_was_submitted_elsewhere() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let (mut buffer, mut other) = (rig.buffer(&a), rig.buffer(&c));
        b.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
        assert_eq!(buffer.to_vec(), Ok(vec![1; LEN]), "seed {seed}");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        other.copy_from(&buffer).expect("it runs");
        assert_eq!(other.to_vec(), Ok(vec![2; LEN]), "seed {seed}");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        buffer.fill(3).expect("it runs");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        buffer.write_from_host(&[4; LEN]).expect("it runs");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        buffer.slice_mut(..3).expect("inside").fill(9).expect("it runs");
        assert_eq!(buffer.slice(2..4).expect("inside").to_vec(), Ok(vec![9, 5]), "seed {seed}");
        drop((buffer, other, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_what_the_host_knows_to_have_run_is_not_waited_for() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    rig.gpu.context().synchronize(*a).expect("it runs");
    b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    assert_eq!(rig.events(), 0);
    buffer.fill(7).expect("it runs");
    let waits = rig.waits();
    b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    assert_eq!(rig.waits(), waits, "the fill has run");
    drop((buffer, a, b));
    rig.end(1);
}

#[test]
fn t2_a_buffer_that_another_stream_uses_is_freed_after_that() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let mut buffer = rig.buffer(&a);
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        let gate = rig.hold(*b);
        b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        let ptr = buffer.ptr();
        drop(buffer);
        let next = rig.buffer(&c);
        assert_ne!(next.ptr(), ptr, "seed {seed}: it is in use");
        rig.sim.settle();
        assert_eq!(rig.gpu.memory().reap(), Ok(Bytes::ZERO), "seed {seed}");
        gate.open();
        rig.gpu.context().synchronize(*a).expect("it runs");
        assert_eq!(rig.gpu.memory().reap(), Ok(Bytes(256)), "seed {seed}");
        drop((next, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t2_a_free_waits_for_exactly_the_streams_that_still_matter() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b, c, d] = rig.leases();
    let mut buffer = rig.buffer(&a);
    b.submit(|work| rig.look(work, &buffer)).expect("submitted");
    c.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    d.submit(|work| rig.look(work, &buffer)).expect("submitted");
    let waits = rig.waits();
    assert_eq!(waits, 3, "b for the allocation, c for b, which came after it, d for c");
    drop(buffer);
    assert_eq!(rig.waits(), waits + 1, "d came after c, which came after b");
    drop((a, b, c, d));
    rig.end(1);
}

#[test]
fn t2_a_free_that_cannot_be_ordered_is_kept_with_its_uses() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        let raw = rig.gpu.context().resolve(*b).expect("its own");
        rig.sim.begin_capture(GPU0, raw).expect("its own");
        drop(buffer);
        assert_eq!((rig.gpu.stranded(), rig.faults.calls(Call::FreeAsync)), (1, 0));
        rig.sim.end_capture(GPU0, raw).expect("its own");
        rig.faults.fail_next(Call::EventRecord, Status::InvalidValue);
        drop(rig.buffer(&a));
        assert_eq!(rig.gpu.stranded(), 1, "it was tried and failed");
        drop(rig.buffer(&a));
        assert_eq!(rig.gpu.stranded(), 0);
        drop((a, b));
        rig.end(seed);
    }
}

#[test]
fn t2_a_block_that_is_taken_out_comes_after_its_uses() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffers = [(); 2].map(|()| rig.buffer(&a));
        for buffer in &mut buffers {
            b.submit(|work| rig.add_one(work, buffer)).expect("submitted");
        }
        for (nth, buffer) in buffers.into_iter().enumerate() {
            if nth == 1 {
                rig.faults.fail_next(Call::EventRecord, Status::InvalidValue);
                b.submit(|work| rig.look(work, &buffer)).expect("submitted");
            }
            let block = buffer.into_block().expect("it holds memory");
            rig.gpu.memory().deallocate(block, *a).expect("its own memory");
        }
        drop((a, b));
        rig.end(seed);
    }
}

#[test]
fn t3_a_use_counts_though_the_submission_ends_with_an_error_or_a_panic() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let failed: Result<()> = b.submit(|work| {
            rig.add_one(work, &mut buffer)?;
            Err(Error::InvalidValue { what: "after the launch" })
        });
        assert!(failed.is_err());
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            a.submit(|work| {
                rig.add_one(work, &mut buffer).expect("submitted");
                panic!("after the launch");
            })
        }));
        assert!(panicked.is_err());
        b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        drop((buffer, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t3_a_use_counts_though_the_answer_to_the_submission_is_lost() {
    for seed in 0..SEEDS {
        for call in [Call::Fill, Call::CopyToDevice, Call::CopyToHost, Call::CopyOnDevice] {
            let rig = Rig::new(Sim::seeded(seed));
            let [a, b, c] = rig.leases();
            let [mut buffer, mut other] = [(); 2].map(|()| rig.buffer(&a));
            rig.faults.lose_nth_answer(call, 1, Status::InvalidValue);
            let lost = b.submit(|work| match call {
                Call::Fill => work.fill(&mut buffer, 1),
                Call::CopyToDevice => work.copy_from_host(&mut buffer, vec![1; LEN]).map(drop),
                Call::CopyToHost => work.read_back(&buffer).map(drop),
                _ => work.copy(&buffer, &mut other),
            });
            assert_eq!(lost, Err(DriverError::new(call.name(), GPU0, Status::InvalidValue).into()));
            c.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
            c.submit(|work| rig.add_one(work, &mut other)).expect("submitted");
            drop((buffer, other, a, b, c));
            rig.end(seed);
        }
    }
}

#[test]
fn t3_what_could_not_be_ordered_is_not_declared_and_nothing_is_submitted() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    for call in [Call::EventRecord, Call::StreamWait] {
        rig.faults.fail_next(call, Status::InvalidValue);
        let error = DriverError::new(call.name(), GPU0, Status::InvalidValue);
        assert_eq!(b.submit(|work| work.fill(&mut buffer, 2)), Err(error.into()));
    }
    assert_eq!(rig.faults.calls(Call::Fill), 1);
    assert_eq!(buffer.to_vec(), Ok(vec![1; LEN]));
    drop(buffer);
    drop((a, b));
    rig.end(1);
}

#[test]
fn t3_a_transfer_that_nobody_waits_for_is_waited_for() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let upload = b.submit(|work| work.copy_from_host(&mut buffer, vec![7; LEN])).expect("submitted");
        drop(upload);
        let raw = rig.gpu.context().resolve(*b).expect("its own");
        // SAFETY: the table resolves live streams only.
        assert!(unsafe { rig.faults.stream_query(GPU0, raw) }.expect("it answers").is_complete(), "seed {seed}");
        assert_eq!(buffer.to_vec(), Ok(vec![7; LEN]));
        drop((buffer, a, b));
        rig.end(seed);
    }
}

#[test]
fn t4_readers_on_many_threads_are_all_waited_for_by_the_next_writer() {
    for seed in 0..8 {
        let rig = Rig::new(Sim::seeded(seed));
        let leases: [StreamLease; 8] = rig.leases();
        let mut buffer = rig.buffer(&leases[0]);
        for round in 0..4 {
            leases[round].submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
            std::thread::scope(|scope| {
                for lease in &leases {
                    let (rig, buffer) = (&rig, &buffer);
                    scope.spawn(move || lease.submit(|work| rig.look(work, buffer)).expect("submitted"));
                }
            });
        }
        drop((buffer, leases));
        rig.end(seed);
    }
}

#[test]
fn t5_a_program_on_one_stream_creates_and_records_no_event() {
    let rig = Rig::new(Sim::seeded(1));
    let [a] = rig.leases();
    for round in 0..20 {
        let mut buffers = [(); 3].map(|()| rig.buffer(&a));
        a.submit(|work| work.fill(&mut buffers[0], round)).expect("submitted");
        let [from, to, _] = &mut buffers;
        a.submit(|work| work.copy(&*from, &mut *to)).expect("submitted");
        a.submit(|work| rig.add_one(work, to)).expect("submitted");
        let seen = a.submit(|work| work.read_back(&*to)).expect("submitted");
        assert_eq!(seen.wait().expect("it runs"), [round + 1; LEN]);
        assert_eq!(to.to_vec(), Ok(vec![round + 1; LEN]));
    }
    assert_eq!(rig.events(), 0);
    drop(a);
    rig.end(1);
}

#[test]
fn t5_a_stream_that_has_waited_does_not_wait_again() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b, c] = rig.leases();
    let mut buffers = [(); 8].map(|()| rig.buffer(&a));
    for buffer in &mut buffers {
        a.submit(|work| work.fill(buffer, 1)).expect("submitted");
    }
    for _ in 0..10 {
        for buffer in &buffers {
            b.submit(|work| rig.look(work, buffer)).expect("submitted");
        }
    }
    assert_eq!(rig.waits(), 1, "one wait for a is enough");
    c.submit(|work| rig.add_one(work, &mut buffers[0])).expect("submitted");
    assert_eq!(rig.waits(), 2, "c waits for b, which came after a");
    c.submit(|work| rig.look(work, &buffers[1])).expect("submitted");
    assert_eq!(rig.waits(), 2);
    assert_eq!(rig.faults.calls(Call::EventCreate), 1, "events are used again");
    drop((buffers, a, b, c));
    rig.end(1);
}

#[test]
fn t5_a_block_used_again_and_again_by_eight_streams_keeps_the_waits_few() {
    let rig = Rig::new(Sim::immediate());
    let leases: [StreamLease; 8] = rig.leases();
    let mut buffer = rig.buffer(&leases[0]);
    for round in 0..1000 {
        let lease = &leases[round % 8];
        (0..125).for_each(|_| lease.submit(|work| work.read(&buffer)).map(drop).expect("its own"));
        lease.submit(|work| work.write(&mut buffer)).expect("its own");
    }
    assert!(rig.waits() <= 1000, "{} waits", rig.waits());
    assert_eq!(rig.faults.calls(Call::EventCreate), 1);
}

#[test]
fn a_buffer_that_is_used_twice_counts_with_the_strongest_access() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        b.submit(|work| {
            rig.look(work, &buffer)?;
            rig.add_one(work, &mut buffer)?;
            rig.look(work, &buffer)
        })
        .expect("submitted");
        a.submit(|work| rig.look(work, &buffer)).expect("submitted");
        let waits = rig.waits();
        assert_eq!(waits, 2);
        drop((buffer, a, b));
        rig.end(seed);
    }
}

#[test]
fn more_buffers_than_a_few_are_all_tracked() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffers = [(); 9].map(|()| rig.buffer(&a));
        b.submit(|work| buffers.iter_mut().try_for_each(|buffer| rig.add_one(work, buffer))).expect("submitted");
        a.submit(|work| buffers.iter().try_for_each(|buffer| rig.look(work, buffer))).expect("submitted");
        drop((buffers, a, b));
        rig.end(seed);
    }
}

#[test]
fn nothing_is_submitted_for_a_buffer_of_nothing() {
    let rig = Rig::new(Sim::immediate());
    let [a] = rig.leases();
    let mut none = rig.gpu.buffer::<u32>(0, &a, tag!("nothing")).expect("nothing to allocate");
    let mut other = rig.gpu.buffer::<u32>(0, &a, tag!("nothing")).expect("nothing to allocate");
    rig.faults.reset_counts();
    a.submit(|work| work.fill(&mut none, 1)).expect("nothing");
    a.submit(|work| work.copy(&none, &mut other)).expect("nothing");
    let sent = a.submit(|work| work.copy_from_host(&mut none, vec![])).expect("nothing");
    let seen = a.submit(|work| work.read_back(&none)).expect("nothing");
    assert_eq!(a.submit(|work| work.write(&mut none)).expect("nothing").0, 0);
    assert_eq!(rig.faults.total_calls(), 0);
    assert_eq!((sent.wait(), seen.wait()), (Ok(vec![]), Ok(vec![])));
    assert!(a.submit(|work| work.copy_from_host(&mut none, vec![1])).is_err());
}

#[test]
fn r5_streams_that_may_not_be_used_are_refused() {
    let rig = Rig::new(Sim::seeded(1));
    let stranger = Rig::new(Sim::seeded(1));
    let ([a, b], [foreign]) = (rig.leases(), stranger.leases());
    let mut buffer = rig.buffer(&a);
    let misuse = |result: Result<()>| match result {
        Err(Error::StreamMisuse { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(misuse(foreign.submit(|work| work.fill(&mut buffer, 1))), StreamMisuse::OtherContext);
    assert_eq!(misuse(rig.gpu.submit(&foreign, |work| work.fill(&mut buffer, 1))), StreamMisuse::OtherContext);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    assert_eq!(misuse(foreign.submit(|work| work.fill(&mut buffer, 1))), StreamMisuse::OtherContext);
    let raw = rig.gpu.context().resolve(*b).expect("its own");
    rig.sim.begin_capture(GPU0, raw).expect("its own");
    assert_eq!(misuse(b.submit(|work| work.fill(&mut buffer, 1))), StreamMisuse::Capturing);
    rig.sim.end_capture(GPU0, raw).expect("its own");
    rig.gpu.submit(rig.gpu.context().default_stream(), |work| work.fill(&mut buffer, 1)).expect("submitted");
    drop((buffer, a, b));
    rig.end(1);
}

#[test]
fn s5_uses_outlive_the_adoption_of_their_stream() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let mut upload = None;
        for round in 0..3 {
            let raw = rig.sim.stream_create(GPU0, 0).expect("room");
            // SAFETY: the stream outlives the adoption.
            let adopted = unsafe { rig.gpu.context().adopt_stream(raw) }.expect("room");
            let stream = adopted.stream();
            upload = Some(rig.gpu.submit(stream, |work| work.copy_from_host(&mut buffer, vec![round; LEN])));
            rig.gpu.submit(stream, |work| rig.add_one(work, &mut buffer)).expect("submitted");
            if round == 1 {
                b.submit(|work| rig.look(work, &buffer)).expect("submitted");
            }
            drop(adopted);
            // SAFETY: it was made here and its adoption has ended.
            unsafe { rig.sim.stream_destroy(GPU0, raw) }.expect("alive");
            b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        }
        assert_eq!(buffer.to_vec(), Ok(vec![3; LEN]), "seed {seed}");
        assert_eq!(upload.expect("three").and_then(|upload| upload.wait()), Ok(vec![2; LEN]));
        drop((buffer, a, b));
        rig.end(seed);
    }
}

#[derive(Debug, Default)]
struct Uses(Mutex<Vec<Option<Stream>>>);

impl Observer for Uses {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Use])
    }
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    fn record(&self, record: &Record<'_>) {
        assert_eq!((record.tag, record.asked), (tag!("test"), Bytes(LEN as u64)));
        self.0.lock().expect("no panic").push(record.stream);
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[test]
fn g1_every_use_that_was_submitted_is_told() {
    let rig = Rig::new(Sim::seeded(1));
    let told = Arc::new(Uses::default());
    rig.gpu.context().sink().subscribe(&(told.clone() as Arc<dyn Observer>)).expect("room");
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    assert_eq!(*told.0.lock().expect("no panic"), [Some(*b), Some(*a)]);
}
