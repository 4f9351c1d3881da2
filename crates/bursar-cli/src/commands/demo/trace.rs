//! A real trace, replayed through every stack.

use crate::failure::Failure;
use crate::output::{FAINT, GOOD, Show};
use crate::stacks::StackName;
use bursar::driver::CountingDriver;
use bursar::prelude::*;
use bursar::trace::{Replay, Trace};
use clap::ValueEnum;
use serde::Serialize;
use std::io::{Result, Write};
use std::sync::Arc;

/// The costs of a trace with each stack.
#[derive(Debug, Serialize)]
pub(crate) struct TraceReport {
    trace: String,
    ops: u64,
    peak_live_bytes: u64,
    stacks: Vec<StackCost>,
}

/// The cost of the trace with one stack.
#[derive(Debug, Serialize)]
struct StackCost {
    stack: StackName,
    ns_per_op: f64,
    driver_calls: u64,
    peak_reserved_bytes: u64,
    ratio: f64,
    refused: u64,
}

/// Replays the trace that comes with the library on `device`, through each stack on its own.
pub(crate) fn replay(driver: &Arc<dyn Driver>, device: DeviceId) -> std::result::Result<TraceReport, Failure> {
    let trace = bursar::trace::bundled();
    let costs = StackName::value_variants().iter().map(|&stack| cost(driver, device, &trace, stack));
    Ok(TraceReport {
        ops: trace.summary().operations,
        peak_live_bytes: trace.peak_live().get(),
        stacks: costs.collect::<std::result::Result<_, Failure>>()?,
        trace: trace.name,
    })
}

fn cost(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    trace: &Trace,
    stack: StackName,
) -> std::result::Result<StackCost, Failure> {
    let driver = CountingDriver::new(driver.clone());
    let context = DeviceContext::open(driver.clone(), device)?;
    let memory = stack.build(&context, None, Some(&Statistics::default()))?;
    let cost = Replay::new(trace, &context)?.run(&*memory, &driver)?;
    Ok(StackCost {
        stack,
        ns_per_op: cost.ns_per_op,
        driver_calls: cost.driver_calls,
        peak_reserved_bytes: cost.peak_reserved.get(),
        ratio: cost.ratio(),
        refused: cost.refused,
    })
}

impl Show for TraceReport {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let Self { trace, ops, peak_live_bytes, stacks } = self;
        writeln!(out, "ResNet-50 in training: {ops} operations, {} live at the peak", Bytes(*peak_live_bytes))?;
        writeln!(
            out,
            "  {FAINT}{:<8} {:>8} {:>14} {:>10} {:>8}{FAINT:#}",
            "stack", "ns/op", "driver calls", "held", "÷ live"
        )?;
        for StackCost { stack, ns_per_op, driver_calls, peak_reserved_bytes, ratio, refused } in stacks {
            let held = Bytes(*peak_reserved_bytes).to_string();
            write!(
                out,
                "  {:<8} {ns_per_op:>8.0} {driver_calls:>14} {held:>10} {GOOD}{ratio:>8.3}{GOOD:#}",
                stack.as_str()
            )?;
            match refused {
                0 => writeln!(out)?,
                _ => writeln!(out, "  {refused} refused")?,
            }
        }
        writeln!(out, "  {FAINT}`bursar replay` does this with traces of your own; this one is {trace}{FAINT:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::sim::Sim;

    #[test]
    fn every_stack_has_a_line_and_holds_what_the_trace_needs() {
        let traced = replay(&(Sim::immediate() as Arc<dyn Driver>), DeviceId(0)).expect("a replay");
        let names: Vec<_> = traced.stacks.iter().map(|cost| cost.stack).collect();
        assert_eq!(names, StackName::value_variants());
        let mut text = Vec::new();
        traced.show(&mut text).expect("memory");
        let text = String::from_utf8(text).expect("text");
        for cost in &traced.stacks {
            assert!(text.contains(&format!("\n  {:<8} ", cost.stack.as_str())), "{text}");
            assert!(cost.peak_reserved_bytes >= traced.peak_live_bytes && cost.ratio < 2.0, "{cost:?}");
            assert_eq!(cost.refused, 0);
        }
    }

    #[test]
    fn a_device_that_is_too_small_refuses_and_says_how_often() {
        let small = Sim::builder().immediate().device(Bytes::mib(512)).build();
        let traced = replay(&(small as Arc<dyn Driver>), DeviceId(0)).expect("a replay");
        let mut text = Vec::new();
        traced.show(&mut text).expect("memory");
        for cost in &traced.stacks {
            assert!(cost.refused > 0, "{cost:?}");
            assert!(String::from_utf8_lossy(&text).contains(&format!("  {} refused\n", cost.refused)));
        }
    }
}
