//! Runs a pass with an observer instead of a clock.

use super::pass::Pass;
use super::plan::Plan;
use crate::Event;
use bursar_core::{Bytes, DeviceBlock, Result};

/// An operation of a watched pass, and the state after it.
///
/// ```
/// use bursar::Bytes;
/// use bursar::trace::{ReplayStep, bundled};
///
/// let event = bundled().events[0];
/// let step = ReplayStep { operation: 0, event, live: Bytes(event.bytes), block: None };
/// assert_eq!(step.live, Bytes(step.event.bytes));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReplayStep<'a> {
    /// The number of the operation, from 0.
    pub operation: u64,
    /// The event of the trace that was replayed.
    pub event: Event,
    /// The requested bytes that are live after it.
    pub live: Bytes,
    /// The block that was allocated; `None` after a free or a refusal.
    pub block: Option<&'a DeviceBlock>,
}

/// A function that is called after each operation of a watched pass.
pub type ReplayObserver<'a> = dyn FnMut(&ReplayStep<'_>) + 'a;

/// The progress of a watched pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WatchedPass {
    operations: u64,
    live: u64,
}

impl WatchedPass {
    /// Runs a window on one thread, in the order of the trace, and calls `observe` after each operation.
    pub(super) fn run(&mut self, pass: &mut Pass<'_>, plan: &Plan, observe: &mut ReplayObserver<'_>) -> Result<()> {
        pass.with_table(plan, |pass, table| {
            for operation in &plan.operations {
                let (own, exchange) = (&mut table.own[usize::from(operation.thread)], &table.exchange);
                let was_live = own.inspect(operation.slot, exchange, |block| block.is_some());
                match pass.step(operation, own, exchange) {
                    Err(error) if !error.is_capacity() => return Err(*error),
                    _ => {}
                }
                own.inspect(operation.slot, exchange, |block| {
                    match (was_live, block) {
                        (false, Some(_)) => self.live += operation.bytes,
                        (true, None) => self.live -= operation.bytes,
                        _ => {}
                    }
                    let live = Bytes(self.live);
                    observe(&ReplayStep { operation: self.operations, event: operation.event(), live, block });
                });
                self.operations += 1;
            }
            Ok(())
        })
    }
}
