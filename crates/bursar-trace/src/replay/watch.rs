//! A pass that is watched instead of timed.

use super::pass::Pass;
use super::plan::Plan;
use crate::Event;
use bursar_core::{Bytes, DeviceBlock, Result};

/// Where a watched pass stands after an operation.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_trace::{Moment, bundled};
///
/// let event = bundled().events[0];
/// let moment = Moment { operation: 0, event, live: Bytes(event.bytes), block: None };
/// assert_eq!(moment.live, Bytes(moment.event.bytes));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The number of the operation, from 0.
    pub operation: u64,
    /// What the trace asked for.
    pub event: Event,
    /// What is live after it, by what was asked for.
    pub live: Bytes,
    /// The block that was allocated; `None` after a free or a refusal.
    pub block: Option<&'a DeviceBlock>,
}

/// Someone who is told after each operation of a watched pass.
pub type Observe<'a> = dyn FnMut(&Moment<'_>) + 'a;

/// How far a watched pass has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    operations: u64,
    live: u64,
}

impl Watch {
    /// Runs a window by one thread, in the order of the trace, and tells `observe` after each operation.
    pub(super) fn run(&mut self, pass: &mut Pass<'_>, plan: &Plan, observe: &mut Observe<'_>) -> Result<()> {
        pass.with_table(plan, |pass, table| {
            for operation in &plan.operations {
                let (own, exchange) = (&mut table.own[usize::from(operation.thread)], &table.exchange);
                let was_held = own.look(operation.slot, exchange, |block| block.is_some());
                match pass.step(operation, own, exchange) {
                    Err(error) if !error.is_capacity() => return Err(*error),
                    _ => {}
                }
                own.look(operation.slot, exchange, |block| {
                    match (was_held, block) {
                        (false, Some(_)) => self.live += operation.bytes,
                        (true, None) => self.live -= operation.bytes,
                        _ => {}
                    }
                    let live = Bytes(self.live);
                    observe(&Moment { operation: self.operations, event: operation.event(), live, block });
                });
                self.operations += 1;
            }
            Ok(())
        })
    }
}
