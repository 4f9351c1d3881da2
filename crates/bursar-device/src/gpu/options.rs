//! Options for opening a device.

use super::Gpu;
use crate::{StreamOptions, StreamPool};
use bursar_core::{Build, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Result};
use std::sync::Arc;

/// Options for opening a device, in the manner of [`std::fs::OpenOptions`]: set what differs from the default, then
/// [open](Self::open) it.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::stream::StreamOptions;
/// use bursar::{DeviceId, Error, Gpu, Stack, leaf};
///
/// let few = StreamOptions { max_streams: 2, ..StreamOptions::default() };
/// let stack = Stack::new().over(leaf::Async);
/// let gpu = Gpu::options().streams(few).open(Sim::immediate(), DeviceId(0), &stack)?;
/// let (_a, _b) = (gpu.streams().lease()?, gpu.streams().lease()?);
/// assert_eq!(gpu.streams().lease().unwrap_err(), Error::Capacity { max: 2 });
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a device is opened with them"]
pub struct GpuOptions {
    streams: StreamOptions,
}

impl GpuOptions {
    /// Sets the number and the priority of the streams that the device's pool makes.
    pub const fn streams(mut self, streams: StreamOptions) -> Self {
        self.streams = streams;
        self
    }

    /// Opens a device of `driver` and builds `stack` for it.
    pub fn open(&self, driver: Arc<dyn Driver>, device: DeviceId, stack: &impl Build) -> Result<Gpu> {
        self.with_context(&DeviceContext::open(driver, device)?, stack)
    }

    /// Builds `stack` for a device that is open; see [`Gpu::with_context`].
    pub fn with_context(&self, context: &Arc<DeviceContext>, stack: &impl Build) -> Result<Gpu> {
        let streams = StreamPool::with_options(context.clone(), self.streams)?;
        Ok(Gpu::of_own(stack.build(context)?, streams))
    }

    /// Makes a handle of the device that `memory` is of; see [`Gpu::with_resource`].
    pub fn with_resource(&self, memory: impl DeviceMemoryResource) -> Result<Gpu> {
        let streams = StreamPool::with_options(memory.context().clone(), self.streams)?;
        Ok(Gpu::of_resource(Arc::new(memory), streams))
    }
}
