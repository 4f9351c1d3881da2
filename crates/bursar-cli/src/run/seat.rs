//! What one worker gets, and where that comes from.

use bursar::{Bytes, DeviceId, NumaNode};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::fmt;

/// What one worker gets. Its share goes back when the seat is dropped.
pub(crate) struct Seat {
    /// The device, where the workers share devices and not the machine's memory.
    pub(crate) device: Option<DeviceId>,
    pub(crate) numa_node: NumaNode,
    /// The processors near the device, where they are known.
    pub(crate) cpus: Option<CpuSet>,
    /// How much it may hold, where that was said.
    pub(crate) limit: Option<Bytes>,
    /// What its programs are told beside its number.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// What keeps its share.
    pub(crate) _share: Box<dyn Send>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("device", &self.device).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Room for more workers, as it comes.
pub(crate) trait Room: Send + Sync + fmt::Debug {
    /// Waits until one more worker has a seat; none once it was [cancelled](Self::cancel).
    fn one_more(&self) -> Option<bursar::Result<Seat>>;

    /// Ends every wait, now and later.
    fn cancel(&self);
}
