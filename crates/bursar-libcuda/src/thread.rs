//! The state of a thread: the contexts that are current on it, how it bears captures, and its default streams.
//!
//! Programs make calls while a thread ends, and at exit, when thread locals that need to be dropped are gone. So none of these
//! is dropped; what a thread leaves behind is given back by a guard, after which the thread can still make calls.

use crate::handle::Handle;
use crate::status::{CUresult, CallResult};
use crate::types::CUstreamCaptureMode;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static CURRENT: Cell<Option<Handle>> = const { Cell::new(None) };
    /// The contexts below the current one, which few programs have.
    static BELOW: RefCell<ManuallyDrop<Vec<Handle>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL.0) };
    static DEFAULT_STREAMS: RefCell<ManuallyDrop<Vec<StreamOfThread>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static IS_IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static END: EndOfThread = const { EndOfThread };
}

/// The default stream of a thread in a context.
#[derive(Debug)]
struct StreamOfThread {
    context: Handle,
    stream: Handle,
    destroy: fn(Handle),
}

/// The guard that destroys the default streams of a thread when it ends.
#[derive(Debug)]
struct EndOfThread;

impl Drop for EndOfThread {
    fn drop(&mut self) {
        let streams = DEFAULT_STREAMS.with_borrow_mut(|streams| std::mem::take(&mut **streams));
        for of in streams {
            (of.destroy)(of.stream);
        }
    }
}

/// Returns a number that no other thread of this process ever has.
pub(crate) fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// Returns the context that is current.
pub(crate) fn current() -> Option<Handle> {
    CURRENT.get()
}

/// Makes a context current instead of the one that is; with none, that one is popped.
pub(crate) fn set_current(context: Option<Handle>) {
    match context {
        Some(context) => CURRENT.set(Some(context)),
        None => drop(pop()),
    }
}

pub(crate) fn push(context: Handle) {
    if let Some(below) = CURRENT.replace(Some(context)) {
        BELOW.with_borrow_mut(|contexts| contexts.push(below));
    }
}

pub(crate) fn pop() -> Option<Handle> {
    CURRENT.replace(BELOW.with_borrow_mut(|contexts| contexts.pop()))
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

/// Records the default stream of this thread in a context, and how it is destroyed when the thread ends. A stream of a thread
/// that has already ended stays until its context ends.
pub(crate) fn set_default_stream(context: Handle, stream: Handle, destroy: fn(Handle)) {
    let before = DEFAULT_STREAMS.with_borrow_mut(|streams| {
        let at = streams.iter().position(|of| of.context == context);
        let before = at.map(|at| streams.swap_remove(at));
        streams.push(StreamOfThread { context, stream, destroy });
        before
    });
    // The guard is gone where the thread has ended.
    let _ = END.try_with(|_| ());
    if let Some(of) = before {
        (of.destroy)(of.stream);
    }
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
