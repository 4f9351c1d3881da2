//! G3: writes that a guard in a stack finds, on hardware too.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::{Bytes, DeviceBlock, DevicePtr, Error, Pattern, Result, tag};
use std::time::Duration;

super::clauses! {
    Guard: g3_one_byte_either_side_is_found_and_named,
    Guard: g3_what_is_written_inside_is_nobodys_business,
    Guard: g3_a_fresh_block_is_not_a_number,
    Quarantine: g3_a_write_after_free_is_found_and_named,
}

/// Writes one byte at any address, in stream order.
fn plant(rig: &StackRig, ptr: DevicePtr) {
    let raw = rig.context.resolve(rig.stream).expect("a stream of this device");
    // SAFETY: the address lies in the margin of a block or in one in quarantine, which the driver still has given out.
    let filled = unsafe { rig.context.driver().fill(rig.context.device(), raw, ptr, Pattern::U8(0x11), 1) };
    filled.expect("the device works");
}

fn at(block: &DeviceBlock, offset: i64) -> DevicePtr {
    DevicePtr(block.ptr().0.wrapping_add_signed(offset))
}

/// Returns the errors that the next calls report until one succeeds.
fn reports(rig: &StackRig) -> Vec<Error> {
    rig.context.synchronize(rig.stream).expect("the device works");
    let reaps = std::iter::from_fn(|| Some(rig.memory.reap_blocking(Duration::MAX)));
    reaps.map_while(Result::err).take(100).collect()
}

fn g3_one_byte_either_side_is_found_and_named(rig: &StackRig) {
    for (bytes, align, offset) in
        [(1000, 256, -1), (1000, 256, 1000), (1, 256, 1), (1, 256, -256), (4096, 4096, 4351), (300 << 10, 2 << 20, -7)]
    {
        let innocent = rig.allocate(bytes);
        let block = rig.memory.allocate(bytes, align, rig.stream, tag!("guilty")).expect("nothing is reported yet");
        let (ptr, generation, tag) = (block.ptr(), block.generation(), block.tag());
        plant(rig, at(&block, offset));
        rig.free(block);
        rig.free(innocent);
        assert_eq!(reports(rig), [Error::OutOfBounds { ptr, generation, tag, offset }]);
    }
    assert_eq!(rig.outstanding(), Bytes::ZERO, "the frees happened");
}

fn g3_what_is_written_inside_is_nobodys_business(rig: &StackRig) {
    for bytes in [1, 2, 255, 256, 257, 5000] {
        let block = rig.allocate(bytes);
        plant(rig, block.ptr());
        plant(rig, block.ptr().offset(bytes - 1));
        rig.free(block);
    }
    assert_eq!(reports(rig), []);
}

fn g3_a_fresh_block_is_not_a_number(rig: &StackRig) {
    let block = rig.allocate(4096);
    assert_eq!(rig.read(&block, rig.stream), [0xff; 4096]);
    rig.free(block);
    rig.drain();
}

fn g3_a_write_after_free_is_found_and_named(rig: &StackRig) {
    for offset in [-256, -1, 0, 499, 999, 1000, 1255] {
        let block = rig.memory.allocate(1000, 256, rig.stream, tag!("gone")).expect("nothing is reported yet");
        let (ptr, generation, tag, place) = (block.ptr(), block.generation(), block.tag(), at(&block, offset));
        rig.free(block);
        plant(rig, place);
        assert_eq!(reports(rig), [Error::UseAfterFree { ptr, generation, tag }]);
        assert_eq!(rig.outstanding(), Bytes::ZERO);
    }
}
