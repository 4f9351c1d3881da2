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
use output::Failure;
use run::{Part, Role};
use rustix::process::Pid;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    // A file that may not grow is one that cannot be written, and no reason to be killed.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words = std::env::args_os();
    let done = match run::part(words.skip(1)) {
        Some(part) => play(part),
        None => Arguments::read(std::env::args_os()).and_then(|arguments| run(&arguments, None)),
    };
    done.unwrap_or_else(|failure| output::fail(&failure))
}

/// Does what a process does that a run has started for itself.
fn play(part: Part) -> Result<ExitCode, Failure> {
    match part.role {
        Role::Launch => Ok(run::launch(&part)),
        Role::Keeper => run::keep(part),
        Role::Crew => {
            let words = std::iter::once("bursar".into()).chain(part.words);
            run(&Arguments::read(words)?, Some(part.parent))
        }
    }
}

/// Does what was asked; `keeper` is who started this process, where it is the crew of a run.
fn run(arguments: &Arguments, keeper: Option<Pid>) -> Result<ExitCode, Failure> {
    let json = arguments.json;
    let open = || bursar::driver::open(arguments.driver, &arguments.sim_devices);
    let done = match (&arguments.command, keeper) {
        (Some(Command::Run(_)), None) => return run::front(std::env::args_os().skip(1)),
        (Some(Command::Run(asked)), Some(keeper)) => run::crew(keeper, arguments, asked),
        (None | Some(Command::Demo), _) => output::show(&demo::tour(&open()?)?, json),
        (Some(Command::Devices), _) => output::show(&devices::list(&open()?), json),
        (Some(Command::Ledger(asked)), _) => ledger::run(&open()?, asked, json),
        (Some(Command::Replay(asked)), _) => output::show(&replay::replay(&open()?, asked)?, json),
        (Some(Command::Bench(Bench::Pairs(asked))), _) => output::show(&bench::pairs(&open()?, asked)?, json),
        (Some(Command::Bench(Bench::Pinned(asked))), _) => output::show(&bench::pinned::pinned(&open()?, asked)?, json),
        (Some(Command::Fit(stage)), _) => fit::fit(stage, json, open),
        (Some(Command::Completions { shell }), _) => output::show(&completions::script(*shell), json),
        (Some(Command::Man(wanted)), _) => output::show(&completions::manual(wanted)?, json),
        (Some(Command::Convert { from, to }), _) => output::show(&convert::convert(from, to)?, json),
    };
    done.map(|()| ExitCode::SUCCESS)
}
