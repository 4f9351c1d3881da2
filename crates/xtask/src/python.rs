//! Builds the Python package as `pip install .` does, installs it into a virtual environment below the target folder, and runs its
//! tests, its documentation's examples and two type checkers there.
//!
//! Everything is kept for the next run: the environment until the list of tools or the interpreter changes, and cargo's output,
//! which is that of the profile `dev`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{cargo, describe, execute, new_ledger_folder, remove, target_folder};
use crate::error::Error;

/// The environment variable that names the interpreter.
const VARIABLE: &str = "BURSAR_PYTHON";
/// The names that an interpreter is looked for under.
const NAMES: [&str; 6] = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];
/// The first version that the package is for.
const OLDEST: (u32, u32) = (3, 10);
/// The tools that the environment has, a line each.
const TOOLS: &str = "python/tests/requirements.txt";
/// The shared object that stands for CUDA's in some tests.
const LIBCUDA: &str = "libbursar_libcuda.so";
/// The environment variable by which Ray is installed for its tests: `1`, or `try` for where it can be. They are skipped without it.
const RAY_VARIABLE: &str = "BURSAR_TEST_RAY";
/// Ray, as pip is told it.
const RAY: &str = "ray>=2.50";

/// Builds, installs and tests the package.
pub(crate) fn step(root: &Path) -> Result<(), Error> {
    let folder = root.join(target_folder()).join("python");
    let environment = Environment::make(root, &folder, &interpreter()?)?;
    let wheel = environment.wheel(&folder.join("wheels"), "dev")?;
    execute(environment.pip(["install", "--quiet", "--force-reinstall", "--no-deps"]).arg(&wheel))?;

    let libcuda = libcuda(root)?;
    let pytest = ["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider"];
    execute(environment.python(pytest).arg("python/tests").env("BURSAR_TEST_LIBCUDA", libcuda))?;
    let script = environment.folder.join("bin/bursar");
    let run = ["test", "--workspace", "--quiet", "--test", "run", "--", "f7_"];
    execute(cargo(root, run).env("BURSAR_TEST_COMMAND", script))?;
    let doctest = ["--doctest-modules", "--doctest-ignore-import-errors", "--pyargs", "bursar"];
    execute(environment.python(pytest).args(doctest).env("BURSAR_LEDGER_DIR", new_ledger_folder(&folder)?))?;
    execute(&mut environment.python(["-m", "mypy", "--strict", "python/bursar", "python/examples", "python/tests"]))?;
    match environment.python(["-m", "pyright", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {
            execute(environment.python(["-m", "pyright", "--pythonpath"]).arg(environment.folder.join("bin/python")))
        }
        _ => {
            println!("not run: pyright (it cannot be installed here)");
            Ok(())
        }
    }
}

/// Builds the package as people install it, and puts its wheel into a folder, with those of pytest.
pub(crate) fn wheels(root: &Path, into: &Path) -> Result<(), Error> {
    let folder = root.join(target_folder()).join("python");
    let environment = Environment::make(root, &folder, &interpreter()?)?;
    environment.wheel(into, "release")?;
    execute(environment.pip(["download", "--quiet", "--only-binary", ":all:", "pytest", "--dest"]).arg(into))
}

/// An interpreter, and its version as it prints it.
struct Interpreter {
    program: String,
    version: String,
}

/// Finds an interpreter that is not too old.
fn interpreter() -> Result<Interpreter, Error> {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let names = named.as_deref().map_or(NAMES.to_vec(), |named| vec![named]);
    let usable = |name: &&str| {
        let asked = Command::new(name).args(["-c", "import sys; print(sys.version)"]).stderr(Stdio::null()).output();
        let version = asked.ok().filter(|output| output.status.success()).map(|output| output.stdout)?;
        let version = String::from_utf8_lossy(&version).into_owned();
        is_new_enough(&version).then(|| Interpreter { program: (*name).to_owned(), version })
    };
    names.iter().find_map(usable).ok_or_else(|| Error::NotRun {
        reason: format!("there is no Python {}.{} or later; {VARIABLE} names another", OLDEST.0, OLDEST.1),
    })
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

/// A virtual environment with the tools, and the workspace that commands run in.
struct Environment<'a> {
    root: &'a Path,
    folder: PathBuf,
}

impl<'a> Environment<'a> {
    /// Makes the environment, unless it is there as it would be made.
    fn make(root: &'a Path, folder: &Path, interpreter: &Interpreter) -> Result<Self, Error> {
        let environment = Self { root, folder: folder.join("venv") };
        let tools = root.join(TOOLS);
        let listed = fs::read_to_string(&tools).map_err(|source| Error::Read { path: tools.clone(), source })?;
        let ray = std::env::var(RAY_VARIABLE).unwrap_or_default();
        let is_ray_wanted = ["1", "try"].contains(&ray.as_str());
        let mut made = format!("{}{listed}", interpreter.version);
        if is_ray_wanted {
            made.push_str(RAY);
        }
        let stamp = environment.folder.join("made-for");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == made) {
            return Ok(environment);
        }
        remove(&environment.folder)?;
        let mut create = Command::new(&interpreter.program);
        attempt(
            create.args(["-m", "venv"]).arg(&environment.folder),
            "Python has no venv (`apt-get install python3-venv`)",
        )?;
        attempt(environment.pip(["install", "--quiet", "--requirement"]).arg(&tools), "pip cannot install the tools")?;
        if is_ray_wanted {
            match attempt(&mut environment.pip(["install", "--quiet", RAY]), "pip cannot install Ray") {
                Err(_) if ray == "try" => {
                    println!("not run: the tests of bursar.ray (Ray cannot be installed here)");
                    // Without the stamp the next run tries again.
                    return Ok(environment);
                }
                installed => installed?,
            }
        }
        fs::write(&stamp, made).map_err(|source| Error::Write { path: stamp, source })?;
        Ok(environment)
    }

    /// Builds the package into a folder that has nothing else, and returns its wheel.
    fn wheel(&self, into: &Path, profile: &str) -> Result<PathBuf, Error> {
        remove(into)?;
        let mut build = self.pip(["wheel", "--quiet", "--no-build-isolation", "--no-deps", ".", "--wheel-dir"]);
        execute(build.arg(into).env("BURSAR_WHEEL_PROFILE", profile))?;
        only_file(into)
    }

    /// Returns a command of the environment's interpreter, in the workspace's folder.
    fn python<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = Command::new(self.folder.join("bin/python"));
        command.args(words).current_dir(self.root).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn pip<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = self.python(["-m", "pip"]);
        command.args(words);
        command
    }
}

