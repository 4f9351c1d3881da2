//! Typed buffers: reads return what was written, and a dropped buffer gives its memory back.
#![allow(unsafe_code)]

#[path = "buffers/frees.rs"]
mod frees;

use bursar_core::{
    Bytes, DeviceId, DevicePtr, Driver, Error, Gate, HostFunction, Stack, Stream, StreamMisuse, leaf, tag,
};
use bursar_device::Gpu;
use bursar_sim::{Call, Faults, Sim};
use bytemuck::Pod;
use proptest::prelude::*;
use std::fmt::Debug;
use std::ops::{Bound, Range};
use std::sync::Arc;

const GPU0: DeviceId = DeviceId(0);

fn gpu_on(driver: Arc<dyn Driver>) -> Gpu {
    Gpu::open(driver, GPU0, &Stack::new().over(leaf::Async)).expect("a simulated device opens")
}

fn faulty() -> (Arc<Faults>, Gpu) {
    let faults = Faults::new(Sim::immediate());
    (faults.clone(), gpu_on(faults))
}

fn invalid<T: Debug>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::LengthMismatch { .. } | Error::InvalidRange { .. }))
}

/// One step of a program on two buffers, each on a stream of its own.
#[derive(Clone, Debug)]
enum Step<T> {
    Write(usize, Range<usize>, Vec<T>),
    Fill(usize, Range<usize>, T),
    Copy(usize, Range<usize>, usize),
}

const LEN: usize = 37;

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..=LEN, 0..=LEN).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn step<T: Debug + Clone + 'static>(
    value: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Step<T>> {
    prop_oneof![
        (0..2usize, range(), proptest::collection::vec(value.clone(), LEN)).prop_map(|(on, range, mut values)| {
            values.truncate(range.len());
            Step::Write(on, range, values)
        }),
        (0..2usize, range(), value).prop_map(|(on, range, value)| Step::Fill(on, range, value)),
        (0..2usize, range(), 0..=LEN).prop_map(|(on, range, from)| {
            let from = from.min(LEN - range.len());
            Step::Copy(on, range, from)
        }),
    ]
}

/// Runs the steps on the device and on two vectors, and compares after each.
fn agree<T: Pod + Debug + PartialEq>(seed: u64, start: T, steps: Vec<Step<T>>) -> Result<(), TestCaseError> {
    let sim = Sim::seeded(seed);
    let gpu = gpu_on(sim.clone());
    let mut model = [vec![start; LEN], vec![start; LEN]];
    let mut buffers = [(); 2].map(|()| {
        let stream = gpu.streams().acquire().expect("room");
        gpu.buffer_from(&model[0], stream, tag!("test")).expect("room")
    });
    for step in steps {
        match step {
            Step::Write(on, range, values) => {
                model[on][range.clone()].copy_from_slice(&values);
                buffers[on].slice_mut(range)?.write_from_host(&values)?;
            }
            Step::Fill(on, range, value) => {
                model[on][range.clone()].fill(value);
                buffers[on].slice_mut(range)?.fill(value)?;
            }
            Step::Copy(on, range, from) => {
                let source = from..from + range.len();
                let copied = model[1 - on][source.clone()].to_vec();
                model[on][range.clone()].copy_from_slice(&copied);
                let [first, second] = &mut buffers;
                let (to, of) = if on == 0 { (first, second) } else { (second, first) };
                to.slice_mut(range)?.copy_from(of.slice(source)?)?;
            }
        }
        for (buffer, model) in buffers.iter().zip(&model) {
            prop_assert_eq!(&buffer.to_vec()?, model);
        }
    }
    drop((buffers, gpu));
    sim.check()?;
    prop_assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    Ok(())
}

macro_rules! round_trips {
    ($($name:ident: $type:ty = $values:expr;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(32))]
            $(
                #[test]
                fn $name(seed: u64, steps in proptest::collection::vec(step::<$type>($values), 1..8)) {
                    agree(seed, <$type as bytemuck::Zeroable>::zeroed(), steps)?;
                }
            )*
        }
    };
}

