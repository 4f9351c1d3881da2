//! The pool's own calls of the driver, and the one place where its blocks are made.
//!
//! The rest of the pool keeps what makes them sound: a range is granted while no free run holds any of it and no other
//! block does; a frame is unmapped after it was taken out of the common runs, which hold only what no work touches any
//! more, or from addresses that it left once no work touches them any more; and a frame is mapped nowhere or in one place,
//! but for those addresses, which nobody is granted.
#![allow(unsafe_code)]

use super::runs::UNIT;
use bursar_core::{
    AllocTag, BlockParts, DeviceBlock, DeviceContext, DevicePtr, DriverError, Frame, FrameKind, Note, OwnerId,
    RawStream, Stream,
};

fn ptr(at: u64) -> DevicePtr {
    DevicePtr(at * UNIT)
}

/// Makes the block for a range that was taken out of every run, `len` units from `at` on.
#[inline]
pub(super) fn make_block(
    (at, len): (u64, u64),
    requested: u64,
    stream: Stream,
    tag: AllocTag,
    owner: OwnerId,
) -> DeviceBlock {
    let parts = BlockParts { ptr: ptr(at), requested, granted: len * UNIT, tag, owner, offset: 0 };
    // SAFETY: the range was taken out of every run and is given out with this token alone.
    unsafe { DeviceBlock::from_parts(parts, stream) }
}

/// Tells a driver that listens that `bytes` at `at` are a block from here on, in the order of a stream that is held.
#[inline]
pub(super) fn note_grant_on(context: &DeviceContext, at: u64, bytes: u64, raw: RawStream, tag: AllocTag) {
    // SAFETY: the range is the pool's, in memory that its frames gave it, and the stream is held.
    unsafe { context.note(Note::Granted { ptr: ptr(at), bytes, stream: raw, tag }) };
}

/// Tells a driver that listens that a range which was a block of the pool is free from here on, in the order of a
/// stream that is held.
#[inline]
pub(super) fn note_free_on(context: &DeviceContext, ptr: DevicePtr, raw: RawStream) {
    // SAFETY: the range was a block of the pool, which took it back.
    unsafe { context.note(Note::Freed { ptr, stream: raw, home: raw }) };
}

/// Tells a driver that listens that a range which was a block of the pool is free once both streams, which are held, have
/// come to this point.
#[inline]
pub(super) fn note_free_after(context: &DeviceContext, ptr: DevicePtr, raw: RawStream, home: RawStream) {
    // SAFETY: the range was a block of the pool, which took it back.
    unsafe { context.note(Note::Freed { ptr, stream: raw, home }) };
}

/// Tells a driver that listens that a frame of the pool sleeps from here on.
pub(super) fn note_asleep(context: &DeviceContext, at: u64, len: u64) {
    // SAFETY: the frame is the pool's.
    unsafe { context.note(Note::Asleep { ptr: ptr(at), bytes: len * UNIT }) };
}

/// Tells a driver that listens that the contents of a range of a frame that sleeps are kept.
pub(super) fn note_saved(context: &DeviceContext, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the range is the pool's.
    unsafe { context.note(Note::Saved { ptr, bytes }) };
}

/// Tells a driver that listens that a frame of the pool that slept is awake.
pub(super) fn note_awake(context: &DeviceContext, at: u64, len: u64) {
    // SAFETY: the frame is the pool's.
    unsafe { context.note(Note::Awake { ptr: ptr(at), bytes: len * UNIT }) };
}

/// Tells a driver that listens that a range which slept does not wake, since no block is in it any more.
pub(super) fn note_abandoned(context: &DeviceContext, at: u64, len: u64) {
    // SAFETY: the range is the pool's.
    unsafe { context.note(Note::Abandoned { ptr: ptr(at), bytes: len * UNIT }) };
}

/// Waits for a stream that is held.
pub(super) fn synchronize(context: &DeviceContext, raw: RawStream) -> Result<(), DriverError> {
    // SAFETY: the stream is held.
    unsafe { context.driver().stream_synchronize(context.device(), raw) }
}

/// Maps a frame at addresses that were claimed for it: one that is mapped nowhere, or follows its stream. A slab has an address of its own.
pub(super) fn map(context: &DeviceContext, at: u64, frame: &Frame) -> Result<(), DriverError> {
    match frame.kind() {
        // SAFETY: the addresses are reserved, nothing is mapped there, and they were claimed for this frame alone.
        FrameKind::Pages(pages) => unsafe {
            context.driver().pages_map(context.device(), ptr(at), frame.bytes().get(), pages)
        },
        FrameKind::Slab(_) => Ok(()),
    }
}

/// Lets the device use `len` units of frames that were mapped from `at` on.
pub(super) fn allow_access(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: the range is that of frames which were mapped there one after the other, whole.
    unsafe { context.driver().pages_allow(context.device(), ptr(at), len * UNIT) }
}

/// Unmaps frames that lie at `at`, `len` units in all. They were taken out of the free lists: nobody can be granted any
/// of it, and all work that touched it is known to have run.
pub(super) fn unmap(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: as above; the range begins and ends with a frame.
    unsafe { context.driver().pages_unmap(context.device(), ptr(at), len * UNIT) }
}

/// Copies `bytes` of the pool at `from` to host memory that stays until the copy has run, in the order of a stream that is
/// held. Nobody else touches the range: its blocks are asleep.
pub(super) fn copy_to_host(
    context: &DeviceContext,
    raw: RawStream,
    to: *mut u8,
    from: DevicePtr,
    bytes: u64,
) -> Result<(), DriverError> {
    // SAFETY: as above; the range is mapped.
    unsafe { context.driver().copy_to_host(context.device(), raw, to, from, bytes) }
}

/// Copies `bytes` of host memory that stays until the copy has run back to the pool, in the order of a stream that is held.
/// Nobody else touches the range: its blocks are asleep.
pub(super) fn copy_to_device(
    context: &DeviceContext,
    raw: RawStream,
    to: DevicePtr,
    from: *const u8,
    bytes: u64,
) -> Result<(), DriverError> {
    // SAFETY: as above; the range is mapped and the device may use it.
    unsafe { context.driver().copy_to_device(context.device(), raw, to, from, bytes) }
}

/// Gives the pool's addresses back, with nothing mapped there.
pub(super) fn release_addresses(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: the pool reserved exactly this and is at its end, with every frame unmapped.
    unsafe { context.driver().address_release(context.device(), ptr(at), len * UNIT) }
}
