//! The library that is preloaded into workers and keeps them inside their shares of a device.

use super::supervisor::RunFailure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The environment variable that names the library.
pub(super) const VARIABLE: &str = "BURSAR_ENFORCE_LIBRARY";
/// The environment variable from which the loader takes libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";
const FILE: &str = "libbursar_enforce.so";

/// The library for the workers of a run; none where they are not enforced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Enforcement {
    library: Option<PathBuf>,
}

impl Enforcement {
    /// Leaves workers to themselves.
    pub(super) const fn off() -> Self {
        Self { library: None }
    }

    /// Finds the library: the one that the environment names, or else beside this command or where it was installed.
    pub(super) fn find() -> Result<Self, RunFailure> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let command = std::env::current_exe().ok();
        Self::among(candidates(named, command.as_deref()))
    }

    fn among(candidates: Vec<PathBuf>) -> Result<Self, RunFailure> {
        let Some(found) = candidates.iter().find(|path| path.is_file()) else {
            return Err(RunFailure::NoLibrary { looked_for: candidates });
        };
        let found = std::path::absolute(found).unwrap_or_else(|_| found.clone());
        if found.as_os_str().as_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
            return Err(RunFailure::LibraryPath { library: found });
        }
        Ok(Self { library: Some(found) })
    }

    /// Returns the library, if workers are enforced.
    pub(super) fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// Returns the variables that workers need beside those of their share. What else this process has preloaded stays.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let inherited = std::env::var_os(PRELOAD);
        let value = self.preload(inherited.as_deref());
        (inherited.is_some() || !value.is_empty()).then_some((PRELOAD, value)).into_iter().collect()
    }

    /// Returns the libraries to preload: ours first, and of the inherited ones all that are not another copy of it.
    fn preload(&self, inherited: Option<&OsStr>) -> OsString {
        let is_separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
        let inherited = inherited.unwrap_or_default().as_bytes().split(is_separator).map(OsStr::from_bytes);
        let others = inherited.filter(|path| !path.is_empty() && Path::new(path).file_name() != Some(OsStr::new(FILE)));
        let all: Vec<&OsStr> = self.library.iter().map(|library| library.as_os_str()).chain(others).collect();
        all.join(OsStr::new(":"))
    }
}

fn candidates(named: Option<PathBuf>, command: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let folder = command.and_then(Path::parent);
    let installed = folder.and_then(Path::parent).map(|prefix| prefix.join("lib/bursar").join(FILE));
    folder.map(|folder| folder.join(FILE)).into_iter().chain(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_where_it_is_named_or_else_beside_the_command() {
        let command = Path::new("/opt/bursar/bin/bursar");
        assert_eq!(candidates(Some("/x/y.so".into()), Some(command)), [PathBuf::from("/x/y.so")]);
        let beside = ["/opt/bursar/bin/libbursar_enforce.so", "/opt/bursar/lib/bursar/libbursar_enforce.so"];
        assert_eq!(candidates(None, Some(command)), beside.map(PathBuf::from));
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let looked_for = vec![PathBuf::from("/nowhere/libbursar_enforce.so")];
        let error = Enforcement::among(looked_for).unwrap_err().to_string();
        assert!(error.contains("/nowhere/libbursar_enforce.so"), "{error}");
    }

    #[test]
    fn other_preloaded_libraries_stay_and_ours_is_there_once() {
        let ours = Enforcement { library: Some("/a/libbursar_enforce.so".into()) };
        let inherited = OsStr::new("/b/libjemalloc.so:/c/libbursar_enforce.so /d/x.so");
        assert_eq!(ours.preload(Some(inherited)), "/a/libbursar_enforce.so:/b/libjemalloc.so:/d/x.so");
        assert_eq!(ours.preload(None), "/a/libbursar_enforce.so");
        assert_eq!(Enforcement::off().preload(Some(inherited)), "/b/libjemalloc.so:/d/x.so");
        assert_eq!(Enforcement::off().preload(None), "");
    }
}
