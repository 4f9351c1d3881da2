//! Finding the driver's library. A machine without one is an ordinary error.
#![allow(unsafe_code)]

use crate::Version;
use crate::raw::sys::CUDA_ERROR_NO_DEVICE;
use crate::raw::{self, Api, Failure};
use libloading::Library;
use std::error::Error;
use std::sync::atomic::AtomicBool;

/// The names of the driver's library; the one that its packages always install comes first.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The reason why there is no CUDA driver to use.
///
/// ```
/// use bursar::cuda::LoadError;
///
/// let error = LoadError::NotFound {
///     looked_for: &["libcuda.so.1", "libcuda.so"],
///     loader: "no such file".into(),
/// };
/// assert_eq!(error.to_string(), "no CUDA driver: looked for libcuda.so.1, libcuda.so");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The driver's library does not exist, or cannot be loaded.
    #[error("no CUDA driver: looked for {}", looked_for.join(", "))]
    NotFound {
        /// The names that were searched for, on the loader's own path.
        looked_for: &'static [&'static str],
        /// The loader's message about the first of them.
        loader: String,
    },
    /// The driver lacks functions that are called here.
    #[error("the CUDA driver is too old: it supports CUDA {version}, and {needed} is needed")]
    TooOld {
        /// The version that it supports.
        version: Version,
        /// The least version required.
        needed: Version,
    },
    /// The library lacks a function.
    #[error("the CUDA driver is incomplete: it has no {symbol}")]
    Incomplete {
        /// The first function that is missing.
        symbol: &'static str,
    },
    /// The driver cannot be used.
    #[error("the CUDA driver cannot be used: {call} returned {name} ({code})")]
    InitFailed {
        /// The call that failed.
        call: &'static str,
        /// The driver's number of the error.
        code: i32,
        /// The driver's name of the error.
        name: &'static str,
    },
    /// The driver works and has no device for this process.
    #[error("no CUDA device{}", match visible {
        Some(devices) => format!(" among those that CUDA_VISIBLE_DEVICES={devices:?} leaves"),
        None => String::new(),
    })]
    NoDevice {
        /// The value of `CUDA_VISIBLE_DEVICES`, where it is set.
        visible: Option<String>,
    },
}

/// Loads the library and finds every function in it. None of them is called once `exiting` is set.
pub(crate) fn load(exiting: &'static AtomicBool) -> Result<(Api, Version), LoadError> {
    let library = open(NAMES)?;
    let incomplete = |symbol| LoadError::Incomplete { symbol };
    // A library without a version, such as the stub that programs are linked against, fails in `cuInit` with a reason.
    let number = raw::driver_version(&library).map_err(incomplete)?;
    let version = Version::from_number(number.unwrap_or_default());
    if number.is_some() && version < Version::NEEDED {
        let needed = Version::NEEDED;
        return Err(LoadError::TooOld { version, needed });
    }
    let api = Api::find(&library, exiting).map_err(incomplete)?;
    // The functions, and the names of errors, are used for as long as the process lives.
    std::mem::forget(library);
    Ok((api, version))
}

fn open(names: &'static [&'static str]) -> Result<Library, LoadError> {
    let mut loader = None;
    for &name in names {
        // SAFETY: the driver's library may be loaded at any time, on any thread.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => loader = loader.or_else(|| Some(loader_message(&error))),
        }
    }
    Err(LoadError::NotFound { looked_for: names, loader: loader.unwrap_or_default() })
}

/// Returns the loader's own message, where it has one.
fn loader_message(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

pub(crate) fn init_failed(api: &Api, failure: Failure) -> LoadError {
    match failure.code {
        CUDA_ERROR_NO_DEVICE => no_device(),
        code => LoadError::InitFailed {
            call: failure.call,
            code,
            name: api.error_name(code).unwrap_or("an error without a name"),
        },
    }
}

pub(crate) fn no_device() -> LoadError {
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    LoadError::NoDevice { visible: visible.map(|devices| devices.to_string_lossy().into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_the_loader_said() {
        let error = open(&["libbursar-absent.so.1", "libbursar-absent.so"]).unwrap_err();
        assert_eq!(error.to_string(), "no CUDA driver: looked for libbursar-absent.so.1, libbursar-absent.so");
        assert!(matches!(error, LoadError::NotFound { loader, .. } if loader.contains("libbursar-absent.so.1")));
    }

    #[test]
    fn a_library_that_is_not_the_driver_is_incomplete() {
        let libc = open(&["libc.so.6"]).unwrap();
        assert_eq!(raw::driver_version(&libc), Err("cuDriverGetVersion"));
        assert_eq!(Api::find(&libc, &crate::exit::EXITING).err(), Some("cuGetErrorName"));
    }

    #[test]
    fn versions_are_read_as_the_driver_writes_them() {
        assert_eq!(Version::from_number(13000).to_string(), "13.0");
        assert_eq!(Version::from_number(12020), Version::NEEDED);
        assert!(Version::from_number(12010) < Version::NEEDED);
        assert!(Version::from_number(0) < Version::NEEDED);
    }

    #[test]
    fn d1_no_device_says_which_variable_hides_them() {
        let shown = |visible: Option<&str>| {
            let visible = visible.map(str::to_owned);
            LoadError::NoDevice { visible }.to_string()
        };
        assert_eq!(shown(None), "no CUDA device");
        assert_eq!(shown(Some("")), "no CUDA device among those that CUDA_VISIBLE_DEVICES=\"\" leaves");
    }
}
