//! Counts the instructions of an operation, a measure that does not depend on how busy the machine is.
//!
//! The program `crates/bursar-cli/examples/instructions.rs` lists the measurements, so a stack that is added to the
//! command is measured without a change here. Each measurement is one run under callgrind that counts only inside the
//! functions named `measured_…`. The alternative, the difference of two runs of different length, needs no names, but would
//! count what differs between the two besides: hash maps are seeded anew in each process, so preparing a run never costs
//! the same twice. Inside the measured functions two runs agree to the instruction.

mod profile;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{cargo, describe, output};
use crate::error::Error;
use profile::Profile;

pub(crate) const HELP: &str = "\
Counts instructions per unit of work, over the simulated device, with valgrind's callgrind.

Usage: cargo xtask instructions [WORD…]

Each line is a kind of work, a stack, the instructions of one unit of that work, and how many of those the simulated driver
itself took. `pairs` are allocations of 1 KiB with their frees; `replay` is an operation of the bundled trace; `lists` is one
on blocks too long for a thread to keep, in a pool where so many blocks lie free and apart. All are warm, with budget and
statistics on; `pairs bare` is the pool without statistics. Given words, only lines that have them all are measured. It fails
where a line takes more than it may.

Example:
  cargo xtask instructions pairs
  pairs pool 231 driver 0
  pairs async 1165 driver 437
  pairs direct 1076 driver 422
  pairs bare 210 driver 0
";

/// The most instructions that one unit of some lines may take.
const BARS: [(&str, u64); 4] = [("pairs pool", 232), ("pairs bare", 215), ("lists 1000", 475), ("lists 100000", 510)];

const PACKAGE: &str = "bursar-cli";
const PROGRAM: &str = "instructions";

/// Measures every line that has all of `words`, and prints it. All measurements use one build, even if files are edited
/// meanwhile.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), Error> {
    require_valgrind()?;
    let program = build(root)?;
    let listed = output(&mut Command::new(&program))?;
    let lines: Vec<&str> = listed.lines().filter(|line| has_all(line, words)).collect();
    if lines.is_empty() {
        return Err(Error::NoMeasurement { words: words.join(" "), known: listed.lines().map(String::from).collect() });
    }
    let folder = std::env::temp_dir().join(format!("xtask-instructions-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let measured = lines.iter().try_fold(Vec::new(), |mut too_many, line| {
        let Profile { instructions, of_driver } = measure(&program, &folder.join("profile"), line)?;
        println!("{line} {instructions} driver {of_driver}");
        too_many.extend(above_bar(line, instructions));
        Ok(too_many)
    });
    let removed = std::fs::remove_dir_all(&folder).map_err(|source| Error::Write { path: folder, source });
    let too_many = measured.and_then(|too_many| removed.map(|()| too_many))?;
    too_many.into_iter().next().map_or(Ok(()), Err)
}

/// Returns the failure of a line that takes more instructions than it may.
fn above_bar(line: &str, instructions: u64) -> Option<Error> {
    let (_, bar) = BARS.into_iter().find(|&(of, bar)| of == line && instructions > bar)?;
    Some(Error::TooManyInstructions { line: line.into(), instructions, bar })
}

/// Builds the program and returns its path.
fn build(root: &Path) -> Result<PathBuf, Error> {
    let mut command = cargo(root, ["build", "--release", "--package", PACKAGE, "--example", PROGRAM]);
    command.arg("--message-format=json-render-diagnostics");
    let messages = output(&mut command)?;
    let what = || "cargo named no program that it built".into();
    executable(&messages).ok_or_else(|| Error::Measurement { command: describe(&command), what: what() })
}

/// Returns the path of the last program in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let (_, rest) = messages.rsplit_once("\"executable\":\"")?;
    Some(rest.split_once('"')?.0.into())
}

fn has_all(line: &str, words: &[&str]) -> bool {
    words.iter().all(|word| line.split(' ').any(|of_line| of_line == *word))
}

/// Runs one measurement under callgrind, and returns the instructions per unit and the driver's part of them.
fn measure(program: &Path, file: &Path, line: &str) -> Result<Profile, Error> {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--toggle-collect=*measured_*"]);
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(program).args(line.split(' '));
    let unclear = |what: String| Error::Measurement { command: line.into(), what };

    let printed = output(&mut command)?;
    let units = printed.trim().parse::<u64>().ok().filter(|&units| units > 0);
    let units = units.ok_or_else(|| unclear(format!("the program printed `{}` for a number", printed.trim())))?;
    let text = std::fs::read_to_string(file).map_err(|source| Error::Read { path: file.into(), source })?;
    let Profile { instructions, of_driver } = Profile::parse(&text).map_err(unclear)?;
    let a_unit = |count: u64| (count + units / 2) / units;
    Ok(Profile { instructions: a_unit(instructions), of_driver: a_unit(of_driver) })
}

fn require_valgrind() -> Result<(), Error> {
    let status = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Error::MissingValgrind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_lines() {
        let chosen =
            |words: &[&str]| ["pairs async", "replay async"].into_iter().filter(|line| has_all(line, words)).count();
        assert_eq!((chosen(&[]), chosen(&["async"]), chosen(&["pairs", "async"]), chosen(&["asy"])), (2, 2, 1, 0));
    }

    #[test]
    fn a_line_above_its_bar_is_a_failure() {
        let (line, bar) = BARS[0];
        assert!(above_bar(line, bar).is_none() && above_bar("pairs direct", u64::MAX).is_none());
        let failure = above_bar(line, bar + 1).expect("more than it may").to_string();
        assert!(failure.contains(line) && failure.contains(&format!("{} instructions", bar + 1)), "{failure}");
    }

    #[test]
    fn the_program_is_where_cargo_says() {
        let messages =
            "{\"executable\":null}\n{\"executable\":\"/target/release/examples/instructions\",\"fresh\":true}\n";
        assert_eq!(executable(messages), Some("/target/release/examples/instructions".into()));
        assert_eq!(executable("{\"executable\":null}\n"), None);
    }
}
