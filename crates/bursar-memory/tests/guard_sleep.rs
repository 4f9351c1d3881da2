//! G3 over a pool that sleeps: nothing that sleeps is filled or looked at, and nothing is overlooked because of it.
#![allow(unsafe_code)]

mod common;

use bursar_conformance::sleep::Heap;
use bursar_core::{
    AllocTag, Build, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Holder, Pattern,
    Result, SleepRequest, Sleeper, Stack, Stream, WakeRequest, leaf, tag,
};
use bursar_memory::{Guard, PagePool};
use bursar_sim::{Random, Sim};
use common::{RandomSize, context};
use std::sync::Arc;
use std::time::Duration;

/// A guard over a pool on a simulated device.
struct Desk {
    sim: Arc<Sim>,
    context: Arc<DeviceContext>,
    guard: Guard,
    memory: Box<dyn DeviceMemoryResource>,
    streams: [Stream; 2],
}

impl Desk {
    fn new(seed: u64, quarantine: Bytes) -> Self {
        let sim = Sim::seeded(seed);
        let (context, guard) = (context(sim.clone()), Guard::default().quarantine(quarantine));
        let stack = Stack::new().layer(guard.clone()).layer(PagePool::default()).over(leaf::Frames);
        let memory = Box::new(stack.build(&context).expect("a stack"));
        let streams = [(); 2].map(|()| context.create_stream(0).expect("a stream"));
        Self { sim, context, guard, memory, streams }
    }

    fn pool(&self) -> Arc<dyn Sleeper> {
        self.context.sleepers().pop().expect("the pool")
    }

    fn allocate(&self, bytes: u64, tag: AllocTag) -> DeviceBlock {
        self.memory.allocate(bytes, 256, self.streams[0], tag).expect("room")
    }

    fn free(&self, block: DeviceBlock) {
        self.memory.deallocate(block, self.streams[0]).expect("a free never fails for it");
    }

    fn sleep(&self) {
        self.pool().sleep(&Heap, &SleepRequest::default()).expect("nothing keeps it awake");
    }

    fn wake(&self, only: Option<AllocTag>) -> Result<()> {
        self.pool().wake(&WakeRequest { only: Vec::from_iter(only), ..WakeRequest::default() }).map(drop)
    }

    /// Writes one byte wherever it is, and waits for it.
    fn plant(&self, ptr: DevicePtr) {
        static BYTE: u8 = 0x11;
        let raw = self.context.resolve(self.streams[0]).expect("a stream of this device");
        // SAFETY: the address lies in the margin of a block or in one in quarantine, which is mapped.
        let copied =
            unsafe { self.context.driver().copy_to_device(self.context.device(), raw, ptr, &raw const BYTE, 1) };
        copied.expect("the device works");
    }

    #[track_caller]
    fn finish(self) {
        let Self { sim, context, memory, .. } = self;
        drop(memory);
        drop(context);
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}

fn overrun(block: &DeviceBlock, offset: i64) -> Error {
    let (ptr, generation, tag) = (block.ptr(), block.generation(), block.tag());
    Error::OutOfBounds { ptr, generation, tag, offset }
}

fn late(block: &DeviceBlock) -> Error {
    Error::UseAfterFree { ptr: block.ptr(), generation: block.generation(), tag: block.tag() }
}

#[test]
fn g3_a_block_that_is_freed_asleep_is_looked_at_when_it_is_awake() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Bytes::mib(64));
        let (block, innocent) = (desk.allocate(5000, tag!("guilty")), desk.allocate(5000, tag!("innocent")));
        let expected = overrun(&block, 5000);
        desk.plant(block.ptr().offset(5000));
        desk.sleep();
        desk.free(block);
        desk.free(innocent);
        assert_eq!(desk.guard.check(), Ok(Vec::new()), "what sleeps is not looked at");
        desk.wake(None).expect("room");
        assert_eq!(desk.guard.check(), Ok(vec![expected]), "seed {seed}");
        desk.memory.reap_blocking(Duration::MAX).expect("reported once");
        assert_eq!(desk.memory.bytes_outstanding(), Bytes::ZERO);
        desk.finish();
    }
}

#[test]
fn g3_what_is_in_quarantine_is_looked_at_after_it_has_slept() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Bytes::kib(64));
        let block = desk.allocate(5000, tag!("freed"));
        let (ptr, expected) = (block.ptr(), late(&block));
        desk.free(block);
        desk.plant(ptr.offset(7));
        let others: Vec<_> = (0..16).map(|_| desk.allocate(20_000, tag!("others"))).collect();
        desk.sleep();
        // They leave the quarantine no room for it, and a reap empties it.
        others.into_iter().for_each(|block| desk.free(block));
        desk.memory.reap().expect("nothing was looked at");
        desk.wake(None).expect("room");
        let found = desk.guard.check().expect("the device works");
        assert_eq!(found, [expected], "seed {seed}");
        desk.memory.reap_blocking(Duration::MAX).expect("reported once");
        assert_eq!(desk.memory.bytes_outstanding(), Bytes::ZERO);
        desk.finish();
    }
}

