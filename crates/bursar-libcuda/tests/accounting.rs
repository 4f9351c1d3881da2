//! K1: what a call takes of a device is missing from it until the call that gives it back, whichever calls these are.
#![allow(unsafe_code)]

mod rig;

use bursar_sim::Random;
use rig::{OUT_OF_MEMORY, SUCCESS, memory};

const PAGE: u64 = 2 << 20;
/// The multiple that memory without pages is counted in.
const UNIT: u64 = 256;
/// The device of these tests; physical memory and arrays name it.
const DEVICE: u64 = 1;

/// Something that holds memory, with the bytes that it holds besides those of pools.
#[derive(Clone, Copy, Debug)]
enum Held {
    Linear { at: u64, bytes: u64 },
    Ordered { at: u64 },
    Array { array: u64, bytes: u64 },
    Mipmapped { array: u64, bytes: u64 },
    Pages { pages: u64, bytes: u64, references: u32, mapped_at: Option<u64> },
}

impl Held {
    fn bytes(self) -> u64 {
        match self {
            Self::Linear { bytes, .. } | Self::Array { bytes, .. } | Self::Mipmapped { bytes, .. } => bytes,
            Self::Pages { bytes, .. } => bytes,
            Self::Ordered { .. } => 0,
        }
    }
}

fn reserved(pool: u64) -> u64 {
    let mut bytes = 0u64;
    ok!(cuMemPoolGetAttribute(pool, 5u64, &mut bytes));
    bytes
}

/// Takes memory in one of the ways there are, or returns nothing where there is not enough.
fn take(random: &mut Random, stream: u64) -> Option<Held> {
    let (size, mut at) = (1 + random.below(12 << 20), 0u64);
    let (kind, status, held): (&str, i32, Held);
    match random.below(8) {
        0 | 1 => {
            (kind, status) = ("linear", cu!(cuMemAlloc_v2(&mut at, size)));
            held = Held::Linear { at, bytes: size.next_multiple_of(UNIT) };
        }
        2 => {
            let (mut pitch, width, height) = (0u64, 1 + random.below(3000), 1 + random.below(500));
            (kind, status) = ("pitched", cu!(cuMemAllocPitch_v2(&mut at, &mut pitch, width, height, 4u64)));
            assert!(status != SUCCESS || pitch >= width);
            held = Held::Linear { at, bytes: pitch * height };
        }
        3 => {
            (kind, status) = ("managed", cu!(cuMemAllocManaged(&mut at, size, 1u64)));
            held = Held::Linear { at, bytes: size.next_multiple_of(UNIT) };
        }
        4 => {
            (kind, status) = ("ordered", cu!(cuMemAllocAsync(&mut at, size, stream)));
            held = Held::Ordered { at };
        }
        5 => {
            let (width, height) = (1 + random.below(2000), 1 + random.below(1000));
            // Four channels of four bytes.
            (kind, status) = ("array", cu!(cuArrayCreate_v2(&mut at, &[width, height, 4 << 32 | 32])));
            held = Held::Array { array: at, bytes: (width * height * 16).next_multiple_of(UNIT) };
        }
        6 => {
            let side = 1u64 << random.below(9);
            let descriptor = [side, side, 0, 1 << 32 | 1, 0];
            (kind, status) = ("mipmapped", cu!(cuMipmappedArrayCreate(&mut at, &descriptor, 3u64)));
            let level = |level: u32| (side >> level).max(1) * (side >> level).max(1);
            let levels = 3.min(side.ilog2() + 1);
            let bytes = (0..levels).map(level).sum::<u64>().next_multiple_of(UNIT);
            held = Held::Mipmapped { array: at, bytes };
        }
        _ => {
            let bytes = PAGE * (1 + random.below(8));
            (kind, status) = ("pages", cu!(cuMemCreate(&mut at, bytes, &[1u64, DEVICE << 32 | 1, 0, 0], 0u64)));
            held = Held::Pages { pages: at, bytes, references: 1, mapped_at: None };
        }
    }
    assert!(status == SUCCESS || status == OUT_OF_MEMORY, "{kind}: {status}");
    (status == SUCCESS).then_some(held)
}

/// Does one thing with what is held. Returns what is held then, if anything.
fn step(random: &mut Random, held: Held, stream: u64) -> Option<Held> {
    match held {
        Held::Linear { at, .. } => ok!(cuMemFree_v2(at)),
        Held::Ordered { at } if random.below(2) == 0 => ok!(cuMemFree_v2(at)),
        Held::Ordered { at } => ok!(cuMemFreeAsync(at, stream)),
        Held::Array { array, .. } => ok!(cuArrayDestroy(array)),
        Held::Mipmapped { array, .. } => ok!(cuMipmappedArrayDestroy(array)),
        Held::Pages { pages, bytes, references, mapped_at } => {
            return step_pages(random, pages, bytes, references, mapped_at);
        }
    }
    None
}

