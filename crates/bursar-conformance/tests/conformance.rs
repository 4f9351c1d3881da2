//! Runs every clause on every driver and every stack. To add a driver or a stack, add a row.
#![allow(unsafe_code)]

use bursar::ledger::Ledger;
use bursar_conformance::{CudaLibrary, DriverRow, LeakPolicy, OpenDriver, StackKind, StackRow, trials};
use bursar_core::{Bytes, DeviceId, Driver, RawContext, RawStream, Stack, leaf};
use bursar_cuda::Cuda;
use bursar_memory::{FailureAction, GlobalDeviceBudget, Guard, OnAccount, OnFailure, PagePool, Statistics};
use bursar_sim::Sim;
use cudarc::driver::sys::{self, CUcontext, CUstream, CUstreamCaptureMode};
use libtest_mimic::Arguments;
use std::process::ExitCode;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const LIMIT: Bytes = Bytes::mib(64);
const DIRECT: StackKind = StackKind { stream_ordered: false, limit: None, guard: None, pooled: false };
const ASYNC: StackKind = StackKind { stream_ordered: true, limit: None, guard: None, pooled: false };
const LIMITED_DIRECT: StackKind = StackKind { limit: Some(LIMIT), ..DIRECT };
const LIMITED_ASYNC: StackKind = StackKind { limit: Some(LIMIT), ..ASYNC };
const POOL: StackKind = StackKind { pooled: true, ..DIRECT };
const QUARANTINE: Bytes = Bytes::kib(16);

fn budget() -> GlobalDeviceBudget {
    GlobalDeviceBudget::of(LIMIT)
}

/// Returns a budget with the same limit, on an account of a ledger that is private to this process.
fn shared() -> GlobalDeviceBudget<OnAccount> {
    GlobalDeviceBudget::shared_by(|_| Ok(Arc::new(Ledger::private(LIMIT).account()?)))
}

/// Returns a guard without quarantine.
fn guard() -> Guard {
    Guard::default().quarantine(Bytes::ZERO)
}

const fn guarded(kind: StackKind) -> StackKind {
    StackKind { guard: Some(Bytes::ZERO), ..kind }
}

fn stacks() -> Vec<StackRow> {
    vec![
        StackRow::new("direct", DIRECT, || Stack::new().over(leaf::Direct)),
        StackRow::new("async", ASYNC, || Stack::new().over(leaf::Async)),
        StackRow::new("budget/direct", LIMITED_DIRECT, || Stack::new().layer(budget()).over(leaf::Direct)),
        StackRow::new("budget/async", LIMITED_ASYNC, || Stack::new().layer(budget()).over(leaf::Async)),
        StackRow::new("shared/direct", LIMITED_DIRECT, || Stack::new().layer(shared()).over(leaf::Direct)),
        StackRow::new("shared/async", LIMITED_ASYNC, || Stack::new().layer(shared()).over(leaf::Async)),
        StackRow::new("pool/shared", POOL, || {
            let shared = GlobalDeviceBudget::shared_by(|_| Ok(Arc::new(Ledger::private(Bytes::gib(1)).account()?)));
            Stack::new().layer(PagePool::default()).layer(shared).over(leaf::Frames)
        }),
        StackRow::new("statistics/budget/async", LIMITED_ASYNC, || {
            Stack::new().observe(Statistics::default()).layer(budget()).over(leaf::Async)
        }),
        StackRow::new("budget/budget/budget/async", LIMITED_ASYNC, || {
            let wider = || GlobalDeviceBudget::of(Bytes::gib(1));
            Stack::new().layer(wider()).layer(budget()).layer(wider()).over(leaf::Async)
        }),
        StackRow::new("guard/direct", guarded(DIRECT), || Stack::new().layer(guard()).over(leaf::Direct)),
        StackRow::new("guard/async", guarded(ASYNC), || Stack::new().layer(guard()).over(leaf::Async)),
        StackRow::new("guard/budget/async", guarded(LIMITED_ASYNC), || {
            Stack::new().layer(guard()).layer(budget()).over(leaf::Async)
        }),
        StackRow::new("budget/guard/async", guarded(LIMITED_ASYNC), || {
            Stack::new().layer(budget()).layer(guard()).over(leaf::Async)
        }),
        StackRow::new("quarantine/async", StackKind { guard: Some(QUARANTINE), ..ASYNC }, || {
            Stack::new().layer(Guard::default().quarantine(QUARANTINE)).over(leaf::Async)
        }),
        StackRow::new("pool", POOL, || Stack::new().layer(PagePool::default()).over(leaf::Frames)),
        StackRow::new("pool/budget", POOL, || {
            Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::gib(1))).over(leaf::Frames)
        }),
        StackRow::new("budget/pool", StackKind { pooled: true, ..LIMITED_DIRECT }, || {
            Stack::new().layer(budget()).layer(PagePool::default()).over(leaf::Frames)
        }),
        StackRow::new("pool without magazines", POOL, || {
            Stack::new().layer(PagePool::default().magazine(Bytes::ZERO)).over(leaf::Frames)
        }),
        StackRow::new("guard/pool", guarded(POOL), || {
            Stack::new().layer(guard()).layer(PagePool::default()).over(leaf::Frames)
        }),
        StackRow::new("statistics/pool/budget", POOL, || {
            let budget = GlobalDeviceBudget::of(Bytes::gib(1));
            Stack::new().observe(Statistics::default()).layer(PagePool::default()).layer(budget).over(leaf::Frames)
        }),
        StackRow::new("on-failure/budget/direct", LIMITED_DIRECT, || {
            Stack::new().layer(OnFailure::new(|_| FailureAction::GiveUp)).layer(budget()).over(leaf::Direct)
        }),
    ]
}

