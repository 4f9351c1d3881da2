//! The stacks that have a name on the command line.

use bursar::prelude::*;
use clap::ValueEnum;
use serde::Serialize;
use std::sync::Arc;

/// The name of a stack.
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

    /// Builds the stack for a device: under a limit if there is one, and on this process's share of the device if it was given
    /// one.
    pub(crate) fn build(
        self,
        context: &Arc<DeviceContext>,
        limit: Option<Bytes>,
        statistics: Option<&Statistics>,
    ) -> bursar::Result<Arc<dyn DeviceMemoryResource>> {
        self.build_with(PagePool::default(), context, limit, statistics)
    }

    /// Builds the stack as [`build`](Self::build) does, with this layer where it has a pool.
    pub(crate) fn build_with(
        self,
        pool: PagePool,
        context: &Arc<DeviceContext>,
        limit: Option<Bytes>,
        statistics: Option<&Statistics>,
    ) -> bursar::Result<Arc<dyn DeviceMemoryResource>> {
        let stack = statistics.map_or_else(Stack::new, |statistics| Stack::new().observe(statistics.clone()));
        let pooled = stack.clone().layer(pool);
        let budget = GlobalDeviceBudget::of(limit.unwrap_or(Bytes::MAX));
        let Some(share) = Ledgers::share(context)? else {
            return Ok(match self {
                Self::Pool => Arc::new(pooled.layer(budget).over(leaf::Frames).build(context)?),
                Self::Async => Arc::new(stack.layer(budget).over(leaf::Async).build(context)?),
                Self::Direct => Arc::new(stack.layer(budget).over(leaf::Direct).build(context)?),
            });
        };
        let share = GlobalDeviceBudget::shared(Arc::new(share));
        Ok(match self {
            Self::Pool => Arc::new(pooled.layer(budget).layer(share).over(leaf::Frames).build(context)?),
            Self::Async => Arc::new(stack.layer(budget).layer(share).over(leaf::Async).build(context)?),
            Self::Direct => Arc::new(stack.layer(budget).layer(share).over(leaf::Direct).build(context)?),
        })
    }
}
