//! Reports of memory that is short (P4), and of memory that is still held at the end.
#![allow(unsafe_code)]

mod log;

use bursar_core::{
    Advice, AllocTag, Build, Bytes, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt as _, Error, Holding,
    Shortage, Stack, leaf, tag,
};
use bursar_device::{DevicePool, Gpu, Leak, LeakReport};
use bursar_memory::{GlobalDeviceBudget, Guard, Statistics};
use bursar_sim::{Faults, Sim};
use log::{listen, logged};
use proptest::prelude::*;
use std::panic::Location;
use std::time::Duration;
use tracing::Level;

fn shortage(refused: &Error) -> &Shortage {
    refused.shortage().unwrap_or_else(|| panic!("a refusal explains itself: {refused:?}"))
}

fn pool(stack: &impl Build) -> DevicePool {
    DevicePool::open(Sim::immediate(), stack).expect("two devices")
}

#[test]
fn p4_a_refusal_explains_itself() {
    let stack =
        Stack::new().observe(Statistics::default()).layer(GlobalDeviceBudget::of(Bytes::gib(16))).over(leaf::Async);
    let gpus =
        DevicePool::open(Sim::builder().devices(2, Bytes::gib(80)).immediate().build(), &stack).expect("devices");
    let (gpu, elsewhere) = (gpus.device_at(0).expect("a device"), gpus.device_at(1).expect("another"));
    let stream = gpu.streams().acquire().expect("a stream");
    let _weights = gpu.buffer::<u8>(12 << 30, stream, tag!("weights")).expect("it fits");
    let _batches = [(); 2].map(|()| gpu.buffer::<u8>(1 << 30, stream, tag!("activations")).expect("it fits"));
    let other = elsewhere.streams().acquire().expect("a stream");
    let _elsewhere = elsewhere.buffer::<u8>(3 << 30, other, tag!("elsewhere")).expect("it fits");

    let refused = gpu.buffer::<u32>(1 << 30, stream, tag!("too much")).expect_err("4 GiB into 2");
    assert!(refused.is_capacity());
    let limit = Bytes::gib(16);
    let cause = Error::out_of_budget(Bytes::gib(4), Bytes::gib(2), limit);
    assert_eq!(refused.plain(), cause);
    assert_eq!(
        refused.to_string(),
        "over budget: 4 GiB requested, 2 GiB of 16 GiB left; \
         freeing `activations` (2 GiB) and waiting until that has run would have been enough"
    );
    assert_eq!(
        format!("{refused:#}"),
        "over budget: 4 GiB requested, 2 GiB of 16 GiB left
  requested         4 GiB on gpu0
  limit             16 GiB
  free              66 GiB of 80 GiB
  held              14 GiB
  cached            0 B
  pending           0 B
  largest free run  unknown
  holders
    weights: 12 GiB in 1 block
    activations: 2 GiB in 2 blocks
  freeing `activations` (2 GiB) and waiting until that has run would have been enough"
    );
}

#[test]
fn p4_a_device_that_is_full_is_explained_whatever_the_leaf() {
    for direct in [true, false] {
        let sim = Sim::builder().device(Bytes::gib(2)).immediate().build();
        let statistics = Statistics::default();
        let gpu = if direct {
            Gpu::open(sim, DeviceId(0), &Stack::new().observe(statistics).over(leaf::Direct))
        } else {
            Gpu::open(sim, DeviceId(0), &Stack::new().observe(statistics).over(leaf::Async))
        }
        .expect("a device");
        let stream = gpu.streams().acquire().expect("a stream");
        let _held = gpu.buffer::<u8>(1 << 30, stream, tag!("held")).expect("it fits");
        let free = gpu.memory_info().expect("the device works").free;
        let error = gpu.buffer::<u8>(3 << 29, stream, tag!("more")).expect_err("there is no room");
        assert!(matches!(error, Error::OutOfMemory { requested: Bytes(0x6000_0000), .. }), "{error:?}");
        let refused = shortage(&error);
        assert_eq!((refused.free, refused.total), (Some(free), Some(Bytes::gib(2))));
        assert_eq!((refused.held, refused.limit), (Some(Bytes::gib(1)), None));
        assert_eq!(refused.holders, [Holding { tag: tag!("held"), bytes: Bytes::gib(1), blocks: 1 }]);
        let missing = Bytes::mib(512);
        assert_eq!(refused.advice, Advice::AtLeast { missing, listed: Some(Bytes::gib(1)) }, "strangers use it too");
        let never = gpu.buffer::<u8>(3 << 30, stream, tag!("never")).expect_err("there is no room");
        assert_eq!(shortage(&never).advice, Advice::TooLarge);
    }
}

