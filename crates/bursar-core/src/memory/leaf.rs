//! The leaves: the resources at the bottom of a stack, which call the driver.
//!
//! Leaves are types and not values of one enum: a stack over [`Frames`] without a pool makes no blocks, and with types
//! that is a compile error instead of one at run time.

mod direct;
mod failed_frees;
mod frames;
mod pending;
mod stream_ordered;
mod totals;

pub use direct::DirectMemory;
pub use frames::DeviceFrames;
pub use stream_ordered::AsyncMemory;

use crate::{DeviceContext, Error, Result};
use std::fmt;
use std::sync::Arc;

/// A recipe for the bottom of a [`Stack`](crate::Stack).
///
/// ```
/// use bursar::leaf;
/// use bursar::leaf::Leaf;
///
/// fn any(_: impl Leaf) {}
/// any(leaf::Direct);
/// any(leaf::Async);
/// any(leaf::Frames);
/// ```
pub trait Leaf: fmt::Debug {
    /// The resource that it makes, or the frame source for a pool.
    type Source;

    /// Makes the resource for a device.
    fn open(&self, context: &Arc<DeviceContext>) -> Result<Self::Source>;
}

/// One driver allocation for each block, freed at once: slow, and what memory checkers understand best.
///
/// ```
/// # use bursar::prelude::*;
/// let stack = Stack::new().over(leaf::Direct);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Leaf for Direct {
    type Source = DirectMemory;

    fn open(&self, context: &Arc<DeviceContext>) -> Result<DirectMemory> {
        Ok(DirectMemory::new(context.clone()))
    }
}

/// The driver's own stream-ordered pool.
///
/// ```
/// # use bursar::prelude::*;
/// let stack = Stack::new().over(leaf::Async);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Async;

impl Leaf for Async {
    type Source = Arc<AsyncMemory>;

    fn open(&self, context: &Arc<DeviceContext>) -> Result<Arc<AsyncMemory>> {
        if !context.facts().capabilities.stream_ordered {
            return Err(Error::Unsupported { device: context.device(), what: "stream-ordered allocation" });
        }
        Ok(AsyncMemory::new(context.clone()))
    }
}

/// Physical memory for a pool to map: pages where the device has them, slabs otherwise.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::leaf;
/// use bursar::leaf::Leaf;
/// use bursar::memory::FrameSource;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>) -> bursar::Result<()> {
/// let frames = leaf::Frames.open(context)?;
/// assert!(frames.granted_frame(1)? >= frames.frame_granularity());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames;

impl Leaf for Frames {
    type Source = DeviceFrames;

    fn open(&self, context: &Arc<DeviceContext>) -> Result<DeviceFrames> {
        Ok(DeviceFrames::new(context.clone()))
    }
}
