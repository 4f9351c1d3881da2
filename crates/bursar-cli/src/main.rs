//! The command `bursar`: thin, everything it shows is the library's.
#![forbid(unsafe_code)]

mod arguments;
mod demo;
mod devices;
mod output;

use arguments::{Arguments, Command};
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
    let opened = bursar::driver::open(arguments.driver, &arguments.sim_devices)?;
    match arguments.command.unwrap_or(Command::Demo) {
        Command::Demo => output::show(&demo::tour(&opened)?, arguments.json),
        Command::Devices => output::show(&devices::list(&opened)?, arguments.json),
    }
}
