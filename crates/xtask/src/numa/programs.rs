//! The programs that the machine runs: built by cargo, with the libraries they are linked with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::report::Program;
use crate::artifacts::{Artifact, artifacts};
use crate::command::{cargo, output};
use crate::error::Error;

/// The example that is the first process.
const INIT: &str = "numa-init";

/// The packages that cargo is asked to build. Built alone, packages may get fewer features than in the workspace, and are
/// compiled once more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    Workspace,
    Packages(&'static [&'static str]),
}

/// The programs of a run.
#[derive(Debug)]
pub(super) struct BuiltPrograms {
    pub(super) init: PathBuf,
    pub(super) programs: Vec<BuiltProgram>,
    /// The shared libraries of all of them.
    pub(super) libraries: BTreeSet<PathBuf>,
}

/// A program that cargo built, at its path outside the machine.
#[derive(Debug)]
pub(super) struct BuiltProgram {
    pub(super) program: Program,
    pub(super) outside: PathBuf,
}

impl BuiltPrograms {
    /// Builds the tests of `packages`, and the first process.
    pub(super) fn build(root: &Path, scope: Scope, packages: &[&str]) -> Result<Self, Error> {
        let tests = artifacts(&mut build(root, "test", &["--tests", "--no-run"], scope))?;
        let examples = artifacts(&mut build(root, "build", &["--examples"], scope))?;
        let init = examples.into_iter().find(|artifact| artifact.target == INIT);
        let init = init.ok_or_else(|| Error::Fetch { what: format!("cargo built no example {INIT}") })?.executable;
        let mut libraries = libraries(&init)?;
        let mut programs = Vec::new();
        for Artifact { package, target, executable } in tests {
            if packages.contains(&package.as_str()) {
                libraries.extend(self::libraries(&executable)?);
                let program = Program { path: format!("/{package}/{target}"), tests: count_tests(&executable)? };
                programs.push(BuiltProgram { program, outside: executable });
            }
        }
        // A program without tests has nothing to show; a library whose tests are all elsewhere is one.
        programs.retain(|built| built.program.tests > 0);
        programs.sort_by(|a, b| a.program.path.cmp(&b.program.path));
        Ok(Self { init, programs, libraries })
    }

    /// Returns the paths of the programs in the machine.
    pub(super) fn paths(&self) -> Vec<String> {
        self.programs.iter().map(|built| built.program.path.clone()).collect()
    }

    /// Leaves only the programs whose path has one of `words`; all of them if there are none.
    pub(super) fn having(mut self, words: &[&str]) -> Result<Self, Error> {
        let known = self.paths();
        let is_wanted = |path: &str| words.is_empty() || words.iter().any(|word| path.contains(word));
        self.programs.retain(|built| is_wanted(&built.program.path));
        match self.programs[..] {
            [] => Err(Error::NoProgram { words: words.join(" "), known }),
            _ => Ok(self),
        }
    }
}

fn build(root: &Path, verb: &str, what: &[&str], scope: Scope) -> Command {
    let mut command = cargo(root, [verb, "--message-format=json-render-diagnostics"]);
    command.args(what);
    match scope {
        Scope::Workspace => command.arg("--workspace"),
        Scope::Packages(packages) => command.args(packages.iter().flat_map(|package| ["--package", package])),
    };
    command
}

/// Returns the number of tests that a program lists.
fn count_tests(program: &Path) -> Result<usize, Error> {
    let listed = output(Command::new(program).arg("--list"))?;
    Ok(listed.lines().filter(|line| line.ends_with(": test")).count())
}

/// Returns the shared libraries of a program and its loader, which lists them when it is asked to.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let listed = output(Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1"))?;
    Ok(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
