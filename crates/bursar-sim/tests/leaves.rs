//! The leaves of `bursar-core` on the oracle: their calls and notes are ordered with every seed.

mod rig;

use bursar_core::leaf::{self, Leaf};
use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Stack, Stream, tag};
use bursar_sim::{HazardKind, Sim};
use rig::{Rig, SEEDS};
use std::sync::Arc;
use std::time::Duration;

/// Allocates, uses and frees on two streams that wait only for themselves.
fn churn<R: DeviceMemoryResource>(rig: &Rig, context: &DeviceContext, memory: &R) {
    let streams: [Stream; 2] = std::array::from_fn(|_| context.create_stream(0).unwrap());
    let mut held = Vec::new();
    for round in 0..60u64 {
        let stream = streams[(round % 2) as usize];
        let block = memory.allocate(1 + round * 37 % 900, 256, stream, tag!("churn")).unwrap();
        let raw = context.resolve(stream).unwrap();
        rig.fill(raw, block.ptr(), round as u8, block.requested().get());
        held.push((block, stream));
        if round % 3 != 0 {
            let (block, stream) = held.remove((round * 7) as usize % held.len());
            memory.deallocate(block, stream).unwrap();
        }
    }
    let leaks = rig.sim.leaks().to_string();
    assert!(leaks.contains(&format!("{} allocation", held.len())) && leaks.contains("churn"), "{leaks}");
    for (block, stream) in held {
        memory.deallocate(block, stream).unwrap();
    }
    memory.reap_blocking(Duration::MAX).unwrap();
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    assert_eq!(rig.used(), 0);
}

fn on_every_seed<L: Leaf<Source: DeviceMemoryResource>>(leaf: L) {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let driver: Arc<Sim> = rig.sim.clone();
        let context = DeviceContext::open(driver, DeviceId(0)).unwrap();
        let memory = leaf.open(&context).unwrap();
        churn(&rig, &context, &memory);
        drop((memory, context));
        rig.sim.assert_clean();
        let leaks = rig.sim.leaks();
        assert!(leaks.is_empty(), "{leaks}");
    }
}

#[test]
fn direct_memory_is_clean_and_leaves_nothing() {
    on_every_seed(leaf::Direct);
}

#[test]
fn stream_ordered_memory_is_clean_and_leaves_nothing() {
    on_every_seed(leaf::Async);
}

#[test]
fn a_block_that_is_freed_on_a_stream_which_does_not_wait_for_its_use_is_found() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let context = DeviceContext::open(rig.sim.clone(), DeviceId(0)).unwrap();
        let memory = Stack::new().over(leaf::Async).build(&context).unwrap();
        let [a, b, c] = [(); 3].map(|()| context.create_stream(0).unwrap());
        let block = memory.allocate(512, 256, a, tag!("scratch")).unwrap();
        // The leaf orders the free after the stream of the block, and knows of no other.
        rig.order(context.resolve(a).unwrap(), context.resolve(c).unwrap());
        rig.fill(context.resolve(c).unwrap(), block.ptr(), 1, 512);
        memory.deallocate(block, b).unwrap();
        let hazard = rig.only_hazard();
        assert_eq!((hazard.kind, hazard.tag), (HazardKind::FreeUnordered, tag!("scratch")));
    }
}
