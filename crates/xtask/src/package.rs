//! Packages the crates and uses them as somebody else's workspace would: nothing but what was packaged is within its reach.
//!
//! `cargo package` writes an archive for each crate that is published. They are unpacked beside a workspace of their user
//! (`user.rs`), which takes every crate of ours from there. In it the README's program is built and run, and prints what
//! the README says; the command is compiled, and Bursar is compiled beside cudarc with different version features.
//!
//! Nothing is downloaded but what the workspace itself needs and is not there yet. The user's workspace has the lock file of
//! this one, so that cargo finds what it has already fetched.

mod user;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{cargo, describe, execute, output, target_folder};
use crate::error::Error;
use crate::tree::{File, Tree};
use user::{Packaged, User};

/// Packages the crates that are published, and builds and runs their user.
pub(crate) fn run(root: &Path) -> Result<(), Error> {
    let tree = Tree::read(root)?;
    let published: Vec<&str> = published(&tree).collect();
    let folder = root.join(target_folder()).join("packaged");
    let (archives, home) = (folder.join("archives"), folder.join("user"));
    for stale in [&archives, &home] {
        remove(stale)?;
    }
    fetch(root)?;
    execute(&mut package(root, &archives, &published))?;
    let packaged = unpack(&archives.join("package"), &home.join("crates"), &published)?;
    let user = User::new(text(&tree, "README.md")?, text(&tree, "Cargo.toml")?, packaged)?;
    for (path, text) in user.files() {
        write(&home.join(path), &text)?;
    }
    write(&home.join("Cargo.lock"), text(&tree, "Cargo.lock")?)?;
    let target = folder.join("target");
    user.judge(&output(&mut user.run(&home, &target))?)?;
    user.checks(&home, &target).iter_mut().try_for_each(execute)
}

/// Returns the packages that do not say `publish = false`.
fn published(tree: &Tree) -> impl Iterator<Item = &str> {
    tree.packages_with("Cargo.toml").filter(|package| {
        let manifest = tree.manifest(package);
        manifest.is_some_and(|manifest| !manifest.text.lines().any(|line| line == "publish = false"))
    })
}

/// Downloads what the workspace needs and is not there yet. Where all of it is there, nothing is asked for.
fn fetch(root: &Path) -> Result<(), Error> {
    let mut version = cargo(root, ["--version", "--verbose"]);
    let output = version.output().map_err(|source| Error::Start { command: describe(&version), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    let mut command = cargo(root, ["fetch", "--quiet"]);
    execute(command.args(host.map(|host| format!("--target={host}"))))
}

/// Returns the command that packages the crates. It does not build them, since their user does.
fn package(root: &Path, archives: &Path, published: &[&str]) -> Command {
    let mut command = cargo(root, ["package", "--quiet", "--no-verify", "--offline", "--allow-dirty", "--target-dir"]);
    command.arg(archives);
    command.args(published.iter().flat_map(|package| ["--package", package]));
    command
}

/// Unpacks the archive of each package into a folder below `crates`.
fn unpack(archives: &Path, crates: &Path, published: &[&str]) -> Result<Vec<Packaged>, Error> {
    create(crates)?;
    let entries = fs::read_dir(archives).map_err(|source| Error::Read { path: archives.into(), source })?;
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut packaged = Vec::new();
    for package in published {
        let found = names.iter().find_map(|name| Packaged::named(package, name));
        let found = found.ok_or_else(|| Error::Package { what: format!("cargo made no archive of {package}") })?;
        // Archives carry one fixed time for every file, by which cargo would not notice what has changed.
        let mut command = Command::new("tar");
        command.args(["-x", "-z", "-m", "-f"]).arg(archives.join(found.archive())).arg("-C").arg(crates);
        run_quietly(&mut command)?;
        packaged.push(found);
    }
    Ok(packaged)
}

fn run_quietly(command: &mut Command) -> Result<(), Error> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Exit { command: describe(command), status }),
        Err(source) => Err(Error::Start { command: describe(command), source }),
    }
}

fn text<'a>(tree: &'a Tree, path: &str) -> Result<&'a str, Error> {
    let file: Option<&File> = tree.get(path);
    file.map(|file| file.text.as_str()).ok_or_else(|| Error::Package { what: format!("there is no {path}") })
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(source) if path.exists() => Err(Error::Write { path: path.into(), source }),
        _ => Ok(()),
    }
}

fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}

fn write(path: &PathBuf, text: &str) -> Result<(), Error> {
    path.parent().map_or(Ok(()), create)?;
    fs::write(path, text).map_err(|source| Error::Write { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j2_what_is_not_published_is_not_packaged() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/tool/Cargo.toml", "[package]\nname = \"tool\"\npublish = false\n"),
        ];
        let tree = Tree::from_texts(files);
        let published: Vec<&str> = published(&tree).collect();
        assert_eq!(published, ["a"]);
        let line = describe(&package(Path::new("."), Path::new("archives"), &published));
        assert!(line.ends_with("--target-dir archives --package a"), "{line}");
    }
}
