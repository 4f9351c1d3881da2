//! The raw level: uses that are prepared, launched by hand, and finished.
#![allow(unsafe_code)]

use super::{GPU0, LEN, Rig, SEEDS};
use bursar_core::{Access, Driver, Error, Stream, StreamMisuse, TrackedBlock, tag};
use bursar_sim::{Launch, Sim};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

impl Rig {
    fn block(&self, stream: Stream) -> TrackedBlock {
        let memory = self.gpu.memory();
        TrackedBlock::new(&**memory, memory.allocate(LEN as u64, 256, stream, tag!("raw")).expect("room"))
    }

    fn streams<const N: usize>(&self) -> [Stream; N] {
        [(); N].map(|()| self.gpu.streams().acquire().expect("room"))
    }

    fn launch(&self, block: &TrackedBlock, stream: Stream, access: Access) {
        let (ptr, raw) = (block.ptr(), self.gpu.context().resolve(stream).expect("its own"));
        let kernel = match access {
            Access::Read => Launch::new("read").reads(ptr, LEN as u64),
            Access::Write => Launch::new("write").writes(ptr, LEN as u64),
        };
        self.sim.launch(GPU0, raw, kernel).expect("submitted");
    }

    fn use_now(&self, block: &TrackedBlock, stream: Stream, access: Access) {
        let context = self.gpu.context();
        let using = context.prepare_block_use(block, stream, access).expect("its own");
        self.launch(block, stream, access);
        context.finish_block_use(using);
    }
}

#[test]
fn t4_a_reader_that_starts_while_a_writer_is_at_work_is_not_lost() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.streams();
        let (context, block) = (rig.gpu.context(), rig.block(a));
        let writing = context.prepare_block_use(&block, a, Access::Write).expect("its own");
        rig.launch(&block, a, Access::Write);
        let reading = context.prepare_block_use(&block, b, Access::Read).expect("its own");
        rig.launch(&block, b, Access::Read);
        // In either order.
        if seed % 2 == 0 {
            context.finish_block_use(writing);
            context.finish_block_use(reading);
        } else {
            context.finish_block_use(reading);
            context.finish_block_use(writing);
        }
        rig.use_now(&block, c, Access::Write);
        block.free(&**rig.gpu.memory(), a).expect("its own");
        rig.end(seed);
    }
}

#[test]
fn t4_a_reader_that_starts_and_finishes_before_the_writer_launches_is_waited_for_when_that_begins_again() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.streams();
        let (context, block) = (rig.gpu.context(), rig.block(a));
        let mut writing = context.prepare_block_use(&block, a, Access::Write).expect("its own");
        rig.use_now(&block, b, Access::Read);
        writing.renew(Access::Write).expect("its own");
        rig.launch(&block, a, Access::Write);
        drop(writing);
        rig.use_now(&block, b, Access::Read);
        block.free(&**rig.gpu.memory(), b).expect("its own");
        rig.end(seed);
    }
}

#[test]
fn t4_the_second_of_two_writers_is_not_lost() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.streams();
        let (context, block) = (rig.gpu.context(), rig.block(a));
        let first = context.prepare_block_use(&block, a, Access::Write).expect("its own");
        rig.launch(&block, a, Access::Write);
        let second = context.prepare_block_use(&block, b, Access::Write).expect("its own");
        rig.launch(&block, b, Access::Write);
        drop(if seed % 2 == 0 { [first, second] } else { [second, first] });
        rig.use_now(&block, c, Access::Read);
        block.free(&**rig.gpu.memory(), a).expect("its own");
        rig.end(seed);
    }
}

#[test]
fn t3_a_use_that_is_dropped_counts_and_one_that_is_leaked_goes_on() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.streams();
        let (context, block) = (rig.gpu.context(), rig.block(a));
        let writing = context.prepare_block_use(&block, b, Access::Write).expect("its own");
        rig.launch(&block, b, Access::Write);
        drop(writing);
        rig.use_now(&block, a, Access::Read);
        std::mem::forget(context.prepare_block_use(&block, b, Access::Write).expect("its own"));
        rig.launch(&block, b, Access::Write);
        rig.use_now(&block, a, Access::Read);
        block.free(&**rig.gpu.memory(), a).expect("its own");
        let Rig { sim, gpu, .. } = rig;
        drop(gpu);
        sim.settle();
        sim.assert_clean();
    }
}

#[test]
fn t6_a_use_that_is_recorded_waits_for_nothing_and_is_waited_for() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.streams();
        let (context, block) = (rig.gpu.context(), rig.block(a));
        context.order(a, b).expect("its own");
        rig.launch(&block, b, Access::Write);
        let events = rig.events();
        context.record_block_use(&block, b, Access::Write).expect("its own");
        assert_eq!(rig.events(), events);
        rig.use_now(&block, c, Access::Read);
        block.free(&**rig.gpu.memory(), a).expect("its own");
        rig.end(seed);
    }
}

#[test]
fn t4_uses_on_many_threads_are_all_waited_for_by_the_free() {
    for seed in 0..8 {
        let rig = Rig::new(Sim::seeded(seed));
        let streams: [Stream; 8] = rig.streams();
        for _ in 0..4 {
            let block = rig.block(streams[0]);
            std::thread::scope(|scope| {
                for stream in streams {
                    let (rig, block) = (&rig, &block);
                    scope.spawn(move || (0..10).for_each(|_| rig.use_now(block, stream, Access::Read)));
                }
            });
            block.free(&**rig.gpu.memory(), streams[7]).expect("its own");
        }
        rig.end(seed);
    }
}

#[test]
fn t5_what_is_kept_of_a_block_is_small() {
    assert!(size_of::<TrackedBlock>() <= 96, "{}", size_of::<TrackedBlock>());
}

/// A use that waits for the end of one adoption must not keep another from ending: they might wait for each other.
#[test]
fn t1_a_use_that_waits_for_an_adoption_to_end_keeps_no_other_from_ending() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let context = rig.gpu.context();
        let raws = [(); 2].map(|()| rig.sim.stream_create(GPU0, 0).expect("room"));
        // SAFETY: the streams are destroyed below, after their adoptions have ended.
        let [uses, home] = raws.map(|raw| unsafe { context.adopt_stream(raw) }.expect("room"));
        let (used_on, allocated_on) = (uses.stream(), home.stream());
        let (block, is_using) = (&rig.block(allocated_on), &AtomicBool::new(false));
        rig.use_now(block, allocated_on, Access::Write);
        let held = context.hold(allocated_on).expect("adopted");
        let used = std::thread::scope(|scope| {
            scope.spawn(move || drop(home));
            while context.hold(allocated_on).is_ok() {
                std::thread::yield_now();
            }
            let used = scope.spawn(move || {
                is_using.store(true, SeqCst);
                context.prepare_block_use(block, used_on, Access::Read).map(drop)
            });
            while !is_using.load(SeqCst) {
                std::thread::yield_now();
            }
            (0..100).for_each(|_| std::thread::yield_now());
            drop(uses);
            drop(held);
            used.join().expect("no panic")
        });
        if let Err(error) = used {
            assert!(matches!(error, Error::StreamMisuse { why: StreamMisuse::Ended, .. }), "{error}");
        }
        for raw in raws {
            // SAFETY: the stream was made above and its adoption has ended.
            unsafe { rig.sim.stream_destroy(GPU0, raw) }.expect("the device works");
        }
    }
}
