//! T8: kernels that are declared once, on a driver that simulates and on one that does not.
#![allow(unsafe_code)]

use bursar_core::{
    Access, DeviceId, DevicePtr, Driver, Error, RawStream, Result, Stack, Status, StreamMisuse, driver_methods, leaf,
    tag,
};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::{Call, Faults, HazardKind, Launch, Sim};
use std::cell::Cell;
use std::sync::Arc;

const GPU0: DeviceId = DeviceId(0);
const LEN: usize = 64;
const SEEDS: u64 = 32;

/// A driver that cannot run a kernel from its declaration, as hardware cannot.
#[derive(Debug)]
struct Hardware(Arc<Sim>);

macro_rules! forwarded {
    (fn simulates $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { 0: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Hardware {
    fn simulates(&self) -> bool {
        false
    }

    driver_methods!(forwarded);
}

/// Adds `x` to `y`. The closure of `launch` stands for device code that is launched by hand.
fn add(
    stream: &StreamLease,
    x: &DeviceBuffer<u8>,
    y: &mut DeviceBuffer<u8>,
    launch: impl FnOnce(RawStream, [DevicePtr; 2]) -> Result<()>,
) -> Result<()> {
    stream.submit(|work| {
        work.kernel("add")
            .reads(x)
            .writes(y)
            .simulated(|memory, [x, y]| {
                let sums = memory.read::<u8>(x).into_iter().zip(memory.read::<u8>(y)).map(|(x, y)| x + y);
                let sums: Vec<u8> = sums.collect();
                memory.write(y, &sums);
            })
            .launch(launch)
    })
}

fn never(_: RawStream, _: [DevicePtr; 2]) -> Result<()> {
    panic!("a simulated device runs no device code")
}

/// Launches by hand what `add` declares.
fn by_hand(sim: &Sim, stream: RawStream, [x, y]: [DevicePtr; 2]) -> Result<()> {
    let kernel = Launch::new("add").reads(x, LEN as u64).writes(y, LEN as u64).body(move |memory| {
        let sums: Vec<u8> = memory.read(x, LEN).iter().zip(memory.read(y, LEN)).map(|(x, y)| x + y).collect();
        memory.write(y, &sums);
    });
    Ok(sim.launch(GPU0, stream, kernel)?)
}

#[test]
fn t8_one_declaration_runs_on_a_driver_that_simulates_and_on_one_that_does_not() {
    for seed in 0..SEEDS {
        for is_hardware in [false, true] {
            let sim = Sim::seeded(seed);
            let driver: Arc<dyn Driver> = if is_hardware { Arc::new(Hardware(sim.clone())) } else { sim.clone() };
            let gpu = Gpu::open(driver, GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
            let [a, b, c] = [(); 3].map(|()| gpu.streams().lease().expect("room"));
            let x = gpu.buffer_from(&[1; LEN], &a, tag!("x")).expect("room");
            let mut y = gpu.zeros(LEN, &b, tag!("y")).expect("room");
            for stream in [&c, &a, &c, &b] {
                let launched = match is_hardware {
                    true => add(stream, &x, &mut y, |raw, addresses| by_hand(&sim, raw, addresses)),
                    false => add(stream, &x, &mut y, never),
                };
                launched.expect("launched");
            }
            drop(x);
            assert_eq!(y.to_vec().expect("read"), [4; LEN], "seed {seed}");
            drop((y, a, b, c, gpu));
            sim.settle();
            sim.assert_clean();
            assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
        }
    }
}

#[test]
fn t8_a_kernel_is_an_access_to_the_slices_it_declares_and_to_nothing_else() {
    let sim = Sim::seeded(1);
    let gpu = Gpu::open(sim.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
    let (a, b) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
    let mut halves = gpu.zeros::<u8>(LEN, &a, tag!("halves")).expect("room");
    halves.to_vec().expect("read");
    let upper = halves.slice(LEN / 2..).expect("inside").ptr();
    let declared: Result<()> = a.submit(|work| {
        work.kernel("lower half").writes(halves.slice_mut(..LEN / 2).expect("inside")).launch(|_, _| Ok(()))
    });
    declared.expect("launched");
    let raw = gpu.context().resolve(*b).expect("its own");
    sim.launch(GPU0, raw, Launch::new("upper half").writes(upper, LEN as u64 / 2)).expect("launched");
    assert_eq!(sim.take_hazards(), [], "they touch different bytes");
    sim.launch(GPU0, raw, Launch::new("one too many").writes(DevicePtr(upper.0 - 1), 1)).expect("launched");
    let [hazard] = sim.take_hazards()[..] else { panic!("one hazard") };
    let first = hazard.first.expect("two operations");
    assert_eq!((hazard.kind, first.what, first.access), (HazardKind::Conflict, "lower half", Some(Access::Write)));
    assert_eq!(first.location.map(|place| place.file()), Some(file!()));
    assert_eq!(hazard.second.what, "one too many");
}

#[test]
fn t8_a_refused_declaration_launches_nothing_and_is_the_error() {
    let sim = Sim::seeded(1);
    let faults = Faults::new(sim.clone());
    let gpu = Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
    let stranger = Gpu::open(sim.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
    let (a, foreign) = (gpu.streams().lease().expect("room"), stranger.streams().lease().expect("room"));
    let x = gpu.buffer::<u8>(LEN, &a, tag!("x")).expect("room");
    let mut theirs = stranger.buffer::<u8>(LEN, &foreign, tag!("theirs")).expect("room");
    let refused = add(&a, &x, &mut theirs, never).expect_err("of another context");
    assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::OtherContext, .. }), "{refused}");
    assert_eq!(faults.calls(Call::Simulate), 0);
    faults.fail_next(Call::Simulate, Status::OutOfMemory);
    let mut y = gpu.buffer::<u8>(LEN, &a, tag!("y")).expect("room");
    assert!(matches!(add(&a, &x, &mut y, never), Err(Error::Driver(error)) if error.call == "simulate"));
    let raw = gpu.context().resolve(*a).expect("its own");
    sim.begin_capture(GPU0, raw).expect("its own");
    let refused = a.submit(|work| work.kernel("nothing declared").launch(|_, []| -> Result<()> { Ok(()) }));
    assert!(matches!(refused, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. })), "{refused:?}");
}

#[test]
fn t8_an_error_of_the_launch_is_the_callers_own_and_the_use_counts() {
    #[derive(Debug, PartialEq)]
    enum Mine {
        Bursar(Error),
        Launch(&'static str),
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Self::Bursar(error)
        }
    }
    for seed in 0..SEEDS {
        let sim = Sim::seeded(seed);
        let gpu = Gpu::open(Arc::new(Hardware(sim.clone())), GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
        let (a, b) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let mut buffer = gpu.buffer::<u8>(LEN, &a, tag!("buffer")).expect("room");
        let address = Cell::new(0);
        let failed = b.submit(|work| {
            work.kernel("half launched").writes(&mut buffer).launch(|raw, [ptr]| {
                address.set(ptr.0);
                sim.launch(GPU0, raw, Launch::new("half launched").writes(ptr, LEN as u64)).expect("launched");
                Err(Mine::Launch("and then it failed"))
            })
        });
        assert_eq!((failed, address.get()), (Err(Mine::Launch("and then it failed")), *buffer.as_arg()));
        a.submit(|work| work.fill(&mut buffer, 1)).expect("ordered after it");
        drop((buffer, a, b, gpu));
        sim.settle();
        sim.assert_clean();
    }
}

#[test]
fn t8_a_body_that_touches_what_was_not_declared_is_caught() {
    let sim = Sim::seeded(1);
    let gpu = Gpu::open(sim.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("it opens");
    let a = gpu.streams().lease().expect("room");
    let x = gpu.zeros::<u32>(LEN, &a, tag!("x")).expect("room");
    let launched: Result<()> = a.submit(|work| {
        work.kernel("liar").reads(&x).simulated(|memory, [x]| memory.write(x, &[1u32])).launch(|_, _| Ok(()))
    });
    launched.expect("launched");
    sim.settle();
    let [panic] = &sim.kernel_panics()[..] else { panic!("one panic") };
    assert!(panic.message.contains("\"liar\" writes") && panic.message.contains("did not declare"), "{panic:?}");
    assert_eq!(x.to_vec(), Ok(vec![0; LEN]));
}
