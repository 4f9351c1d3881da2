//! The programs that the machine runs: built by cargo, with the libraries they are linked with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::report::Program;
use crate::command::{cargo, describe, output};
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

/// A program in cargo's messages.
#[derive(Debug, PartialEq, Eq)]
struct Artifact {
    package: String,
    target: String,
    executable: PathBuf,
}

/// Runs cargo and returns the programs that it built or found built.
fn artifacts(command: &mut Command) -> Result<Vec<Artifact>, Error> {
    println!("$ {}", describe(command));
    Ok(output(command)?.lines().filter_map(artifact).collect())
}

/// Reads one message: a line of JSON, of which a few strings are wanted.
fn artifact(message: &str) -> Option<Artifact> {
    let after = |text: &str, key: &str| Some(text.split_once(key)?.1.split_once('"')?.0.to_owned());
    let manifest = PathBuf::from(after(message, "\"manifest_path\":\"")?);
    let package = manifest.parent()?.file_name()?.to_string_lossy().into_owned();
    let target = after(message.split_once("\"target\":")?.1, "\"name\":\"")?;
    Some(Artifact { package, target, executable: after(message, "\"executable\":\"")?.into() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_from_cargos_message() {
        let message = "{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///w/crates/bursar-host#0.1.0\",\
                       \"manifest_path\":\"/w/crates/bursar-host/Cargo.toml\",\"target\":{\"kind\":[\"test\"],\
                       \"crate_types\":[\"bin\"],\"name\":\"pool\",\"src_path\":\"/w/x.rs\"},\
                       \"executable\":\"/t/debug/deps/pool-1\",\"fresh\":true}";
        let expected = Artifact {
            package: "bursar-host".into(),
            target: "pool".into(),
            executable: "/t/debug/deps/pool-1".into(),
        };
        assert_eq!(artifact(message), Some(expected));
        assert_eq!(artifact(&message.replace("\"/t/debug/deps/pool-1\"", "null")), None);
    }
}
