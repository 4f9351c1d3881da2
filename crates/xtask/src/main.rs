//! The commands of the workspace itself: the test run, tidy, packages, instruction counts and NUMA nodes. `cargo xtask help`
//! lists them.
//!
//! `test.rs` lists the steps of the test run. `tidy/` has the rules that a reviewer would otherwise have to check, one file
//! for each subject; they read the workspace through `tree.rs` and Rust source through `lexer.rs`. `package.rs` uses the
//! packaged crates from outside, `c_interface.rs` writes the header of the C interface, `python.rs` builds and tests the
//! Python package, `hardware.rs` packs what is tried on a machine that has a GPU and no Rust, `instructions.rs` counts instructions
//! with callgrind, and `numa.rs` boots a kernel with several NUMA nodes. Programs that cargo built are found by `artifacts.rs`.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to its user")]

mod artifacts;
mod c_interface;
mod command;
mod error;
mod hardware;
mod instructions;
mod lexer;
mod numa;
mod package;
mod python;
mod test;
mod tidy;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use error::Error;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(workspace_root(), &args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn dispatch(root: &Path, args: &[&str]) -> Result<(), Error> {
    match args {
        [] | ["help" | "--help" | "-h"] => {
            print!("{}", help());
            Ok(())
        }
        ["tidy"] => tidy::run(root),
        ["package"] => package::run(root),
        ["header"] => c_interface::write_header(root),
        ["install-c", prefix] if !prefix.starts_with('-') => c_interface::install(root, prefix),
        ["hardware"] => hardware::pack(root),
        ["test"] => test::run(root, test::STEPS),
        ["test", "--only", name] => test::run(root, std::slice::from_ref(test::step(name)?)),
        ["instructions", "help" | "--help" | "-h"] => {
            print!("{}", instructions::HELP);
            Ok(())
        }
        ["instructions", words @ ..] if words.iter().all(|word| !word.starts_with('-')) => {
            instructions::run(root, words)
        }
        ["numa", "fetch"] => numa::fetch(root),
        ["numa", "help" | "--help" | "-h"] => {
            print!("{}", numa::HELP);
            Ok(())
        }
        ["numa", words @ ..] if words.iter().all(|word| !word.starts_with('-')) => numa::run(root, words),
        _ => Err(Error::Usage { args: args.join(" ") }),
    }
}

fn help() -> String {
    let mut text = String::from(
        "cargo xtask test              run every step below, stopping at the first that fails\n\
         cargo xtask test --only STEP  run one of them\n\
         cargo xtask tidy              run the tidy checks alone\n\
         cargo xtask package           package the crates, and use them from outside the workspace\n\
         cargo xtask header            write the header of the C interface from its code\n\
         cargo xtask install-c PREFIX  build the C interface, and put it below PREFIX\n\
         cargo xtask hardware          pack the trials on a GPU for a machine that has no Rust\n\
         cargo xtask instructions      count instructions an operation; `--help` says more\n\
         cargo xtask numa              run the tests of pinned memory on five NUMA nodes; `--help` says more\n\
         cargo xtask help              print this\n\n\
         Steps, in order:\n",
    );
    for step in test::STEPS {
        text += &format!("  {:<10}{}\n", step.name, step.about);
    }
    text
}

/// Returns the folder of the workspace's `Cargo.toml`, two above this package's own.
fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask lives in crates/xtask")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_arguments_are_wrong_usage() {
        let error = dispatch(workspace_root(), &["test", "--all"]).unwrap_err();
        assert!(matches!(&error, Error::Usage { args } if args == "test --all"));
        assert_eq!(error.exit_status(), 2);
    }

    #[test]
    fn help_names_every_step() {
        let help = help();
        for step in test::STEPS {
            assert!(help.contains(&format!("\n  {} ", step.name)), "{help}");
        }
    }
}
