//! The pools and leaves of a device that can be asked to give memory back.

use super::DeviceContext;
use crate::{Bytes, DevicePtr, MemoryUsage, RawStream, Stream};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// A holder of a device's memory that can be asked to give some back, or to prepare for the end of a stream.
///
/// ```
/// use bursar::device::Member;
/// use bursar::driver::RawStream;
/// use bursar::error::MemoryUsage;
/// use bursar::memory::DevicePtr;
/// use bursar::{Bytes, Stream};
/// use std::ops::Range;
///
/// #[derive(Debug)]
/// struct Cache;
///
/// impl Member for Cache {
///     fn trim(&self) -> Bytes {
///         Bytes::ZERO
///     }
///     fn usage(&self) -> MemoryUsage {
///         MemoryUsage::default()
///     }
///     fn spare(&self) -> Bytes {
///         Bytes::ZERO
///     }
///     fn stream_ends(&self, _: Stream, _: RawStream) {}
///     fn contents_given_up(&self, _: &[Range<DevicePtr>]) {}
/// }
/// ```
pub trait Member: fmt::Debug + Send + Sync {
    /// Gives back to the driver what it can spare and returns how much that was.
    fn trim(&self) -> Bytes;

    /// Returns how much it holds, and how; called when a request was refused.
    fn usage(&self) -> MemoryUsage;

    /// Returns how much of what nobody uses could be given back to the driver, once its work has run: never more than that.
    /// Called by those who want to know what is available, which may take a look at everything that is free.
    fn spare(&self) -> Bytes;

    /// Prepares for the end of an adopted stream. This is the last moment at which the stream can be recorded on, by
    /// its raw handle, since its token resolves no more. Nobody else uses the stream, and the context's
    /// [`heir`](DeviceContext::heir) comes after it already, unless it is [unordered](DeviceContext::unordered).
    /// Everything freed on it must stay reusable, or become so once there is an order.
    fn stream_ends(&self, stream: Stream, raw: RawStream);

    /// Notes that the contents of ranges are given up while they [sleep](crate::Sleeper): what lies there when they wake was
    /// written by nobody. Called before their memory goes.
    fn contents_given_up(&self, ranges: &[Range<DevicePtr>]);
}

impl DeviceContext {
    /// Has `member` asked for trims and told of streams that end, for as long as it lives.
    pub fn join(&self, member: Weak<dyn Member>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Gives back what was [left behind](Self::left_behind) and asks every member for a trim; returns how much went.
    pub fn trim(&self) -> Bytes {
        self.order_ended(Duration::ZERO);
        self.collect_transfers(Duration::ZERO);
        let left = self.give_back_remains(Duration::ZERO);
        self.members().iter().fold(left, |sum, member| sum.saturating_add(member.trim()))
    }

    /// Returns what the members hold together; `None` where there are none.
    pub fn usage(&self) -> Option<MemoryUsage> {
        self.members().iter().map(|member| member.usage()).reduce(MemoryUsage::and)
    }

    /// Returns what the members could give back together, once its work has run.
    pub fn spare(&self) -> Bytes {
        self.members().iter().fold(Bytes::ZERO, |sum, member| sum.saturating_add(member.spare()))
    }

    /// Tells the members that the contents of ranges are given up.
    pub fn give_up_contents(&self, ranges: &[Range<DevicePtr>]) {
        if !ranges.is_empty() {
            self.members().iter().for_each(|member| member.contents_given_up(ranges));
        }
    }

    pub(super) fn members(&self) -> Vec<Arc<dyn Member>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter_map(Weak::upgrade).collect()
    }
}
