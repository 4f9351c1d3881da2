//! The stacks that can be asked for by name.

use bursar::prelude::*;
use clap::ValueEnum;
use serde::Serialize;
use std::sync::Arc;

/// What hands out the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StackName {
    /// Frames that are moved to where they are needed.
    Pool,
    /// The driver's own stream-ordered pool.
    Async,
    /// One driver allocation a block.
    Direct,
}

impl StackName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Async => "async",
            Self::Direct => "direct",
        }
    }

    /// Builds it for a device, under a limit if there is one.
    pub(crate) fn build(
        self,
        context: &Arc<DeviceContext>,
        limit: Option<Bytes>,
        statistics: &Statistics,
    ) -> bursar::Result<Arc<dyn DeviceMemoryResource>> {
        let stack = Stack::new().observe(statistics.clone());
        let budget = GlobalDeviceBudget::of(limit.unwrap_or(Bytes::MAX));
        Ok(match self {
            Self::Pool => Arc::new(stack.layer(PagePool::default()).layer(budget).over(leaf::Frames).build(context)?),
            Self::Async => Arc::new(stack.layer(budget).over(leaf::Async).build(context)?),
            Self::Direct => Arc::new(stack.layer(budget).over(leaf::Direct).build(context)?),
        })
    }
}
