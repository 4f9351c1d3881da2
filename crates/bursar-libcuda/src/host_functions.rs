//! Host functions, which run on threads of the driver, in the order of their streams.
//!
//! The simulator runs host code on whichever thread lets streams advance. A program may block in a host function until its
//! own thread does something, so here that code only hands the function to another thread, and the stream goes on when that
//! thread has run it.
#![allow(unsafe_code)]

use crate::arguments::{Host, HostSource};
use crate::handle::{Handle, pointer};
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::CUstream;
use bursar_core::{Gate, HostFunction, Pattern};
use bursar_sim::{CaptureStatus, Sim};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The function of a program, with its data.
pub(crate) type Function = Option<unsafe extern "C" fn(*mut c_void)>;

/// The data of a function of a program, which the driver only passes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserData(pub(crate) *mut c_void);

// SAFETY: the program gives the pointer to a function that it wants to be called on another thread.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

/// The callback of a program, which gets its stream, the status of the stream, and its data.
pub(crate) type Callback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;

type Job = Box<dyn FnOnce() + Send>;

/// The threads: as many as functions ever ran at the same time.
#[derive(Default)]
struct Workers {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
}

static WORKERS: Workers =
    Workers { queue: Mutex::new(Queue { jobs: VecDeque::new(), idle: 0 }), filled: Condvar::new() };

/// Runs a job on a thread that is idle, or on a new one.
fn start(job: Job) {
    let mut queue = WORKERS.queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.jobs.push_back(job);
    if queue.jobs.len() <= queue.idle {
        return WORKERS.filled.notify_one();
    }
    drop(queue);
    std::thread::spawn(work);
}

fn work() {
    let mut queue = WORKERS.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        while let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = WORKERS.queue.lock().unwrap_or_else(PoisonError::into_inner);
        }
        queue.idle += 1;
        queue = WORKERS.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

/// Submits code of a program to a stream. In a graph it runs once for each launch, on the thread that lets streams advance.
pub(crate) fn submit(process: &Process, on: StreamOn, run: impl Fn() + Send + Sync + 'static) -> CallResult {
    if process.sim().capture_status(on.device, on.raw)? != CaptureStatus::None {
        let run = HostFunction::repeating(move || thread::within_host_function(&run));
        return port::host_function(process.sim(), on, run);
    }
    let (gate, sim) = (Gate::default(), process.machine.sim.clone());
    let done = gate.clone();
    let begin = HostFunction::new(move || start(Box::new(move || finish(&sim, &done, run))));
    port::host_function(process.sim(), on, begin)?;
    port::host_function(process.sim(), on, HostFunction::behind(gate, || ()))
}

/// Runs the code of a program, and lets its stream go on.
fn finish(sim: &Arc<Sim>, done: &Gate, run: impl FnOnce()) {
    // A function of the program cannot unwind; one of this crate has nothing to unwind to.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| thread::within_host_function(run))) {
        std::mem::forget(payload);
    }
    done.open();
    sim.settle();
}

/// Returns the code that calls a function of a program.
pub(crate) fn calling(
    function: unsafe extern "C" fn(*mut c_void),
    data: UserData,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let UserData(data) = { data };
        // SAFETY: the program wants its function to be called with this data whenever a stream gets there.
        unsafe { function(data) }
    }
}

/// Returns the code that calls a callback of a program.
pub(crate) fn calling_back(
    callback: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: Handle,
    data: UserData,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let UserData(data) = { data };
        // SAFETY: the program wants its function to be called with this data whenever a stream gets there.
        unsafe { callback(pointer(stream), CUresult::CUDA_SUCCESS, data) }
    }
}

/// Submits a copy within host memory to a stream.
pub(crate) fn copy_on_host(process: &Process, on: StreamOn, dst: Host, src: HostSource, bytes: u64) -> CallResult {
    submit(process, on, move || {
        // SAFETY: the promise of the program about memory that it passes to a copy.
        unsafe { std::ptr::copy(src.as_ptr(), dst.as_ptr(), bytes as usize) }
    })
}

/// Submits a copy within host memory to a stream, of bytes that are read now.
pub(crate) fn copy_staged(process: &Process, on: StreamOn, dst: Host, src: HostSource, bytes: u64) -> CallResult {
    // SAFETY: the promise of the program about memory that it passes to a copy.
    let staged = unsafe { std::slice::from_raw_parts(src.as_ptr(), bytes as usize) }.to_vec();
    submit(process, on, move || {
        // SAFETY: as above.
        unsafe { std::ptr::copy(staged.as_ptr(), dst.as_ptr(), staged.len()) }
    })
}

/// Submits a fill of host memory to a stream.
pub(crate) fn fill_on_host(process: &Process, on: StreamOn, dst: Host, pattern: Pattern, count: u64) -> CallResult {
    submit(process, on, move || {
        let (bytes, width) = (pattern.bytes(), pattern.width() as usize);
        for index in 0..count as usize {
            let to = dst.offset(index * width).as_ptr();
            // SAFETY: the promise of the program about memory that it passes to a fill.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ref().as_ptr(), to, width) }
        }
    })
}
