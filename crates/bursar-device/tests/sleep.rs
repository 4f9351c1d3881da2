//! Clauses Z5, Z6 and Z9: the blocks of tags that sleep, while others allocate and free.

use bursar::host::PinnedPool;
use bursar_conformance::sleep::Heap;
use bursar_core::{
    AllocTag, Build, DeviceBlock, DeviceId, DeviceMemoryResource, Error, HostMemory, HostStore, Result, SleepState,
    Stack, Status, Stream, leaf, tag,
};
use bursar_device::{Gpu, SleepOptions, WakeOptions};
use bursar_memory::PagePool;
use bursar_sim::{Call, Faults, Sim};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Host memory whose first lender does something else before: so it happens in the middle of a sleep.
struct Meanwhile<'a>(Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>);

impl fmt::Debug for Meanwhile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl HostStore for Meanwhile<'_> {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
        let act = self.0.lock().expect("one at a time").take();
        act.into_iter().for_each(|act| act());
        Heap.lend(bytes)
    }
}

const BYTES: u64 = 64 << 10;

/// A device with two pools: the second falls asleep after the first.
struct TwoPools {
    sim: Arc<Sim>,
    gpu: Gpu,
    second: Arc<dyn DeviceMemoryResource>,
    stream: Stream,
}

impl TwoPools {
    fn new(seed: u64) -> Self {
        let sim = Sim::seeded(seed);
        let stack = || Stack::new().layer(PagePool::default()).over(leaf::Frames);
        let gpu = Gpu::open(sim.clone(), DeviceId(0), &stack()).expect("a simulated device opens");
        gpu.record_tags().expect("room");
        let second = Arc::new(stack().build(gpu.context()).expect("a second pool"));
        let stream = gpu.context().create_stream(0).expect("room");
        Self { sim, gpu, second, stream }
    }

    fn allocate(&self, tag: AllocTag) -> DeviceBlock {
        self.second.allocate(BYTES, 256, self.stream, tag).expect("room")
    }

    /// Has one block of the second pool be another's by the time that the pool falls asleep; returns that and one that was allocated
    /// then, too.
    fn sleep_while_a_block_changes_hands(&self, options: &SleepOptions) -> (DeviceBlock, DeviceBlock) {
        let (junk, taken) = (self.allocate(tag!("junk")), Mutex::new(None));
        let at = junk.ptr();
        let store = Meanwhile(Mutex::new(Some(Box::new(|| {
            self.second.deallocate(junk, self.stream).expect("its own");
            let mut keep = self.allocate(tag!("keep"));
            assert_eq!(keep.ptr(), at, "it is where the other was");
            self.gpu.context().copy_from_host(&mut keep, 0, &[7; BYTES as usize], self.stream).expect("room");
            let late = self.allocate(tag!("junk"));
            *taken.lock().expect("one at a time") = Some((keep, late));
        }))));
        self.gpu.sleep(&store, options).expect("nothing keeps it awake");
        drop(store);
        taken.into_inner().expect("one at a time").expect("the first pool had contents to save")
    }

    fn read(&self, block: &DeviceBlock) -> Vec<u8> {
        let mut held = vec![0; BYTES as usize];
        self.gpu.context().copy_to_host(block, 0, &mut held, self.stream).expect("awake");
        held
    }

    fn end<const N: usize>(self, blocks: [DeviceBlock; N]) {
        blocks.into_iter().for_each(|block| self.second.deallocate(block, self.stream).expect("its own"));
        self.sim.assert_clean();
    }
}

/// A tag's contents are given up as it stands when they are: a block that it has no more by then is another's.
#[test]
fn z5_a_tag_that_is_given_up_takes_no_block_with_it_that_changed_hands() {
    for seed in 0..16 {
        let pools = TwoPools::new(seed);
        let (gpu, stream) = (&pools.gpu, pools.stream);
        let own = gpu.buffer_from(&[1u8; 1000], stream, tag!("own")).expect("room");
        let options = SleepOptions::new().discard(tag!("junk"));
        let (keep, late) = pools.sleep_while_a_block_changes_hands(&options);
        gpu.wake(&WakeOptions::new()).expect("room");
        assert_eq!(pools.read(&keep), [7; BYTES as usize], "seed {seed}: nobody gave it up");
        assert_eq!(own.to_vec().expect("awake"), [1; 1000]);
        pools.end([keep, late]);
    }
}

