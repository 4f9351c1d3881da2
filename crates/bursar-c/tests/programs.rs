//! Y1 as programs in C see it: the example and the programs in `programs/`, compiled with every warning an error, on simulated
//! devices and behind the simulated `libcuda.so.1`.

use bursar::device::DeviceContext;
use bursar::driver::SimDevices;
use bursar::ledger::{Ledger, Subject};
use bursar::{Bytes, DeviceId};
// Has cargo build the shared objects beside this test.
use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use {bursar_c as _, bursar_libcuda as _};

/// The names under which programs look for the driver and for NVML.
const DRIVER_NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// A folder with the libraries that a program finds.
struct Scene {
    folder: PathBuf,
}

impl Scene {
    /// Makes a folder of this name with `libbursar.so.0`.
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bursar-c-{name}-{}", std::process::id()));
        // What an earlier run has left.
        let _ = fs::remove_dir_all(&folder);
        fs::DirBuilder::new().mode(0o700).create(&folder).expect("a temporary folder");
        symlink(built("libbursar_c.so"), folder.join("libbursar.so.0")).expect("a link");
        Self { folder }
    }

    /// Puts the simulated driver where programs find it.
    fn with_driver(self) -> Self {
        for name in DRIVER_NAMES {
            symlink(built("libbursar_libcuda.so"), self.folder.join(name)).expect("a link");
        }
        self
    }

    /// Compiles a program with `compiler`, and more options.
    fn compile(&self, compiler: &[&str], source: &str, more: &[&str]) -> PathBuf {
        let (crate_folder, program) = (Path::new(env!("CARGO_MANIFEST_DIR")), self.folder.join("program"));
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-pthread"]);
        command.arg("-I").arg(crate_folder.join("include")).arg("-o").arg(&program).arg(crate_folder.join(source));
        command.arg(self.folder.join("libbursar.so.0")).args(more);
        let compiled = command.current_dir(&self.folder).output().expect("Rust needs a C compiler to link");
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        program
    }

    /// Returns a program that finds the libraries of this folder and none of this process's settings.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let set = std::env::vars_os().map(|(name, _)| name);
        set.filter(|name| name.to_string_lossy().starts_with("BURSAR_")).for_each(|name| {
            command.env_remove(name);
        });
        command.env_remove("CUDA_VISIBLE_DEVICES").current_dir(&self.folder);
        command.env("LD_LIBRARY_PATH", &self.folder).env("BURSAR_LEDGER_DIR", &self.folder);
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a shared object that cargo has built for this test.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("cargo builds {name} beside {}", own.display()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program and returns what it printed.
fn succeeded(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    assert!(status.success(), "{command:?}: {status}\n{}{}", text(&stdout), text(&stderr));
    text(&stdout)
}

const C99: &[&str] = &["cc", "-std=c99"];
/// C with what POSIX adds.
const GNU11: &[&str] = &["cc", "-std=gnu11"];

#[test]
fn y1_the_example_runs_on_simulated_devices() {
    let scene = Scene::new("example");
    let program = scene.compile(C99, "examples/first-budget.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim"));
    assert!(said.starts_with("simulated: the first of 2 device(s) is Simulated GPU with 80 GiB\n"), "{said}");
    assert!(said.contains("refused: BURSAR_OUT_OF_BUDGET, 2.0 GiB requested, 1.0 GiB of 16.0 GiB left\n"), "{said}");
    assert!(said.contains("freeing `kv-cache` (3 GiB) would have been enough\n"), "{said}");
    assert!(said.ends_with("14 GiB in 2 blocks, 1 refused\nall closed\n"), "{said}");
}

#[test]
fn y1_the_example_runs_on_cuda_behind_the_simulated_library() {
    let scene = Scene::new("example-cuda").with_driver();
    let program = scene.compile(C99, "examples/first-budget.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_SIM_DEVICES", "1x40GiB"));
    assert!(said.starts_with("CUDA: the first of 1 device(s) is "), "{said}");
    assert!(said.ends_with("14 GiB in 2 blocks, 1 refused\nall closed\n"), "{said}");
}

#[test]
fn y1_a_null_a_stale_handle_another_kind_and_a_wrong_size_are_errors_in_every_call() {
    let scene = Scene::new("wrong");
    let program = scene.compile(C99, "tests/programs/wrong.c", &[]);
    assert_eq!(succeeded(&mut scene.command(&program)), "all refused\n");
}

#[test]
fn y1_reservations_wait_time_out_and_are_cancelled() {
    let scene = Scene::new("waiting");
    let program = scene.compile(C99, "tests/programs/waiting.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", "1x1GiB"));
    assert_eq!(said, "all granted, refused and cancelled\n");
}

#[test]
fn y1_a_worker_draws_on_the_share_that_it_was_given() {
    let scene = Scene::new("share");
    let devices = format!("1x1GiB@bursar-c-share-{}", std::process::id());
    let described: SimDevices = devices.parse().expect("a description");
    let context = DeviceContext::open(described.builder().immediate().build(), DeviceId(0)).expect("a device");
    let ledger = Ledger::open_in(&scene.folder, &Subject::device(context.facts())).expect("a ledger");
    let share = ledger.reserve(Bytes::mib(64)).and_then(|reserved| reserved.delegate()).expect("1 GiB is there");
    let program = scene.compile(C99, "tests/programs/waiting.c", &[]);
    let mut command = scene.command(&program);
    command.env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", &devices).env("BURSAR_RESERVATION", share.token());
    assert_eq!(succeeded(&mut command), "a share of 64 MiB\nall granted, refused and cancelled\n");
    ledger.available().expect("a ledger");
    assert_eq!((share.held(), share.undrawn()), (Bytes::ZERO, Bytes::mib(64)), "and has returned it");
}

