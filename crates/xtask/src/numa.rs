//! Boots a kernel with several NUMA nodes in a virtual machine, and runs the tests of pinned host memory there.
//!
//! The machine is emulated by QEMU. It needs QEMU and the image of a kernel, and nothing else: the first file system is written by `archive.rs`, with the test programs of [`PACKAGES`], the libraries
//! they are linked with and, as the first process, the example `numa-init` of `bursar-host`. `report.rs` judges what that
//! process reports, `machine.rs` describes the machine.

mod archive;
mod elf;
mod kernel;
mod machine;
mod programs;
mod report;

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::command::target_folder;
use crate::error::Error;
use archive::Archive;
use programs::{BuiltPrograms, Scope};
use report::{Passed, judge};

pub(crate) const HELP: &str = "\
Runs the tests of bursar-host and bursar-linux on a kernel with five NUMA nodes, of which one is small, one
has no memory and one no CPUs.

Usage: cargo xtask numa [WORD…]  boot the kernel under QEMU and run the tests there; given words, only programs whose
                                 path has one of them, such as `numa` or `bursar-host/pool`
       cargo xtask numa fetch    get Debian's cloud kernel with apt-get and dpkg-deb, to be booted from then on

QEMU comes with `apt-get install qemu-system-x86`. BURSAR_NUMA_KERNEL names another kernel than the one that was fetched:
an image for x86-64 that has NUMA and drivers for serial ports built in.
";

/// The packages whose tests are run.
const PACKAGES: [&str; 2] = ["bursar-host", "bursar-linux"];
/// The time that the machine may take: more than ten times what it does on two cores that have nothing else to do.
const LIMIT: Duration = Duration::from_secs(600);
/// The most lines that are shown of a run that failed; all of them are in its folder.
const LINES_SHOWN: usize = 120;

/// Gets a kernel to boot.
pub(crate) fn fetch(root: &Path) -> Result<(), Error> {
    kernel::fetch(&folder(root))
}

/// Builds the programs of [`PACKAGES`] alone, and runs those whose path has one of `words`, or all.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), Error> {
    run_in(root, Scope::Packages(&PACKAGES), words)
}

/// Runs the programs as the test step does: built as part of the workspace, so that nothing is built again.
pub(crate) fn step(root: &Path) -> Result<(), Error> {
    run_in(root, Scope::Workspace, &[])
}

fn run_in(root: &Path, scope: Scope, words: &[&str]) -> Result<(), Error> {
    let qemu = machine::qemu()?;
    let kernel = kernel::find(&folder(root))?;
    let built = BuiltPrograms::build(root, scope, &PACKAGES)?.having(words)?;
    let run = folder(root).join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&run).map_err(|source| Error::Write { path: run.clone(), source })?;
    let passed = boot(&qemu, &kernel, &built, &run);
    if passed.is_ok() {
        fs::remove_dir_all(&run).map_err(|source| Error::Write { path: run, source })?;
    }
    passed
}

/// Returns the folder for the kernel and for what a run leaves behind.
fn folder(root: &Path) -> std::path::PathBuf {
    root.join(target_folder()).join("numa")
}

fn boot(qemu: &str, kernel: &Path, built: &BuiltPrograms, run: &Path) -> Result<(), Error> {
    let archive = first_file_system(built)?;
    let disk = run.join("initrd");
    println!("booting {} with {} MiB: {}", kernel.display(), archive.len() >> 20, built.paths().join(" "));
    fs::write(&disk, archive).map_err(|source| Error::Write { path: disk.clone(), source })?;
    let word = format!("{:016x}", RandomState::new().build_hasher().finish());
    let (messages, output) = (run.join("kernel.log"), run.join("report.log"));
    let started = Instant::now();
    let ended = machine::run(&mut machine::command(qemu, kernel, &disk, &word, [&messages, &output]), LIMIT);
    let report = read_text(&output);
    let listed: Vec<_> = built.programs.iter().map(|built| built.program.clone()).collect();
    let verdict = judge(&report, &word, &listed);
    let why = match (ended, verdict) {
        (Ok(()), Ok(passed)) => {
            show(&passed, started.elapsed());
            return Ok(());
        }
        (Err(why), Ok(_)) => why,
        (ended, Err(refusal)) => {
            show_last("the kernel", &read_text(&messages).lines().collect::<Vec<_>>());
            show_last("the programs", &refusal.lines(&report, &word));
            ended.err().map_or_else(|| refusal.to_string(), |why| format!("{why}, and {refusal}"))
        }
    };
    Err(Error::Numa { why, folder: run.to_owned() })
}

fn read_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn show_last(name: &str, lines: &[&str]) {
    println!("---- the last lines of {name}");
    lines[lines.len().saturating_sub(LINES_SHOWN)..].iter().for_each(|line| println!("{line}"));
}

fn first_file_system(built: &BuiltPrograms) -> Result<Vec<u8>, Error> {
    let mut archive = Archive::default();
    archive.add_console();
    let read = |path: &Path| {
        let program = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Ok(elf::loaded_part(program))
    };
    archive.add("/init", &read(&built.init)?);
    let mut list = String::new();
    for built in &built.programs {
        archive.add(&built.program.path, &read(&built.outside)?);
        list += &format!("{}\n", built.program.path);
    }
    for library in &built.libraries {
        archive.add(&library.to_string_lossy(), &read(library)?);
    }
    archive.add("/programs", list.as_bytes());
    Ok(archive.finish())
}

fn show(passed: &[Passed<'_>], elapsed: Duration) {
    for Passed { path, passed, ignored } in passed {
        println!("  {path}: {passed} passed");
        ignored.iter().for_each(|line| println!("    {line}"));
    }
    let count: usize = passed.iter().map(|program| program.passed).sum();
    println!("{count} tests passed on {} in {:.1} s", machine::DESCRIPTION, elapsed.as_secs_f64());
}
