//! Contexts: what the driver takes for itself when one is made, and the end of what was allocated in it.
#![allow(unsafe_code)]

use crate::driver::{self, Device, Handle, read, write};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::share::Share;
use crate::{arrays, charge, device, growth, linear, nvml, refusal, share, steps, stores};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A context that is charged.
#[derive(Clone, Copy, Debug)]
struct Context {
    handle: Handle,
    /// The device whose primary context it is.
    primary_of: Option<Device>,
    bytes: u64,
}

// SAFETY: the handle of a context means the same in every thread.
unsafe impl Send for Context {}

/// The contexts of the share's device. Locked while one is made: what is free before and after is compared.
static CONTEXTS: Mutex<Vec<Context>> = Mutex::new(Vec::new());

fn contexts() -> MutexGuard<'static, Vec<Context>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a context, measures what the driver took for it, and charges that.
fn make(
    share: &Share,
    device: Device,
    is_primary: bool,
    context: *mut Handle,
    call: impl FnOnce() -> c_int,
    undo: impl FnOnce(),
) -> c_int {
    if !device::is(share, device) {
        return call();
    }
    share::note_taking();
    let mut contexts = contexts();
    if is_primary && contexts.iter().any(|known| known.primary_of == Some(device)) {
        return call();
    }
    let (was, before) = (read(context), nvml::before_context(share));
    let status = call();
    if status != SUCCESS {
        return status;
    }
    steps::passed(c"context made");
    let nvml::Taken { bytes, is_exact } = nvml::taken_by_context(share, &before);
    let is_charged = charge::all(share, bytes);
    if !is_charged && is_exact {
        undo();
        write(context, was);
        return refusal::refuse(share, bytes);
    }
    // What others may have taken is no reason to refuse.
    let bytes = if is_charged { bytes } else { 0 };
    growth::context_made();
    contexts.push(Context { handle: read(context), primary_of: is_primary.then_some(device), bytes });
    status
}

/// A context that is about to end, with what was allocated in it. It is taken out of the entries before the driver destroys it, since
/// another thread may be given the same handles and addresses as soon as it is gone.
struct Ending {
    context: Context,
    linear: linear::OfContext,
    arrays: arrays::OfContext,
}

fn take_out(is_ending: impl Fn(&Context) -> bool) -> Vec<Ending> {
    let mut contexts = contexts();
    let taken_out: Vec<Context> = contexts.iter().filter(|context| is_ending(context)).copied().collect();
    contexts.retain(|context| !is_ending(context));
    drop(contexts);
    let with_contents = |context: Context| Ending {
        context,
        linear: linear::take_out(context.handle),
        arrays: arrays::take_out(context.handle),
    };
    taken_out.into_iter().map(with_contents).collect()
}

/// Ends the charges of contexts that are gone.
fn end(share: &Share, gone: Vec<Ending>) {
    let is_any = !gone.is_empty();
    for Ending { context, linear, arrays } in gone {
        linear.end(share);
        arrays.end(share);
        share.release(context.bytes);
        growth::context_ended(share);
    }
    if is_any {
        stores::end_unknown(share);
    }
}

/// Enters contexts again that are still there.
fn put_back(stay: Vec<Ending>) {
    for Ending { context, linear, arrays } in stay {
        contexts().push(context);
        linear.put_back();
        arrays.put_back();
    }
}

/// Gives up the primary context of a device, which may be its end. Others may hold it and free what is in it meanwhile, so nothing is
/// taken out before.
fn release_primary(share: &Share, device: Device, call: impl FnOnce() -> c_int) -> c_int {
    let status = call();
    if status == SUCCESS && driver::is_primary_active(device) == Some(false) {
        end(share, take_out(|context| context.primary_of == Some(device)));
    }
    status
}

/// Destroys what is in the primary context of a device, whoever holds it.
fn reset_primary(share: &Share, device: Device, call: impl FnOnce() -> c_int) -> c_int {
    let ending = take_out(|context| context.primary_of == Some(device));
    let status = call();
    if status == SUCCESS && driver::is_primary_active(device) == Some(false) {
        end(share, ending);
    } else {
        put_back(ending);
    }
    status
}

/// Destroys a context.
fn destroy(share: &Share, context: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let ending = take_out(|known| known.handle == context && known.primary_of.is_none());
    let status = call();
    if status == SUCCESS {
        end(share, ending);
    } else {
        put_back(ending);
    }
    status
}

hook! {
    take fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device) |real, share| {
        make(share, device, true, context, || real(context, device), || driver::release_primary(device))
    };
    pass fn cuDevicePrimaryCtxRelease(device: Device) |real, share| release_primary(share, device, || real(device));
    pass fn cuDevicePrimaryCtxRelease_v2(device: Device) |real, share| release_primary(share, device, || real(device));
    pass fn cuDevicePrimaryCtxReset(device: Device) |real, share| reset_primary(share, device, || real(device));
    pass fn cuDevicePrimaryCtxReset_v2(device: Device) |real, share| reset_primary(share, device, || real(device));

    take fn cuCtxCreate(context: *mut Handle, flags: c_uint, device: Device) |real, share| {
        make(share, device, false, context, || real(context, flags, device), || driver::destroy_context(read(context)))
    };
    take fn cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: Device) |real, share| {
        make(share, device, false, context, || real(context, flags, device), || driver::destroy_context(read(context)))
    };
    take fn cuCtxCreate_v3(
        context: *mut Handle, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device
    ) |real, share| {
        let call = || real(context, affinity, count, flags, device);
        make(share, device, false, context, call, || driver::destroy_context(read(context)))
    };
    take fn cuCtxCreate_v4(context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device) |real, share| {
        let call = || real(context, parameters, flags, device);
        make(share, device, false, context, call, || driver::destroy_context(read(context)))
    };
    pass fn cuCtxDestroy(context: Handle) |real, share| destroy(share, context, || real(context));
    pass fn cuCtxDestroy_v2(context: Handle) |real, share| destroy(share, context, || real(context));
}
