//! A view of what a device's stacks use, for those who watch from another thread.

use super::DeviceContext;
use crate::{DeviceId, Holding, MemoryUsage, Tally};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A part of a device's memory that knows how much it holds.
///
/// Whoever watches has it for moments, on any thread, and may be the last to have it: its end must do nothing but free memory
/// of the host.
///
/// ```
/// use bursar::device::UsageSource;
/// use bursar::error::MemoryUsage;
///
/// #[derive(Debug)]
/// struct Figures;
///
/// impl UsageSource for Figures {
///     fn usage(&self) -> MemoryUsage {
///         MemoryUsage::default()
///     }
/// }
/// ```
pub trait UsageSource: fmt::Debug + Send + Sync {
    /// Returns how much it holds, and how.
    fn usage(&self) -> MemoryUsage;
}

/// The sources of a device.
type Sources = Arc<Mutex<Vec<Weak<dyn UsageSource>>>>;

/// A view of what the stacks of a device use. It keeps neither the device open nor any of its memory alive, so it can be looked at
/// whenever somebody likes.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, PagePool, Stack, Statistics, leaf, tag};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let view = context.usage_view();
/// let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).over(leaf::Frames);
/// let memory = stack.build(&context)?;
/// let block = memory.allocate(4 << 20, 256, context.default_stream(), tag!("weights"))?;
/// assert_eq!(view.usage().unwrap().held, Bytes::mib(4));
/// assert_eq!(view.holders()[0].tag, tag!("weights"));
/// memory.deallocate(block, context.default_stream())?;
/// drop((memory, context));
/// assert_eq!(view.usage(), None);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UsageView {
    device: DeviceId,
    sources: Sources,
    tally: Arc<OnceLock<Arc<Tally>>>,
}

impl UsageView {
    /// Makes the view of a device with no sources, over the tally that its sink will have.
    pub(super) fn new(device: DeviceId, tally: Arc<OnceLock<Arc<Tally>>>) -> Self {
        Self { device, sources: Sources::default(), tally }
    }

    /// Returns what the pools of the device hold together; `None` where there are none.
    pub fn usage(&self) -> Option<MemoryUsage> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sources.iter().filter_map(Weak::upgrade).map(|source| source.usage()).reduce(MemoryUsage::and)
    }

    /// Returns what is held on the device for each tag, in any order; empty where no observer has a
    /// [tally](crate::Observer::tally).
    pub fn holders(&self) -> Vec<Holding> {
        self.tally.get().and_then(|tally| tally.holders(self.device)).unwrap_or_default()
    }
}

impl DeviceContext {
    /// Returns a view of what the stacks of the device use.
    pub fn usage_view(&self) -> UsageView {
        self.usage_view.clone()
    }

    /// Has a part of the device's memory asked how much it holds, for as long as it lives.
    pub fn join_usage(&self, source: Weak<dyn UsageSource>) {
        let mut sources = self.usage_view.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.strong_count() > 0);
        sources.push(source);
    }
}
