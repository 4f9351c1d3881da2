//! Captures and graphs. A graph is empty: work on a stream that is captured is refused, because graphs do not run here.

use crate::arguments::Out;
use crate::handle::{Kind, of, pointer};
use crate::message;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::Capture;
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::{CUdevice, CUgraph, CUgraphMem_attribute, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};
use std::ffi::c_void;

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
    if state.captures.contains_key(&of(stream)) {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    process.sim().begin_capture(target.on.device, target.on.raw)?;
    let thread = thread::number();
    state.captures.insert(of(stream), Capture { mode, thread, is_valid: true });
    message::once("graphs are not simulated: work on a stream that is captured is refused");
    Ok(())
}

pub(crate) fn end(process: &Process, default: DefaultStream, stream: CUstream, graph: Out<CUgraph>) -> CallResult {
    let target = process.stream(default, stream)?;
    graph.required()?;
    let mut state = process.state();
    let capture = state.captures.get(&of(stream)).copied().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    let is_relaxed = capture.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    if !is_relaxed && capture.thread != thread::number() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    process.sim().end_capture(target.on.device, target.on.raw)?;
    state.captures.remove(&of(stream));
    if !capture.is_valid {
        graph.set(std::ptr::null_mut())?;
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let handle = state.new_handle(Kind::Graph);
    state.graphs.insert(handle);
    graph.set(pointer(handle))
}

pub(crate) fn status(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
) -> CallResult {
    process.stream(default, stream)?;
    status.required()?;
    let capture = process.state().captures.get(&of(stream)).copied();
    status.set(match capture {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(Capture { is_valid: true, .. }) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    })
}

pub(crate) fn exchange_mode(_: &Process, mode: Out<CUstreamCaptureMode>) -> CallResult {
    let wanted = mode.get()?;
    if wanted.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    mode.set(thread::exchange_capture_mode(wanted))
}

pub(crate) fn destroy_graph(process: &Process, graph: CUgraph) -> CallResult {
    match process.state().graphs.remove(&of(graph)) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
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
