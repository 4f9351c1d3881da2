//! The right context for each call, and the state of each device.
//!
//! Every device has one primary context, which all libraries of the process share. A call runs with that context current
//! on its thread and leaves the thread as it found it: another library may rely on what it made current, and on nothing
//! being current, which is how the CUDA runtime knows that a thread has chosen no device yet.
//!
//! Reading the current context costs about 15 ns, changing it 39 ns, so that a thread on which the right one is current
//! already pays for one look.
//!
//! A stream belongs to a context, so a call that names one finds its context by it, and the current one is not even looked
//! at: on an H200, `cuMemAllocAsync`, `cuMemFreeAsync`, `cuStreamQuery`, `cuStreamIsCapturing`, `cuStreamSynchronize`,
//! `cuEventRecord` and `cuMemsetD8Async` on a stream that was created all succeed with no context current and with another
//! one. (`cuEventCreate`, which names nothing, answers `CUDA_ERROR_INVALID_CONTEXT` then.) `cuStreamWaitEvent` was not
//! measured and is taken to be like them. The manual promises this of none, so where a driver answers that error after
//! all, the call is made again with the context current. The handles 0, 1 and 2 are no such streams: they mean default
//! streams of the current context.
#![allow(unsafe_code)]

use crate::conv;
use crate::raw::{Api, Failure, PageKind};
use bursar_core::{DeviceId, DriverError, DriverResult, RawStream, Status};
use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice, CUdevice_attribute, CUstreamCaptureMode};
use std::ffi::c_uint;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What is known of one device.
pub(crate) struct Device {
    id: DeviceId,
    /// The driver's handle, or why it gave none: one sick device does not keep the others from being used.
    handle: DriverResult<CUdevice>,
    /// The primary context while the device is open, null otherwise.
    primary: AtomicPtr<CUctx_st>,
    /// How many opens have not been undone.
    opens: Mutex<u32>,
    first_sticky: OnceLock<DriverError>,
    stream_priorities: OnceLock<(i32, i32)>,
    page_kind: OnceLock<PageKind>,
}

impl Device {
    /// The device with this ordinal, which is below the driver's count.
    pub(crate) fn find(api: &Api, id: DeviceId) -> Self {
        let mut device = Self {
            id,
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

    /// The sticky error that was seen first.
    pub(crate) fn first_sticky(&self) -> Option<DriverError> {
        self.first_sticky.get().copied()
    }

    /// Turns what a call answered into what its caller sees, and remembers the first sticky error.
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

    /// Retains the primary context on the first call.
    pub(crate) fn open(&self, api: &Api) -> DriverResult<CUcontext> {
        let handle = self.handle()?;
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        if *opens == 0 {
            let context = self.checked(api, api.primary_retain(handle))?;
            self.primary.store(context, Ordering::Release);
        }
        *opens += 1;
        Ok(self.primary.load(Ordering::Relaxed))
    }

    /// Releases the primary context on the last call. It goes unless another library retains it too.
    ///
    /// # Safety
    /// If it is the last call, nothing that was made in the context is used any more.
    pub(crate) unsafe fn close(&self, api: &Api) -> DriverResult<()> {
        let handle = self.handle()?;
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        *opens = opens.checked_sub(1).ok_or_else(|| self.not_open())?;
        if *opens > 0 {
            return Ok(());
        }
        self.primary.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: retained by `open`; for the rest, the caller's own promise.
        self.checked(api, unsafe { api.primary_release(handle) })
    }

    #[cold]
    fn not_open(&self) -> DriverError {
        let status = conv::status(conv::INVALID_CONTEXT, || Some("CUDA_ERROR_INVALID_CONTEXT"));
        DriverError::new("cuCtxSetCurrent", self.id, status)
    }

    /// The primary context of an open device.
    #[inline]
    fn opened(&self) -> DriverResult<CUcontext> {
        let context = self.primary.load(Ordering::Acquire);
        if context.is_null() { Err(self.not_open()) } else { Ok(context) }
    }

    /// Runs `call` with the primary context current. For work that is submitted to a stream.
    #[inline]
    pub(crate) fn submit<T>(&self, api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        let context = self.opened()?;
        self.checked(api, within(api, context, call))
    }

    /// As [`submit`](Self::submit), for a call that finds its context by `stream`: where that is possible and the driver
    /// does not object, nothing is made current. A call to which it objects has done nothing.
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
            Err(failure) if failure.code == conv::INVALID_CONTEXT => within(api, context, call),
            result => result,
        };
        self.checked(api, result)
    }

