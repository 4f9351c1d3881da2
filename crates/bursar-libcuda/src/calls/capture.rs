//! Captures and graphs.

use crate::arguments::Out;
use crate::handle::{Kind, of, pointer};
use crate::port;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::{Capture, GraphExecOn, GraphOn};
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::{
    CUdevice, CUgraph, CUgraphExec, CUgraphMem_attribute, CUgraphNode, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};
use bursar_sim::CaptureStatus;
use std::ffi::{c_ulonglong, c_void};

pub(crate) fn begin(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CallResult {
    let target = process.stream(default, stream)?;
    if mode.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut state = process.state();
    if !state.streams.contains_key(&of(stream)) {
        // The default streams of a context.
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    port::capture_begin(process.sim(), target.on)?;
    state.captures.insert(of(stream), Capture { mode, thread: thread::number(), on: target.on });
    Ok(())
}

pub(crate) fn end(process: &Process, default: DefaultStream, stream: CUstream, graph: Out<CUgraph>) -> CallResult {
    let target = process.stream(default, stream)?;
    graph.required()?;
    let mut state = process.state();
    let capture = state.captures.get(&of(stream)).copied();
    let is_relaxed = |capture: &Capture| capture.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    if capture.is_some_and(|capture| !is_relaxed(&capture) && capture.thread != thread::number()) {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let ended = port::capture_end(process.sim(), target.on);
    state.captures.remove(&of(stream));
    match ended {
        Ok(raw) => {
            let handle = state.new_handle(Kind::Graph);
            state.graphs.insert(handle, GraphOn { device: target.on.device, raw });
            graph.set(pointer(handle))
        }
        Err(error) => {
            graph.set(std::ptr::null_mut())?;
            Err(error)
        }
    }
}

/// Returns how far the capture of a stream is, and its number.
fn described(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
) -> CallResult<(CUstreamCaptureStatus, c_ulonglong)> {
    let target = process.stream(default, stream)?;
    Ok(match process.sim().capture_status(target.on.device, target.on.raw)? {
        CaptureStatus::None => (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0),
        CaptureStatus::Active(number) => (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, number),
        CaptureStatus::Invalidated => (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED, 0),
    })
}

pub(crate) fn status(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
) -> CallResult {
    status.set(described(process, default, stream)?.0)
}

/// Returns how far the capture of a stream is, and its number. Its nodes have no handles, so where those are asked for there are
/// none.
#[allow(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn info(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<c_ulonglong>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    count: Out<usize>,
) -> CallResult {
    let (found, number) = described(process, default, stream)?;
    status.required()?;
    id.set_if_wanted(number);
    graph.set_if_wanted(std::ptr::null_mut());
    dependencies.set_if_wanted(std::ptr::null());
    count.set_if_wanted(0);
    status.set(found)
}

pub(crate) fn exchange_mode(_: &Process, mode: Out<CUstreamCaptureMode>) -> CallResult {
    let wanted = mode.get()?;
    if wanted.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    mode.set(thread::exchange_capture_mode(wanted))
}

fn graph_of(process: &Process, graph: CUgraph) -> CallResult<GraphOn> {
    process.state().graphs.get(&of(graph)).copied().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn exec_of(process: &Process, exec: CUgraphExec) -> CallResult<GraphExecOn> {
    process.state().graph_execs.get(&of(exec)).copied().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn destroy_graph(process: &Process, graph: CUgraph) -> CallResult {
    let found = process.state().graphs.remove(&of(graph)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    port::graph_destroy(process.sim(), found.device, found.raw)
}

/// Makes a graph ready to be launched. What the flags ask for makes no difference here.
pub(crate) fn instantiate(
    process: &Process,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> CallResult {
    exec.required()?;
    let GraphOn { device, raw } = graph_of(process, graph)?;
    let raw = port::graph_instantiate(process.sim(), device, raw)?;
    let mut state = process.state();
    let handle = state.new_handle(Kind::GraphExec);
    state.graph_execs.insert(handle, GraphExecOn { device, raw });
    drop(state);
    exec.set(pointer(handle))
}

pub(crate) fn launch(process: &Process, default: DefaultStream, exec: CUgraphExec, stream: CUstream) -> CallResult {
    let (target, found) = (process.stream(default, stream)?, exec_of(process, exec)?);
    if found.device != target.on.device {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    port::graph_launch(process.sim(), target.on, found.raw)
}

pub(crate) fn destroy_exec(process: &Process, exec: CUgraphExec) -> CallResult {
    let found = process.state().graph_execs.remove(&of(exec)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    port::graph_exec_destroy(process.sim(), found.device, found.raw)
}

fn check_attribute(process: &Process, device: CUdevice, attribute: CUgraphMem_attribute) -> CallResult {
    process.device(device)?;
    match attribute.0 <= CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH.0 {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Graphs have no memory.
pub(crate) fn get_memory_attribute(
    process: &Process,
    device: CUdevice,
    attribute: CUgraphMem_attribute,
    value: Out<c_void>,
) -> CallResult {
    check_attribute(process, device, attribute)?;
    value.typed::<u64>().set(0)
}

/// Only the high-water marks can be set, and only to zero.
pub(crate) fn set_memory_attribute(
    process: &Process,
    device: CUdevice,
    attribute: CUgraphMem_attribute,
    value: Out<c_void>,
) -> CallResult {
    check_attribute(process, device, attribute)?;
    let is_mark = attribute.0 % 2 == 1;
    match value.typed::<u64>().get()? {
        0 if is_mark => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn trim_memory(process: &Process, device: CUdevice) -> CallResult {
    process.device(device).map(drop)
}