/// Returns the drivers that are judged in this process: that of the machine beside our own, or the simulated library alone.
fn drivers(library: CudaLibrary) -> Vec<DriverRow> {
    let cuda = DriverRow { name: library.rows(), runs: 1, captures: true, pages: true, open: |_| cuda() };
    if library == CudaLibrary::Simulated {
        return vec![cuda];
    }
    vec![
        DriverRow { name: "sim", runs: 16, captures: true, pages: true, open: |seed| Ok(simulated(Sim::seeded(seed))) },
        DriverRow {
            name: "sim-immediate",
            runs: 1,
            captures: true,
            pages: true,
            open: |_| Ok(simulated(Sim::immediate())),
        },
        DriverRow { name: "sim-slabs", runs: 8, captures: true, pages: false, open: |seed| Ok(simulated(slabs(seed))) },
        cuda,
    ]
}

/// Returns a simulator whose devices cannot map pages.
fn slabs(seed: u64) -> Arc<Sim> {
    Sim::builder().seed(seed).devices(2, Bytes::gib(80)).without_pages().build()
}

fn simulated(sim: Arc<Sim>) -> OpenDriver {
    let (judge, recorder) = (sim.clone(), sim.clone());
    OpenDriver {
        verdict: Box::new(move |leaks| {
            judge.check().map_err(|report| report.to_string())?;
            let left = judge.leaks();
            if left.is_empty() || leaks == LeakPolicy::Allowed { Ok(()) } else { Err(left.to_string()) }
        }),
        set_capturing: Some(Box::new(move |device, stream, begin| {
            let done =
                if begin { recorder.begin_capture(device, stream) } else { recorder.end_capture(device, stream) };
            done.expect("a stream of the simulated device");
        })),
        ..OpenDriver::new(sim)
    }
}

/// Returns the CUDA driver, which is loaded once and has the first device open until the process ends: creating a context
/// takes longer than most trials.
///
/// Trials run in parallel and have one device, so they take turns on it. A free that waits for the whole device keeps other
/// threads out of the driver meanwhile: if it waited for a stream that another trial has stalled, neither would end.
fn cuda() -> Result<OpenDriver, String> {
    static LOADED: OnceLock<Result<(Arc<Cuda>, RawContext), String>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let load = || {
        let cuda = Cuda::load().map_err(|absent| absent.to_string())?;
        let primary = cuda.open(DeviceId(0)).map_err(|error| error.to_string())?;
        Ok((cuda, primary))
    };
    let (cuda, primary) = LOADED.get_or_init(load).clone()?;
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(OpenDriver {
        verdict: Box::new(move |_| {
            let _lasts_until_the_verdict_is_dropped = &turn;
            Ok(())
        }),
        set_capturing: Some(Box::new(move |_, stream, begin| capture(primary, stream, begin))),
        ..OpenDriver::new(cuda)
    })
}

/// Begins or ends a capture in the mode that frameworks use by default and that forbids the most.
fn capture(primary: RawContext, stream: RawStream, begin: bool) {
    let stream = stream.0 as CUstream;
    // SAFETY: the primary context of a device that stays open.
    let current = unsafe { sys::cuCtxSetCurrent(primary.0 as CUcontext) };
    current.result().expect("the device works");
    if begin {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: a live stream of the context that is current.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
        return begun.result().expect("a stream that is not captured yet");
    }
    let mut graph = ptr::null_mut();
    // SAFETY: as above; the driver writes one handle.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
    ended.result().expect("nothing has spoilt the capture");
    // SAFETY: the graph came from the capture and nobody else has it.
    let destroyed = unsafe { sys::cuGraphDestroy(graph) };
    destroyed.result().expect("the device works");
}

fn main() -> ExitCode {
    CudaLibrary::judge_both("2x80GiB", |library| {
        let table = bursar_conformance::table(&drivers(library), &stacks(), &trials::all());
        libtest_mimic::run(&Arguments::from_args(), table).exit_code()
    })
}
