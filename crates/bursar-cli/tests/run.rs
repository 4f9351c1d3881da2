//! `bursar run` as its users meet it: real processes on a named pair of simulated devices of 80 GiB, in a ledger folder of
//! their own. This program starts itself again as workers that draw on their share, and as other programs beside them.
//!
//! `BURSAR_RUN_TRIES=100` tries the races so often, and `BURSAR_RUN_KILLS=1000` kills so many runs.
#![forbid(unsafe_code)]

#[path = "run/ends.rs"]
mod ends;
#[path = "run/kills.rs"]
mod kills;
#[path = "run/output.rs"]
mod output;
#[path = "run/rig.rs"]
mod rig;
#[path = "run/roles.rs"]
mod roles;
#[path = "run/shares.rs"]
mod shares;
#[path = "run/terminal.rs"]
mod terminal;

use libtest_mimic::{Arguments, Trial};
use rig::Rig;
use std::process::ExitCode;

/// A trial and its name.
type Named = (&'static str, fn(&Rig));

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(roles::VARIABLE) {
        return roles::play(&role);
    }
    rig::unignore_signals();
    let all = [output::TRIALS, ends::TRIALS, kills::TRIALS, shares::TRIALS, terminal::TRIALS].concat();
    let trial = |(name, run): Named| {
        Trial::test(name, move || {
            let rig = Rig::new();
            run(&rig);
            rig.assert_nothing_is_left();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), all.into_iter().map(trial).collect()).exit_code()
}
