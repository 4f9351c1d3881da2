//! The binary `bursar`.
#![forbid(unsafe_code)]

use bursar_cli::Program;
use std::process::ExitCode;

fn main() -> ExitCode {
    bursar_cli::main(&Program::this_executable(), std::env::args_os().skip(1)).into()
}
