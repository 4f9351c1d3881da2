//! Devices with a name, shared between processes: this program starts itself again as the others.

#[path = "named/others.rs"]
mod others;
#[path = "named/processes.rs"]
mod processes;
#[path = "named/refusals.rs"]
mod refusals;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = others::Role::given() {
        return role.play();
    }
    let trial = |(name, run): (&str, fn())| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let trials = processes::TRIALS.iter().chain(refusals::TRIALS).copied().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
