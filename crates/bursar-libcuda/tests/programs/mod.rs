//! Programs in C that were never told about Bursar, compiled against the shared object.
#![allow(dead_code, reason = "each test uses a part of it")]

use super::rig;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A program, by the file of its source.
pub(crate) struct Program {
    source: &'static str,
    compiled: OnceLock<(PathBuf, PathBuf)>,
}

impl Program {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// Compiles the program once. Returns it and the folder in which it finds its driver.
    fn compiled(&self) -> &(PathBuf, PathBuf) {
        self.compiled.get_or_init(|| {
            let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libcuda-programs").join(self.source);
            // What an earlier run has left.
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).expect("a folder for this test");
            let library = folder.join("libcuda.so.1");
            symlink(rig::path(), &library).expect("a new folder");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(self.source);
            let program = folder.join("program");
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
            compiler.arg(&program).arg(source).arg(&library);
            let compiled = compiler.output().expect("Rust needs a C compiler to link");
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            (program, folder)
        })
    }

    /// Returns the folder of the program, for its files.
    pub(crate) fn folder(&self) -> &Path {
        &self.compiled().1
    }

    /// Returns the program with these devices and none of this process's settings.
    pub(crate) fn prepared(&self, mode: &str, devices: &str) -> Command {
        let (program, folder) = self.compiled();
        let mut command = Command::new(program);
        for variable in ["BURSAR_SEED", "BURSAR_HAZARDS", "BURSAR_SIM_CONTEXT", "CUDA_VISIBLE_DEVICES"] {
            command.env_remove(variable);
        }
        command.arg(mode).env("LD_LIBRARY_PATH", folder).env("BURSAR_SIM_DEVICES", devices);
        command.env("BURSAR_LEDGER_DIR", folder.join("shared"));
        command
    }
}

/// Returns what a program said that must have succeeded.
pub(crate) fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
