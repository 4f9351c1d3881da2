//! The clauses, one file for each topic.

mod budgets;
mod devices;
mod dropped_stacks;
mod faults;
mod frames;
mod graphs;
mod guards;
mod memory_contents;
mod pools;
mod resources;

use crate::Clause;

/// Returns every clause of this crate.
pub fn all() -> Vec<Clause> {
    let on_stacks = [resources::CLAUSES, faults::CLAUSES, frames::CLAUSES, budgets::CLAUSES, guards::CLAUSES];
    let others = [graphs::CLAUSES, dropped_stacks::CLAUSES, pools::CLAUSES, memory_contents::CLAUSES, devices::CLAUSES];
    [on_stacks.concat(), others.concat()].concat()
}

/// Defines `CLAUSES` from functions that are named after their clauses.
macro_rules! clauses {
    ($($needs:ident: $name:ident),* $(,)?) => {
        pub(super) const CLAUSES: &[crate::Clause] = &[$(
            crate::Clause { name: stringify!($name), needs: crate::Requirement::$needs, run: $name },
        )*];
    };
}
use clauses;
