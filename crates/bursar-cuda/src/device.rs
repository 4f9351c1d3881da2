//! A device: its state, and the right context for each call.
//!
//! Every device has one primary context, which all libraries of the process share. A call runs with that context current on
//! its thread and leaves the thread as it found it: another library may rely on the context that it made current, or on none
//! being current, from which the CUDA runtime concludes that a thread has not chosen a device yet.
//!
//! Reading the current context takes about 15 ns, changing it 39 ns, so a thread on which the right one is current pays for
//! one read.
//!
//! # A call on a stream needs no current context
//! A stream belongs to a context, so the driver finds the context of a call by its stream, and the current one is not even
//! read: on an H200 with driver 580, `cuMemAllocAsync`, `cuMemFreeAsync`, `cuStreamQuery`, `cuStreamIsCapturing`,
//! `cuStreamSynchronize`, `cuEventRecord` and `cuMemsetD8Async` on a created stream all succeed with no context current and
//! with another one. (`cuEventCreate`, which takes no handle, returns `CUDA_ERROR_INVALID_CONTEXT` then.)
//! `cuStreamWaitEvent` was not measured and is assumed to behave like them. The manual does not promise this, so if a driver
//! does return that error, the call is made again with the context current. The handles 0, 1 and 2 are not such streams:
//! they mean default streams of the current context.
//!
//! # Locks
//! No lock is held across a driver call once a device is open. Only retaining and releasing the primary context is
//! serialised.
#![allow(unsafe_code)]

use crate::conv;
use crate::raw::sys::{
    CUDA_ERROR_INVALID_CONTEXT, CUcontext, CUctx_st, CUdevice, CUdevice_attribute, CUmemAllocationProp,
    CUstreamCaptureMode,
};
use crate::raw::{Api, Failure};
use bursar_core::{DeviceId, DriverError, DriverResult, RawStream, Status};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The state of one device.
pub(crate) struct Device {
    id: DeviceId,
    /// True if the device is only looked at: opening it creates no context.
    is_observed: bool,
    /// The driver's handle, or the error of getting it: one faulty device does not keep the others from being used.
    handle: DriverResult<CUdevice>,
    /// The primary context while the device is open, null otherwise.
    primary: AtomicPtr<CUctx_st>,
    /// The number of opens that have not been closed.
    opens: Mutex<u32>,
    first_sticky: OnceLock<DriverError>,
    stream_priorities: OnceLock<(i32, i32)>,
    page_kind: OnceLock<CUmemAllocationProp>,
}

impl Device {
    /// Finds the device with this ordinal, which is below the driver's count.
    pub(crate) fn find(api: &Api, id: DeviceId, is_observed: bool) -> Self {
        let mut device = Self {
            id,
            is_observed,
            handle: Ok(0),
            primary: AtomicPtr::default(),
            opens: Mutex::default(),
            first_sticky: OnceLock::new(),
            stream_priorities: OnceLock::new(),
            page_kind: OnceLock::new(),
        };
        device.handle = device.checked(api, api.device(id.0.cast_signed()));
        device
    }

    pub(crate) const fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn handle(&self) -> DriverResult<CUdevice> {
        self.handle
    }

    /// Returns the first sticky error.
    pub(crate) fn first_sticky(&self) -> Option<DriverError> {
        self.first_sticky.get().copied()
    }

    /// Converts the result of a call for its caller, and records the first sticky error.
    #[inline]
    pub(crate) fn checked<T>(&self, api: &Api, result: Result<T, Failure>) -> DriverResult<T> {
        result.map_err(|failure| self.failed(api, failure))
    }

    #[cold]
    fn failed(&self, api: &Api, failure: Failure) -> DriverError {
        let error = conv::error(self.id, failure, || api.error_name(failure.code));
        if error.is_sticky() {
            self.first_sticky.get_or_init(|| error);
        }
        error
    }

    pub(crate) const fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Retains the primary context on the first call; one that is only looked at has none, which is null.
    pub(crate) fn open(&self, api: &Api) -> DriverResult<CUcontext> {
        let handle = self.handle()?;
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        if *opens == 0 && !self.is_observed {
            let context = self.checked(api, api.primary_retain(handle))?;
            self.primary.store(context, Ordering::Release);
        }
        *opens += 1;
        Ok(self.primary.load(Ordering::Relaxed))
    }

    /// Releases the primary context on the last call. It is destroyed unless another library retains it too; the device's pool then
    /// gives back first what was freed here, which it would keep until somebody asks for it.
    ///
    /// # Safety
    /// If it is the last call, nothing that was created in the context is used any more.
    pub(crate) unsafe fn close(&self, api: &Api) -> DriverResult<()> {
        let handle = self.handle()?;
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        *opens = opens.checked_sub(1).ok_or_else(|| self.not_open())?;
        if *opens > 0 || self.is_observed {
            return Ok(());
        }
        // What it does not give back is the driver's, and counts as such.
        let _kept = self.call(api, |api| api.trim_pool(handle));
        self.primary.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: retained by `open`; for the rest, the caller's own promise.
        self.checked(api, unsafe { api.primary_release(handle) })
    }

    #[cold]
    fn not_open(&self) -> DriverError {
        let status = conv::status(CUDA_ERROR_INVALID_CONTEXT, || Some("CUDA_ERROR_INVALID_CONTEXT"));
        DriverError::new("cuCtxSetCurrent", self.id, status)
    }

    /// Returns the primary context of an open device.
    #[inline]
    pub(crate) fn opened(&self) -> DriverResult<CUcontext> {
        let context = self.primary.load(Ordering::Acquire);
        if context.is_null() { Err(self.not_open()) } else { Ok(context) }
    }

