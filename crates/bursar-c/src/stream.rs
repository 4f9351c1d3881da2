//! Streams: of ours, and those that the caller made.
#![allow(unsafe_code)]

use crate::arguments;
use crate::device::bursar_device;
use crate::enter::call;
use crate::handles::{DEVICES, STREAMS, StreamOfCaller, StreamOrigin};
use crate::status::{CallResult, bursar_status};
use bursar::device::DeviceContext;
use bursar::driver::RawStream;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// A stream of a device; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_stream {
    /// The number of the handle.
    pub id: u64,
}

/// Makes a stream of a device, or takes one that was closed before. Zero is the default priority; lower ones are more urgent.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a priority outside the device's range;
/// `BURSAR_TOO_MANY_STREAMS`, `BURSAR_DRIVER_FAILED`; `BURSAR_UNSUPPORTED` where the driver only observes. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_stream_close`.
///
/// # Safety
/// `out` is null or points to a `bursar_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stream_create(
    device: bursar_device,
    priority: i32,
    out: *mut bursar_stream,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stream::default()) };
        let context = usable(device)?;
        let stream = context.take_stream(priority)?;
        let id = STREAMS.insert(Arc::new(StreamOfCaller { stream, context, origin: StreamOrigin::Own(priority) }))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stream { id }) };
        Ok(())
    })
}

/// Returns the context of a device that can have streams.
fn usable(device: bursar_device) -> CallResult<Arc<DeviceContext>> {
    let device = DEVICES.keep(device.id)?;
    device.check_usable()?;
    Ok(device.context.clone())
}

/// Lets a stream be used that somebody else made: a `CUstream` of the device's primary context. Null is the legacy default
/// stream; the per-thread default stream is refused.
///
/// Close it before the stream is destroyed. That is when what was freed on it is put in order, so that its memory stays
/// reusable.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_INVALID_STREAM`, `BURSAR_TOO_MANY_STREAMS`;
/// `BURSAR_UNSUPPORTED` where the driver only observes. `*out` is then null.
/// Threads: any.
/// Ownership: the `CUstream` stays the caller's, who closes `*out` with `bursar_stream_close` first.
///
/// # Safety
/// `raw` is null or a stream of the device that lives until `*out` is closed; `out` is null or points to a `bursar_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stream_adopt(
    device: bursar_device,
    raw: *mut c_void,
    out: *mut bursar_stream,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stream::default()) };
        let context = usable(device)?;
        // SAFETY: the caller's promise that it lives until this is closed.
        let adopted = unsafe { context.adopt_stream(RawStream(raw.addr() as u64)) }?;
        let (stream, origin) = (adopted.stream(), StreamOrigin::Adopted { _until: adopted });
        let id = STREAMS.insert(Arc::new(StreamOfCaller { stream, context, origin }))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stream { id }) };
        Ok(())
    })
}

/// Returns the `CUstream` of a stream, for kernels and other libraries. From then on the driver is asked at each allocation and
/// free on it whether the stream is being captured into a graph.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the `CUstream` is not the caller's to destroy, and must not be used once the stream is closed.
///
/// # Safety
/// `out` is null or points to a `void *`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stream_raw(stream: bursar_stream, out: *mut *mut c_void) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        let kept = STREAMS.keep(stream.id)?;
        let raw = kept.context.resolve(kept.stream)?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, std::ptr::without_provenance_mut(raw.0 as usize)) };
        Ok(())
    })
}

/// Waits until everything that was submitted to a stream so far has run.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_STREAM` while it is being captured into a graph, `BURSAR_DRIVER_FAILED`.
/// Threads: any.
/// Ownership: none.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_stream_synchronize(stream: bursar_stream) -> bursar_status {
    call(|| {
        let kept = STREAMS.keep(stream.id)?;
        Ok(kept.context.synchronize(kept.stream)?)
    })
}

/// Returns a stream that was closed, once no thread synchronizes with it any more: from then on nothing here uses the `CUstream`.
fn ended(mut closed: Arc<StreamOfCaller>) -> StreamOfCaller {
    loop {
        match Arc::try_unwrap(closed) {
            Ok(stream) => return stream,
            Err(shared) => closed = shared,
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Closes a stream. Memory that was allocated on it stays; work that was submitted to it still runs. A stream of ours goes to
/// whoever makes the next one.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any; it waits for calls of other threads that are running, also for those that synchronize with the stream.
/// Ownership: the handle is used up. A `CUstream` that was adopted may be destroyed from now on.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_stream_close(stream: bursar_stream) -> bursar_status {
    call(|| {
        let closed = ended(STREAMS.close(stream.id)?);
        if let StreamOrigin::Own(priority) = closed.origin {
            closed.context.return_stream(closed.stream, priority)?;
        }
        Ok(())
    })
}