round_trips! {
    one_byte_elements_keep_their_values: u8 = any::<u8>();
    two_byte_elements_keep_their_values: u16 = any::<u16>();
    three_byte_elements_keep_their_values: [u8; 3] = any::<[u8; 3]>();
    four_byte_elements_keep_their_values: u32 = any::<u32>();
    eight_byte_elements_keep_their_values: f64 = -1e9..1e9f64;
    repeating_elements_keep_their_values: u64 = any::<u32>().prop_map(|half| u64::from(half) << 32 | u64::from(half));
    twelve_byte_elements_keep_their_values: [u32; 3] = any::<[u32; 3]>();
}

#[test]
fn a_buffer_knows_what_it_is() {
    let gpu = gpu_on(Sim::immediate());
    let stream = gpu.streams().acquire().expect("room");
    let mut buffer = gpu.buffer::<f64>(10, stream, tag!("ten")).expect("room");
    assert_eq!((buffer.len(), buffer.bytes(), buffer.tag()), (10, Bytes(80), tag!("ten")));
    assert_eq!((buffer.stream(), buffer.gpu().id()), (stream, GPU0));
    assert!(!buffer.is_empty() && buffer.ptr().0.is_multiple_of(256));
    let ptr = buffer.ptr();
    assert_eq!(buffer.slice(3..).expect("inside").ptr(), ptr.offset(24));
    let part = buffer.slice_mut(2..8).expect("inside").slice_mut(1..=2).expect("inside");
    assert_eq!((part.ptr(), part.len()), (ptr.offset(24), 2));
    assert!(format!("{part:?}").contains("len: 2"));
    assert!(format!("{buffer:?}").contains("ten"));
}

#[test]
fn ranges_and_lengths_that_do_not_match_are_refused() {
    let gpu = gpu_on(Sim::immediate());
    let stream = gpu.streams().acquire().expect("room");
    let mut buffer = gpu.buffer_from(&[1u16, 2, 3, 4], stream, tag!("four")).expect("room");
    let other = gpu.buffer::<u16>(3, stream, tag!("three")).expect("room");
    let backwards = (Bound::Included(3), Bound::Excluded(2));
    assert!(invalid(buffer.slice(..5)) && invalid(buffer.slice(5..)) && invalid(buffer.slice(backwards)));
    assert!(invalid(buffer.slice(..=usize::MAX)) && invalid(buffer.slice_mut(0..usize::MAX)));
    assert!(invalid(buffer.slice(1..3).expect("inside").slice(..3)));
    assert!(invalid(buffer.write_from_host(&[0; 5])) && invalid(buffer.read_to_host(&mut [0; 3])));
    assert!(invalid(buffer.copy_from(&other)));
    assert_eq!(buffer.to_vec(), Ok(vec![1, 2, 3, 4]));
    assert!(buffer.slice(4..).expect("the end is inside").is_empty());
}

#[test]
fn r4_sizes_that_overflow_are_refused() {
    let gpu = gpu_on(Sim::immediate());
    let stream = gpu.streams().acquire().expect("room");
    for len in [usize::MAX, usize::MAX / 8, usize::MAX / 8 + 1] {
        let refused = gpu.buffer::<u64>(len, stream, tag!("huge")).expect_err("too much");
        assert!(matches!(refused, Error::InvalidSize { .. }), "{refused}");
    }
    assert_eq!(gpu.memory().bytes_outstanding(), Bytes::ZERO);
}

#[test]
fn a_buffer_of_nothing_holds_no_memory() {
    fn check<T: Pod + Debug + PartialEq>(gpu: &Gpu, stream: Stream, values: &[T], value: T) {
        let mut buffer = gpu.buffer_from(values, stream, tag!("nothing")).expect("nothing to allocate");
        assert_eq!((buffer.ptr(), buffer.bytes(), buffer.len()), (DevicePtr(0), Bytes::ZERO, values.len()));
        buffer.fill(value).expect("nothing to fill");
        buffer.write_from_host(values).expect("nothing to write");
        assert_eq!(buffer.to_vec().as_deref(), Ok(values));
        let mut copy = gpu.buffer(values.len(), stream, tag!("copy")).expect("nothing to allocate");
        copy.copy_from(&buffer).expect("nothing to copy");
        assert!(buffer.into_block().expect("no use").is_none());
    }
    let (faults, gpu) = faulty();
    let stream = gpu.streams().acquire().expect("room");
    check::<f32>(&gpu, stream, &[], 1.0);
    check::<()>(&gpu, stream, &[(); 5], ());
    assert_eq!(faults.calls(Call::AllocateAsync), 0);
}