    /// Runs `call` with the primary context current. For work that is submitted to a stream.
    #[inline]
    pub(crate) fn submit<T>(&self, api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        let context = self.opened()?;
        self.checked(api, within(api, context, call))
    }

    /// Runs `call`, whose context the driver finds by `stream`: where that is possible and the driver accepts it, no context
    /// is made current. A call that the driver rejects for its context has done nothing.
    #[inline]
    pub(crate) fn submit_on_stream<T>(
        &self,
        api: &Api,
        stream: RawStream,
        call: impl Fn(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        let context = self.opened()?;
        if conv::is_default_stream(stream) {
            return self.checked(api, within(api, context, call));
        }
        let result = match call(api) {
            Err(failure) if failure.code == CUDA_ERROR_INVALID_CONTEXT => within(api, context, call),
            result => result,
        };
        self.checked(api, result)
    }

    /// Runs `call` with the primary context current and without regard to captures elsewhere. For everything that is not
    /// submitted to a stream.
    ///
    /// While any thread captures a graph in the default mode, calls that might wait for a stream (allocating, freeing,
    /// querying an event) fail on every thread and invalidate the capture, unless their thread has selected the relaxed
    /// mode. These calls concern no captured stream, so they select it.
    #[inline]
    pub(crate) fn call<T>(&self, api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        self.submit(api, |api| relaxed(api, call))
    }

    /// Does the same as [`call`](Self::call) for a call whose context the driver finds by `stream`.
    #[inline]
    pub(crate) fn call_on_stream<T>(
        &self,
        api: &Api,
        stream: RawStream,
        call: impl Fn(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        self.submit_on_stream(api, stream, |api| relaxed(api, &call))
    }

    /// Does the same as [`call`](Self::call) on a device that need not be open: the primary context is retained meanwhile,
    /// and created if nobody has created it yet.
    pub(crate) fn call_even_closed<T>(
        &self,
        api: &Api,
        call: impl FnOnce(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        if self.is_observed {
            return self.call_retained(api, call);
        }
        self.open(api)?;
        let result = self.call(api, call);
        // SAFETY: this undoes the open above. Where it is the last, the result of `call` holds nothing of the context.
        let closed = unsafe { self.close(api) };
        result.and_then(|value| closed.map(|()| value))
    }

    /// Runs `call` with the primary context, which is retained for this call alone.
    fn call_retained<T>(&self, api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        let handle = self.handle()?;
        let context = self.checked(api, api.primary_retain(handle))?;
        let result = self.checked(api, within(api, context, |api| relaxed(api, call)));
        // SAFETY: retained just above, and the result of `call` holds nothing of the context.
        let released = self.checked(api, unsafe { api.primary_release(handle) });
        result.and_then(|value| released.map(|()| value))
    }

    /// Returns the least and the most urgent priority of a stream, which are queried once. Only a context knows them: where the device is
    /// only looked at, nobody makes a stream, and there is the default one.
    pub(crate) fn stream_priorities(&self, api: &Api) -> DriverResult<(i32, i32)> {
        if self.is_observed {
            return Ok((0, 0));
        }
        if let Some(&range) = self.stream_priorities.get() {
            return Ok(range);
        }
        let range = self.call_even_closed(api, Api::stream_priorities)?;
        Ok(*self.stream_priorities.get_or_init(|| range))
    }

    /// Returns the kind of pages that are created on the device, which is queried once.
    pub(crate) fn page_kind(&self, api: &Api) -> DriverResult<CUmemAllocationProp> {
        const RDMA: CUdevice_attribute =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        if let Some(&kind) = self.page_kind.get() {
            return Ok(kind);
        }
        let handle = self.handle()?;
        let rdma = self.checked(api, api.device_attribute(RDMA, handle))? != 0;
        Ok(*self.page_kind.get_or_init(|| CUmemAllocationProp::of(handle, rdma)))
    }

    /// Returns the error of a call that is refused without reaching the driver.
    pub(crate) fn refuse(&self, call: &'static str, status: Status) -> DriverError {
        DriverError::new(call, self.id, status)
    }
}

/// Runs `call` with `context` current, and restores the previous one.
#[inline]
fn within<T>(api: &Api, context: CUcontext, call: impl FnOnce(&Api) -> Result<T, Failure>) -> Result<T, Failure> {
    let previous = api.current()?;
    if previous == context {
        return call(api);
    }
    // SAFETY: the primary context of an open device.
    unsafe { api.set_current(context) }?;
    let result = call(api);
    // SAFETY: it was current on this thread until now.
    if unsafe { api.set_current(previous) }.is_err() {
        // Another thread has destroyed that context meanwhile. There is nothing to restore and no error to return, since the
        // call itself was made; but no thread is left in a context that it did not choose.
        // SAFETY: null is not a context.
        let _ = unsafe { api.set_current(ptr::null_mut()) };
    }
    result
}

/// Makes a call in the relaxed capture mode where there is one; a driver that has none refuses the call itself.
pub(crate) fn beside_captures(api: &Api, call: &mut dyn FnMut()) {
    let made = relaxed(api, |_| {
        call();
        Ok(())
    });
    if made.is_err() {
        call();
    }
}

/// Runs `call` in the relaxed capture mode, and restores that of the thread.
#[inline]
fn relaxed<T>(api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> Result<T, Failure> {
    const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let own = api.exchange_capture_mode(RELAXED)?;
    let result = call(api);
    if own != RELAXED {
        // The driver does not refuse a mode that it has returned itself.
        let _ = api.exchange_capture_mode(own);
    }
    result
}
