//! The slots of a run: the device that a worker runs on, and what it is given there.
//!
//! [`Scheduler`] decides on which device a worker runs, and reserves its memory; a [`Slot`] holds what one worker is given
//! until the worker has ended.

mod notify;
mod scheduler;
mod target;

pub(super) use scheduler::Scheduler;

use bursar::device::NumaNode;
use bursar::{Bytes, DeviceId};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

/// A worker's device, processors, environment and share of memory. The share goes back when the slot is dropped.
pub(crate) struct Slot {
    /// The device; none if the workers use the machine's memory.
    pub(crate) device: Option<DeviceId>,
    pub(crate) numa_node: NumaNode,
    /// The processors near the device, if they are known.
    pub(crate) cpus: Option<CpuSet>,
    /// The most that the worker may hold, if that was given.
    pub(crate) limit: Option<Bytes>,
    /// The variables that its programs get besides its number.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The owner of its memory.
    pub(crate) memory: Arc<dyn SlotShare>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("device", &self.device).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The share of a worker, which can be given up while the worker sleeps.
pub(crate) trait SlotShare: Send + Sync {
    /// Gives back what the worker has not drawn.
    fn give_up(&self) -> bursar::Result<()>;

    /// Takes as much again, waiting for its turn until `is_over` says that nobody waits any more. Returns whether it was taken.
    fn take_again(&self, is_over: &dyn Fn() -> bool) -> bursar::Result<bool>;
}

/// A source of slots for more workers, as memory comes free.
pub(crate) trait SlotSource: Send + Sync + fmt::Debug {
    /// Waits until there is a slot for one more worker. Returns none once the source was [cancelled](Self::cancel).
    fn wait_for_slot(&self) -> Option<bursar::Result<Slot>>;

    /// Ends every wait, now and later.
    fn cancel(&self);
}