#[test]
fn g3_memory_that_goes_away_asleep_leaves_nothing_behind() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Bytes::mib(64));
        let (kept, freed) = (desk.allocate(5000, tag!("kept")), desk.allocate(5000, tag!("freed")));
        desk.free(kept);
        desk.sleep();
        desk.free(freed);
        desk.finish();
    }
}

/// Contents that are given up take the guard's own bytes along: nobody wrote those, and they are watched again from the next
/// look on.
#[test]
fn g3_contents_that_are_given_up_are_no_writes() {
    for seed in 0..16 {
        let desk = Desk::new(seed, Bytes::mib(64));
        let [live, freed, freed_asleep] = [5000, 3000, 1000].map(|bytes| desk.allocate(bytes, tag!("cache")));
        desk.free(freed);
        let request = SleepRequest { discard_all: true, ..SleepRequest::default() };
        desk.pool().sleep(&Heap, &request).expect("nothing keeps it awake");
        desk.free(freed_asleep);
        desk.wake(None).expect("room");
        assert_eq!(desk.guard.check(), Ok(Vec::new()), "seed {seed}");
        desk.plant(live.ptr().offset(5001));
        assert_eq!(desk.guard.check(), Ok(vec![overrun(&live, 5001)]), "seed {seed}");
        desk.free(live);
        desk.memory.reap_blocking(Duration::MAX).expect("reported once");
        assert_eq!(desk.memory.bytes_outstanding(), Bytes::ZERO);
        desk.finish();
    }
}

/// Programs that write only what is theirs and have some or all of it sleep: none is reported, nothing is touched while it
/// sleeps, and everything comes back.
#[test]
fn g3_programs_that_sleep_are_never_reported() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let desk = Desk::new(seed, Bytes(random.below(200_000)));
        let (mut live, mut is_asleep) = (Vec::<DeviceBlock>::new(), false);
        for _ in 0..60 {
            let (stream, nth) = (desk.streams[random.index(2)], random.index(live.len().max(1)));
            let tag = if random.below(2) == 0 { tag!("even") } else { tag!("odd") };
            match random.below(14) {
                0..=4 => match desk.memory.allocate(random.size(60_000), 256 << random.below(4), stream, tag) {
                    Ok(block) => live.push(block),
                    Err(Error::Asleep { .. }) => assert!(is_asleep, "seed {seed}"),
                    Err(error) => panic!("seed {seed}: {error}"),
                },
                5..=6 if !live.is_empty() => {
                    let bytes = live[nth].requested().get();
                    match desk.context.fill(&mut live[nth], 0, Pattern::U8(0xdb), bytes, stream) {
                        Ok(()) | Err(Error::Asleep { .. }) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
                7..=9 if !live.is_empty() => {
                    desk.memory.deallocate(live.swap_remove(nth), stream).expect("its own");
                }
                10 => assert_eq!(desk.guard.check(), Ok(Vec::new()), "seed {seed}"),
                11 if !is_asleep => {
                    // As blocks are recorded by tag: without their margins.
                    let bytes = |block: &DeviceBlock| block.requested().get().next_multiple_of(256);
                    let range = |block: &DeviceBlock| block.ptr()..block.ptr().offset(bytes(block));
                    let of_tag = || live.iter().filter(|block| block.tag() == tag).map(range).collect();
                    is_asleep = random.below(2) == 0;
                    let request = SleepRequest {
                        only: (!is_asleep).then(|| vec![(tag, of_tag())]),
                        discard: if random.below(4) == 0 { of_tag() } else { Vec::new() },
                        discard_all: random.below(4) == 0,
                        ..SleepRequest::default()
                    };
                    desk.pool().sleep(&Heap, &request).expect("nothing keeps it awake");
                }
                12 => {
                    desk.wake(None).expect("room");
                    is_asleep = false;
                }
                _ => drop(desk.memory.reap().unwrap_or_else(|error| panic!("seed {seed}: {error}"))),
            }
        }
        desk.wake(None).expect("room");
        live.into_iter().for_each(|block| desk.free(block));
        assert_eq!(desk.guard.check(), Ok(Vec::new()), "seed {seed}");
        desk.memory.reap_blocking(Duration::MAX).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(desk.memory.bytes_outstanding(), Bytes::ZERO, "seed {seed}");
        desk.finish();
    }
}
