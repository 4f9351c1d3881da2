//! Memory for graphs that the caller captures.
//!
//! It is a stack of its own, so blocks of it are allocated, used and freed as any others.
#![allow(unsafe_code)]

use crate::arguments;
use crate::enter::call;
use crate::handles::{CapturedMemory, STACKS, STREAMS, StackMemory};
use crate::stack::bursar_stack;
use crate::status::{CallResult, Failure, bursar_status};
use crate::stream::bursar_stream;
use bursar::Stream;
use bursar::graph::{ForeignCapture, GraphMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Makes memory for graphs out of a stack: a stack of its own, with nothing in it yet. What is allocated of it while a stream is
/// captured has the same address in every launch, and is nobody else's before the memory is released or closed; what is freed
/// in a capture is used again in the same one.
///
/// Around a capture stand `bursar_capture_begin` and `bursar_capture_end`; meanwhile `bursar_allocate` and `bursar_free` take this
/// stack on the streams of the capture, and on no others. Several graphs may be captured into one memory, one after
/// another, if they never run at once: together they hold little more than the largest needs.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_TOO_MANY_STREAMS`, `BURSAR_DRIVER_FAILED`. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_stack_close`, once none of its graphs is launched any more. The handle of
/// `stack` may be closed before that.
///
/// # Safety
/// `out` is null or points to a `bursar_stack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_graph_memory_open(stack: bursar_stack, out: *mut bursar_stack) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stack::default()) };
        let below = STACKS.keep(stack.id)?;
        let memory = GraphMemory::new(below.memory.clone())?;
        let captured = CapturedMemory { memory: memory.clone(), capture: Mutex::default() };
        let (memory, device) = (Arc::new(memory), below.device.clone());
        let made = StackMemory { memory, pool: None, captured: Some(captured), device };
        let id = STACKS.insert(Arc::new(made))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stack { id }) };
        Ok(())
    })
}

/// Calls `act` with the graph memory that a handle stands for.
fn with_memory<T>(memory: bursar_stack, act: impl FnOnce(&CapturedMemory) -> CallResult<T>) -> CallResult<T> {
    let stack = STACKS.keep(memory.id)?;
    let no_graphs = || Failure::argument("memory", "is a stack that was not made by bursar_graph_memory_open");
    act(stack.captured.as_ref().ok_or_else(no_graphs)?)
}

fn capture(of: &CapturedMemory) -> MutexGuard<'_, Option<ForeignCapture>> {
    of.capture.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `act` with the capture into a memory that is under way.
fn with_capture(memory: bursar_stack, act: impl FnOnce(&ForeignCapture) -> CallResult) -> CallResult {
    with_memory(memory, |of| match &*capture(of) {
        Some(capture) => act(capture),
        None => Err(Failure::argument("memory", "has no capture that has begun")),
    })
}

fn stream_of(stream: bursar_stream) -> CallResult<Stream> {
    STREAMS.keep(stream.id).map(|stream| stream.stream)
}

/// Says that a stream is about to be captured into a graph which gets its memory from `memory`. The caller captures it, by
/// `cuStreamBeginCapture` or otherwise. A null stream stands for a capture whose streams are not known yet: each enters it with
/// `bursar_capture_enter`.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs, one that was released, and
/// one that a capture has begun into; `BURSAR_INVALID_STREAM` for a stream of another device or another capture.
/// Threads: any; one capture into a memory at a time.
/// Ownership: the caller ends it with `bursar_capture_end`.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_capture_begin(memory: bursar_stack, stream: bursar_stream) -> bursar_status {
    call(|| {
        with_memory(memory, |of| {
            let mut capture = capture(of);
            if capture.is_some() {
                return Err(Failure::argument("memory", "has a capture that has not ended"));
            }
            *capture = Some(match stream.id {
                0 => of.memory.capture_of_any()?,
                _ => of.memory.capture_of(stream_of(stream)?)?,
            });
            Ok(())
        })
    })
}

/// Says that a stream is part of the capture into `memory`, as one is that waits for an event of a captured stream. Of its
/// order nothing is known: what others freed is not used on it before the next capture.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where no capture into `memory` has begun; `BURSAR_INVALID_STREAM` for a
/// stream of another device or another capture.
/// Threads: any.
/// Ownership: none.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_capture_enter(memory: bursar_stack, stream: bursar_stream) -> bursar_status {
    call(|| with_capture(memory, |capture| Ok(capture.enter(stream_of(stream)?)?)))
}

/// Says that `then` comes after what was captured on `first` so far, and is part of the capture too: the caller had it wait for
/// an event. What was freed on `first` may then be used again on `then`.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where no capture into `memory` has begun, or `first` is not part of it;
/// `BURSAR_INVALID_STREAM` for a stream of another device or another capture.
/// Threads: any.
/// Ownership: none.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_capture_order(
    memory: bursar_stack,
    first: bursar_stream,
    then: bursar_stream,
) -> bursar_status {
    call(|| with_capture(memory, |capture| Ok(capture.order(stream_of(first)?, stream_of(then)?)?)))
}

/// Says that the capture into `memory` has ended, with a graph or without one. What is in no block is free for the next capture.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` where none has begun.
/// Threads: any.
/// Ownership: blocks that were not freed stay the caller's: the graph writes them in each launch.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_capture_end(memory: bursar_stack) -> bursar_status {
    call(|| {
        let ended = with_memory(memory, |of| Ok(capture(of).take()))?;
        let has_not_begun = || Failure::argument("memory", "has no capture that has begun");
        ended.map(drop).ok_or_else(has_not_begun)
    })
}

/// Says that a graph which was captured into `memory` has been launched on a stream: the memory goes back only after what the
/// stream was given so far.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs; `BURSAR_INVALID_STREAM`,
/// `BURSAR_DRIVER_FAILED`.
/// Threads: any.
/// Ownership: none.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_graph_launched(memory: bursar_stack, stream: bursar_stream) -> bursar_status {
    call(|| with_memory(memory, |of| Ok(of.memory.launched(stream_of(stream)?)?)))
}

/// Says that no graph is captured into `memory` or launched with it any more: what is in no block goes back to the stack that it
/// was made of, and the rest as its blocks are freed. `*released`, if it is not null, is how many bytes went at once.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for a stack that is no memory for graphs, and while a capture into it
/// has not ended.
/// Threads: any.
/// Ownership: the handle stays the caller's, to free its blocks and to close it.
///
/// # Safety
/// `released` is null or points to a `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_graph_memory_release(memory: bursar_stack, released: *mut u64) -> bursar_status {
    call(|| {
        let went = with_memory(memory, |of| Ok(of.memory.release()?))?;
        if !released.is_null() {
            // SAFETY: the caller's own promise.
            unsafe { arguments::write(released, went.get()) };
        }
        Ok(())
    })
}
