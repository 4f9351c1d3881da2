//! Physical memory for a pool to map.
#![allow(unsafe_code)]

use super::stuck::Stuck;
use crate::{
    Bytes, DeviceContext, DriverError, Error, Frame, FrameKind, FrameSource, Holder, OwnerId, RefusedFrame, Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The size slabs are rounded up to where a device cannot map pages.
const SLAB_GRANULARITY: Bytes = Bytes::mib(2);

/// Frames of one device: one physical handle each, or one slab where the device cannot map pages.
///
/// ```
/// use bursar_core::{Bytes, DeviceContext, FrameSource, Holder, leaf::DeviceFrames};
/// # use std::sync::Arc;
/// # fn show(context: Arc<DeviceContext>) -> bursar_core::Result<()> {
/// let frames = DeviceFrames::new(context);
/// let frame = frames.create_frame(1)?;
/// assert_eq!(frames.bytes_outstanding(), frames.frame_granularity());
/// frames.release_frame(frame).map_err(|refused| refused.error)?;
/// assert_eq!(frames.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeviceFrames {
    context: Arc<DeviceContext>,
    owner: OwnerId,
    granted: AtomicU64,
    released: AtomicU64,
    stuck: Stuck<(FrameKind, u64)>,
}

impl DeviceFrames {
    /// Frames of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self {
            context,
            owner: OwnerId::unique(),
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
            stuck: Stuck::default(),
        }
    }

    fn make(&self, bytes: Bytes) -> Result<FrameKind, DriverError> {
        let (driver, device) = (self.context.driver(), self.context.device());
        match self.context.facts().capabilities.page_granularity {
            Some(_) => driver.pages_create(device, bytes.get()).map(FrameKind::Pages),
            None => driver.allocate(device, bytes.get()).map(FrameKind::Slab),
        }
    }

    fn give_back(&self, kind: FrameKind, bytes: u64) -> Result<Bytes, DriverError> {
        let (driver, device) = (self.context.driver(), self.context.device());
        match kind {
            // SAFETY: the handle is this source's and its one token was consumed.
            FrameKind::Pages(pages) => unsafe { driver.pages_release(device, pages) },
            // SAFETY: the slab is this source's and its one token was consumed.
            FrameKind::Slab(ptr) => unsafe { driver.free(device, ptr) },
        }?;
        self.released.fetch_add(bytes, Ordering::Release);
        Ok(Bytes(bytes))
    }
}

#[deny(clippy::missing_trait_methods)]
impl Holder for DeviceFrames {
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    fn bytes_outstanding(&self) -> Bytes {
        let released = self.released.load(Ordering::Acquire);
        Bytes(self.granted.load(Ordering::Acquire).wrapping_sub(released))
    }

    fn released_total(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    fn reap(&self) -> Result<Bytes> {
        self.context.fault().check()?;
        self.stuck.retry(&self.context, |(kind, bytes)| self.give_back(kind, bytes))
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        self.reap()
    }
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
        let kind = self.make(granted).map_err(|error| self.context.allocation_failed(error, granted))?;
        self.granted.fetch_add(granted.get(), Ordering::Release);
        // SAFETY: a fresh physical handle or slab, given out with this token alone.
        Ok(unsafe { Frame::from_parts(kind, granted, self.context.device(), self.owner) })
    }

    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        if frame.owner() != self.owner {
            let error = Error::InvalidValue { what: "the frame belongs to another source" };
            return Err(RefusedFrame { frame, error });
        }
        let (kind, bytes) = (frame.kind(), frame.bytes().get());
        if let Err(error) = self.give_back(kind, bytes) {
            self.stuck.keep(&self.context, (kind, bytes), error);
        }
        Ok(())
    }
}

impl Drop for DeviceFrames {
    fn drop(&mut self) {
        if let Err(Error::Driver(error)) = self.stuck.retry(&self.context, |(kind, bytes)| self.give_back(kind, bytes))
        {
            self.context.fault().record(error);
        }
    }
}
