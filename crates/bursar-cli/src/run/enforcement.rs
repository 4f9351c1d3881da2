//! The library that is preloaded into workers and keeps them inside their shares of a device.

use super::supervisor::RunFailure;
use crate::program::{LIBRARY, Program};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The environment variable that names the library.
pub(super) const VARIABLE: &str = "BURSAR_ENFORCE_LIBRARY";
/// The environment variable from which the loader takes libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";

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

    /// Finds the library: the one that the environment names, or else that of the program.
    pub(super) fn find(program: &Program) -> Result<Self, RunFailure> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self::among(named.map_or_else(|| program.libraries(), |named| vec![named]))
    }

    fn among(candidates: Vec<PathBuf>) -> Result<Self, RunFailure> {
        let Some(found) = candidates.iter().find(|path| path.is_file()) else {
            return Err(RunFailure::NoLibrary { looked_for: candidates });
        };
        let found = std::path::absolute(found).unwrap_or_else(|_| found.clone());
        if found.as_os_str().as_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
            return Err(RunFailure::LibraryPath { library: found });
        }
        let checked = std::fs::read(&found).map_err(|error| format!("it cannot be read: {error}"));
        match checked.and_then(|file| check(&file).map_err(str::to_owned)) {
            Ok(()) => Ok(Self { library: Some(found) }),
            Err(what) => Err(RunFailure::NotTheLibrary { library: found, what }),
        }
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
        let others =
            inherited.filter(|path| !path.is_empty() && Path::new(path).file_name() != Some(OsStr::new(LIBRARY)));
        let all: Vec<&OsStr> = self.library.iter().map(|library| library.as_os_str()).chain(others).collect();
        all.join(OsStr::new(":"))
    }
}

/// Checks that a file is the library, whole and for this machine. The loader only warns of one that it cannot load, and a worker
/// would run without it.
fn check(file: &[u8]) -> Result<(), &'static str> {
    /// A function that the library exports, as its table of names has it.
    const EXPORTED: &[u8] = b"\0bursar_enforce_function\0";
    const SHARED_OBJECT: u16 = 3;
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let number = |at: usize, length: usize| {
        let bytes = file.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte)))
    };
    if file.is_empty() {
        return Err("it is empty");
    }
    if !file.starts_with(b"\x7fELF") {
        return Err("it is not a shared object");
    }
    // 64 bits, and the byte of least worth first.
    if file.get(4..6) != Some(&[2, 1]) || number(18, 2) != Some(machine.into()) {
        return Err("it is for another machine");
    }
    if number(16, 2) != Some(SHARED_OBJECT.into()) {
        return Err("it is not a shared object");
    }
    // The table of sections is the last part of a file.
    let sections = number(40, 8).zip(number(58, 2)).zip(number(60, 2));
    let end = sections.and_then(|((start, size), count)| start.checked_add(size * count));
    if end.is_none_or(|end| end > file.len() as u64) {
        return Err("it is not whole");
    }
    if !file.windows(EXPORTED.len()).any(|part| part == EXPORTED) {
        return Err("it is another library");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
