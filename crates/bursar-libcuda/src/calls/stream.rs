//! Streams.

use crate::arguments::Out;
use crate::handle::{Kind, of, pointer};
use crate::host_functions::{self, Callback, Function, UserData};
use crate::port;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::Stream;
use crate::status::{CUresult, CallResult};
use crate::types::{CU_STREAM_NON_BLOCKING, CUcontext, CUevent, CUstream};
use bursar_core::Driver;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

pub(crate) fn create(process: &Process, stream: Out<CUstream>, flags: c_uint) -> CallResult {
    create_with_priority(process, stream, flags, 0)
}

pub(crate) fn create_with_priority(
    process: &Process,
    stream: Out<CUstream>,
    flags: c_uint,
    priority: c_int,
) -> CallResult {
    let current = process.current()?;
    stream.required()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (device, context) = (current.device, current.context);
    let range = &process.devices[current.ordinal].facts.stream_priorities;
    let priority = priority.clamp(*range.start(), *range.end());
    let raw = match flags {
        0 => process.sim().create_blocking_stream(device)?,
        _ => process.sim().stream_create(device, priority)?,
    };
    let mut state = process.state();
    let handle = state.new_handle(Kind::Stream);
    state.streams.insert(handle, Stream { device, raw, context, flags, priority });
    drop(state);
    stream.set(pointer(handle))
}

pub(crate) fn destroy(process: &Process, stream: CUstream) -> CallResult {
    process.destroy_stream(of(stream))
}

pub(crate) fn query(process: &Process, default: DefaultStream, stream: CUstream) -> CallResult {
    let target = process.stream(default, stream)?;
    match port::stream_query(process.sim(), target.on)?.is_complete() {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_READY),
    }
}

pub(crate) fn synchronize(process: &Process, default: DefaultStream, stream: CUstream) -> CallResult {
    process.wait(process.stream(default, stream)?.on)
}

pub(crate) fn wait_event(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CallResult {
    let target = process.stream(default, stream)?;
    let event = *process.state().event(of(event))?;
    port::stream_wait(process.sim(), target.on, event.raw)
}

pub(crate) fn launch_host_function(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    function: Function,
    data: *mut c_void,
) -> CallResult {
    let target = process.stream(default, stream)?;
    let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    host_functions::submit(process, target.on, host_functions::calling(function, UserData(data)))
}

/// Runs a callback, which gets the stream and its status, at this point of the stream.
pub(crate) fn add_callback(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    callback: Callback,
    data: *mut c_void,
    flags: c_uint,
) -> CallResult {
    let target = process.stream(default, stream)?;
    let callback = callback.filter(|_| flags == 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    host_functions::submit(process, target.on, host_functions::calling_back(callback, of(stream), UserData(data)))
}

pub(crate) fn context(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    context: Out<CUcontext>,
) -> CallResult {
    let target = process.stream(default, stream)?;
    context.set(pointer(target.context))
}

/// Returns what is recorded about a stream; the default streams are as those of a context that was just made.
fn described(process: &Process, default: DefaultStream, stream: CUstream) -> CallResult<(c_uint, c_int)> {
    process.stream(default, stream)?;
    let state = process.state();
    Ok(state.streams.get(&of(stream)).map_or((0, 0), |stream| (stream.flags, stream.priority)))
}

pub(crate) fn flags(process: &Process, default: DefaultStream, stream: CUstream, flags: Out<c_uint>) -> CallResult {
    flags.set(described(process, default, stream)?.0)
}

pub(crate) fn priority(
    process: &Process,
    default: DefaultStream,
    stream: CUstream,
    priority: Out<c_int>,
) -> CallResult {
    priority.set(described(process, default, stream)?.1)
}

pub(crate) fn id(process: &Process, default: DefaultStream, stream: CUstream, id: Out<c_ulonglong>) -> CallResult {
    let target = process.stream(default, stream)?;
    id.set(u64::from(target.on.device.0) << 48 | target.on.raw.0)
}
