//! Starts child processes and describes their commands.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Returns a command of the cargo that runs this program, in the workspace's folder.
pub(crate) fn cargo<const N: usize>(root: &Path, args: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root);
    command
}

/// Returns cargo's target folder, relative to the workspace's folder.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()).into()
}

/// Prints the command and runs it.
pub(crate) fn execute(command: &mut Command) -> Result<(), Error> {
    let line = describe(command);
    println!("$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Exit { command: line, status }),
        Err(source) => Err(Error::Start { command: line, source }),
    }
}

/// Runs a command and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String, Error> {
    let line = describe(command);
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(Error::Exit { command: line, status: output.status }),
        Err(source) => Err(Error::Start { command: line, source }),
    }
}

/// Returns the command as a person would type it in the workspace's folder.
pub(crate) fn describe(command: &Command) -> String {
    let quoted = |word: &OsStr| match word.to_string_lossy() {
        word if word.contains(' ') => format!("\"{word}\""),
        word => word.into_owned(),
    };
    let variables =
        command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.display(), quoted(value?))));
    let args = command.get_args().map(quoted);
    let program = Path::new(command.get_program()).file_name().map(quoted).unwrap_or_default();
    let words: Vec<String> = variables.chain([program]).chain(args).collect();
    words.join(" ")
}

/// Makes a folder for ledgers in another, and returns it: nobody else can write to it, and it has none of an earlier version of Bursar.
pub(crate) fn new_ledger_folder(parent: &Path) -> Result<PathBuf, Error> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = parent.join("ledgers");
    remove(&folder)?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|source| Error::Write { path: folder.clone(), source })?;
    Ok(folder)
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(source) if folder.exists() => Err(Error::Write { path: folder.into(), source }),
        _ => Ok(()),
    }
}
