//! Blocks: allocating, freeing, and uses on other streams.
#![allow(unsafe_code)]

use crate::arguments;
use crate::enter::call;
use crate::handles::{BLOCKS, BlockToken, HeldBlock, STACKS, STREAMS};
use crate::running::{RunningCall, SPARE_BATCH, SPARE_MAX};
use crate::stack::bursar_stack;
use crate::status::{CallResult, Failure, bursar_status};
use crate::stream::bursar_stream;
use crate::table::Taken;
use crate::tag::tag_of;
use bursar::Bytes;
use bursar::memory::{DeviceBlock, DeviceMemoryResource, DeviceMemoryResourceExt as _, MIN_ALIGN, Refused};
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
/// `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for zero bytes; `BURSAR_INVALID_STREAM`; `BURSAR_LEDGER`,
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
    call(|| {
        arguments::check_place(out, "out")?;
        let mut running = RunningCall::begin();
        let index = match running.spare().pop() {
            Some(index) => index,
            None => fresh_slot(&mut running)?,
        };
        match granted(&running, stack.id, bytes, alignment, stream.id, tag) {
            Ok(block) => {
                let address = block.ptr().0;
                let id = BLOCKS.table.fill(index, HeldBlock { stack: stack.id, token: BlockToken::Plain(block) });
                // SAFETY: it was checked.
                unsafe { arguments::write(out, bursar_block { id, address }) };
                Ok(())
            }
            Err(failure) => {
                running.spare().push(index);
                // SAFETY: it was checked.
                unsafe { arguments::write(out, bursar_block::default()) };
                Err(failure)
            }
        }
    })
}

#[inline]
fn granted(
    running: &RunningCall,
    stack: u64,
    bytes: u64,
    alignment: u64,
    stream: u64,
    tag: u32,
) -> CallResult<DeviceBlock> {
    let memory = &*STACKS.get(stack, running)?.memory;
    let (stream, tag) = (STREAMS.get(stream, running)?.stream, tag_of(tag)?);
    let align = if alignment == 0 { MIN_ALIGN } else { alignment };
    match memory.allocate(bytes, align, stream, tag) {
        Ok(block) => Ok(block),
        Err(error) => Err(memory.explain(error, Bytes(bytes), align).into()),
    }
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
/// Errors: `BURSAR_INVALID_HANDLE`, also for a block that was freed already; `BURSAR_INVALID_STREAM` for a stream of another
/// device or one that is being captured into a graph; `BURSAR_DRIVER_FAILED` where the uses cannot be put in order. The block
/// then stays as it was.
/// Threads: any.
/// Ownership: the block is used up, if the call succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_free(block: bursar_block, stream: bursar_stream) -> bursar_status {
    call(|| {
        let mut running = RunningCall::begin();
        let Some(taken) = BLOCKS.table.take(block.id) else { return Err(BLOCKS.stale(block.id)) };
        let found = find(&running, &taken, block, stream.id);
        let (memory, stream) = match found {
            Ok(found) => found,
            Err(failure) => {
                taken.put_back();
                return Err(failure);
            }
        };
        // SAFETY: blocks are not shared, and the slot is vacated or filled below.
        let HeldBlock { stack, token } = unsafe { taken.move_out() };
        let freed = match token {
            BlockToken::Plain(block) => match memory.deallocate(block, stream) {
                Ok(()) => Ok(()),
                Err(Refused { block, error }) => Err((BlockToken::Plain(block), error)),
            },
            BlockToken::Tracked(tracked) => match tracked.free(&**memory, stream) {
                Ok(()) => Ok(()),
                Err(RefusedTracked { block, error }) => Err((BlockToken::Tracked(*block), error)),
            },
            BlockToken::Absent => Ok(()),
        };
        match freed {
            Ok(()) => {
                if let Some(index) = taken.vacate() {
                    keep_slot(&mut running, index);
                }
                Ok(())
            }
            Err((token, error)) => {
                // SAFETY: the value was moved out above.
                unsafe { taken.put_back_as(HeldBlock { stack, token }) };
                Err(error.into())
            }
        }
    })
}

/// Returns the memory and the stream for a free.
#[inline]
fn find<'c>(
    running: &'c RunningCall,
    taken: &Taken<'_, HeldBlock>,
    block: bursar_block,
    stream: u64,
) -> CallResult<(&'c Arc<dyn DeviceMemoryResource>, Stream)> {
    let held = taken.value();
    if held.token.block().is_some_and(|known| known.ptr().0 != block.address) {
        return Err(Failure::argument("block", "has another address than when it was allocated"));
    }
    let memory = &STACKS.get(held.stack, running)?.memory;
    Ok((memory, STREAMS.get(stream, running)?.stream))
}

/// Records that work which was submitted to `stream` uses a block that was allocated on another stream: the free of the block
/// comes after that work. The caller has ordered the work after the allocation, as by an event. `access` is `BURSAR_READ` or
/// `BURSAR_WRITE`.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`; `BURSAR_INVALID_STREAM` for a stream of another device;
/// `BURSAR_UNSUPPORTED` for memory whose uses cannot be tracked. Nothing is then recorded.
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
