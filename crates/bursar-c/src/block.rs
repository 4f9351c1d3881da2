//! Blocks: allocating, freeing, and uses on other streams.
#![allow(unsafe_code)]

use crate::arguments;
use crate::enter::{call, running_call};
use crate::handles::{BLOCKS, BlockToken, HeldBlock, STACKS, STREAMS};
use crate::running::{Recent, RunningCall, SPARE_BATCH, SPARE_MAX, closed};
use crate::stack::bursar_stack;
use crate::status::{CallResult, Failure, bursar_status};
use crate::stream::bursar_stream;
use crate::table::Taken;
use crate::tag::tag_of;
use bursar::Bytes;
use bursar::memory::{DeviceMemoryResource, DeviceMemoryResourceExt as _, MIN_ALIGN, Refused};
use bursar::stream::{Access, RefusedTracked, Stream, TrackedBlock};
use std::sync::Arc;

/// Memory that was allocated; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_block {
    /// The number of the handle.
    pub id: u64,
    /// The address on the device, as a `CUdeviceptr`.
    pub address: u64,
}

/// Work that reads a block.
pub const BURSAR_READ: u32 = 0;
/// Work that writes a block, and may read it.
pub const BURSAR_WRITE: u32 = 1;

/// Allocates memory that work submitted to `stream` from now on may use. Its contents are undefined.
///
/// `alignment` is a power of two up to 2 MiB, or zero; a block is aligned to 256 bytes in any case. `tag` says what it is for:
/// a number that `bursar_tag` returned, or `BURSAR_UNTAGGED`.
///
/// Errors: `BURSAR_OUT_OF_BUDGET`, `BURSAR_OUT_OF_MEMORY` and `BURSAR_WITHHELD`, which `bursar_last_refusal` explains;
/// `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for zero bytes and more than 4 EiB; `BURSAR_INVALID_STREAM`; `BURSAR_LEDGER`,
/// `BURSAR_FORKED`; `BURSAR_DRIVER_FAILED`, also for an earlier free that failed. `*out` is then null.
/// Threads: any.
/// Ownership: the caller frees `*out` with `bursar_free`.
///
/// # Safety
/// `out` is null or points to a `bursar_block`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_allocate(
    stack: bursar_stack,
    bytes: u64,
    alignment: u64,
    stream: bursar_stream,
    tag: u32,
    out: *mut bursar_block,
) -> bursar_status {
    running_call(|running| {
        arguments::check_place(out, "out")?;
        let index = match running.spare().pop() {
            Some(index) => index,
            None => fresh_slot(running)?,
        };
        let align = if alignment == 0 { MIN_ALIGN } else { alignment };
        let found = find(running, stack.id, stream.id).and_then(|found| Ok((found, tag_of(tag)?)));
        let failure = match found {
            Ok(((memory, stream), tag)) => match memory.allocate(bytes, align, stream, tag) {
                Ok(block) => {
                    let (stack, address) = (stack.id, block.ptr().0);
                    let id = BLOCKS.table.fill(index, HeldBlock { stack, address, token: BlockToken::Plain(block) });
                    // SAFETY: it was checked.
                    unsafe { arguments::write(out, bursar_block { id, address }) };
                    return Ok(());
                }
                Err(error) => memory.explain(error, Bytes(bytes), align).into(),
            },
            Err(failure) => failure,
        };
        running.spare().push(index);
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_block::default()) };
        Err(failure)
    })
}

/// Returns a slot for a block, and takes some for the next ones of this thread.
#[cold]
fn fresh_slot(running: &mut RunningCall) -> CallResult<u32> {
    let spare = running.spare();
    spare.reserve(SPARE_MAX + 1);
    BLOCKS.table.take_vacant(spare, SPARE_BATCH);
    spare.pop().ok_or_else(|| BLOCKS.full())
}

/// Keeps a slot for the next block of this thread; of too many, half go to other threads.
#[inline]
fn keep_slot(running: &mut RunningCall, index: u32) {
    let spare = running.spare();
    spare.push(index);
    if spare.len() > SPARE_MAX {
        BLOCKS.table.return_vacant(spare.drain(..SPARE_BATCH));
    }
}

/// Frees a block in the order of `stream`, once the work that was submitted to it so far has run, and after the uses on other
/// streams that were recorded. Uses on another stream that were not recorded must come before that point.
///
/// A failure of the driver to take the memory back is no failure of this call: the memory is kept, tried again, and reported by
/// the next allocation.
///
/// Errors: `BURSAR_INVALID_HANDLE`, also for a block that was freed already; `BURSAR_INVALID_ARGUMENT` for one with another address
/// than it was given out with; `BURSAR_INVALID_STREAM` for a stream of another
/// device or one that is being captured into a graph; `BURSAR_DRIVER_FAILED` where the uses cannot be put in order. The block
/// then stays as it was.
/// Threads: any.
/// Ownership: the block is used up, if the call succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_free(block: bursar_block, stream: bursar_stream) -> bursar_status {
    running_call(|running| {
        let Some(taken) = BLOCKS.table.take(block.id) else { return Err(BLOCKS.stale(block.id)) };
        match free(running, &taken, block.address, stream.id) {
            Ok(()) => {
                if let Some(index) = taken.vacate() {
                    keep_slot(running, index);
                }
                Ok(())
            }
            Err(failure) => {
                taken.put_back();
                Err(failure)
            }
        }
    })
}