#[test]
fn r5_a_stream_of_another_device_is_refused_even_for_nothing() {
    let sim = Sim::immediate();
    let (here, there) =
        (gpu_on(sim.clone()), Gpu::open(sim, DeviceId(1), &Stack::new().over(leaf::Async)).expect("two devices"));
    let foreign = there.streams().acquire().expect("room");
    let own = here.streams().acquire().expect("room");
    let misuse =
        |error| matches!(error, Error::StreamMisuse { why: StreamMisuse::OtherDevice { device: DeviceId(1) }, .. });
    for len in [0, 1] {
        assert!(misuse(here.buffer::<u8>(len, foreign, tag!("lost")).expect_err("foreign")));
    }
    let mut buffer = here.buffer_from(&[1u8], own, tag!("here")).expect("room");
    assert!(misuse(buffer.free_on(foreign).expect_err("foreign")));
    let source = there.buffer_from(&[2u8], foreign, tag!("there")).expect("room");
    assert!(misuse(buffer.copy_from(&source).expect_err("another device")));
    assert_eq!(buffer.to_vec(), Ok(vec![1]));
}

#[test]
fn a_dropped_buffer_is_given_back() {
    let (faults, gpu) = faulty();
    let stream = gpu.streams().lease().expect("room");
    let buffer = gpu.buffer::<u32>(1000, &stream, tag!("short-lived")).expect("room");
    assert_eq!(faults.held(GPU0), Bytes::kib(4));
    drop(buffer);
    assert_eq!((faults.held(GPU0), faults.calls(Call::FreeAsync)), (Bytes::ZERO, 1));
}

#[test]
fn a_buffer_outlives_the_pool_it_came_from() {
    let faults = Faults::new(Sim::immediate());
    let gpu = gpu_on(faults.clone());
    let stream = gpu.streams().acquire().expect("room");
    let buffer = gpu.buffer_from(&[7u8; 9], stream, tag!("survivor")).expect("room");
    drop(gpu);
    assert_eq!((buffer.to_vec(), faults.calls(Call::Close)), (Ok(vec![7; 9]), 0));
    drop(buffer);
    assert_eq!((faults.held(GPU0), faults.calls(Call::Close)), (Bytes::ZERO, 1));
}

#[test]
fn a_block_that_is_taken_out_is_its_takers_to_free() {
    let (faults, gpu) = faulty();
    let stream = gpu.streams().acquire().expect("room");
    let buffer = gpu.buffer::<u8>(100, stream, tag!("lent")).expect("room");
    let generation = buffer.block().expect("it holds memory").generation();
    let block = buffer.into_block().expect("no use").expect("it holds memory");
    assert_eq!((block.generation(), faults.calls(Call::FreeAsync)), (generation, 0));
    let raw = gpu.context().lent().lend(block);
    let block = gpu.context().lent().take_back(raw).expect("lent");
    gpu.memory().deallocate(block, stream).expect("its own memory");
    assert_eq!(faults.held(GPU0), Bytes::ZERO);
}

#[test]
fn a_free_follows_the_stream_that_was_chosen() {
    for seed in 0..16 {
        let sim = Sim::seeded(seed);
        let gpu = gpu_on(sim.clone());
        let (home, last) = (gpu.streams().acquire().expect("room"), gpu.streams().acquire().expect("room"));
        let raw = gpu.context().resolve(last).expect("its own");
        let gate = Gate::default();
        let mut buffer = gpu.buffer::<u8>(100, home, tag!("shared")).expect("room");
        let work = HostFunction::behind(gate.clone(), || ());
        // SAFETY: the table resolves live streams only.
        unsafe { sim.host_function(GPU0, raw, work) }.expect("submitted");
        buffer.free_on(last).expect("its own stream");
        drop(buffer);
        gpu.context().synchronize(home).expect("runs");
        assert_eq!(gpu.memory().reap(), Ok(Bytes::ZERO), "seed {seed}: the free waits for the last user");
        gate.open();
        gpu.context().synchronize(last).expect("runs");
        assert_eq!(gpu.memory().reap(), Ok(Bytes(256)), "seed {seed}");
        sim.assert_clean();
    }
}
