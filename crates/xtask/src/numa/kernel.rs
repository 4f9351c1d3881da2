//! The kernel to boot: where it is found, and how it is got.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{describe, execute, output};
use crate::error::Error;

/// The variable that names a kernel.
const VARIABLE: &str = "BURSAR_NUMA_KERNEL";
/// The package that depends on the newest kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// Returns the kernel that the variable names, or the one that was fetched.
pub(super) fn find(folder: &Path) -> Result<PathBuf, Error> {
    find_named(std::env::var_os(VARIABLE).map(PathBuf::from), folder)
}

/// A kernel that was named and is not there is a mistake; one that was never fetched is not.
fn find_named(named: Option<PathBuf>, folder: &Path) -> Result<PathBuf, Error> {
    let is_named = named.is_some();
    let path = named.unwrap_or_else(|| folder.join("vmlinuz"));
    match (path.is_file(), is_named) {
        (true, _) => Ok(path),
        (false, true) => Err(Error::Fetch { what: format!("{VARIABLE} names {}, which is no file", path.display()) }),
        (false, false) => {
            let remedy = format!("run `cargo xtask numa fetch`, or name one in {VARIABLE}");
            Err(Error::NotRun { reason: format!("there is no kernel at {}; {remedy}", path.display()) })
        }
    }
}

/// Downloads Debian's package, and keeps the kernel of it.
pub(super) fn fetch(folder: &Path) -> Result<(), Error> {
    let work = folder.join(format!("fetch-{}", std::process::id()));
    fs::create_dir_all(&work).map_err(|source| Error::Write { path: work.clone(), source })?;
    let fetched = fetch_into(folder, &work);
    let removed = fs::remove_dir_all(&work).map_err(|source| Error::Write { path: work, source });
    fetched.and(removed)
}

fn fetch_into(folder: &Path, work: &Path) -> Result<(), Error> {
    let mut depends = Command::new("apt-cache");
    depends.args(["depends", PACKAGE]);
    let listed = output(&mut depends)?;
    let package = depended_on(&listed).ok_or_else(|| Error::Fetch {
        what: format!("`{}` names no kernel: this needs Debian's packages", describe(&depends)),
    })?;
    execute(Command::new("apt-get").args(["download", "-q", package]).current_dir(work))?;
    let archive = find_below(work, "linux-image-")?;
    execute(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(".").current_dir(work).stdin(Stdio::null()))?;
    let kernel = find_below(&work.join("boot"), "vmlinuz-")?;
    let target = folder.join("vmlinuz");
    fs::rename(&kernel, &target).map_err(|source| Error::Write { path: target.clone(), source })?;
    println!("{} is from {package}", target.display());
    Ok(())
}

/// Returns the package after `Depends:` in the output of `apt-cache depends`.
fn depended_on(listed: &str) -> Option<&str> {
    listed
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| name.starts_with("linux-image-"))
}

/// Returns the file in a folder whose name begins with `prefix`.
fn find_below(folder: &Path, prefix: &str) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).map_err(|source| Error::Read { path: folder.to_owned(), source })?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .ok_or_else(|| Error::Fetch { what: format!("there is no {prefix}… in {}", folder.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_package_depends_on() {
        let listed = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-54-cloud-amd64\n  Suggests: x\n";
        assert_eq!(depended_on(listed), Some("linux-image-6.1.0-54-cloud-amd64"));
        assert_eq!(depended_on(""), None);
    }

    #[test]
    fn a_kernel_that_is_not_there_says_how_to_get_it() {
        let error = find_named(None, Path::new("/no/such/folder")).unwrap_err();
        assert!(matches!(error, Error::NotRun { .. }), "{error}");
        assert!(error.to_string().contains("cargo xtask numa fetch"), "{error}");
        let error = find_named(Some("/no/such/kernel".into()), Path::new("/")).unwrap_err();
        assert!(matches!(error, Error::Fetch { .. }), "one that was named is missed: {error}");
    }
}
