//! The explanation of a refusal for want of memory.
//!
//! Budgets and leaves refuse with exact numbers; the pool and the crates above turn that into a [`Shortage`], once, off
//! the hot path. It is about the whole request, however many frames that was to be made of.

use super::DeviceContext;
use crate::{Bytes, Error, MemoryInfo, Shortage};
use std::cmp::Reverse;

/// The number of holders that an explanation names at most.
const HOLDERS: usize = 10;

impl DeviceContext {
    /// Turns a refusal for want of memory into one with an explanation: the figures of the driver, of the device's
    /// pools and of an observer that counts by tag. Any other error, and one that is explained already, is returned
    /// unchanged.
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
        if let Some(usage) = self.usage() {
            shortage.held = Some(usage.held);
            shortage.cached = Some(usage.cached);
            shortage.pending = Some(usage.pending);
            shortage.largest_free_run = usage.largest_free_run;
        }
        shortage.holders = self.sink().holders(self.device());
        shortage.holders.sort_by_key(|holding| Reverse(holding.bytes));
        shortage.holders.truncate(HOLDERS);
        shortage.into()
    }
}
