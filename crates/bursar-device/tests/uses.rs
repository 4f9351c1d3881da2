//! Use tracking: what one stream does with a buffer waits for what others do with it, and for nothing else.
#![allow(unsafe_code)]

#[path = "uses/captured.rs"]
mod captured;
#[path = "uses/cost.rs"]
mod cost;
#[path = "uses/failure.rs"]
mod failure;
#[path = "uses/free.rs"]
mod free;
#[path = "uses/order.rs"]
mod order;
#[path = "uses/raw.rs"]
mod raw;
#[path = "uses/untracked.rs"]
mod untracked;

use bursar_core::{
    Action, Actions, Bytes, DeviceId, Driver, Error, Gate, Holding, HostFunction, Observer, Record, Result, Stack,
    Stream, StreamMisuse, leaf, tag,
};
use bursar_device::{DeviceBuffer, Gpu, StreamLease, Work};
use bursar_sim::{Call, Faults, Launch, Sim};
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
    assert_eq!((sent.wait().expect("nothing"), seen.wait().expect("nothing")), (vec![], vec![]));
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
        assert_eq!(upload.expect("three").and_then(|upload| upload.wait()).expect("it ran"), vec![2; LEN]);
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
