//! Events.

use crate::arguments::Out;
use crate::handle::{Kind, of, pointer};
use crate::port;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::Event;
use crate::status::{CUresult, CallResult};
use crate::types::{CU_EVENT_DISABLE_TIMING, CUevent, CUstream};
use bursar_core::Driver;
use std::ffi::c_uint;
use std::time::Instant;

/// The flags that an event may have: blocking synchronisation, no timing, and use between processes.
const FLAGS: c_uint = 7;

pub(crate) fn create(process: &Process, event: Out<CUevent>, flags: c_uint) -> CallResult {
    let current = process.current()?;
    event.required()?;
    // An event between processes must be one without timing.
    if flags & !FLAGS != 0 || (flags & 4 != 0 && flags & CU_EVENT_DISABLE_TIMING == 0) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (device, context) = (current.device, current.context);
    let raw = process.sim().event_create(device)?;
    let mut state = process.state();
    let handle = state.new_handle(Kind::Event);
    state.events.insert(handle, Event { device, raw, context, flags, recorded: None });
    drop(state);
    event.set(pointer(handle))
}

pub(crate) fn destroy(process: &Process, event: CUevent) -> CallResult {
    let mut state = process.state();
    let found = state.events.remove(&of(event)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    drop(state);
    port::event_destroy(process.sim(), found.device, found.raw)
}

pub(crate) fn record(process: &Process, default: DefaultStream, event: CUevent, stream: CUstream) -> CallResult {
    let target = process.stream(default, stream)?;
    let found = *process.state().event(of(event))?;
    if found.context != target.context {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    port::event_record(process.sim(), target.on, found.raw)?;
    if let Some(event) = process.state().events.get_mut(&of(event)) {
        event.recorded = Some(Instant::now());
    }
    Ok(())
}

pub(crate) fn record_with_flags(
    process: &Process,
    default: DefaultStream,
    event: CUevent,
    stream: CUstream,
    flags: c_uint,
) -> CallResult {
    if flags > 1 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    record(process, default, event, stream)
}

fn is_complete(process: &Process, event: &Event) -> CallResult {
    match port::event_query(process.sim(), event.device, event.raw)?.is_complete() {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_READY),
    }
}

pub(crate) fn query(process: &Process, event: CUevent) -> CallResult {
    let found = *process.state().event(of(event))?;
    process.check_captures()?;
    is_complete(process, &found)
}

pub(crate) fn synchronize(process: &Process, event: CUevent) -> CallResult {
    let found = *process.state().event(of(event))?;
    process.check_captures()?;
    port::event_synchronize(process.sim(), found.device, found.raw)
}

/// Returns the time between the records of two events, as they were submitted: simulated work takes no time of its own.
pub(crate) fn elapsed_time(process: &Process, milliseconds: Out<f32>, start: CUevent, end: CUevent) -> CallResult {
    milliseconds.required()?;
    let events = {
        let state = process.state();
        [*state.event(of(start))?, *state.event(of(end))?]
    };
    let [Some(from), Some(to)] = events.map(|event| event.recorded) else {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    };
    if events.iter().any(|event| event.flags & CU_EVENT_DISABLE_TIMING != 0) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    events.iter().try_for_each(|event| is_complete(process, event))?;
    let later = to.saturating_duration_since(from).as_secs_f32();
    let earlier = from.saturating_duration_since(to).as_secs_f32();
    milliseconds.set((later - earlier) * 1000.0)
}
