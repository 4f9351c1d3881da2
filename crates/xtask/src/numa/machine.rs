//! The virtual machine: five NUMA nodes, two serial ports, no disk and no network.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;

/// The machine in words.
pub(super) const DESCRIPTION: &str = "five NUMA nodes: one of 256 MiB, one without memory and one without CPUs";
/// The CPUs and the memory in MiB of each node. The one without CPUs is the last: the kernel numbers nodes with CPUs first.
const NODES: [(Option<&str>, u32); 5] =
    [(Some("0-1"), 1024), (Some("2-3"), 1024), (Some("4-5"), 256), (Some("6"), 0), (None, 1024)];
const CPUS: u32 = 7;
/// The distances between nodes, which are the same both ways. The nearest node is seldom the next one by number, so that an
/// order by number does not pass for one by distance.
const DISTANCES: [(u32, u32, u32); 10] = [
    (0, 1, 31),
    (0, 2, 41),
    (0, 3, 28),
    (0, 4, 21),
    (1, 2, 25),
    (1, 3, 38),
    (1, 4, 17),
    (2, 3, 15),
    (2, 4, 35),
    (3, 4, 40),
];
const PROGRAM: &str = "qemu-system-x86_64";
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the name of QEMU's program, if it is installed and can run programs of this machine.
pub(super) fn qemu() -> Result<String, Error> {
    if std::env::consts::ARCH != "x86_64" || std::env::consts::OS != "linux" {
        let (arch, system) = (std::env::consts::ARCH, std::env::consts::OS);
        let reason =
            format!("the machine runs programs for Linux on x86_64, and those built here are for {system} on {arch}");
        return Err(Error::NotRun { reason });
    }
    let status = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(PROGRAM.to_owned()),
        _ => {
            let reason = format!(
                "{PROGRAM} is not installed; run `apt-get install qemu-system-x86`, or what your system has for it"
            );
            Err(Error::NotRun { reason })
        }
    }
}

/// Returns the command that boots `kernel` with a first file system. The kernel's messages go to the first of `ports`, the
/// output of programs to the second.
pub(super) fn command(qemu: &str, kernel: &Path, initrd: &Path, word: &str, ports: [&Path; 2]) -> Command {
    let mut command = Command::new(qemu);
    let memory: u32 = NODES.iter().map(|(_, mib)| mib).sum();
    // Emulated even where there is KVM: inside another virtual machine that fails in ways of its own.
    command.args(["-accel", "tcg", "-cpu", "max", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-smp", &CPUS.to_string(), "-m", &memory.to_string()]);
    for (index, (cpus, mib)) in NODES.iter().enumerate() {
        let mut node = format!("node,nodeid={index}");
        if *mib > 0 {
            command.args(["-object", &format!("memory-backend-ram,id=m{index},size={mib}M")]);
            node += &format!(",memdev=m{index}");
        }
        if let Some(cpus) = cpus {
            node += &format!(",cpus={cpus}");
        }
        command.args(["-numa", &node]);
    }
    for (from, to, distance) in DISTANCES {
        command.args(["-numa", &format!("dist,src={from},dst={to},val={distance}")]);
    }
    ports.iter().for_each(|port| {
        command.arg("-serial").arg(format!("file:{}", port.display()));
    });
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    // The first file system is unpacked by the first CPU, and so into memory of the first node, not into that of the small
    // one. A panic ends the machine at once. What comes after `--` are the arguments of the first process.
    command.args(["-append", &format!("console=ttyS0 loglevel=4 panic=-1 initramfs_async=0 -- {word}")]);
    command.stdin(Stdio::null());
    command
}

/// Runs the machine until it powers itself off, and ends it if it takes longer than `limit`.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let mut child = Running(command.spawn().map_err(|error| format!("{PROGRAM} cannot be started: {error}"))?);
    let started = Instant::now();
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{PROGRAM} ended with {status}")),
            Ok(None) if started.elapsed() < limit => std::thread::sleep(PAUSE),
            Ok(None) => return Err(format!("the machine took more than {} s", limit.as_secs())),
            Err(error) => return Err(format!("{PROGRAM} cannot be waited for: {error}")),
        }
    }
}

/// A process that does not outlive the wait for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_takes_too_long_is_ended() {
        let why = run(Command::new("sleep").arg("1000"), Duration::ZERO).unwrap_err();
        assert_eq!(why, "the machine took more than 0 s");
    }

    #[test]
    fn a_machine_that_fails_is_no_pass() {
        let why = run(&mut Command::new("false"), Duration::from_secs(60)).unwrap_err();
        assert!(why.contains("exit status: 1"), "{why}");
    }

    #[test]
    fn every_pair_of_nodes_has_a_distance() {
        let pairs = DISTANCES.iter().map(|(from, to, _)| (*from, *to)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(pairs.len(), NODES.len() * (NODES.len() - 1) / 2);
    }
}