/// Frees a block whose slot was taken and is vacated then; after a failure the block is there as it was.
#[inline]
fn free(running: &RunningCall, taken: &Taken<'_, HeldBlock>, address: u64, stream: u64) -> CallResult {
    let held = taken.value();
    if held.address != address {
        return Err(other_address());
    }
    let (memory, stream) = find(running, held.stack, stream)?;
    let BlockToken::Plain(block) = &held.token else { return free_tracked(taken, memory, stream) };
    // SAFETY: the slot is this thread's alone. The token in it is not used again, or this one is not.
    let block = unsafe { std::ptr::read(block) };
    match memory.deallocate(block, stream) {
        Ok(()) => Ok(()),
        // The block came back as it was, and as it is in the slot.
        Err(Refused { error, .. }) => Err(error.into()),
    }
}

/// Frees a block whose uses were recorded.
#[cold]
fn free_tracked(taken: &Taken<'_, HeldBlock>, memory: &dyn DeviceMemoryResource, stream: Stream) -> CallResult {
    // SAFETY: blocks are not shared, and after a failure one is put in its place.
    let HeldBlock { stack, address, token } = unsafe { taken.move_out() };
    let BlockToken::Tracked(tracked) = token else { return Ok(()) };
    let Err(RefusedTracked { block, error }) = tracked.free(memory, stream) else { return Ok(()) };
    // SAFETY: the value was moved out above.
    unsafe { taken.move_in(HeldBlock { stack, address, token: BlockToken::Tracked(*block) }) };
    Err(error.into())
}

#[cold]
fn other_address() -> Box<Failure> {
    Failure::argument("block", "has another address than when it was allocated")
}

/// Returns the memory of a stack and a stream: those that this thread used last, if nothing was closed since.
#[inline]
fn find(running: &RunningCall, stack: u64, stream: u64) -> CallResult<(&dyn DeviceMemoryResource, Stream)> {
    match running.recent() {
        Some(recent) if recent.stack == stack && recent.stream == stream && recent.closed == closed() => {
            // SAFETY: the stack was live when it was remembered, and nothing was closed until this call was running; so
            // whoever closes it now waits for the call.
            Ok((unsafe { &*recent.memory }, recent.token))
        }
        _ => find_anew(running, stack, stream),
    }
}

#[inline(never)]
fn find_anew(running: &RunningCall, stack: u64, stream: u64) -> CallResult<(&dyn DeviceMemoryResource, Stream)> {
    let closed = closed();
    let memory = &*STACKS.get(stack, running)?.memory;
    let token = STREAMS.get(stream, running)?.stream;
    running.remember(Recent { closed, stack, stream, memory, token });
    Ok((memory, token))
}

/// Records that work which was submitted to `stream` uses a block that was allocated on another stream: the free of the block
/// comes after that work. The caller has ordered the work after the allocation, as by an event. `access` is `BURSAR_READ` or
/// `BURSAR_WRITE`.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a block with another address than it was given out with;
/// `BURSAR_INVALID_STREAM` for a stream of another device; `BURSAR_UNSUPPORTED` for memory whose uses cannot be tracked; `BURSAR_ASLEEP` for a
/// block that sleeps. Nothing is then recorded.
/// Threads: any; a call about the same block waits for this one.
/// Ownership: the block stays the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_record_use(block: bursar_block, stream: bursar_stream, access: u32) -> bursar_status {
    call(|| {
        let access = match access {
            BURSAR_READ => Access::Read,
            BURSAR_WRITE => Access::Write,
            _ => return Err(Failure::argument("access", "is neither BURSAR_READ nor BURSAR_WRITE")),
        };
        let running = RunningCall::begin();
        let stream = STREAMS.get(stream.id, &running)?.stream;
        let mut borrowed = BLOCKS.table.borrow(block.id).ok_or_else(|| BLOCKS.stale(block.id))?;
        let held = borrowed.value_mut();
        if held.address != block.address {
            return Err(other_address());
        }
        let memory = &STACKS.get(held.stack, &running)?.memory;
        let tracked = tracked(held, memory).ok_or_else(|| BLOCKS.stale(block.id))?;
        Ok(memory.context().record_block_use(tracked, stream, access)?)
    })
}

/// Returns the tracked block; it is tracked from the first use on that is recorded.
fn tracked<'a>(held: &'a mut HeldBlock, memory: &Arc<dyn DeviceMemoryResource>) -> Option<&'a TrackedBlock> {
    if let BlockToken::Plain(_) = held.token
        && let BlockToken::Plain(block) = std::mem::replace(&mut held.token, BlockToken::Absent)
    {
        held.token = BlockToken::Tracked(TrackedBlock::new(&**memory, block));
    }
    match &held.token {
        BlockToken::Tracked(tracked) => Some(tracked),
        _ => None,
    }
}