#[test]
fn p4_frees_that_are_pending_are_named_and_numbers_that_cannot_be_read_are_unknown() {
    use bursar_core::Status;
    use bursar_sim::Call;
    let faults = Faults::new(Sim::seeded(1));
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
    let gpu = Gpu::open(faults.clone(), DeviceId(0), &stack).expect("a device");
    let stream = gpu.streams().acquire().expect("a stream");
    let buffer = gpu.buffer::<u8>(1 << 20, stream, tag!("pending")).expect("it fits");
    let raw = gpu.context().resolve(stream).expect("live");
    // SAFETY: a live stream of the device.
    let stall = unsafe { faults.stall(DeviceId(0), raw) }.expect("the device works");
    drop(buffer);
    let refused = gpu.buffer::<u8>(1 << 20, stream, tag!("next")).expect_err("not free yet");
    assert_eq!(shortage(&refused).advice, Advice::Wait);
    faults.fail_always(Call::Memory, Status::InvalidValue);
    let refused = gpu.buffer::<u8>(1 << 20, stream, tag!("next")).expect_err("not free yet");
    let explained = format!("{refused:#}");
    for line in ["free              unknown of unknown", "pending           1 MiB", "holders           unknown"] {
        assert!(explained.contains(line), "{explained}");
    }
    assert!(explained.ends_with("at least 1 MiB more are needed, and nobody counts who holds what"), "{explained}");
    faults.heal();
    drop(stall);
}

