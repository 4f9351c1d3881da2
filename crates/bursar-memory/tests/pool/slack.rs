//! P3 and P4: slack, which is how much a pool holds besides what is in use, and how often it asks for more.

use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, DeviceBlock};
use bursar_memory::PagePool;
use bursar_sim::{Call, Sim};
use std::time::Duration;

/// Grows a pool by blocks of one frame, in turn on so many streams; returns the most frames it held besides.
fn fill(rig: &Rig, streams: u64, blocks: u64) -> (Vec<DeviceBlock>, u64) {
    let streams: Vec<_> = (0..streams).map(|_| rig.stream()).collect();
    // A stream counts once something was freed on it.
    streams.iter().for_each(|&stream| rig.free(rig.allocate(FRAME, stream)));
    let (mut live, mut most) = (Vec::new(), 0);
    for nth in 0..blocks {
        live.push(rig.allocate(FRAME, streams[nth as usize % streams.len()]));
        most = most.max(rig.pool.held().get() / FRAME - live.len() as u64);
    }
    (live, most)
}

#[test]
fn p3_a_pool_that_streams_share_holds_an_eighteenth_to_spare_and_no_more() {
    for (streams, spare) in [(1, 0..=0), (2, 10..=13), (5, 10..=13)] {
        let rig = Rig::new(Sim::immediate(), 1000, &PagePool::default());
        let (live, most) = fill(&rig, streams, 240);
        assert!(spare.contains(&most), "{streams} streams: {most} frames to spare");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.driver_held(), Bytes(240 * FRAME), "{streams} streams");
        live.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// The driver has nothing to spare: what is asked for besides is refused, and the request is not.
#[test]
fn p3_what_cannot_be_had_to_spare_is_no_reason_to_refuse() {
    let rig = Rig::new(Sim::immediate(), 1000, &small());
    rig.faults.out_of_memory_at(Bytes(100 * FRAME));
    let (live, _) = fill(&rig, 3, 100);
    assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes(100 * FRAME), Bytes(100 * FRAME)));
    assert!(
        rig.faults.calls(Call::PagesCreate) <= 101,
        "{} frames were asked for",
        rig.faults.calls(Call::PagesCreate)
    );
    live.into_iter().for_each(|block| rig.free(block));
    rig.finish();
}

/// Nothing is made for a request that the limits have no room for, however many frames it would take.
#[test]
fn p4_no_frame_is_made_for_a_request_that_is_refused() {
    for (used, wanted) in [(0, 17), (8, 17), (8, 12), (15, 6)] {
        let rig = Rig::new(Sim::seeded(1), 16, &small().patience(Duration::ZERO));
        let stream = rig.stream();
        let live: Vec<_> = (0..used).map(|_| rig.allocate(FRAME, stream)).collect();
        rig.faults.reset_counts();
        let refused = rig.try_allocate(wanted * FRAME, stream).expect_err("more than there is");
        assert!(refused.shortage().is_some(), "{refused}");
        assert_eq!(rig.faults.calls(Call::PagesCreate), 0, "{wanted} beside {used}");
        assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes(used * FRAME), Bytes(used * FRAME)));
        live.into_iter().for_each(|block| rig.free(block));
        rig.finish();
    }
}

/// What was trimmed is not taken back for the next small request.
#[test]
fn p3_a_trimmed_pool_takes_to_spare_what_is_in_use_now() {
    let rig = Rig::new(Sim::immediate(), 1000, &PagePool::default());
    let (live, _) = fill(&rig, 4, 400);
    let stream = live[0].stream();
    live.into_iter().for_each(|block| rig.free(block));
    rig.pool.trim(Bytes::ZERO);
    assert_eq!(rig.driver_held(), Bytes::ZERO);
    let small = rig.allocate(1000, stream);
    assert_eq!(rig.driver_held(), Bytes(FRAME));
    rig.free(small);
    rig.finish();
}
