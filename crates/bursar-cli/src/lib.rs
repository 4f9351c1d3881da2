//! The command `bursar`, a thin layer over the library: [`main`] is all of it, for the binary and for other programs that have it as
//! one of their commands.
//!
//! Every command computes data; `output` shows it to people or prints it as JSON, and `failure` maps errors to hints and
//! exit statuses. Modules use only those below them:
//!
//! - `arguments`: the command line.
//! - `commands`: a module for each command but `run`.
//! - `run`: `bursar run`, which is several processes; see its documentation.
//! - `stage`: the options that describe a stage, common to `fit` and `run`; `stacks`: the stacks that have a name;
//!   `traces`: traces that are made or varied, common to `replay` and `convert`.
//! - `options`: the options of every command; `output`; `failure`; `program`: the program that all of this is part of.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod failure;
mod options;
mod output;
mod program;
mod run;
mod stacks;
mod stage;
mod traces;

pub use program::Program;

use arguments::{Arguments, Bench, Command};
use commands::{bench, completions, convert, demo, devices, fit, ledger, ray_resources, replay, serve, sleep, top};
use failure::Failure;
use run::{Invocation, Role};
use rustix::process::Pid;
use std::ffi::OsString;
use std::sync::Arc;

/// Runs the command with the arguments after its name. Returns the exit status.
///
/// It behaves as a program does: it writes to standard output and standard error, for `bursar top` takes the terminal and handles
/// signals, and for `bursar run` handles signals, starts processes and waits for all children. Signals that it does not handle keep the actions that they have.
///
/// ```
/// let status = bursar_cli::main(&bursar_cli::Program::this_executable(), ["fit".into(), "--available=1GiB".into()]);
/// assert_eq!(status, 0);
/// ```
pub fn main(program: &Program, words: impl IntoIterator<Item = OsString>) -> u8 {
    // With a handler, writing to a file at its size limit is an error; without one, it kills the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words: Vec<OsString> = words.into_iter().collect();
    let done = match Invocation::parse(words.iter().cloned()) {
        Some(invocation) => play_role(program, invocation),
        None => read_and_execute(program, &words, None),
    };
    // Every command flushes what it writes. Nothing is flushed here: output that nobody reads must not keep a run from ending.
    done.unwrap_or_else(|failure| output::fail(&failure, false))
}

/// Runs as one of the processes that `bursar run` starts for itself.
fn play_role(program: &Program, invocation: Invocation) -> Result<u8, Failure> {
    match invocation.role {
        Role::Launch => Ok(run::launch(&invocation)),
        Role::Watchdog => run::watch(program, invocation),
        Role::Supervisor => read_and_execute(program, &invocation.words, Some(invocation.parent)),
    }
}

/// Executes a command and reports its failure. `watchdog` is the parent of this process if it is the supervisor of a run.
fn read_and_execute(program: &Program, words: &[OsString], watchdog: Option<Pid>) -> Result<u8, Failure> {
    let arguments = Arguments::read(std::iter::once("bursar".into()).chain(words.iter().cloned()))?;
    let done = try_execute(program, words, &arguments, watchdog);
    Ok(done.unwrap_or_else(|failure| output::fail(&failure, arguments.options.json)))
}

fn try_execute(
    program: &Program,
    words: &[OsString],
    arguments: &Arguments,
    watchdog: Option<Pid>,
) -> Result<u8, Failure> {
    let options = &arguments.options;
    let json = options.json;
    let open = || options.open_any().inspect(output::say_if_simulated);
    let done = match (&arguments.command, watchdog) {
        (Some(Command::Run(_)), None) => return run::start(program, words),
        (Some(Command::Run(args)), Some(watchdog)) => run::supervise(program, watchdog, options, args),
        (None | Some(Command::Demo), _) => output::show(&demo::tour(&options.open_any()?)?, json),
        (Some(Command::Devices), _) => output::show(&devices::list(&options.open_machine()?), json),
        (Some(Command::Ledger { command }), _) => ledger::run(options.open_machine(), command.as_ref(), json),
        (Some(Command::Top(args)), _) => top::top(options, args),
        (Some(Command::Serve(args)), _) => serve::serve(options.open_machine(), args, json),
        (Some(Command::Replay(args)), _) => output::show(&replay::replay(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Pairs(args))), _) => output::show(&bench::pairs(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Live(args))), _) => output::show(&bench::live::live(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Pinned(args))), _) => output::show(&bench::pinned::pinned(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Sleep(args))), _) => output::show(&bench::sleep::sleep(&open()?, args)?, json),
        (Some(Command::Bench(Bench::Streams(args))), _) => {
            output::show(&bench::streams::streams(&open()?, args)?, json)
        }
        (Some(Command::Bench(Bench::Fragmentation(args))), _) => {
            output::show(&bench::fragmentation::fragmentation(&open()?, args)?, json)
        }
        (Some(Command::Bench(Bench::Cluster(args))), _) => output::show(&bench::cluster::cluster(args)?, json),
        (Some(Command::Fit(stage)), _) => fit::fit(stage, json, || options.open_machine()),
        (Some(Command::Sleep(args)), _) => output::show(&sleep::sleep(args)?, json),
        (Some(Command::Wake(args)), _) => output::show(&sleep::wake(args)?, json),
        (Some(Command::RayResources(args)), _) => {
            output::show(&ray_resources::of_machine(options.open_machine(), args)?, json)
        }
        (Some(Command::Completions { shell }), _) => {
            output::show(&completions::script(Arguments::definition(), *shell), json)
        }
        (Some(Command::Man(args)), _) => output::show(&completions::manual(Arguments::definition(), args)?, json),
        (Some(Command::Convert(args)), _) => output::show(&convert::convert(args)?, json),
    };
    done.map(|()| 0)
}
