//! The memory that a worker needs, measured by replaying a recorded allocation log through the pool.

use crate::failure::Failure;
use crate::output::Progress;
use crate::stacks::StackName;
use bursar::driver::CountingDriver;
use bursar::prelude::*;
use bursar::sim::Sim;
use bursar::trace::Replay;
use serde::Serialize;
use std::path::Path;

/// The peak of a recorded allocation log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TracePeak {
    pub(crate) trace: String,
    /// The most bytes that were live at a time.
    pub(crate) peak_live: u64,
    /// The most bytes that the pool held for it.
    pub(crate) peak_pool: u64,
}

impl TracePeak {
    /// Replays the recording on a simulated device that is larger than it needs.
    pub(crate) fn replay(path: &Path) -> Result<Self, Failure> {
        let mut progress = Progress::new(2);
        progress.step(&format!("reading {}", path.display()));
        let trace = bursar::trace::open(path)?;
        if trace.summary().peak_live == Bytes::ZERO {
            let idle = "--from-trace: the recording allocates nothing, so it does not say what a worker needs";
            return Err(Failure::Usage(idle));
        }
        progress.step(&format!("replaying {}", path.display()));
        let room = trace.summary().peak_live.saturating_mul(4).max(Bytes::gib(80));
        let driver = CountingDriver::new(Sim::builder().immediate().devices(1, room).build());
        let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
        if trace.summary().peak_live > context.facts().total {
            return Err(Failure::Usage("--from-trace: the recording needs more than a device can have"));
        }
        let memory = StackName::Pool.build(&context, None, Some(&Statistics::default()))?;
        let cost = Replay::of(&trace, &context)?.run(&*memory, &driver)?;
        let (peak_live, peak_pool) = (cost.peak_live.get(), cost.peak_reserved.get());
        Ok(Self { trace: trace.summary().name.clone(), peak_live, peak_pool })
    }
}
