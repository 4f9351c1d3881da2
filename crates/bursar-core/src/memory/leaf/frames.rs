//! The leaf that makes physical memory for a pool to map.
#![allow(unsafe_code)]

use super::failed_frees::FailedFrees;
use super::totals::Totals;
use crate::{
    Bytes, DeviceContext, DriverError, Error, Frame, FrameKind, FrameRelease, FrameSource, Holder, OwnerId,
    RefusedFrame, Result, Survey,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The size slabs are rounded up to where a device cannot map pages.
const SLAB_GRANULARITY: Bytes = Bytes::mib(2);

/// A source of frames of one device: one physical handle each, or one slab where the device cannot map pages.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::DeviceContext;
/// use bursar::leaf::DeviceFrames;
/// use bursar::memory::{FrameSource, Holder};
/// # use std::sync::Arc;
/// # fn show(context: Arc<DeviceContext>) -> bursar::Result<()> {
/// let frames = DeviceFrames::new(context);
/// let frame = frames.create_frame(1)?;
/// assert_eq!(frames.bytes_outstanding(), frames.frame_granularity());
/// frames.release_frame(frame).map_err(|refused| refused.error)?;
/// assert_eq!(frames.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
pub struct DeviceFrames {
    context: Arc<DeviceContext>,
    issued: Arc<IssuedFrames>,
    failed: FailedFrees<(FrameKind, u64)>,
}

/// The totals of one source's frames, kept for as long as somebody may release one of them.
#[derive(Debug)]
struct IssuedFrames {
    owner: OwnerId,
    totals: Totals,
}

impl IssuedFrames {
    /// Returns the frame, unless it is of another source.
    fn check(&self, frame: Frame) -> Result<Frame, RefusedFrame> {
        if frame.owner() == self.owner {
            return Ok(frame);
        }
        let error = Error::InvalidValue { what: "the frame belongs to another source" };
        Err(RefusedFrame { frame, error })
    }

    fn give_back(&self, context: &DeviceContext, frame: &mut (FrameKind, u64)) -> Result<Bytes, DriverError> {
        let bytes = free(context, frame)?;
        self.totals.release(bytes);
        Ok(bytes)
    }
}

impl FrameRelease for IssuedFrames {
    fn release(&self, context: &DeviceContext, frame: Frame) -> Result<(), RefusedFrame> {
        let frame = self.check(frame)?;
        match self.give_back(context, &mut (frame.kind(), frame.bytes().get())) {
            Ok(_) => Ok(()),
            Err(error) => Err(RefusedFrame { frame, error: context.failed(error) }),
        }
    }
}

/// Gives the memory of a frame back to the driver and returns its size.
fn free(context: &DeviceContext, &mut (kind, bytes): &mut (FrameKind, u64)) -> Result<Bytes, DriverError> {
    let (driver, device) = (context.driver(), context.device());
    match kind {
        // SAFETY: the handle is a source's and its one token was consumed.
        FrameKind::Pages(pages) => unsafe { driver.pages_release(device, pages) },
        // SAFETY: the slab is a source's and its one token was consumed.
        FrameKind::Slab(ptr) => unsafe { driver.free(device, ptr) },
    }?;
    Ok(Bytes(bytes))
}

impl DeviceFrames {
    /// Makes a source of frames of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        let issued = Arc::new(IssuedFrames { owner: OwnerId::unique(), totals: Totals::default() });
        Self { context, issued, failed: FailedFrees::default() }
    }

    fn make(&self, bytes: Bytes) -> Result<FrameKind, DriverError> {
        let (driver, device) = (self.context.driver(), self.context.device());
        match self.context.facts().capabilities.page_granularity {
            Some(_) => driver.pages_create(device, bytes.get()).map(FrameKind::Pages),
            None => driver.allocate(device, bytes.get()).map(FrameKind::Slab),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Holder for DeviceFrames {
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    fn bytes_outstanding(&self) -> Bytes {
        self.issued.totals.outstanding()
    }

    fn released_total(&self) -> u64 {
        self.issued.totals.released()
    }

    fn reap(&self) -> Result<Bytes> {
        self.context.fault().check()?;
        self.failed.retry(&self.context, |frame| self.issued.give_back(&self.context, frame))
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        self.reap()
    }

    /// Adds nothing: the pool above says what its frames are good for.
    fn survey(&self, _: &mut Survey) {}
}

#[deny(clippy::missing_trait_methods)]
impl FrameSource for DeviceFrames {
    fn frame_granularity(&self) -> Bytes {
        self.context.facts().capabilities.page_granularity.unwrap_or(SLAB_GRANULARITY)
    }

    fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
        let granularity = self.frame_granularity().get();
        bytes
            .checked_next_multiple_of(granularity)
            .filter(|_| bytes > 0)
            .map(Bytes)
            .ok_or(Error::InvalidSize { requested: bytes })
    }

    fn create_frame(&self, bytes: u64) -> Result<Frame> {
        let granted = self.granted_frame(bytes)?;
        self.context.fault().check()?;
        let made = self.context.ask_for_memory(|| self.make(granted));
        let kind = made.map_err(|error| self.context.allocation_failed(error, granted))?;
        self.issued.totals.grant(granted);
        // SAFETY: a fresh physical handle or slab, given out with this token alone.
        Ok(unsafe { Frame::from_parts(kind, granted, self.context.device(), self.issued.owner) })
    }

    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let frame = self.issued.check(frame)?;
        let mut frame = (frame.kind(), frame.bytes().get());
        if let Err(error) = self.issued.give_back(&self.context, &mut frame) {
            self.failed.keep(&self.context, frame, error);
        }
        Ok(())
    }

    fn release(&self) -> Arc<dyn FrameRelease> {
        self.issued.clone()
    }

    /// Keeps no place, as the driver has none, and no frame that the driver does not take: its place would be charged for it.
    fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame> {
        self.issued.release(&self.context, frame)
    }

    fn take_place(&self, _: Bytes, _: Duration) -> Result<()> {
        Ok(())
    }

    /// Does nothing, as there is none.
    fn give_up_place(&self, _: Bytes) {}

    fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame> {
        self.create_frame(bytes.get())
    }
}

impl Drop for DeviceFrames {
    fn drop(&mut self) {
        self.failed.leave(&self.context, free, |&(_, bytes)| bytes);
    }
}

impl fmt::Debug for DeviceFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceFrames")
            .field("device", &self.context.device())
            .field("outstanding", &self.bytes_outstanding())
            .finish_non_exhaustive()
    }
}
