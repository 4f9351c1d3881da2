//! A plan for people: the numbers, and how each follows from the others.

use super::FitReport;
use crate::output::{BAD, FAINT, GOOD, HEADING, Show, printable};
use bursar::Bytes;
use bursar::fit::Plan;
use std::io::{Result, Write};

impl Show for FitReport {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let plan = &self.plan;
        let bound = self.bound_by.as_ref().map_or(String::new(), |bound| format!(", bound by {bound}"));
        let simulated = if self.simulated { ", on simulated devices" } else { "" };
        let label = printable(&self.label);
        writeln!(out, "{HEADING}{label}: {}{HEADING:#}{FAINT}{bound}{simulated}{FAINT:#}", plan.memory)?;
        if let Some(peak) = &self.from_trace {
            let (live, pool) = (Bytes(peak.peak_live), Bytes(peak.peak_pool));
            writeln!(out, "  {FAINT}{}: {live} live at the peak, {pool} through the pool{FAINT:#}", peak.trace)?;
        }
        match &plan.assignments[..] {
            [_] => arithmetic(self, out)?,
            _ => devices(plan, out)?,
        }
        let style = if self.overflow { BAD } else { GOOD };
        writeln!(out, "{style}{}{style:#}", self.explanation)?;
        match plan.advice() {
            Some(advice) => writeln!(out, "{FAINT}{advice}{FAINT:#}"),
            None => Ok(()),
        }
    }
}

fn row(out: &mut dyn Write, name: &str, value: impl std::fmt::Display, why: &str) -> Result<()> {
    write!(out, "  {name:<11}{:>12}", value.to_string())?;
    if why.is_empty() { writeln!(out) } else { writeln!(out, "   {FAINT}{why}{FAINT:#}") }
}

/// Shows one candidate: each number with how it was computed.
fn arithmetic(report: &FitReport, out: &mut dyn Write) -> Result<()> {
    let plan = &report.plan;
    let (assignment, need) = (&plan.assignments[0], &plan.need);
    let (available, budget) = (assignment.candidate.available, assignment.budget);
    let on = assignment.candidate.device.map_or(String::new(), |device| format!("on {device}"));
    row(out, "available", available, &on)?;
    let whole = match assignment.candidate.charged {
        Bytes::ZERO => format!("{available} × {}", need.headroom),
        charged => format!("({available} + {charged} that others have) × {} − {charged}", need.headroom),
    };
    row(out, "budget", budget, &whole)?;
    row(out, "shared", need.fixed, "")?;
    let division = match need.per_worker {
        Bytes::ZERO if report.says_per_worker => "nothing, so as many as are wanted".to_owned(),
        Bytes::ZERO => "not said, so as many as are wanted".to_owned(),
        _ if need.fixed > budget => "what is shared is too much by itself".to_owned(),
        each => {
            let quotient = budget.saturating_sub(need.fixed).get() as f64 / each.get() as f64;
            format!("({budget} − {}) ÷ {each} = {quotient:.2}", need.fixed)
        }
    };
    row(out, "per worker", need.per_worker, &division)?;
    row(out, "workers", plan.workers, &format!("of {} wanted", need.wanted()))
}

/// Shows several devices, a line each.
fn devices(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let need = &plan.need;
    writeln!(
        out,
        "  {FAINT}budget = (available + others) × {} − others; room = (budget − {} shared) ÷ {} a worker{FAINT:#}",
        need.headroom, need.fixed, need.per_worker
    )?;
    writeln!(out, "  {:<8}{:>12}{:>12}{:>12}{:>8}{:>9}", "device", "available", "others", "budget", "room", "workers")?;
    for assignment in &plan.assignments {
        let (candidate, budget) = (assignment.candidate, assignment.budget);
        let (available, others, room) = (candidate.available, candidate.charged, assignment.room);
        write!(out, "  {:<8}{available:>12}{others:>12}{budget:>12}", candidate.to_string())?;
        writeln!(out, " {room:>7}{:>9}", assignment.workers)?;
    }
    Ok(())
}
