//! Contexts: primary ones, which all libraries of a process share, and others.

use crate::arguments::{In, Out};
use crate::calls::memory::give_back;
use crate::calls::share::unmap;
use crate::handle::{Kind, of, pointer};
use crate::port;
use crate::process::{Current, Process};
use crate::state::{Context, State};
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::{CUcontext, CUdevice, CUlimit};
use bursar_core::{Bytes, DeviceId, Driver, RawPages};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// The flags that a context may have; the scheduling flags exclude each other.
const SCHEDULES: [c_uint; 4] = [0, 1, 2, 4];
const FLAGS: c_uint = 0xff;

fn check_flags(flags: c_uint) -> CallResult {
    let is_known = flags & !FLAGS == 0 && SCHEDULES.contains(&(flags & 7));
    if is_known { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

/// Takes the memory that a context takes of its device.
fn take_own(process: &Process, device: DeviceId) -> CallResult<Option<RawPages>> {
    let bytes = process.machine.context;
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    let bytes = bytes.get().next_multiple_of(2 << 20);
    Ok(Some(process.sim().pages_create(device, bytes)?))
}

pub(crate) fn primary_retain(process: &Process, context: Out<CUcontext>, device: CUdevice) -> CallResult {
    context.required()?;
    let device = process.device(device)?;
    let _alone = device.changes_primary();
    let is_active = process.state().context(device.primary).is_ok();
    let own = if is_active { None } else { take_own(process, device.id)? };
    if let Some(primary) = process.state().contexts.get_mut(&device.primary) {
        primary.retains += 1;
        primary.own = primary.own.or(own);
    }
    context.set(pointer(device.primary))
}

pub(crate) fn primary_release(process: &Process, device: CUdevice) -> CallResult {
    let device = process.device(device)?;
    let _alone = device.changes_primary();
    let mut state = process.state();
    let primary = state.contexts.get_mut(&device.primary).filter(|context| context.retains > 0);
    let primary = primary.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    if primary.retains > 1 {
        primary.retains -= 1;
        return Ok(());
    }
    drop(state);
    destroy_contents(process, device.primary)
}

pub(crate) fn primary_reset(process: &Process, device: CUdevice) -> CallResult {
    let device = process.device(device)?;
    let _alone = device.changes_primary();
    let is_active = process.state().context(device.primary).is_ok();
    if is_active { destroy_contents(process, device.primary) } else { Ok(()) }
}

pub(crate) fn primary_state(
    process: &Process,
    device: CUdevice,
    flags: Out<c_uint>,
    is_active: Out<c_int>,
) -> CallResult {
    let device = process.device(device)?;
    is_active.required()?;
    let state = process.state();
    let primary = state.contexts.get(&device.primary).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    flags.set(primary.flags)?;
    is_active.set(c_int::from(primary.retains > 0))
}

pub(crate) fn primary_set_flags(process: &Process, device: CUdevice, flags: c_uint) -> CallResult {
    let device = process.device(device)?;
    check_flags(flags)?;
    if let Some(primary) = process.state().contexts.get_mut(&device.primary) {
        primary.flags = flags;
    }
    Ok(())
}

fn create(process: &Process, context: Out<CUcontext>, flags: c_uint, device: CUdevice, version: c_uint) -> CallResult {
    context.required()?;
    check_flags(flags)?;
    let visible = process.device(device)?;
    let own = take_own(process, visible.id)?;
    let mut state = process.state();
    let handle = state.new_handle(Kind::Context);
    let (ordinal, limits) = (device as usize, HashMap::new());
    let made = Context { ordinal, flags, api_version: version, retains: 1, is_primary: false, own, heir: None, limits };
    state.contexts.insert(handle, made);
    drop(state);
    thread::push(handle);
    context.set(pointer(handle))
}

pub(crate) fn create_v2(process: &Process, context: Out<CUcontext>, flags: c_uint, device: CUdevice) -> CallResult {
    create(process, context, flags, device, 3020)
}

pub(crate) fn create_v3(
    process: &Process,
    context: Out<CUcontext>,
    _: *mut c_void,
    parameters: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CallResult {
    if parameters != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    create(process, context, flags, device, 3020)
}

pub(crate) fn create_v4(
    process: &Process,
    context: Out<CUcontext>,
    _: In<c_void>,
    flags: c_uint,
    device: CUdevice,
) -> CallResult {
    create(process, context, flags, device, 3020)
}

pub(crate) fn destroy(process: &Process, context: CUcontext) -> CallResult {
    let handle = of(context);
    {
        let state = process.state();
        let found = state.contexts.get(&handle).filter(|context| context.retains > 0);
        if found.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.is_primary {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
    }
    destroy_contents(process, handle)?;
    if thread::current() == Some(handle) {
        thread::pop();
    }
    Ok(())
}

/// Ends a context with everything that belongs to it, after waiting for its work.
fn destroy_contents(process: &Process, context: u64) -> CallResult {
    let ordinal = process.state().context(context)?.ordinal;
    let current = Current { context, ordinal, device: process.devices[ordinal].id };
    end_captures(process, context)?;
    process.wait_for_context(current)?;
    let (sim, device) = (process.sim(), current.device);
    let mut state = process.state();
    let of_context = |of: u64| of == context;
    let streams: Vec<_> = state.streams.extract_if(|_, stream| of_context(stream.context)).collect();
    let events: Vec<_> = state.events.extract_if(|_, event| of_context(event.context)).collect();
    let State { allocations: all, shared, .. } = &mut *state;
    shared.retain(|start, _| all.get(start).is_none_or(|allocation| !of_context(allocation.context)));
    let its = state.allocations.iter().filter(|(_, allocation)| of_context(allocation.context));
    let allocations: Vec<_> = its.map(|(start, allocation)| (*start, *allocation)).collect();
    state.allocations.retain(|_, allocation| !of_context(allocation.context));
    let arrays = take_arrays(&mut state, context);
    let own = state.contexts.get_mut(&context).and_then(|context| {
        context.retains = 0;
        context.heir = None;
        context.limits.clear();
        context.own.take()
    });
    state.peers.retain(|(one, other)| *one != context && *other != context);
    drop(state);
    for (_, event) in events {
        port::event_destroy(sim, device, event.raw)?;
    }
    for (start, allocation) in allocations {
        let opened = process.state().opened.remove(&start);
        match opened {
            Some(opened) => unmap(process, start, &opened)?,
            None => give_back(process, start, &allocation)?,
        }
    }
    for at in arrays {
        port::free(sim, device, at)?;
    }
    process.wait(current.legacy())?;
    for (_, stream) in streams {
        port::stream_destroy(sim, device, stream.raw)?;
    }
    match own {
        Some(own) => port::pages_release(sim, device, own),
        None => Ok(()),
    }
}

/// Ends the captures of a context's streams, which would keep them from being waited for.
fn end_captures(process: &Process, context: u64) -> CallResult {
    let mut state = process.state();
    let of_context = |stream: &u64| state.streams.get(stream).filter(|stream| stream.context == context).copied();
    let captured: Vec<_> = state.captures.keys().filter_map(|stream| Some((*stream, of_context(stream)?))).collect();
    for (handle, stream) in captured {
        // A capture that cannot become a graph has ended too.
        let _ = process.sim().end_capture(stream.device, stream.raw);
        state.captures.remove(&handle);
    }
    Ok(())
}

/// Forgets the arrays of a context. Returns where their memory is.
fn take_arrays(state: &mut State, context: u64) -> Vec<u64> {
    let arrays: Vec<_> = state.arrays.extract_if(|_, array| array.context == context).collect();
    let mipmapped: Vec<_> = state.mipmapped_arrays.extract_if(|_, array| array.context == context).collect();
    let whole = arrays.iter().filter(|(_, array)| array.level_of.is_none()).map(|(_, array)| array.at);
    whole.chain(mipmapped.iter().map(|(_, array)| array.at)).collect()
}

pub(crate) fn get_current(_: &Process, context: Out<CUcontext>) -> CallResult {
    context.set(thread::current().map_or(std::ptr::null_mut(), pointer))
}

pub(crate) fn set_current(process: &Process, context: CUcontext) -> CallResult {
    if context.is_null() {
        thread::set_current(None);
        return Ok(());
    }
    process.state().context(of(context))?;
    thread::set_current(Some(of(context)));
    Ok(())
}

pub(crate) fn push_current(process: &Process, context: CUcontext) -> CallResult {
    process.state().context(of(context))?;
    thread::push(of(context));
    Ok(())
}

pub(crate) fn pop_current(_: &Process, context: Out<CUcontext>) -> CallResult {
    let popped = thread::pop().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    context.set_if_wanted(pointer(popped));
    Ok(())
}

pub(crate) fn get_device(process: &Process, device: Out<CUdevice>) -> CallResult {
    let current = process.current()?;
    device.set(current.ordinal as CUdevice)
}

pub(crate) fn get_flags(process: &Process, flags: Out<c_uint>) -> CallResult {
    let current = process.current()?;
    let found = process.state().context(current.context)?.flags;
    flags.set(found)
}

pub(crate) fn get_id(process: &Process, context: CUcontext, id: Out<c_ulonglong>) -> CallResult {
    let current = process.context_or_current(context)?;
    id.set(current.context)
}

pub(crate) fn synchronize(process: &Process) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    process.wait_for_context(current)
}

pub(crate) fn priority_range(process: &Process, least: Out<c_int>, greatest: Out<c_int>) -> CallResult {
    let current = process.current()?;
    let range = &process.devices[current.ordinal].facts.stream_priorities;
    least.set_if_wanted(*range.end());
    greatest.set_if_wanted(*range.start());
    Ok(())
}

pub(crate) fn api_version(process: &Process, context: CUcontext, version: Out<c_uint>) -> CallResult {
    version.required()?;
    let current = process.context_or_current(context)?;
    let found = process.state().context(current.context)?.api_version;
    version.set(found)
}

/// Returns what a limit is before it is set, or that there is no such limit.
fn initial_limit(limit: CUlimit) -> CallResult<usize> {
    match limit {
        CUlimit::CU_LIMIT_STACK_SIZE => Ok(1 << 10),
        CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => Ok(7 << 20),
        CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => Ok(8 << 20),
        CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => Ok(2048),
        CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY => Ok(64),
        CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE => Ok(0),
        CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn get_limit(process: &Process, value: Out<usize>, limit: CUlimit) -> CallResult {
    let current = process.current()?;
    value.required()?;
    let initial = initial_limit(limit)?;
    let found = process.state().context(current.context)?.limits.get(&limit.0).copied();
    value.set(found.unwrap_or(initial))
}

pub(crate) fn set_limit(process: &Process, limit: CUlimit, value: usize) -> CallResult {
    let current = process.current()?;
    initial_limit(limit)?;
    if let Some(context) = process.state().contexts.get_mut(&current.context) {
        context.limits.insert(limit.0, value);
    }
    Ok(())
}

/// Lets the current context reach the memory of another device's. Devices reach each other always, so only the calls are
/// checked.
pub(crate) fn enable_peer_access(process: &Process, peer: CUcontext, flags: c_uint) -> CallResult {
    let current = process.current()?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut state = process.state();
    if state.context(of(peer))?.ordinal == current.ordinal {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    match state.peers.insert((current.context, of(peer))) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    }
}

pub(crate) fn disable_peer_access(process: &Process, peer: CUcontext) -> CallResult {
    let current = process.current()?;
    let mut state = process.state();
    state.context(of(peer))?;
    match state.peers.remove(&(current.context, of(peer))) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
    }
}
