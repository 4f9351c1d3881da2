//! T9: copies between devices are ordered on both sides, whether the devices are linked or not.
#![allow(unsafe_code)]

use bursar_core::{Bytes, DeviceId, Driver, DriverError, Error, Stack, Status, StreamMisuse, leaf, tag};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::{Call, Faults, Random, Sim};
use std::sync::Arc;

const LEN: usize = 96;
const SEEDS: u64 = 48;

struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    gpus: Vec<Gpu>,
}

impl Rig {
    /// Opens two devices; or one of them twice, which makes two contexts.
    fn new(seed: u64, is_linked: bool, devices: [u32; 2]) -> Self {
        let builder = Sim::builder().seed(seed).devices(2, Bytes::gib(1));
        let sim = if is_linked { builder.linked() } else { builder }.build();
        let faults = Faults::new(sim.clone());
        let open =
            |device| Gpu::open(faults.clone(), DeviceId(device), &Stack::new().over(leaf::Async)).expect("opens");
        Self { gpus: devices.map(open).into(), sim, faults }
    }

    fn leases(&self, of: usize, count: usize) -> Vec<StreamLease> {
        (0..count).map(|_| self.gpus[of].streams().lease().expect("room")).collect()
    }

    fn end(self, seed: u64) {
        let Self { sim, gpus, .. } = self;
        drop(gpus);
        sim.settle();
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

/// A buffer, and what it must hold.
struct Modelled {
    gpu: usize,
    buffer: DeviceBuffer<u8>,
    expected: Vec<u8>,
}

/// Fills, copies in both directions and frees, on any stream of either side, without one wait on the host in between.
fn random_program(seed: u64, is_linked: bool, devices: [u32; 2]) {
    let rig = Rig::new(seed, is_linked, devices);
    let mut random = Random::new(seed);
    let streams = [rig.leases(0, 3), rig.leases(1, 3)];
    let allocate = |random: &mut Random| {
        let gpu = random.below(2) as usize;
        let stream = &streams[gpu][random.below(3) as usize];
        let buffer = rig.gpus[gpu].zeros(LEN, stream, tag!("model")).expect("room");
        Modelled { gpu, buffer, expected: vec![0; LEN] }
    };
    let mut all: Vec<Modelled> = (0..4).map(|_| allocate(&mut random)).collect();
    for step in 0..40 {
        let (at, from) = (random.below(4) as usize, random.below(4) as usize);
        match random.below(4) {
            0 => {
                let target = &mut all[at];
                let stream = &streams[target.gpu][random.below(3) as usize];
                stream.submit(|work| work.fill(&mut target.buffer, step)).expect("submitted");
                target.expected.fill(step);
            }
            1 => drop(std::mem::replace(&mut all[at], allocate(&mut random))),
            _ if at == from => {}
            _ => {
                let start = random.below(LEN as u64) as usize;
                let len = random.below((LEN - start) as u64 + 1) as usize;
                let [target, source] = all.get_disjoint_mut([at, from]).expect("two of four");
                let side = if random.below(2) == 0 { target.gpu } else { source.gpu };
                let part = target.buffer.slice_mut(start..start + len).expect("inside");
                let read = source.buffer.slice(..len).expect("inside");
                let stream = &streams[side][random.below(3) as usize];
                stream.submit(|work| work.copy_peer(read, part)).expect("submitted");
                target.expected[start..start + len].copy_from_slice(&source.expected[..len]);
            }
        }
    }
    for Modelled { buffer, expected, .. } in all {
        assert_eq!(buffer.to_vec().expect("read"), expected, "seed {seed}, linked {is_linked}, {devices:?}");
    }
    drop(streams);
    rig.end(seed);
}

#[test]
fn t9_copies_between_devices_come_after_and_before_what_either_side_does() {
    for seed in 0..SEEDS {
        for is_linked in [true, false] {
            random_program(seed, is_linked, [0, 1]);
        }
    }
}

#[test]
fn t9_two_contexts_of_one_device_copy_to_each_other() {
    for seed in 0..SEEDS {
        random_program(seed, false, [0, 0]);
    }
}

#[test]
fn t9_linked_devices_copy_directly_and_the_host_waits_for_nothing() {
    let rig = Rig::new(1, true, [0, 1]);
    let (here, there) = (rig.leases(0, 1), rig.leases(1, 1));
    let mut source = rig.gpus[0].zeros::<u8>(LEN, &here[0], tag!("source")).expect("room");
    let mut target = rig.gpus[1].buffer::<u8>(LEN, &there[0], tag!("target")).expect("room");
    here[0].submit(|work| work.fill(&mut source, 7)).expect("submitted");
    there[0].submit(|work| work.copy_peer(&source, &mut target)).expect("submitted");
    here[0].submit(|work| work.copy_peer(&target, &mut source)).expect("submitted");
    drop(source);
    assert_eq!(rig.faults.calls(Call::CopyPeer), 2);
    let waits = [Call::StreamSynchronize, Call::EventSynchronize, Call::CopyToHost];
    assert_eq!(waits.map(|call| rig.faults.calls(call)), [0; 3]);
    assert_eq!(target.to_vec(), Ok(vec![7; LEN]));
    drop((target, here, there));
    rig.end(1);
}

#[test]
fn t9_a_copy_that_may_have_been_submitted_counts_whatever_fails_on_the_way() {
    let calls = [Call::StreamCreate, Call::EventCreate, Call::EventRecord, Call::StreamWait, Call::CopyPeer];
    let cases = calls.iter().flat_map(|&call| (1..=3).flat_map(move |nth| [(call, nth, false), (call, nth, true)]));
    for (call, nth, is_lost) in cases.filter(|(call, _, is_lost)| !is_lost || call.is_submission()) {
        for (seed, status) in (0..8).flat_map(|seed| [(seed, Status::OutOfMemory), (seed, Status::InvalidValue)]) {
            let rig = Rig::new(seed, true, [0, 1]);
            let (here, there) = (rig.leases(0, 2), rig.leases(1, 2));
            let mut source = rig.gpus[0].zeros::<u8>(LEN, &here[0], tag!("source")).expect("room");
            let mut target = rig.gpus[1].zeros::<u8>(LEN, &there[0], tag!("target")).expect("room");
            match is_lost {
                true => rig.faults.lose_nth_result(call, nth, status),
                false => rig.faults.fail_nth(call, nth, status),
            }
            // Whatever these return, what follows is ordered after whatever they submitted.
            let _ = there[1].submit(|work| work.copy_peer(&source, &mut target));
            let _ = here[1].submit(|work| work.copy_peer(&target, &mut source));
            rig.faults.heal();
            rig.gpus.iter().for_each(|gpu| drop(gpu.context().fault().check()));
            here[0].submit(|work| work.fill(&mut source, 1)).expect("submitted");
            there[0].submit(|work| work.fill(&mut target, 2)).expect("submitted");
            drop((source, target, here, there));
            rig.end(seed);
        }
    }
}

#[test]
fn t9_what_cannot_be_copied_is_refused_and_names_why() {
    let rig = Rig::new(1, true, [0, 1]);
    let (here, there) = (rig.leases(0, 1), rig.leases(1, 1));
    let source = rig.gpus[0].zeros::<u8>(LEN, &here[0], tag!("source")).expect("room");
    let mut target = rig.gpus[1].zeros::<u8>(LEN, &there[0], tag!("target")).expect("room");
    let short = source.slice(1..).expect("inside");
    let refused = there[0].submit(|work| work.copy_peer(short, &mut target));
    assert_eq!(refused, Err(Error::LengthMismatch { expected: LEN, found: LEN - 1 }));

    let third = Gpu::open(rig.faults.clone(), DeviceId(0), &Stack::new().over(leaf::Async)).expect("opens");
    let neither = third.streams().lease().expect("room");
    let refused = neither.submit(|work| work.copy_peer(&source, &mut target)).expect_err("neither side is its own");
    assert!(matches!(refused, Error::StreamMisuse { .. }), "{refused}");

    let elsewhere = Rig::new(2, true, [0, 1]);
    let foreign = elsewhere.leases(0, 1);
    let theirs = elsewhere.gpus[0].zeros::<u8>(LEN, &foreign[0], tag!("theirs")).expect("room");
    let refused = there[0].submit(|work| work.copy_peer(&theirs, &mut target));
    assert!(matches!(refused, Err(Error::InvalidValue { what }) if what.contains("different drivers")), "{refused:?}");

    let raw = rig.gpus[1].context().resolve(*there[0]).expect("its own");
    rig.sim.begin_capture(DeviceId(1), raw).expect("its own");
    let refused = there[0].submit(|work| work.copy_peer(&source, &mut target));
    assert!(matches!(refused, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. })), "{refused:?}");
    rig.sim.end_capture(DeviceId(1), raw).expect("captured");

