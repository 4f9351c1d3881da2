//! Calls about streams and events, and the work on streams.
#![allow(unsafe_code)]

use super::sys::{CUcontext, CUdeviceptr, CUevent, CUevent_flags, CUstream, CUstream_flags, CUstreamCaptureStatus};
use super::{Api, CallResult, output};
use std::ffi::{c_int, c_void};
use std::ptr;

/// Streams and events.
impl Api {
    pub(crate) fn stream_create(&self, priority: c_int) -> CallResult<CUstream> {
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the driver writes one handle.
        output(ptr::null_mut(), |stream| unsafe { self.cuStreamCreateWithPriority(stream, flags, priority) })
    }

    /// # Safety
    /// `stream` is live and not used again.
    pub(crate) unsafe fn stream_destroy(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuStreamDestroy(stream) }
    }

    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn stream_query(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuStreamQuery(stream) }
    }

    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn stream_synchronize(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuStreamSynchronize(stream) }
    }

    /// # Safety
    /// `stream` and `event` are live.
    pub(crate) unsafe fn stream_wait(&self, stream: CUstream, event: CUevent) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuStreamWaitEvent(stream, event, 0) }
    }

    /// Returns whether the stream is being captured, or was and its capture has failed.
    ///
    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn stream_capture_status(&self, stream: CUstream) -> CallResult<CUstreamCaptureStatus> {
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the driver writes one number; for the rest, the caller's own promise.
        output(none, |status| unsafe { self.cuStreamIsCapturing(stream, status) })
    }

    pub(crate) fn event_create(&self) -> CallResult<CUevent> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        // SAFETY: the driver writes one handle.
        output(ptr::null_mut(), |event| unsafe { self.cuEventCreate(event, flags) })
    }

    /// # Safety
    /// `event` is live and not used again.
    pub(crate) unsafe fn event_destroy(&self, event: CUevent) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuEventDestroy(event) }
    }

    /// # Safety
    /// `event` and `stream` are live and of one context.
    pub(crate) unsafe fn event_record(&self, event: CUevent, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuEventRecord(event, stream) }
    }

    /// # Safety
    /// `event` is live.
    pub(crate) unsafe fn event_query(&self, event: CUevent) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuEventQuery(event) }
    }

    /// # Safety
    /// `event` is live.
    pub(crate) unsafe fn event_synchronize(&self, event: CUevent) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuEventSynchronize(event) }
    }
}

/// Work on streams.
impl Api {
    /// # Safety
    /// Both ranges are valid until the copy has run, and `stream` is live.
    pub(crate) unsafe fn copy_to_device(
        &self,
        dst: CUdeviceptr,
        src: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemcpyHtoDAsync(dst, src, bytes, stream) }
    }

    /// # Safety
    /// Both ranges are valid until the copy has run, and `stream` is live.
    pub(crate) unsafe fn copy_to_host(
        &self,
        dst: *mut c_void,
        src: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemcpyDtoHAsync(dst, src, bytes, stream) }
    }

    /// # Safety
    /// Both ranges are valid until the copy has run, and `stream` is live.
    pub(crate) unsafe fn copy_on_device(
        &self,
        dst: CUdeviceptr,
        src: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemcpyAsync(dst, src, bytes, stream) }
    }

    /// Copies between the memories of two contexts.
    ///
    /// # Safety
    /// Both ranges are valid in their contexts until the copy has run, and `stream` is live.
    pub(crate) unsafe fn copy_peer(
        &self,
        (dst, to): (CUdeviceptr, CUcontext),
        (src, from): (CUdeviceptr, CUcontext),
        bytes: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemcpyPeerAsync(dst, to, src, from, bytes, stream) }
    }

    /// # Safety
    /// The range is valid, and `stream` is live.
    pub(crate) unsafe fn fill_u8(&self, dst: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemsetD8Async(dst, value, count, stream) }
    }

    /// # Safety
    /// The range is valid and aligned, and `stream` is live.
    pub(crate) unsafe fn fill_u16(
        &self,
        dst: CUdeviceptr,
        value: u16,
        count: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemsetD16Async(dst, value, count, stream) }
    }

    /// # Safety
    /// The range is valid and aligned, and `stream` is live.
    pub(crate) unsafe fn fill_u32(
        &self,
        dst: CUdeviceptr,
        value: u32,
        count: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemsetD32Async(dst, value, count, stream) }
    }

    /// # Safety
    /// `stream` is live, and `function` may be called with `data` once, on any thread, until the stream has reached it.
    pub(crate) unsafe fn launch_host_function(
        &self,
        stream: CUstream,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuLaunchHostFunc(stream, Some(function), data) }
    }
}
