//! Sleeps that are undone, while others have put something to sleep before and since.

use crate::rig::{FRAME, Rig, small};
use crate::sleep_rig::SleepRig;
use bursar_conformance::sleep::Heap;
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, DevicePtr, Error, SleepRequest, SleepState, Sleeper,
    WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Random;
use std::ops::Range;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

fn range_of(block: &DeviceBlock) -> Range<DevicePtr> {
    block.ptr()..block.ptr().offset(block.granted().get())
}

/// Returns a request for the blocks of some tags.
fn request(blocks: &[DeviceBlock], tags: &[AllocTag]) -> SleepRequest {
    let of =
        |&tag: &AllocTag| (tag, blocks.iter().filter(|block| block.tag() == tag).map(range_of).collect::<Vec<_>>());
    SleepRequest { only: Some(tags.iter().map(of).collect()), ..SleepRequest::default() }
}

/// A sleep is undone with what its own request put to sleep and the places that this took: tags that slept before or since sleep on,
/// also in frames that all of them share, and every block holds what it held.
#[test]
fn z7_a_sleep_that_is_undone_leaves_what_others_put_to_sleep_before_and_since() {
    let [before, undone, since] = [tag!("before"), tag!("undone"), tag!("since")];
    for seed in 0..64 {
        let mut random = Random::new(seed);
        let rig = SleepRig::new(seed, 64, &PagePool::default().largest_frame(Bytes(2 * FRAME)), None);
        let stream = rig.stream();
        let blocks: Vec<_> = (0..12u64)
            .map(|nth| {
                let tag = [before, undone, since][random.below(3) as usize];
                let block = rig.pool.allocate(1 + random.below(2 * FRAME), 256, stream, tag).expect("room");
                rig.fill(&block, nth as u8, stream);
                block
            })
            .collect();
        let asleep = || blocks.iter().map(|block| rig.context.check_awake(block.ptr()).is_err()).collect::<Vec<_>>();
        let of = |tags: &[AllocTag]| blocks.iter().map(|block| tags.contains(&block.tag())).collect::<Vec<_>>();
        let sleep = |request: &SleepRequest| rig.pool.sleep(&Heap, request).expect("room on the host");
        sleep(&request(&blocks, &[before]));
        let mine = SleepRequest { keep_place: random.chance(2), ..request(&blocks, &[before, undone]) };
        sleep(&mine);
        let all_since = random.chance(4);
        sleep(&if all_since { SleepRequest::default() } else { request(&blocks, &[since]) });
        let undo = rig.pool.undo_sleep(&mine);
        if all_since {
            assert!(matches!(undo, Err(Error::Asleep { is_moving: false, .. })), "seed {seed}: {undo:?}");
            assert_eq!((rig.state(), asleep()), (SleepState::Asleep, vec![true; blocks.len()]), "seed {seed}");
        } else {
            undo.expect("there is room");
            assert_eq!(asleep(), of(&[before, since]), "seed {seed}");
            rig.assert_charged(Bytes::ZERO);
            rig.pool.undo_sleep(&mine).expect("nothing is left to undo");
            assert_eq!(asleep(), of(&[before, since]), "seed {seed}");
        }
        rig.pool.wake(&WakeRequest::default()).expect("there is room");
        assert_eq!((rig.state(), asleep()), (SleepState::Awake, vec![false; blocks.len()]), "seed {seed}");
        for (nth, block) in blocks.into_iter().enumerate() {
            rig.expect(&block, nth as u8, stream);
            rig.pool.deallocate(block, stream).expect("its own");
        }
        rig.assert_charged(Bytes::ZERO);
        rig.finish();
    }
}

/// Whoever undoes a sleep waits for another thread that moves the same pool just then.
#[test]
fn z7_a_sleep_is_undone_after_whoever_moves_the_pool() {
    let (rig, hooked) = Rig::hooked(1, 64, &small());
    let stream = rig.stream();
    let blocks = [rig.allocate(FRAME, stream), rig.allocate(FRAME, stream)];
    let only = |tag, block: &DeviceBlock| SleepRequest {
        only: Some(vec![(tag, vec![range_of(block)])]),
        ..SleepRequest::default()
    };
    let mine = only(tag!("mine"), &blocks[0]);
    rig.pool.sleep(&Heap, &mine).expect("asleep");
    rig.pool.sleep(&Heap, &only(tag!("others"), &blocks[1])).expect("asleep");
    let ((moves, is_moving), (ended, is_over)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    let (moves, is_over) = (Mutex::new(Some(moves)), Mutex::new(is_over));
    hooked.set(move |_| {
        // In the middle of the wake, long enough for one who does not wait.
        if let Some(moves) = moves.lock().expect("nobody panics").take() {
            moves.send(()).expect("somebody undoes");
            let _ended = is_over.lock().expect("nobody panics").recv_timeout(Duration::from_millis(20));
        }
    });
    std::thread::scope(|scope| {
        let (rig, mine) = (&rig, &mine);
        let undone = scope.spawn(move || {
            is_moving.recv().expect("the other wakes");
            let undone = rig.pool.undo_sleep(mine);
            ended.send(()).unwrap_or_default();
            undone
        });
        rig.pool.wake(&WakeRequest { only: vec![tag!("others")], ..WakeRequest::default() }).expect("room");
        undone.join().expect("no panic").expect("it is undone then");
    });
    assert_eq!(rig.pool.sleep_reading().state, SleepState::Awake);
    blocks.into_iter().for_each(|block| rig.free(block));
    drop(hooked);
    rig.finish();
}
