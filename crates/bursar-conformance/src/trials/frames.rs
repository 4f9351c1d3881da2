//! R8: frames, and the pages they are mapped as.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::leaf::{self, Leaf};
use bursar_core::{Bytes, Error, Frame, FrameKind, FrameSource, Holder, Pattern, RawPages};

super::clauses! {
    Device: r8_creating_a_frame_is_charged_and_mapping_it_is_not,
    Device: r8_bytes_move_with_the_frame,
    Device: r8_a_foreign_frame_comes_back,
    Device: r8_impossible_frames_are_refused,
}

fn pages(frame: &Frame) -> RawPages {
    match frame.kind() {
        FrameKind::Pages(pages) => pages,
        FrameKind::Slab(_) => panic!("this device maps pages"),
    }
}

fn r8_creating_a_frame_is_charged_and_mapping_it_is_not(rig: &StackRig) {
    let frames = leaf::Frames.open(&rig.context).expect("the device maps pages");
    let granularity = frames.frame_granularity();
    let frame = frames.create_frame(1).expect("there is room");
    assert_eq!((frame.bytes(), frames.granted_frame(1)), (granularity, Ok(granularity)));
    assert_eq!(frames.bytes_outstanding(), granularity);
    let (driver, device, bytes) = (rig.context.driver(), rig.context.device(), granularity.get());
    let at = driver.address_reserve(device, bytes, 0).expect("addresses are plenty");
    // SAFETY: reserved above, nothing is mapped there.
    unsafe { driver.pages_map(device, at, bytes, pages(&frame)) }.expect("mapped");
    assert_eq!(frames.bytes_outstanding(), granularity);
    // SAFETY: mapped above and never touched.
    unsafe { driver.pages_unmap(device, at, bytes) }.expect("unmapped");
    frames.release_frame(frame).expect("its own frame");
    assert_eq!(frames.bytes_outstanding(), Bytes::ZERO);
    assert_eq!(frames.released_total(), bytes);
    // SAFETY: nothing is mapped there any more.
    unsafe { driver.address_release(device, at, bytes) }.expect("released");
}

fn r8_bytes_move_with_the_frame(rig: &StackRig) {
    let frames = leaf::Frames.open(&rig.context).expect("the device maps pages");
    let bytes = frames.frame_granularity().get();
    let (driver, device) = (rig.context.driver(), rig.context.device());
    let raw = rig.context.resolve(rig.stream).expect("live");
    let frame = frames.create_frame(bytes).expect("there is room");
    let range = driver.address_reserve(device, 2 * bytes, 0).expect("addresses are plenty");
    let mut seen = vec![0u8; 4096];
    for (turn, at) in [range, range.offset(bytes)].into_iter().enumerate() {
        // SAFETY: reserved above, and what was mapped is unmapped at the end of each turn.
        unsafe { driver.pages_map(device, at, bytes, pages(&frame)) }.expect("mapped");
        // SAFETY: mapped above.
        unsafe { driver.pages_allow(device, at, bytes) }.expect("allowed");
        if turn == 0 {
            // SAFETY: mapped and allowed.
            unsafe { driver.fill(device, raw, at, Pattern::U32(0xdead_beef), bytes / 4) }.expect("filled");
        } else {
            // SAFETY: mapped and allowed; the target outlives the copy, waited for below.
            let copied = unsafe { driver.copy_to_host(device, raw, seen.as_mut_ptr(), at, seen.len() as u64) };
            copied.expect("copied");
        }
        rig.context.synchronize(rig.stream).expect("the device works");
        // SAFETY: mapped above, and all work that touched it has been waited for.
        unsafe { driver.pages_unmap(device, at, bytes) }.expect("unmapped");
    }
    assert!(seen.chunks(4).all(|word| word == 0xdead_beef_u32.to_ne_bytes()), "the bytes stayed behind");
    frames.release_frame(frame).expect("its own frame");
    // SAFETY: nothing is mapped there any more.
    unsafe { driver.address_release(device, range, 2 * bytes) }.expect("released");
}

fn r8_a_foreign_frame_comes_back(rig: &StackRig) {
    let open = || leaf::Frames.open(&rig.context).expect("the device maps pages");
    let (frames, others) = (open(), open());
    let refused = others.release_frame(frames.create_frame(1).expect("there is room")).expect_err("not its frame");
    assert!(matches!(refused.error, Error::InvalidValue { .. }));
    assert_ne!(frames.bytes_outstanding(), Bytes::ZERO);
    frames.release_frame(refused.frame).expect("its own frame");
}

fn r8_impossible_frames_are_refused(rig: &StackRig) {
    let frames = leaf::Frames.open(&rig.context).expect("the device maps pages");
    for requested in [0, u64::MAX] {
        assert_eq!(frames.create_frame(requested).err(), Some(Error::InvalidSize { requested }));
    }
    let total = rig.context.facts().total.get();
    let refused = frames.create_frame(total * 2).expect_err("more than there is");
    assert!(refused.is_capacity(), "{refused:?}");
    assert_eq!(frames.bytes_outstanding(), Bytes::ZERO);
}
