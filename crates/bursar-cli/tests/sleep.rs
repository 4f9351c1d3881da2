//! `bursar sleep` and `bursar wake` as their users meet them: real processes on a named simulated device, in a ledger folder of
//! their own. This program starts itself again as the programs that are asked.
//!
//! `BURSAR_SLEEP_KILLS=1000` kills so many programs while they sleep and wake, and `BURSAR_SLEEP_ROUNDS=1000` has two programs
//! take so many turns.
#![forbid(unsafe_code)]

mod common;

#[path = "sleep/asked.rs"]
mod asked;
#[path = "sleep/kills.rs"]
mod kills;
#[path = "sleep/rig.rs"]
mod rig;
#[path = "sleep/roles.rs"]
mod roles;
#[path = "sleep/stopped.rs"]
mod stopped;
#[path = "sleep/turns.rs"]
mod turns;

use libtest_mimic::{Arguments, Trial};
use rig::Rig;
use std::process::ExitCode;

/// A trial and its name.
type Named = (&'static str, fn(&Rig));

fn main() -> ExitCode {
    if std::env::var_os(roles::WORKS_IN).is_some() {
        return roles::work();
    }
    if std::env::var_os(roles::VARIABLE).is_some() {
        return roles::play();
    }
    let all = [asked::TRIALS, kills::TRIALS, turns::TRIALS, stopped::TRIALS].concat();
    let trial = |(name, run): Named| {
        Trial::test(name, move || {
            run(&Rig::new());
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), all.into_iter().map(trial).collect()).exit_code()
}
