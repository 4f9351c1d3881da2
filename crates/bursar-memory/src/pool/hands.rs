//! The pool's own calls of the driver, and the one place where its blocks are made.
//!
//! What makes them sound is kept by the rest of the pool: a range is granted while no free run holds any of it and no
//! other block does; a frame is unmapped after it was taken out of the runs that everyone may have, which hold only what
//! no work touches any more; and a frame is mapped nowhere or in one place.
#![allow(unsafe_code)]

use super::PagePoolResource;
use super::hand;
use super::magazine::Magazine;
use super::runs::UNIT;
use bursar_core::{
    AllocTag, BlockParts, DeviceBlock, DeviceContext, DevicePtr, DriverError, Frame, FrameKind, FrameSource, Note,
    OwnerId, Progress, RawEvent, RawStream, Stream,
};

fn ptr(at: u64) -> DevicePtr {
    DevicePtr(at * UNIT)
}

/// What the thread remembers of a pool's magazine for a stream.
#[inline(always)]
pub(super) fn remembered<F: FrameSource>(pool: &PagePoolResource<F>, alarms: u32, stream: Stream) -> Option<&Magazine> {
    // SAFETY: only `PagePoolResource::reach` remembers magazines, with its own number, and they stay where they are for the life of the
    // pool, which is borrowed for the life of the answer.
    unsafe { hand::remembered(hand::key(pool.number, alarms), stream) }
}

/// Makes the block for a range that was taken out of every run, from `at` on, `len` units long.
#[inline]
pub(super) fn block(
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

/// The same, and tells a listening driver.
#[inline]
pub(super) fn grant(
    context: &DeviceContext,
    (at, len): (u64, u64),
    requested: u64,
    stream: Stream,
    tag: AllocTag,
    owner: OwnerId,
) -> DeviceBlock {
    if context.listens() {
        note_grant(context, ptr(at), requested, stream, tag);
    }
    block((at, len), requested, stream, tag, owner)
}

#[cold]
fn note_grant(context: &DeviceContext, ptr: DevicePtr, requested: u64, stream: Stream, tag: AllocTag) {
    if let Ok(held) = context.hold(stream) {
        // SAFETY: the range is the pool's, in memory that its frames gave it, and the stream is held.
        unsafe { context.note(Note::Granted { ptr, bytes: requested, stream: held.raw(), tag }) };
    }
}

/// Tells a listening driver that a block of the pool is nobody's from here on, in the order of a stream that stays alive.
#[inline]
pub(super) fn freed(context: &DeviceContext, block: &DeviceBlock, stream: Stream) {
    if context.listens() {
        note_free(context, block, stream);
    }
}

#[cold]
fn note_free(context: &DeviceContext, block: &DeviceBlock, stream: Stream) {
    if let Ok(held) = context.hold(stream) {
        // SAFETY: the block is the pool's, whoever frees it has given it up, and the stream is held.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw() }) };
    }
}

/// Tells a listening driver that what was a block of the pool is nobody's from here on, in the order of a stream that is
/// held.
pub(super) fn tell_freed(context: &DeviceContext, ptr: DevicePtr, raw: RawStream) {
    // SAFETY: the range was a block of the pool, which took it back.
    unsafe { context.note(Note::Freed { ptr, stream: raw }) };
}

/// Marks this point of a stream that is held.
pub(super) fn record(context: &DeviceContext, raw: RawStream) -> Result<RawEvent, DriverError> {
    let event = context.take_event()?;
    // SAFETY: the event is spare and the stream held, both of this device.
    unsafe { context.driver().event_record(context.device(), event, raw) }
        .inspect_err(|_| give_back(context, event))?;
    Ok(event)
}

/// Whether a stream that is held has run everything it was given.
pub(super) fn is_idle(context: &DeviceContext, raw: RawStream) -> Result<bool, DriverError> {
    // SAFETY: the stream is held.
    unsafe { context.driver().stream_query(context.device(), raw) }.map(Progress::is_complete)
}

/// Whether an event in hand has been passed.
pub(super) fn query(context: &DeviceContext, event: RawEvent) -> Result<Progress, DriverError> {
    // SAFETY: the event is in hand: taken from this context and not given back.
    unsafe { context.driver().event_query(context.device(), event) }
}

/// Has a stream that is held wait for an event in hand.
pub(super) fn wait(context: &DeviceContext, raw: RawStream, event: RawEvent) -> Result<(), DriverError> {
    // SAFETY: the stream is held and the event in hand, both of this device.
    unsafe { context.driver().stream_wait(context.device(), raw, event) }
}

/// Gives an event in hand back.
pub(super) fn give_back(context: &DeviceContext, event: RawEvent) {
    // SAFETY: it was taken from this context and is given back once, when it leaves the hand.
    unsafe { context.give_event(event) };
}

/// Waits for a stream that is held.
pub(super) fn synchronize(context: &DeviceContext, raw: RawStream) -> Result<(), DriverError> {
    // SAFETY: the stream is held.
    unsafe { context.driver().stream_synchronize(context.device(), raw) }
}

/// Maps a frame that is mapped nowhere at addresses that were claimed for it. A slab is where it is.
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
pub(super) fn allow(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: the range is that of frames which were mapped there one after the other, whole.
    unsafe { context.driver().pages_allow(context.device(), ptr(at), len * UNIT) }
}

/// Unmaps frames that lie at `at`, `len` units in all. They are in hand: nobody can be granted any of it, and all work
/// that touched it is known to have run.
pub(super) fn unmap(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: as above; the range begins and ends with a frame.
    unsafe { context.driver().pages_unmap(context.device(), ptr(at), len * UNIT) }
}

/// Gives the pool's addresses back, with nothing mapped there.
pub(super) fn release_addresses(context: &DeviceContext, at: u64, len: u64) -> Result<(), DriverError> {
    // SAFETY: the pool reserved exactly this and is at its end, with every frame unmapped.
    unsafe { context.driver().address_release(context.device(), ptr(at), len * UNIT) }
}
