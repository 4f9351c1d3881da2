//! The clauses.

mod budgets;
mod devices;
mod dropped;
mod faults;
mod frames;
mod guards;
mod hardware;
mod pools;
mod resources;

use crate::Clause;

/// Every clause this crate knows.
pub fn all() -> Vec<Clause> {
    let on_stacks = [resources::CLAUSES, faults::CLAUSES, frames::CLAUSES, budgets::CLAUSES, guards::CLAUSES];
    let others = [dropped::CLAUSES, pools::CLAUSES, hardware::CLAUSES, devices::CLAUSES];
    [on_stacks.concat(), others.concat()].concat()
}

/// A table of clauses from functions named after them.
macro_rules! clauses {
    ($($needs:ident: $name:ident),* $(,)?) => {
        pub(super) const CLAUSES: &[crate::Clause] = &[$(
            crate::Clause { name: stringify!($name), needs: crate::Needs::$needs, run: $name },
        )*];
    };
}
use clauses;