/// Runs a program that calls the simulated driver itself with a few seeds, and has the driver say what it holds for a mistake.
fn runs_without_hazards(name: &str, source: &str, says: &str) {
    let scene = Scene::new(name).with_driver();
    let driver = scene.folder.join("libcuda.so.1");
    let program = scene.compile(C99, source, &[driver.to_str().expect("a path")]);
    let hazards = scene.folder.join("hazards");
    for seed in 0..5 {
        let mut command = scene.command(&program);
        command.env("BURSAR_SIM_DEVICES", "1x1GiB").env("BURSAR_SEED", seed.to_string());
        assert_eq!(succeeded(command.env("BURSAR_HAZARDS", &hazards)), says, "seed {seed}");
        assert_eq!(fs::read_to_string(&hazards).expect("it is made"), "", "seed {seed}");
    }
}

#[test]
fn y1_memory_follows_the_streams_of_a_program_that_uses_the_driver_itself() {
    runs_without_hazards("driver", "tests/programs/driver.c", "all in order\n");
}

#[test]
fn y1_graphs_that_a_program_captures_itself_have_memory_that_stays() {
    runs_without_hazards("graphs", "tests/programs/graphs.c", "all replayed\n");
}

#[test]
fn z5_memory_sleeps_and_wakes_as_a_program_in_c_sees_it() {
    let scene = Scene::new("sleep").with_driver();
    let driver = scene.folder.join("libcuda.so.1");
    let program = scene.compile(C99, "tests/programs/sleep.c", &[driver.to_str().expect("a path")]);
    assert_eq!(succeeded(scene.command(&program).env("BURSAR_SIM_DEVICES", "1x64MiB")), "asleep and awake\n");
}

#[test]
fn y1_the_last_handle_of_a_device_ends_no_call_and_leaves_no_memory_behind() {
    let scene = Scene::new("devices").with_driver();
    let driver = scene.folder.join("libcuda.so.1");
    let program = scene.compile(GNU11, "tests/programs/devices.c", &[driver.to_str().expect("a path")]);
    let run =
        |command: &mut Command| assert_eq!(succeeded(command.env("BURSAR_SIM_DEVICES", "1x8GiB")), "all came back\n");
    run(&mut scene.command(&program));
    (0..3).for_each(|seed| run(scene.command(&program).env("BURSAR_SEED", seed.to_string())));
}

#[test]
fn y1_threads_allocate_and_free_while_they_end() {
    let scene = Scene::new("threads");
    let program = scene.compile(C99, "tests/programs/threads.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim"));
    assert_eq!(said, "all threads ended\n");
}

#[test]
fn y1_a_process_that_is_forked_off_during_calls_is_told_so_by_every_call() {
    let scene = Scene::new("fork");
    // The devices that processes share have locks of their own.
    let named = format!("1x1GiB@bursar-c-fork-{}", std::process::id());
    let program = scene.compile(GNU11, "tests/programs/fork.c", &[]);
    for devices in ["1x1GiB", &named] {
        let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", devices));
        assert_eq!(said, "all children were told\n", "{devices}");
    }
}

#[test]
fn y1_handles_close_in_any_order_and_a_stack_still_has_its_device() {
    let scene = Scene::new("order");
    let program = scene.compile(C99, "tests/programs/order.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim"));
    assert_eq!(said, "all in any order\n");
}

#[test]
fn y1_closing_a_stream_waits_for_threads_that_synchronize_with_it() {
    let scene = Scene::new("synchronize").with_driver();
    let driver = scene.folder.join("libcuda.so.1");
    let program = scene.compile(GNU11, "tests/programs/synchronize.c", &[driver.to_str().expect("a path")]);
    let mut command = scene.command(&program);
    command.env("BURSAR_SIM_DEVICES", "1x1GiB").env("BURSAR_SEED", "0");
    assert_eq!(succeeded(&mut command), "closed after the wait\n");
}

#[test]
fn y1_a_program_ends_with_everything_open_and_threads_inside_calls() {
    let scene = Scene::new("ends");
    let program = scene.compile(GNU11, "tests/programs/ends.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", "1x1GiB"));
    assert_eq!(said, "at exit\nin a destructor\n");
}

#[test]
fn y1_a_reservation_is_granted_when_the_process_that_holds_it_is_killed() {
    let scene = Scene::new("killed");
    let devices = format!("1x1GiB@bursar-c-killed-{}", std::process::id());
    let program = scene.compile(GNU11, "tests/programs/killed.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", &devices));
    assert_eq!(said, "granted when the holder was killed\n");
}

#[test]
fn l4_a_request_in_c_waits_no_longer_than_it_was_told_while_a_stopped_process_has_the_lock() {
    let scene = Scene::new("stuck");
    let devices = format!("1x1GiB@bursar-c-stuck-{}", std::process::id());
    let program = scene.compile(GNU11, "tests/programs/stuck.c", &[]);
    let said = succeeded(scene.command(&program).env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", &devices));
    assert_eq!(said, "nothing waited\n");
}

#[test]
fn y1_the_library_exports_its_calls_and_nothing_else() {
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/bursar.h")).expect("a header");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(built("libbursar_c.so")).output();
    let listed = text(&listed.expect("binutils, which Rust needs to link").stdout);
    let exported: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(exported.len() > 30, "{listed}");
    for name in exported {
        assert!(header.contains(&format!("{name}(")), "{name} is exported and not in the header");
    }
}
