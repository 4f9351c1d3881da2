//! The explanation of a refusal for want of memory.

use super::DeviceContext;
use crate::{Bytes, Error, MemoryInfo, Shortage};
use std::cmp::Reverse;

/// The number of holders that an explanation names at most.
const HOLDERS: usize = 10;

impl DeviceContext {
    /// Turns a refusal for want of memory into one that explains itself: how the driver, the pools of the device and
    /// whoever counts by tag say it stands. Any other error, and one that is explained already, passes through.
    ///
    /// ```
    /// # use bursar_core::*;
    /// # fn show(context: &DeviceContext, memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<DeviceBlock> {
    /// memory
    ///     .allocate(1 << 40, 256, stream, tag!("too much"))
    ///     .map_err(|refused| context.explain(refused, Bytes(1 << 40)))
    /// # }
    /// ```
    #[cold]
    pub fn explain(&self, cause: Error, requested: Bytes) -> Error {
        if !matches!(cause, Error::OutOfBudget { .. } | Error::OutOfMemory { .. }) {
            return cause;
        }
        let mut shortage = Shortage::new(cause, self.device(), requested);
        if let (None, Ok(MemoryInfo { free, total })) = (shortage.free, self.driver().memory(self.device())) {
            (shortage.free, shortage.total) = (Some(free), Some(total));
        }
        if let Some(standing) = self.standing() {
            shortage.held = Some(standing.held);
            shortage.cached = Some(standing.cached);
            shortage.pending = Some(standing.pending);
            shortage.largest_free_run = standing.largest_free_run;
        }
        shortage.holders = self.sink().holders(self.device());
        shortage.holders.sort_by_key(|holding| Reverse(holding.bytes));
        shortage.holders.truncate(HOLDERS);
        shortage.into()
    }
}
