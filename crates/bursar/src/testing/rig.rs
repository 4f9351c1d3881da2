//! What a program under test runs on.

use crate::{AllocTag, Build, DeviceBlock, DeviceContext, DeviceId, Gpu, MIN_ALIGN, Result, Stream};
use bursar_sim::{Launch, Sim};
use std::error::Error;
use std::sync::Arc;

/// How a program under test ends: any error will do.
pub type Outcome = std::result::Result<(), Box<dyn Error + Send + Sync>>;

/// A simulated machine for one run of one seed, with its first device open.
///
/// Nothing runs before somebody waits, queries or settles, as on a device that is slow.
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
    gpu: Gpu,
}

impl Rig {
    pub(super) fn new(sim: Arc<Sim>, gpu: Gpu) -> Self {
        Self { sim, gpu }
    }

    /// The simulated driver: raw calls, [kernels](Sim::launch), and [declared touches](Sim::touch_host) of host memory.
    pub fn driver(&self) -> &Arc<Sim> {
        &self.sim
    }

    /// The device that is open.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What all layers of that device share.
    pub fn context(&self) -> &Arc<DeviceContext> {
        self.gpu.context()
    }

    /// Which device that is.
    pub fn device(&self) -> DeviceId {
        self.gpu.id()
    }

    /// Opens a device once more, or another one, with a stack of its own.
    pub fn open(&self, device: DeviceId, stack: &impl Build) -> Result<Gpu> {
        Gpu::open(self.sim.clone(), device, stack)
    }

    /// A new stream that lives as long as the rig.
    pub fn stream(&self) -> Result<Stream> {
        self.context().create_stream(0)
    }

    /// Allocates a block that nobody tracks.
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

    /// Launches a kernel that says which bytes it touches.
    #[track_caller]
    pub fn launch(&self, stream: impl Into<Stream>, kernel: Launch) -> Result<()> {
        let raw = self.context().resolve(stream.into())?;
        Ok(self.sim.launch(self.device(), raw, kernel)?)
    }

    /// Runs `part` of the program as something that is called from this line: for calls whose place nobody would know
    /// otherwise, like the end of a buffer or an allocation behind a `dyn` resource.
    #[track_caller]
    pub fn here<R>(&self, part: impl FnOnce() -> R) -> R {
        let _call = self.context().enter_call_site();
        part()
    }
}
