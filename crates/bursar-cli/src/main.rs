//! The command `bursar`: thin, everything it shows is the library's.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod completions;
mod convert;
mod demo;
mod devices;
mod fit;
mod ledger;
mod output;
mod replay;
mod run;
mod stacks;

use arguments::{Arguments, Bench, Command};
use clap::Parser;
use output::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure),
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let json = arguments.json;
    let open = || bursar::driver::open(arguments.driver, &arguments.sim_devices);
    match &arguments.command {
        None | Some(Command::Demo) => output::show(&demo::tour(&open()?)?, json),
        Some(Command::Devices) => output::show(&devices::list(&open()?), json),
        Some(Command::Ledger(asked)) => output::show(&ledger::run(&open()?, asked)?, json),
        Some(Command::Replay(asked)) => output::show(&replay::replay(&open()?, asked)?, json),
        Some(Command::Bench(Bench::Pairs(asked))) => output::show(&bench::pairs(&open()?, asked)?, json),
        Some(Command::Bench(Bench::Pinned(asked))) => output::show(&bench::pinned::pinned(&open()?, asked)?, json),
        Some(Command::Fit(stage)) => fit::fit(stage, json, open),
        Some(Command::Run(asked)) => run::run(arguments, asked),
        Some(Command::KeepWorkers) => {
            run::keep();
            Ok(())
        }
        Some(Command::Completions { shell }) => output::show(&completions::script(*shell), json),
        Some(Command::Man(wanted)) => output::show(&completions::manual(wanted)?, json),
        Some(Command::Convert { from, to }) => output::show(&convert::convert(from, to)?, json),
    }
}
