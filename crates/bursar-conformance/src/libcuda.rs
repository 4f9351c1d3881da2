//! The rows of CUDA on a machine without a GPU: the same test program once more, with the simulated `libcuda.so.1` in the
//! place of the driver's.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The environment variable of the process that judges the simulated library.
const VARIABLE: &str = "BURSAR_JUDGE_LIBCUDA";

/// The shared object, as cargo names it.
const LIBRARY: &str = "libbursar_libcuda.so";

/// The names under which programs look for the driver and for NVML.
const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];

/// The library that this process has for CUDA.
///
/// ```
/// use bursar_conformance::CudaLibrary;
///
/// assert_eq!(CudaLibrary::of_this_process().rows(), "cuda");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The driver of the machine, if it has one.
    Driver,
    /// The simulated one, which this process was started with.
    Simulated,
}

impl CudaLibrary {
    /// Returns the library that this process was started with.
    pub fn of_this_process() -> Self {
        if std::env::var_os(VARIABLE).is_some() { Self::Simulated } else { Self::Driver }
    }

    /// Returns the name of its rows.
    pub fn rows(self) -> &'static str {
        match self {
            Self::Driver => "cuda",
            Self::Simulated => "libcuda",
        }
    }

    /// Returns whether its rows are ignored where it cannot be loaded: only a machine that is not meant to have a device
    /// ([`requires_cuda`](crate::requires_cuda)) may be without the driver.
    pub fn may_be_absent(self) -> bool {
        self == Self::Driver && !crate::requires_cuda()
    }

    /// Judges both libraries with the same arguments: this process with the machine's driver, and one that is started first
    /// with the simulated one. `devices` are those of `BURSAR_SIM_DEVICES`. A machine that is meant to have a device
    /// ([`requires_cuda`](crate::requires_cuda)) judges its driver alone.
    ///
    /// The shared object is built by cargo where the test's package depends on `bursar-libcuda`.
    ///
    /// # Panics
    /// Panics if the other process cannot be started.
    pub fn judge_both(devices: &str, judge: impl FnOnce(Self) -> ExitCode) -> ExitCode {
        let this = Self::of_this_process();
        if this == Self::Simulated || crate::requires_cuda() {
            return judge(this);
        }
        let program = std::env::current_exe().expect("a test is a program");
        let mut child = Command::new(&program);
        child.args(std::env::args_os().skip(1)).env(VARIABLE, "1");
        child.env("BURSAR_SIM_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
        let folder = links(&program).expect("links beside the test");
        let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = [folder].into_iter().chain(std::env::split_paths(&others));
        child.env("LD_LIBRARY_PATH", std::env::join_paths(folders).expect("folders without a colon"));
        let simulated = child.status().expect("the same program again");
        let own = judge(this);
        if simulated.success() { own } else { ExitCode::FAILURE }
    }
}

/// Makes the links to the shared object beside a test. Returns their folder.
fn links(program: &Path) -> io::Result<PathBuf> {
    let beside = program.parent().unwrap_or(Path::new("."));
    let library = beside.join(LIBRARY);
    if !library.exists() {
        let why = format!("{} is not there: build bursar-libcuda", library.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let folder = beside.join("libcuda");
    std::fs::create_dir_all(&folder)?;
    for name in NAMES {
        match symlink(Path::new("..").join(LIBRARY), folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_the_rows_of_the_simulated_library_are_never_ignored() {
        assert!(!CudaLibrary::Simulated.may_be_absent());
        assert_eq!(CudaLibrary::Simulated.rows(), "libcuda");
        let program = std::env::current_exe().expect("a test is a program");
        let folder = links(&program).expect("cargo built the shared object beside this test");
        for name in NAMES {
            let library = std::fs::canonicalize(folder.join(name)).expect("a link that leads somewhere");
            assert!(library.ends_with(LIBRARY), "{}", library.display());
        }
        let missing = links(Path::new("/nowhere/test")).unwrap_err();
        assert!(missing.to_string().contains("build bursar-libcuda"), "{missing}");
    }
}
