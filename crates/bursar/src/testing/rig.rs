//! The simulated machine that a program under test runs on.

use crate::device::DeviceContext;
use crate::memory::{AllocTag, Build, DeviceBlock, MIN_ALIGN};
use crate::{DeviceId, Gpu, Result, Stream};
use bursar_sim::{Faults, Launch, Sim};
use std::error::Error;
use std::sync::Arc;

/// The result of a program under test, with any error.
pub type Outcome = std::result::Result<(), Box<dyn Error + Send + Sync>>;

/// A simulated machine for one run of one seed, with its first device open.
///
/// Submitted work runs only when the program waits, queries or settles, as on a slow device.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::races;
///
/// races(|rig| {
///     let stream = rig.gpu().streams().lease()?;
///     let batch = rig.gpu().buffer::<u8>(64, &stream, tag!("batch"))?;
///     rig.here(|| drop(batch));
///     Ok(())
/// })
/// .expect_clean();
/// ```
#[derive(Debug)]
pub struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    gpu: Gpu,
}

impl Rig {
    pub(super) fn new(sim: Arc<Sim>, faults: Arc<Faults>, gpu: Gpu) -> Self {
        Self { sim, faults, gpu }
    }

    /// Returns the simulated driver, for raw calls, [kernels](Sim::launch), and [declared touches](Sim::touch_host) of host
    /// memory. These calls do not fail on purpose; those of the devices do.
    pub fn driver(&self) -> &Arc<Sim> {
        &self.sim
    }

    /// Returns the device that is open.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the context of that device.
    pub fn context(&self) -> &Arc<DeviceContext> {
        self.gpu.context()
    }

    /// Returns the number of that device.
    pub fn device(&self) -> DeviceId {
        self.gpu.id()
    }

    /// Opens a device once more, or another one, with a stack of its own.
    pub fn open(&self, device: DeviceId, stack: &impl Build) -> Result<Gpu> {
        Gpu::open(self.faults.clone(), device, stack)
    }

    /// Creates a stream that lives as long as the rig.
    pub fn stream(&self) -> Result<Stream> {
        self.context().create_stream(0)
    }

    /// Allocates a block whose uses are not tracked.
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: impl Into<Stream>, tag: AllocTag) -> Result<DeviceBlock> {
        let _call = self.context().enter_call_site();
        self.gpu.memory().allocate(bytes, MIN_ALIGN, stream.into(), tag)
    }

    /// Frees a block of the rig's device.
    #[track_caller]
    pub fn deallocate(&self, block: DeviceBlock, stream: impl Into<Stream>) -> Result<()> {
        let _call = self.context().enter_call_site();
        Ok(self.gpu.memory().deallocate(block, stream.into())?)
    }

    /// Launches a kernel that declares which bytes it accesses.
    #[track_caller]
    pub fn launch(&self, stream: impl Into<Stream>, kernel: Launch) -> Result<()> {
        let raw = self.context().resolve(stream.into())?;
        Ok(self.sim.launch(self.device(), raw, kernel)?)
    }

    /// Runs `part` of the program with this line as the place of its calls: for calls whose place is not known otherwise,
    /// such as the end of a buffer or an allocation behind a `dyn` resource.
    #[track_caller]
    pub fn here<R>(&self, part: impl FnOnce() -> R) -> R {
        let _call = self.context().enter_call_site();
        part()
    }
}
