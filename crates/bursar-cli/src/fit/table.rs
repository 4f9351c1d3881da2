//! A fit for people: the numbers, and how one follows from the other.

use super::Fitted;
use crate::output::{BAD, FAINT, GOOD, HEADING, Show};
use bursar::Bytes;
use bursar::fit::Plan;
use std::io::{Result, Write};

impl Show for Fitted {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let plan = &self.plan;
        let bound = self.bound_by.as_ref().map_or(String::new(), |bound| format!(", bound by {bound}"));
        writeln!(out, "{HEADING}{}: {}{HEADING:#}{FAINT}{bound}{FAINT:#}", self.label, plan.pool)?;
        if let Some(measured) = &self.from_trace {
            let (live, pool) = (Bytes(measured.peak_live), Bytes(measured.peak_pool));
            writeln!(out, "  {FAINT}{}: {live} live at the peak, {pool} through the pool{FAINT:#}", measured.trace)?;
        }
        match &plan.places[..] {
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

/// One place: each number with how it came about.
fn arithmetic(fitted: &Fitted, out: &mut dyn Write) -> Result<()> {
    let plan = &fitted.plan;
    let (place, need) = (&plan.places[0], &plan.need);
    let (available, budget) = (place.seat.available, place.budget);
    let on = place.seat.device.map_or(String::new(), |device| format!("on {device}"));
    row(out, "available", available, &on)?;
    row(out, "budget", budget, &format!("{available} × {}", need.headroom))?;
    row(out, "shared", need.fixed, "")?;
    let division = match need.per_worker {
        Bytes::ZERO if fitted.says_per_worker => "nothing, so as many as are wanted".to_owned(),
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

/// Several devices: a line each.
fn devices(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let need = &plan.need;
    writeln!(
        out,
        "  {FAINT}room = (available × {} − {} shared) ÷ {} a worker{FAINT:#}",
        need.headroom, need.fixed, need.per_worker
    )?;
    writeln!(out, "  {:<8}{:>12}{:>12}{:>8}{:>9}", "device", "available", "budget", "room", "workers")?;
    for place in &plan.places {
        let (seat, budget) = (place.seat, place.budget);
        let (available, room) = (seat.available, place.room);
        writeln!(out, "  {:<8}{available:>12}{budget:>12}{room:>8}{:>9}", seat.to_string(), place.workers)?;
    }
    Ok(())
}