#[test]
fn p4_what_is_no_shortage_is_not_explained_and_raw_stacks_answer_plainly() {
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
    let gpus = pool(&stack);
    let gpu = gpus.device_at(0).expect("a device");
    let stream = gpu.streams().acquire().expect("a stream");
    let impossible = gpu.buffer::<u64>(usize::MAX, stream, tag!("impossible")).expect_err("no such size");
    assert!(matches!(impossible, Error::InvalidSize { .. }), "{impossible:?}");
    let plain = gpu.memory().allocate(2 << 20, 256, stream, tag!("raw")).expect_err("over the limit");
    assert!(matches!(plain, Error::OutOfBudget { .. }), "{plain:?}");
    let once = gpu.memory().explain(plain, Bytes::mib(2), 256);
    assert_eq!(gpu.memory().explain(once.clone(), Bytes::mib(2), 256), once, "explained once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is held, freeing the tags that the advice names makes the same request succeed, and freeing one tag
    /// less would not.
    #[test]
    fn p4_what_is_advised_is_enough(sizes in prop::collection::vec(1u64..200, 0..14), requested in 1u64..1200) {
        const NAMES: [&str; 14] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
        let unit = 256;
        let limit = Bytes(1000 * unit);
        let stack = Stack::new().observe(Statistics::default()).layer(GlobalDeviceBudget::of(limit)).over(leaf::Direct);
        let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &stack).expect("a device");
        let stream = gpu.streams().acquire().expect("a stream");
        let mut held: Vec<_> = sizes.iter().zip(NAMES).filter_map(|(size, name)| {
            let tag = AllocTag::intern(name);
            gpu.buffer::<u8>((size * unit) as usize, stream, tag).ok()
        }).collect();
        let ask = || gpu.buffer::<u8>((requested * unit) as usize, stream, tag!("asked"));
        let Err(error @ Error::OutOfBudget { .. }) = ask() else { return Ok(()) };
        let refused = shortage(&error);
        prop_assert!(refused.holders.len() <= 10);
        prop_assert!(refused.holders.is_sorted_by_key(|holding| std::cmp::Reverse(holding.bytes)));
        match refused.advice.clone() {
            Advice::TooLarge => prop_assert!(requested * unit > limit.get()),
            Advice::Free { tags, bytes, must_wait: false } => {
                let (freed, kept): (Vec<_>, Vec<_>) = held.drain(..).partition(|buffer| tags.contains(&buffer.tag()));
                prop_assert_eq!(freed.iter().map(|buffer| buffer.bytes().get()).sum::<u64>(), bytes.get());
                let mut freed = freed;
                while let Some(buffer) = freed.pop() {
                    prop_assert!(ask().is_err(), "fewer would have been enough");
                    drop(buffer);
                }
                prop_assert!(ask().is_ok(), "what was advised is not enough");
                drop(kept);
            }
            Advice::AtLeast { missing, listed } => {
                prop_assert!(held.len() > 10 && listed.is_some_and(|listed| listed < missing));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

fn here_plus(lines: u32, location: Option<&Location<'_>>, base: &Location<'_>) -> bool {
    location.is_some_and(|at| at.file() == base.file() && at.line() == base.line() + lines)
}

#[test]
fn a_pool_closed_with_buffers_alive_says_who_holds_them_and_where_they_were_allocated() {
    listen();
    let gpus = pool(&Stack::new().over(leaf::Async));
    gpus.record_sites().expect("room for an observer");
    gpus.record_sites().expect("once is enough");
    let [first, second] = [0, 1].map(|at| gpus.device_at(at).expect("a device").clone());
    let stream = first.streams().acquire().expect("a stream");
    let mut kept = Vec::new();
    let base = Location::caller();
    for _ in 0..3 {
        kept.push(first.buffer::<u8>(1000, stream, tag!("d1-kept")).expect("it fits"));
    }
    let copied = first.buffer_from(&[1u32; 64], stream, tag!("d1-copied")).expect("it fits");
    drop(first.buffer::<u8>(1000, stream, tag!("d1-dropped")).expect("it fits"));
    let raw = first.memory().allocate(1000, 256, stream, tag!("d1-raw")).expect("it fits");
    drop(second);

    let LeakReport { leaks } = gpus.close().expect_err("buffers are alive");
    let [leak] = &leaks[..] else { panic!("{leaks:?}") };
    assert_eq!((leak.device, leak.held, leak.uncounted()), (DeviceId(0), Bytes(4096 + 256), Bytes::ZERO));
    let holding = |tag, bytes, blocks| Holding { tag, bytes: Bytes(bytes), blocks };
    let (kept_tag, raw_tag, copied_tag) = (tag!("d1-kept"), tag!("d1-raw"), tag!("d1-copied"));
    let expected = [holding(kept_tag, 3072, 3), holding(raw_tag, 1024, 1), holding(copied_tag, 256, 1)];
    assert_eq!(leak.holders, expected);
    let [loop_site, raw_site, copy_site] = &leak.sites[..] else { panic!("{leak}") };
    assert_eq!((loop_site.bytes, loop_site.blocks, loop_site.tag), (Bytes(3072), 3, kept_tag));
    assert!(here_plus(2, loop_site.location, base), "{loop_site}");
    assert!(here_plus(4, copy_site.location, base), "{copy_site}");
    assert_eq!(raw_site.location, None, "the raw level is not recorded");
    let lines = logged("d1-kept");
    assert!(matches!(&lines[..], [(Level::WARN, line)] if line.contains("reports.rs")), "{lines:?}");

    drop((kept, copied));
    first.memory().deallocate(raw, stream).expect("its own");
    drop(first);
    assert_eq!(logged("d1-kept").len(), 1, "reported once, and freed after all");
}

#[test]
fn a_pool_with_nothing_held_closes_quietly_even_if_frees_are_pending() {
    listen();
    for seed in 0..8 {
        let stack = Stack::new().layer(Guard::default()).over(leaf::Async);
        let gpus = DevicePool::open(Sim::seeded(seed), &stack).expect("devices");
        let gpu = gpus.device_at(1).expect("a device");
        let stream = gpu.streams().acquire().expect("a stream");
        let mut buffer = gpu.buffer::<u8>(1000, stream, tag!("d1-quiet")).expect("it fits");
        buffer.fill(1).expect("the device works");
        drop(buffer);
        gpus.close().expect("nothing is held");
    }
    assert!(logged("d1-quiet").is_empty());
}

#[test]
fn blocks_that_were_lost_are_reported_once_when_the_pool_is_closed_or_the_last_handle_goes() {
    listen();
    for (name, closes) in [("d1-dropped-with", false), ("d1-closed-with", true)] {
        let gpus = pool(&Stack::new().observe(Statistics::default()).over(leaf::Async));
        let gpu = gpus.device_at(0).expect("a device");
        let stream = gpu.streams().acquire().expect("a stream");
        let lost =
            gpu.buffer::<u8>(5000, stream, AllocTag::intern(name)).expect("it fits").into_block().expect("no use");
        assert!(lost.is_some());
        if closes {
            assert_eq!(gpus.close().expect_err("a block was lost").leaks.len(), 1);
        } else {
            drop(gpus);
        }
        let lines = logged(&format!("{name}: 5 KiB in 1 block"));
        assert!(matches!(&lines[..], [(Level::WARN, _)]), "{lines:?}");
    }
}

#[test]
fn a_free_that_is_refused_keeps_its_place() {
    let gpus = pool(&Stack::new().over(leaf::Async));
    gpus.record_sites().expect("room for an observer");
    let gpu = gpus.device_at(0).expect("a device");
    let stream = gpu.streams().acquire().expect("a stream");
    let elsewhere = gpus.device_at(1).expect("another").context().default_stream();
    let base = Location::caller();
    let buffer = gpu.buffer::<u8>(100, stream, tag!("d1-refused")).expect("it fits");
    let block = buffer.into_block().expect("no use").expect("not empty");
    let other = Stack::new().over(leaf::Async).build(gpu.context()).expect("a second stack");
    let refused = other.deallocate(block, stream).expect_err("another stack's");
    let refused = gpu.memory().deallocate(refused.block, elsewhere).expect_err("another device's stream");
    let Leak { sites, .. } = gpu.still_held(Duration::ZERO).expect("one block");
    assert!(matches!(&sites[..], [site] if here_plus(1, site.location, base)), "{sites:?}");
    gpu.memory().deallocate(refused.block, stream).expect("its own");
    assert_eq!(gpu.still_held(Duration::MAX), None);
}