/// A tag sleeps as it stands when its pool says so: with the blocks that it has by then, and no others.
#[test]
fn z6_a_tag_sleeps_with_the_blocks_that_it_has_when_its_pool_says_so() {
    for seed in 0..16 {
        let pools = TwoPools::new(seed);
        let (gpu, stream) = (&pools.gpu, pools.stream);
        let own = gpu.buffer_from(&[1u8; 1000], stream, tag!("junk")).expect("room");
        let stays = pools.allocate(tag!("junk"));
        let options = SleepOptions::new().only(tag!("junk"));
        let (keep, late) = pools.sleep_while_a_block_changes_hands(&options);
        let is_asleep = |block: &DeviceBlock| {
            let checked = gpu.context().check_awake(block.ptr());
            matches!(checked, Err(Error::Asleep { .. }))
        };
        assert!(!is_asleep(&keep), "seed {seed}: it has another tag");
        assert!(is_asleep(&stays) && is_asleep(&late), "seed {seed}: both are of the tag");
        assert_eq!(pools.read(&keep), [7; BYTES as usize]);
        gpu.wake(&WakeOptions::new().only(tag!("junk"))).expect("room");
        assert_eq!(own.to_vec().expect("awake"), [1; 1000]);
        pools.end([keep, late, stays]);
    }
}

/// A block is either of the tag when contents are given up, or not: whatever other threads free and allocate at the same time.
#[test]
fn z5_blocks_that_change_hands_between_threads_keep_what_they_hold() {
    const ROUNDS: u32 = 400;
    let sim = Sim::immediate();
    let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
    let gpu = Gpu::open(sim.clone(), DeviceId(0), &stack).expect("a simulated device opens");
    gpu.record_tags().expect("room");
    let (working, checked) = (AtomicUsize::new(2), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            let _done = Done(&working);
            let stream = gpu.streams().lease().expect("room");
            let (mut junk, mut keep) = (Vec::new(), VecDeque::new());
            for value in 1..=ROUNDS {
                junk.extend(awake(|| gpu.buffer::<u32>(20_000, &stream, tag!("junk"))));
                junk.drain(..junk.len().saturating_sub(3));
                let mut buffer = awake(|| gpu.buffer::<u32>(20_000, &stream, tag!("keep"))).expect("room");
                awake(|| stream.submit(|work| work.fill(&mut buffer, value))).expect("filled");
                keep.push_back((buffer, value));
                if keep.len() > 8
                    && let Some((buffer, value)) = keep.pop_front()
                {
                    let held = awake(|| buffer.to_vec()).expect("read");
                    assert!(held.iter().all(|&word| word == value), "{value} has become {:x}", held[0]);
                    checked.fetch_add(1, SeqCst);
                }
            }
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        while working.load(SeqCst) > 0 {
            gpu.sleep(&Heap, &SleepOptions::new().discard(tag!("junk"))).expect("nothing keeps it awake");
            gpu.wake(&WakeOptions::new()).expect("room");
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it has kept what it held"));
    });
    assert_eq!(checked.into_inner(), 2 * (ROUNDS as usize - 8));
    sim.assert_clean();
}

/// Counts a thread out, also where it fails.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Does what is refused while memory sleeps, once it is awake.
fn awake<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match act() {
            Err(Error::Asleep { .. }) => std::thread::yield_now(),
            done => return done,
        }
    }
}

/// The copies of a sleep that nobody can wait for still read what stays awake: it is freed, and written to, after them.
#[test]
fn z7_copies_that_cannot_be_waited_for_come_before_whatever_is_next() {
    let sim = Sim::seeded(1);
    let faults = Faults::new(sim.clone());
    let gpu = Gpu::open(faults.clone(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames));
    let gpu = gpu.expect("a simulated device opens");
    let pinned = PinnedPool::near(&gpu).expect("a node");
    let stream = gpu.streams().lease().expect("room");
    let [freed, mut written] =
        [7, 8].map(|byte: u8| gpu.buffer_from(&[byte; BYTES as usize], &stream, tag!("bytes")).expect("room"));
    faults.fail_always(Call::StreamSynchronize, Status::Unavailable);
    gpu.sleep(&pinned, &SleepOptions::new()).expect_err("nobody knows whether it is copied");
    faults.heal();
    assert_eq!(gpu.sleep_reading().state, SleepState::Awake);
    drop(freed);
    let next = gpu.buffer_from(&[9u8; BYTES as usize], &stream, tag!("bytes")).expect("room");
    stream.submit(|work| work.fill(&mut written, 10)).expect("submitted");
    assert_eq!(next.to_vec().expect("read"), [9; BYTES as usize]);
    assert_eq!(written.to_vec().expect("read"), [10; BYTES as usize]);
    sim.assert_clean();
}
