//! The state of a thread: the contexts that are current on it, how it bears captures, and its default streams.

use crate::handle::Handle;
use crate::status::{CUresult, CallResult};
use crate::types::CUstreamCaptureMode;
use std::cell::{Cell, RefCell};

thread_local! {
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL.0) };
    static DEFAULT_STREAMS: RefCell<Vec<StreamOfThread>> = const { RefCell::new(Vec::new()) };
    static IS_IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The default stream of a thread in a context, which ends with the thread.
#[derive(Debug)]
struct StreamOfThread {
    context: Handle,
    stream: Handle,
    destroy: fn(Handle),
}

impl Drop for StreamOfThread {
    fn drop(&mut self) {
        (self.destroy)(self.stream);
    }
}

/// Returns the context that is current.
pub(crate) fn current() -> Option<Handle> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied())
}

/// Makes a context current instead of the one that is; with none, that one is popped.
pub(crate) fn set_current(context: Option<Handle>) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.extend(context);
    });
}

pub(crate) fn push(context: Handle) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
}

pub(crate) fn pop() -> Option<Handle> {
    CONTEXTS.with_borrow_mut(Vec::pop)
}

/// Sets how calls of this thread bear the captures of others, and returns how they did.
pub(crate) fn exchange_capture_mode(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    CUstreamCaptureMode(CAPTURE_MODE.replace(mode.0))
}

/// Returns how calls of this thread bear the captures of others.
pub(crate) fn capture_mode() -> CUstreamCaptureMode {
    CUstreamCaptureMode(CAPTURE_MODE.get())
}

/// Returns the default stream of this thread in a context, where it has been used.
pub(crate) fn default_stream(context: Handle) -> Option<Handle> {
    DEFAULT_STREAMS.with_borrow(|streams| streams.iter().find(|of| of.context == context).map(|of| of.stream))
}

/// Records the default stream of this thread in a context, and how it is destroyed when the thread ends.
pub(crate) fn set_default_stream(context: Handle, stream: Handle, destroy: fn(Handle)) {
    let before = DEFAULT_STREAMS.with_borrow_mut(|streams| {
        let at = streams.iter().position(|of| of.context == context);
        let before = at.map(|at| streams.swap_remove(at));
        streams.push(StreamOfThread { context, stream, destroy });
        before
    });
    drop(before);
}

/// Runs a host function; the calls that it makes are refused meanwhile.
pub(crate) fn within_host_function(run: impl FnOnce()) {
    IS_IN_HOST_FUNCTION.set(true);
    run();
    IS_IN_HOST_FUNCTION.set(false);
}

/// Refuses calls from host functions.
pub(crate) fn check_not_in_host_function() -> CallResult {
    if IS_IN_HOST_FUNCTION.get() { Err(CUresult::CUDA_ERROR_NOT_PERMITTED) } else { Ok(()) }
}