/// Runs a command without which the step cannot run.
fn attempt(command: &mut Command, otherwise: &str) -> Result<(), Error> {
    println!("$ {}", describe(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Error::NotRun { reason: otherwise.into() }),
    }
}

/// Builds what the step before has built, and returns the shared object that stands for CUDA's.
fn libcuda(root: &Path) -> Result<PathBuf, Error> {
    execute(&mut cargo(root, ["build", "--workspace", "--examples"]))?;
    let folder = root.join(target_folder()).join("debug");
    let found = [folder.join(LIBCUDA), folder.join("deps").join(LIBCUDA)].into_iter().find(|file| file.exists());
    found.ok_or_else(|| Error::Fetch { what: format!("cargo built no {LIBCUDA} in {}", folder.display()) })
}

/// Returns the one file of a folder.
fn only_file(folder: &Path) -> Result<PathBuf, Error> {
    let read = |source| Error::Read { path: folder.into(), source };
    let mut entries = fs::read_dir(folder).map_err(read)?;
    let first =
        entries.next().ok_or_else(|| Error::Fetch { what: format!("there is no wheel in {}", folder.display()) })?;
    Ok(first.map_err(read)?.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, expected) in
            [("3.10.0 (main)", true), ("3.9.18", false), ("4.0", true), ("2.7.18", false), ("", false)]
        {
            assert_eq!(is_new_enough(version), expected, "{version}");
        }
    }
}
