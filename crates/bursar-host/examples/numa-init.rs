//! The first process of the virtual machine that `cargo xtask numa` boots: it runs programs and reports how each ended.
//!
//! Its argument is a word that it puts before each of its lines, so that nothing a program prints can be taken for one of them. It
//! runs the programs listed in `/programs`, one after another, with their output on the second serial port, and powers the
//! machine off. The kernel's own messages go to the first port.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::CString;
use std::fs::{File, OpenOptions, create_dir_all, read_to_string};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The port of the programs' output and of the report.
const REPORT: &str = "/dev/ttyS1";
/// The kernel's file systems, and where they are mounted.
const MOUNTS: [(&str, &str); 5] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", "/sys/fs/cgroup"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")];
/// What the programs are told: the nodes must be there, and storms are short, since an emulated machine is slow.
const VARIABLES: [(&str, &str); 4] =
    [("BURSAR_REQUIRE_NODES", "1"), ("BURSAR_CANCELLATIONS", "500"), ("BURSAR_DRIVER", "sim"), ("HOME", "/tmp")];
/// The time after which the machine powers itself off, whatever still runs: nobody may be left outside to do it.
const LIMIT: Duration = Duration::from_secs(900);

fn main() {
    assert_eq!(std::process::id(), 1, "this is the first process of a virtual machine; see `cargo xtask numa --help`");
    std::thread::spawn(|| {
        std::thread::sleep(LIMIT);
        power_off();
    });
    if let Err(error) = run() {
        // The kernel's console is what is left to say it on; the missing report is the failure.
        let _ = writeln!(std::io::stderr(), "numa-init: {error}");
    }
    power_off();
}

fn run() -> Result<(), Box<dyn Error>> {
    for (kind, folder) in MOUNTS {
        mount(kind, folder)?;
    }
    let word = std::env::args().nth(1).ok_or("there is no word to report with")?;
    let mut report = OpenOptions::new().write(true).open(REPORT)?;
    let mut count = 0;
    for path in read_to_string("/programs")?.lines() {
        writeln!(report, "{word} begin {path}")?;
        let status = start(path, &report)?;
        writeln!(report, "{word} end {path} {status}")?;
        count += 1;
    }
    writeln!(report, "{word} done {count}")?;
    Ok(())
}

/// Runs a program and returns its exit status, or its signal as a negative number.
fn start(path: &str, output: &File) -> Result<i32, Box<dyn Error>> {
    use std::os::unix::process::ExitStatusExt as _;
    let mut command = Command::new(path);
    command.envs(VARIABLES);
    command
        .args(["--color", "never"])
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?);
    let status = command.status().map_err(|error| format!("cannot start {path}: {error}"))?;
    Ok(status.code().or(status.signal().map(|signal| -signal)).unwrap_or(i32::MIN))
}

/// Mounts a file system of the kernel's.
fn mount(kind: &str, folder: &str) -> Result<(), Box<dyn Error>> {
    create_dir_all(folder)?;
    let (kind, folder) = (CString::new(kind)?, CString::new(folder)?);
    // SAFETY: all strings end with a zero, and file systems of these kinds take no data.
    let mounted = unsafe { libc::mount(kind.as_ptr(), folder.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    if mounted == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

fn power_off() -> ! {
    // SAFETY: waits until what was written has reached its device.
    unsafe { libc::sync() };
    // SAFETY: the machine is ours alone; its end is what is asked for.
    let refused = unsafe { libc::reboot(libc::RB_POWER_OFF) };
    // The first process may not return: the kernel panics, which ends the machine as well.
    panic!("the machine cannot be powered off: {refused}")
}
