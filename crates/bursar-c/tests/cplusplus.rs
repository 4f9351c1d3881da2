//! Y1 in C++: the header is one of that language too. Where there is no compiler for it the trial is ignored.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let is_there = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    let trial = Trial::test("y1_the_header_compiles_as_cplusplus", compiles).with_ignored_flag(!is_there);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn compiles() -> Result<(), Failed> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/bursar.h");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", "c++"]).arg(header);
    let compiled = compiler.output()?;
    compiled.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&compiled.stderr).into_owned().into())
}