/// Maps, unmaps, retains or releases physical memory: it is held until it is neither referred to nor mapped.
fn step_pages(random: &mut Random, pages: u64, bytes: u64, references: u32, mapped_at: Option<u64>) -> Option<Held> {
    let now = |references, mapped_at| Some(Held::Pages { pages, bytes, references, mapped_at });
    match (mapped_at, references, random.below(3)) {
        (None, 1.., 0) => {
            let mut at = 0u64;
            ok!(cuMemAddressReserve(&mut at, bytes, 0u64, 0u64, 0u64));
            ok!(cuMemMap(at, bytes, 0u64, pages, 0u64));
            ok!(cuMemSetAccess(at, bytes, &[DEVICE << 32 | 1, 3u64], 1u64));
            now(references, Some(at))
        }
        (Some(at), _, 0) => {
            ok!(cuMemUnmap(at, bytes));
            ok!(cuMemAddressFree(at, bytes));
            if references == 0 { None } else { now(references, None) }
        }
        (Some(at), _, 1) => {
            let mut again = 0u64;
            ok!(cuMemRetainAllocationHandle(&mut again, at + bytes - 1));
            assert_eq!(again, pages);
            now(references + 1, mapped_at)
        }
        (_, 1.., _) => {
            ok!(cuMemRelease(pages));
            if references == 1 && mapped_at.is_none() { None } else { now(references - 1, mapped_at) }
        }
        _ => now(references, mapped_at),
    }
}

/// Returns what NVML says is used of the device, and what this process holds of it.
fn nvml(device: u64) -> (u64, u64) {
    let (mut memory, mut count, mut processes) = ([0u64; 3], 8u32, [[0u64; 3]; 8]);
    ok!(nvmlDeviceGetMemoryInfo(device, &mut memory));
    ok!(nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, &mut processes));
    let own = processes[..count as usize].iter().find(|process| process[0] as u32 == std::process::id());
    (memory[2], own.map_or(0, |process| process[1]))
}

#[test]
fn k1_a_seeded_model_finds_missing_exactly_what_was_taken() {
    let (mut context, mut pool, mut stream, mut device) = (0u64, 0u64, 0u64, 0u64);
    ok!(cuInit(0u64));
    ok!(nvmlInit_v2());
    ok!(nvmlDeviceGetHandleByIndex_v2(DEVICE, &mut device));
    ok!(cuDevicePrimaryCtxRetain(&mut context, DEVICE));
    ok!(cuCtxSetCurrent(context));
    ok!(cuDeviceGetDefaultMemPool(&mut pool, DEVICE));
    for seed in 0..40 {
        let (mut random, mut live) = (Random::new(seed), Vec::new());
        ok!(cuStreamCreate(&mut stream, 1u64));
        for turn in 0..150 {
            if live.is_empty() || random.below(5) < 3 {
                live.extend(take(&mut random, stream));
            } else {
                let held = live.swap_remove(random.index(live.len()));
                live.extend(step(&mut random, held, stream));
            }
            if random.below(4) == 0 {
                ok!(cuStreamSynchronize(stream));
            }
            let (free, total) = memory();
            let taken: u64 = live.iter().map(|held| held.bytes()).sum();
            assert_eq!(total - free, taken + reserved(pool), "seed {seed}, turn {turn}");
            assert_eq!(nvml(device), (total - free, total - free), "seed {seed}, turn {turn}");
        }
        while let Some(held) = live.pop() {
            live.extend(step(&mut random, held, stream));
        }
        ok!(cuStreamSynchronize(stream));
        ok!(cuStreamDestroy_v2(stream));
        let (free, total) = memory();
        assert_eq!(free, total, "seed {seed}: everything was given back");
    }
}

#[test]
fn k1_a_context_takes_what_belongs_to_it_with_it() {
    let (mut context, mut at, mut array, mut pages, mut stream) = (0u64, 0u64, 0u64, 0u64, 0u64);
    ok!(cuInit(0u64));
    ok!(cuCtxCreate_v2(&mut context, 0u64, 0i32));
    let (before, total) = memory();
    ok!(cuMemAlloc_v2(&mut at, 1u64 << 20));
    ok!(cuMemAllocManaged(&mut at, 1u64 << 20, 1u64));
    ok!(cuArrayCreate_v2(&mut array, &[64u64, 64, 1 << 32 | 1]));
    ok!(cuStreamCreate(&mut stream, 0u64));
    ok!(cuMemCreate(&mut pages, PAGE, &[1u64, 1, 0, 0], 0u64));
    assert_eq!(total - memory().0, (2 << 20) + 4096 + PAGE);
    ok!(cuCtxDestroy_v2(context));
    assert_eq!(cu!(cuCtxGetDevice(&mut at)), rig::INVALID_CONTEXT, "it is not current any more");
    assert_eq!(cu!(cuStreamSynchronize(stream)), rig::INVALID_HANDLE);
    assert_eq!(cu!(cuArrayDestroy(array)), rig::INVALID_HANDLE);
    ok!(cuCtxCreate_v2(&mut context, 0u64, 0i32));
    assert_eq!(before - memory().0, PAGE, "physical memory belongs to no context");
    ok!(cuMemRelease(pages));
    ok!(cuCtxDestroy_v2(context));
}
