//! The command `bursar`, a thin layer over the library.
//!
//! Every command computes data; `output` shows it to people or prints it as JSON, and `failure` maps errors to hints and
//! exit statuses. Modules use only those below them:
//!
//! - `arguments`: the command line.
//! - `commands`: a module for each command but `run`.
//! - `run`: `bursar run`, which is several processes; see its documentation.
//! - `stage`: the options that describe a stage, common to `fit` and `run`; `stacks`: the stacks that have a name;
//!   `traces`: traces that are made or varied, common to `replay` and `convert`.
//! - `options`: the options of every command; `output`; `failure`.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod failure;
mod options;
mod output;
mod run;
mod stacks;
mod stage;
mod traces;

use arguments::{Arguments, Bench, Command};
use commands::{bench, completions, convert, demo, devices, fit, ledger, replay};
use failure::Failure;
use run::{Invocation, Role};
use rustix::process::Pid;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    // With a handler, writing to a file at its size limit is an error; without one, it kills the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let done = match Invocation::parse(std::env::args_os().skip(1)) {
        Some(invocation) => play_role(invocation),
        None => Arguments::read(std::env::args_os()).map(|arguments| execute(&arguments, None)),
    };
    done.unwrap_or_else(|failure| output::fail(&failure, false))
}

/// Runs as one of the processes that `bursar run` starts for itself.
fn play_role(invocation: Invocation) -> Result<ExitCode, Failure> {
    match invocation.role {
        Role::Launch => Ok(run::launch(&invocation)),
        Role::Watchdog => run::watch(invocation),
        Role::Supervisor => {
            let words = std::iter::once("bursar".into()).chain(invocation.words);
            Ok(execute(&Arguments::read(words)?, Some(invocation.parent)))
        }
    }
}

/// Executes a command and reports its failure. `watchdog` is the parent of this process if it is the supervisor of a run.
fn execute(arguments: &Arguments, watchdog: Option<Pid>) -> ExitCode {
    try_execute(arguments, watchdog).unwrap_or_else(|failure| output::fail(&failure, arguments.options.json))
}

fn try_execute(arguments: &Arguments, watchdog: Option<Pid>) -> Result<ExitCode, Failure> {
    let options = &arguments.options;
    let json = options.json;
    let open = || options.open_any().inspect(output::say_if_simulated);
    let done = match (&arguments.command, watchdog) {
        (Some(Command::Run(_)), None) => return run::start(std::env::args_os().skip(1)),
        (Some(Command::Run(args)), Some(watchdog)) => run::supervise(watchdog, options, args),
        (None | Some(Command::Demo), _) => output::show(&demo::tour(&options.open_any()?)?, json),
        (Some(Command::Devices), _) => output::show(&devices::list(&options.open_machine()?), json),
        (Some(Command::Ledger { command }), _) => ledger::run(options.open_machine(), command.as_ref(), json),
        (Some(Command::Replay(args)), _) => output::show(&replay::replay(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Pairs(args))), _) => output::show(&bench::pairs(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Live(args))), _) => output::show(&bench::live::live(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Pinned(args))), _) => output::show(&bench::pinned::pinned(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Streams(args))), _) => {
            output::show(&bench::streams::streams(&open()?, args)?, json)
        }
        (Some(Command::Bench(Bench::Fragmentation(args))), _) => {
            output::show(&bench::fragmentation::fragmentation(&open()?, args)?, json)
        }
        (Some(Command::Fit(stage)), _) => fit::fit(stage, json, || options.open_machine()),
        (Some(Command::Completions { shell }), _) => {
            output::show(&completions::script(Arguments::definition(), *shell), json)
        }
        (Some(Command::Man(args)), _) => output::show(&completions::manual(Arguments::definition(), args)?, json),
        (Some(Command::Convert(args)), _) => output::show(&convert::convert(args)?, json),
    };
    done.map(|()| ExitCode::SUCCESS)
}