    /// Runs `call` with the primary context current and without regard to captures elsewhere. For everything that is not
    /// submitted to a stream.
    ///
    /// While any thread captures a graph in the default mode, calls that might wait for a stream (allocating, freeing,
    /// asking an event) fail on every thread and spoil the capture, unless their thread has said that it knows better.
    /// These calls concern no captured stream, so it does.
    #[inline]
    pub(crate) fn call<T>(&self, api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> DriverResult<T> {
        self.submit(api, |api| relaxed(api, call))
    }

    /// As [`ask`](Self::ask), for a call that finds its context by `stream`.
    #[inline]
    pub(crate) fn call_on_stream<T>(
        &self,
        api: &Api,
        stream: RawStream,
        call: impl Fn(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        self.submit_on_stream(api, stream, |api| relaxed(api, &call))
    }

    /// As [`ask`](Self::ask), on a device that need not be open: the primary context is retained meanwhile, and made if
    /// nobody has made it yet.
    pub(crate) fn call_even_closed<T>(
        &self,
        api: &Api,
        call: impl FnOnce(&Api) -> Result<T, Failure>,
    ) -> DriverResult<T> {
        self.open(api)?;
        let result = self.call(api, call);
        // SAFETY: this undoes the open above: where it is the last, what `call` was answered holds nothing of the context.
        let closed = unsafe { self.close(api) };
        result.and_then(|value| closed.map(|()| value))
    }

    /// The least and the most urgent priority of a stream, asked for once.
    pub(crate) fn stream_priorities(&self, api: &Api) -> DriverResult<(i32, i32)> {
        if let Some(&range) = self.stream_priorities.get() {
            return Ok(range);
        }
        let range = self.call_even_closed(api, Api::stream_priorities)?;
        Ok(*self.stream_priorities.get_or_init(|| range))
    }

    /// The kind of pages that are made on the device, asked for once.
    pub(crate) fn page_kind(&self, api: &Api) -> DriverResult<PageKind> {
        const RDMA: CUdevice_attribute =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        if let Some(&kind) = self.page_kind.get() {
            return Ok(kind);
        }
        let handle = self.handle()?;
        let rdma = self.checked(api, api.device_attribute(RDMA, handle))? != 0;
        Ok(*self.page_kind.get_or_init(|| PageKind::of(handle, rdma)))
    }

    /// The error of a call that is refused without asking the driver.
    pub(crate) fn refuse(&self, call: &'static str, status: Status) -> DriverError {
        DriverError::new(call, self.id, status)
    }
}

/// Runs `call` with `context` current, and puts back what was.
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
        // Another thread has destroyed that context meanwhile. There is nothing to put back and nobody to tell, the call
        // itself having been made; but no thread is left in a context that it did not choose.
        // SAFETY: null is no context.
        let _ = unsafe { api.set_current(ptr::null_mut()) };
    }
    result
}

/// Runs `call` in the relaxed capture mode, and puts back the thread's own.
#[inline]
fn relaxed<T>(api: &Api, call: impl FnOnce(&Api) -> Result<T, Failure>) -> Result<T, Failure> {
    const RELAXED: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
    let own = api.exchange_capture_mode(RELAXED)?;
    let result = call(api);
    if own != RELAXED {
        // A mode that the driver itself has given cannot be refused.
        let _ = api.exchange_capture_mode(own);
    }
    result
}