    rig.faults.lose(DeviceId(0));
    let refused = there[0].submit(|work| work.copy_peer(&source, &mut target)).expect_err("the source is lost");
    let lost = |error: &DriverError| error.is_sticky() && error.device == DeviceId(0);
    assert!(refused.driver_error().as_ref().is_some_and(lost), "{refused}");
    there[0].submit(|work| work.fill(&mut target, 3)).expect("the other device works");
    assert_eq!(target.to_vec(), Ok(vec![3; LEN]));
}

#[test]
fn t9_a_driver_refuses_a_peer_address_of_another_device_than_it_says() {
    let sim = Sim::builder().devices(2, Bytes::gib(1)).linked().build();
    let [a, b] = [DeviceId(0), DeviceId(1)].map(|device| sim.allocate(device, 256).expect("room"));
    let stream = sim.stream_create(DeviceId(0), 0).expect("room");
    let at = |device, ptr| bursar_core::PeerPtr { device: DeviceId(device), ptr };
    // SAFETY: the simulator checks what its callers promise.
    let swapped = unsafe { sim.copy_peer(DeviceId(0), stream, at(0, b), at(1, a), 256) };
    assert_eq!(swapped.map_err(|error| error.status), Err(Status::InvalidValue));
    // SAFETY: as above.
    unsafe { sim.copy_peer(DeviceId(0), stream, at(0, a), at(1, b), 256) }.expect("as it is");
}
