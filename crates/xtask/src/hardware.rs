//! Packs what is tried on a GPU, for a machine that has one and no Rust: the test programs that ask a driver, the command, the Python package
//! with its tests and benches, and the script that runs and judges them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::artifacts::artifacts;
use crate::command::{cargo, execute, remove, target_folder};
use crate::error::Error;
use crate::python;

/// The tests that have trials on CUDA, by package and name. Those that take longest come last.
const TESTS: [(&str, &str); 7] = [
    ("bursar-conformance", "visible_devices"),
    ("bursar-conformance", "two_libraries"),
    ("bursar-conformance", "ledger"),
    ("bursar-host", "drivers"),
    ("bursar-conformance", "uses"),
    ("bursar-conformance", "differential"),
    ("bursar-conformance", "conformance"),
];

/// The example in which two programs take turns with a device.
const TURNS: &str = "13-take-turns";

/// The folders of the repository that are copied, with the names that they have there.
const FOLDERS: [(&str, &str); 2] = [("python/tests", "tests"), ("python/benches", "benches")];

const RUN: &str = include_str!("hardware/run.sh");

/// Builds everything and packs it into the folder `hardware` of the target folder.
pub(crate) fn pack(root: &Path) -> Result<(), Error> {
    let folder = root.join(target_folder()).join("hardware");
    remove(&folder)?;
    let (trials, bin) = (folder.join("trials"), folder.join("bin"));
    make(&trials)?;
    make(&bin)?;
    let mut build = cargo(root, ["test", "--message-format=json-render-diagnostics", "--workspace", "--tests"]);
    let tests = artifacts(build.arg("--no-run"))?;
    for (nth, (package, target)) in TESTS.into_iter().enumerate() {
        let built = tests.iter().find(|built| built.package == package && built.target == target);
        let built = built.ok_or_else(|| Error::Fetch { what: format!("cargo built no {package}/{target}") })?;
        strip(&built.executable, &trials.join(format!("{nth}-{target}")))?;
    }
    let what = ["--release", "--package", "bursar-cli", "--package", "bursar", "--bins", "--examples"];
    let mut build = cargo(root, ["build", "--message-format=json-render-diagnostics"]);
    let programs = artifacts(build.args(what))?;
    for built in programs.iter().filter(|built| ["bursar", TURNS].contains(&built.target.as_str())) {
        strip(&built.executable, &bin.join(&built.target))?;
    }
    if let Err(error) = python::wheels(root, &folder.join("wheels")) {
        println!("not packed: the Python package ({error})");
    }
    for (from, to) in FOLDERS {
        copy_files(&root.join(from), &folder.join(to))?;
    }
    let script = folder.join("run.sh");
    fs::write(&script, RUN).map_err(|source| Error::Write { path: script.clone(), source })?;
    println!(
        "packed: copy {} to a machine with a GPU, and run `bash run.sh` there (`--help` says more)",
        folder.display()
    );
    Ok(())
}

/// Copies a program without what is there for debuggers, or as it is where that cannot be left out.
fn strip(program: &Path, to: &Path) -> Result<(), Error> {
    if execute(Command::new("strip").arg("-o").args([to, program])).is_ok() {
        return Ok(());
    }
    copy(program, to)
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to).map(drop).map_err(|source| Error::Write { path: to.into(), source })
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}

/// Copies the files of a folder that has no others inside.
fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    make(to)?;
    let read = |source| Error::Read { path: from.into(), source };
    for entry in fs::read_dir(from).map_err(read)? {
        let entry = entry.map_err(read)?;
        if entry.file_type().map_err(read)?.is_file() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
