//! A folder, a simulated device that its processes share, and a share of it for a program.

use bursar_core::{Bytes, DeviceContext, DeviceId};
use bursar_ledger::{Delegation, Ledger, Subject};
use bursar_sim::{Sim, SimDevices};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder and a device of 8 GiB of their own.
pub(crate) struct Scene {
    pub(crate) folder: PathBuf,
    devices: String,
    pub(crate) ledger: Ledger,
    /// The device as the driver itself sees it.
    pub(crate) driver: Arc<Sim>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("enforce-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(format!("bursar-{name}"));
        fs::DirBuilder::new().mode(0o700).create(&folder).expect("a temporary folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            symlink(library("bursar_libcuda"), folder.join(name)).expect("a link");
        }
        let devices = format!("1x8GiB@{name}");
        let described: SimDevices = devices.parse().expect("a description");
        let driver = described.builder().immediate().build();
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let ledger = Ledger::open_in(&folder, &Subject::device(context.facts())).expect("a ledger");
        Self { folder, devices, ledger, driver }
    }

    /// Sets memory aside for a program.
    pub(crate) fn share(&self, bytes: Bytes) -> Delegation {
        self.ledger.reserve(bytes).and_then(|reservation| reservation.delegate()).expect("8 GiB are there")
    }

    /// Asserts that nothing of a share is held by anybody.
    pub(crate) fn assert_returned(&self, share: &Delegation) {
        self.ledger.available().expect("a ledger");
        assert_eq!((share.held(), share.undrawn()), (Bytes::ZERO, share.bytes()));
    }

    /// Returns a command that finds the simulated driver and has the library loaded before it.
    pub(crate) fn command(&self, program: &Path, share: &Delegation) -> Command {
        let mut command = self.bare(program);
        command.env("LD_PRELOAD", library("bursar_enforce")).env("BURSAR_RESERVATION", share.token());
        command
    }

    /// Starts this program again under a share, to run an ignored test of this name, and asserts that it passes.
    pub(crate) fn plays(&self, test: &str, share: &Delegation, more: impl FnOnce(&mut Command) -> &mut Command) {
        let mut command = self.command(&std::env::current_exe().expect("a program"), share);
        let output = runs(more(command.args(["--exact", test, "--ignored", "--nocapture"])));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{test} was not run: {output:?}");
    }

    /// Returns a command that finds the simulated driver.
    pub(crate) fn bare(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("BURSAR_SIM_DEVICES", &self.devices);
        command.env("LD_LIBRARY_PATH", &self.folder).env("DRIVER", self.folder.join("libcuda.so.1"));
        command
            .env_remove("BURSAR_RESERVATION")
            .env_remove("BURSAR_RESERVATION_SHARED")
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a shared object that cargo has built for these tests.
pub(crate) fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program");
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(format!("lib{name}.so"))).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("cargo builds lib{name}.so beside {}", own.display()))
}

/// Compiles one of the programs in C beside these tests, with more options; each once.
pub(crate) fn program(name: &str, options: &[&str]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let source = sources.join(name);
    let mut hasher = DefaultHasher::new();
    let texts = [fs::read(&source).expect("a program"), fs::read(sources.join("driver.h")).expect("a header")];
    (texts, options).hash(&mut hasher);
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{:016x}", hasher.finish()));
    if !built.exists() {
        let number = NUMBER.fetch_add(1, Relaxed);
        let draft = built.with_extension(format!("{}-{number}", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-g", "-Wall", "-Wno-unused", "-pthread"]).arg(&source).arg("-o").arg(&draft).arg("-ldl");
        let compiled = compiler.args(options).output().expect("a C compiler, which Rust needs to link");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        fs::rename(&draft, &built).expect("a program");
    }
    built
}

/// Runs a command and asserts that it ends well.
pub(crate) fn runs(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}
