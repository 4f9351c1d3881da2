//! T2: a free comes after every use.

use super::{GPU0, Rig, SEEDS};
use bursar_core::{Bytes, Status};
use bursar_sim::{Call, Sim};

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
        assert_eq!((rig.gpu.deferred_frees(), rig.faults.calls(Call::FreeAsync)), (1, 0));
        rig.sim.end_capture(GPU0, raw).expect("its own");
        rig.faults.fail_next(Call::EventRecord, Status::InvalidValue);
        drop(rig.buffer(&a));
        assert_eq!(rig.gpu.deferred_frees(), 1, "it was tried and failed");
        drop(rig.buffer(&a));
        assert_eq!(rig.gpu.deferred_frees(), 0);
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
            let block = buffer.into_block().expect("ordered").expect("it holds memory");
            rig.gpu.memory().deallocate(block, *a).expect("its own memory");
        }
        drop((a, b));
        rig.end(seed);
    }
}
