//! The token that owns one piece of physical memory.
#![allow(unsafe_code)]

use crate::{Bytes, DeviceId, DevicePtr, Error, OwnerId, RawPages};

/// The driver's memory behind a frame.
///
/// ```
/// use bursar::driver::RawPages;
/// use bursar::memory::FrameKind;
///
/// assert_ne!(FrameKind::Pages(RawPages(1)), FrameKind::Pages(RawPages(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Physical memory that can be mapped wherever it is needed.
    Pages(RawPages),
    /// Memory with an address of its own, where the device cannot map pages.
    Slab(DevicePtr),
}

/// Exclusive ownership of one physical handle, or of one slab: a linear token.
///
/// A frame is charged when it is created and costs nothing to map. It goes back to the source that made it, by value.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::FrameSource;
/// # use bursar::prelude::*;
/// # fn show(source: &dyn FrameSource) -> Result<()> {
/// let frame = source.create_frame(1)?;
/// assert_eq!(frame.bytes(), source.granted_frame(1)?);
/// source.release_frame(frame).map_err(|refused| refused.error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a frame leaks its memory: give it back with `release_frame`"]
pub struct Frame {
    kind: FrameKind,
    bytes: u64,
    device: DeviceId,
    owner: OwnerId,
}

impl Frame {
    /// Makes the token for a piece of physical memory.
    ///
    /// # Safety
    /// `kind` is live memory of `device`, `bytes` long, that its maker hands out with this token alone.
    pub unsafe fn from_parts(kind: FrameKind, bytes: Bytes, device: DeviceId, owner: OwnerId) -> Self {
        Self { kind, bytes: bytes.get(), device, owner }
    }

    /// Returns the driver's memory behind it.
    pub const fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Returns its size.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Returns the device it is on.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the identity of the source that made it.
    pub const fn owner(&self) -> OwnerId {
        self.owner
    }
}

/// A release that was refused before anything happened: the frame comes back with the reason.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::FrameSource;
/// # use bursar::prelude::*;
/// # fn show(source: &dyn FrameSource, other: &dyn FrameSource) -> Result<()> {
/// let refused = other.release_frame(source.create_frame(1)?).unwrap_err();
/// source.release_frame(refused.frame).map_err(|refused| refused.error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the frame was not released: {error}")]
pub struct RefusedFrame {
    /// The frame, as it was.
    pub frame: Frame,
    /// The reason for the refusal.
    #[source]
    pub error: Error,
}
