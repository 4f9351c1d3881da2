//! N3: a request that cannot be met is refused with a typed reason, and leaks nothing.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{Bytes, DeviceId, DriverError, Error, Status};
use bursar_host::{
    Errno, HostError, LockedMemory, Machine, MemoryLimit, NumaWorkerPool, PinStep, PinnedKind, StepOutcome, System,
    Topology,
};
use bursar_sim::Sim;
use rig::{Call, Folder, Rig, Tree};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DENIED: Errno = Errno(libc::EPERM);

#[test]
fn n3_zero_bytes_is_an_error_that_says_zero_before_anybody_is_asked() {
    let rig = Rig::new();
    rig.driver.hook(|call, _| panic!("{call} was called"));
    let refused = rig.workers.pin_with(&rig.context, 0, &rig.charged()).wait().unwrap_err();
    assert_eq!(refused, HostError::ZeroBytes);
    assert!(refused.to_string().contains("zero"));
    assert!(rig.system.calls.lock().unwrap().is_empty(), "not even a worker is started");
}

#[test]
fn n3_sizes_that_overflow_are_refused() {
    let rig = Rig::new();
    for bytes in [usize::MAX, isize::MAX as usize] {
        let refused = rig.workers.pin_with(&rig.context, bytes, &rig.charged()).wait();
        assert_eq!(refused.unwrap_err(), HostError::TooLarge { requested: bytes as u64 });
    }
    rig.assert_nothing_is_held();
}

#[test]
fn n3_the_account_refuses_with_its_own_reason() {
    let rig = Rig::new();
    let refused = rig.workers.pin_with(&rig.context, (1 << 30) + 1, &rig.charged()).wait().unwrap_err();
    let HostError::Account { requested, why } = &refused else { panic!("{refused:?}") };
    assert_eq!(*requested, Bytes((1 << 30) + 4096), "what would be held");
    assert!(matches!(why, Error::OutOfBudget { .. }) && refused.is_capacity());
    assert!(rig.system.threads_of(Call::Reserve).is_empty(), "nothing was taken");
    rig.assert_nothing_is_held();
}

#[test]
fn n3_the_machine_and_control_groups_refuse_before_anything_is_touched() {
    let rig = Rig::new();
    let limits = |group: Option<&str>| MemoryLimit {
        group: group.map(PathBuf::from),
        available: Bytes::mib(1),
        limit: Bytes::mib(64),
    };
    *rig.system.limits.lock().unwrap() = vec![limits(Some("jobs/7"))];
    let refused = rig.workers.pin_with(&rig.context, 2 << 20, &rig.charged()).wait().unwrap_err();
    let (requested, available) = (Bytes::mib(2), Bytes::mib(1));
    let group = PathBuf::from("jobs/7");
    assert_eq!(refused, HostError::ControlGroup { requested, available, limit: Bytes::mib(64), group });
    assert!(refused.is_capacity() && refused.to_string().contains("jobs/7"), "{refused}");
    *rig.system.limits.lock().unwrap() = vec![limits(None)];
    let refused = rig.workers.pin_with(&rig.context, 2 << 20, &rig.charged()).wait().unwrap_err();
    assert_eq!(refused, HostError::NoMemory { requested, available, total: Bytes::mib(64) });
    assert!(rig.system.threads_of(Call::Reserve).is_empty());
    drop(rig.workers.pin_with(&rig.context, 1 << 20, &rig.charged()).wait().expect("an exact fit"));
    rig.assert_nothing_is_held();
}

#[test]
fn n3_limits_are_read_at_every_level_of_the_control_groups() {
    let folder = Folder::new();
    folder.write("proc/meminfo", "MemTotal:  8192 kB\nMemFree:  10 kB\nMemAvailable:  4096 kB\n");
    folder.write("proc/self/cgroup", "0::/jobs/7\n");
    folder.write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
    folder.write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
    folder.write("sys/fs/cgroup/jobs/7/memory.current", "1000\n");
    folder.write("sys/fs/cgroup/jobs/memory.max", "3000000\n");
    folder.write("sys/fs/cgroup/jobs/memory.current", "2000000\n");
    folder.write("sys/fs/cgroup/jobs/memory.stat", "anon 5\nactive_file 300000\ninactive_file 200000\n");
    let limits = Machine::with_root(folder.path()).limits();
    let machine = MemoryLimit { group: None, available: Bytes::mib(4), limit: Bytes::mib(8) };
    let jobs = MemoryLimit {
        group: Some(folder.path().join("sys/fs/cgroup/jobs")),
        available: Bytes(1_500_000),
        limit: Bytes(3_000_000),
    };
    assert_eq!(limits, [machine, jobs], "caches count as free, and no limit is none");
}

#[test]
fn n3_a_control_group_limits_whatever_it_is_called() {
    let names: [&[u8]; 6] = [b"\xff\xfe", b"caf\xe9", b"a b", b"a:b", b"\\040", b"end\r"];
    for (name, kind) in names.iter().flat_map(|name| [(name, "0::/"), (name, "5:memory:/")]) {
        let folder = Folder::new();
        let (mount, filesystem, limit, used) = match kind {
            "0::/" => ("sys/fs/cgroup", "cgroup2 cgroup2 rw", "memory.max", "memory.current"),
            _ => ("sys/fs/cgroup/memory", "cgroup cgroup rw,memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        folder.write("proc/self/mountinfo", format!("41 31 0:38 / /{mount} rw shared:9 - {filesystem}\n"));
        folder.write("proc/self/cgroup", [kind.as_bytes(), name, b"\n"].concat());
        let group = Path::new(mount).join(OsStr::from_bytes(name));
        folder.write(group.join(limit), "3000000\n");
        folder.write(group.join(used), "2000000\n");
        // Numbers that no kernel has must not end the program.
        folder.write(group.join("memory.stat"), format!("active_file {0}\ninactive_file {0}\n", u64::MAX));
        let limits = Machine::with_root(folder.path()).limits();
        let groups: Vec<_> = limits.iter().map(|limit| (limit.group.clone(), limit.limit)).collect();
        assert_eq!(groups, [(Some(folder.path().join(&group)), Bytes(3_000_000))], "{name:?}");
    }
}

#[test]
fn n3_limits_of_the_first_kind_of_control_groups_are_read_too() {
    let folder = Folder::new();
    folder.write("proc/self/cgroup", "11:cpu,cpuacct:/x\n5:memory:/docker/abc\n1:name=systemd:/x\nnonsense\n");
    folder.write("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    let group = "sys/fs/cgroup/memory/docker/abc";
    folder.write(format!("{group}/memory.limit_in_bytes"), "4194304\n");
    folder.write(format!("{group}/memory.usage_in_bytes"), "3145728\n");
    folder.write(format!("{group}/memory.stat"), "active_file 1\ntotal_active_file 1048576\ntotal_inactive_file 0\n");
    let limits = Machine::with_root(folder.path()).limits();
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert_eq!((limits[0].available, limits[0].limit), (Bytes::mib(2), Bytes::mib(4)));
}

#[test]
fn n3_a_driver_that_refuses_is_told_apart_from_the_limit_on_locked_memory() {
    for kind in [PinnedKind::Registered, PinnedKind::WriteCombined] {
        let rig = Rig::new();
        let refusal = DriverError::new("cuMemHostRegister", DeviceId(0), Status::OutOfMemory);
        rig.driver.hook(move |call, is_over| (!is_over && !call.contains("free")).then_some(refusal));
        let pin = || rig.workers.pin_with(&rig.context, 1 << 20, &rig.charged().kind(kind)).wait().unwrap_err();
        let usual = LockedMemory { limit: Bytes::kib(64), locked: Bytes::kib(8), is_privileged: false };
        *rig.system.locked.lock().unwrap() = Some(usual);
        let (requested, locked, limit) = (Bytes::mib(1), Bytes::kib(8), Bytes::kib(64));
        assert_eq!(pin(), HostError::LockedMemory { requested, locked, limit, why: refusal });
        assert!(pin().to_string().contains("ulimit -l") && pin().is_capacity());
        *rig.system.locked.lock().unwrap() = Some(LockedMemory { is_privileged: true, ..usual });
        assert_eq!(pin(), HostError::Device(refusal.into()), "the limit is not for those with the capability");
        *rig.system.locked.lock().unwrap() = Some(LockedMemory { limit: Bytes::gib(1), ..usual });
        assert_eq!(pin(), HostError::Device(refusal.into()), "nor the reason where it is high enough");
        rig.assert_nothing_is_held();
    }
}

#[test]
fn n3_what_a_request_can_do_without_is_told_and_what_it_cannot_is_refused() {
    let tree = Tree::with_cpus("0-3").node(0, "0-3", 64, "10");
    let rig = Rig::on(tree.topology(), Sim::builder().seed(1).numa_node(0));
    let pin = || rig.workers.pin_with(&rig.context, 4 << 20, &rig.charged()).wait();
    for call in [Call::Bind, Call::AdviseHuge, Call::Locate] {
        rig.system.refuse(call, DENIED);
        let buffer = pin().unwrap_or_else(|error| panic!("{call:?}: {error}"));
        let placement = buffer.placement();
        let went = [placement.bound, placement.huge_pages, placement.verified];
        let refused = [Call::Bind, Call::AdviseHuge, Call::Locate].map(|other| other == call);
        assert_eq!(went.map(|outcome| outcome == StepOutcome::Refused(DENIED)), refused, "{call:?}: {placement}");
        assert!(placement.to_string().contains("refused"), "{placement}");
    }
    for (call, step) in [(Call::Reserve, PinStep::Reserve), (Call::Populate, PinStep::Touch)] {
        let why = Errno(libc::ENOMEM);
        rig.system.refuse(call, why);
        let refused = pin().unwrap_err();
        assert_eq!(refused, HostError::System { step, requested: Bytes::mib(4), why });
        assert!(refused.is_capacity());
        rig.assert_nothing_is_held();
    }
}

#[test]
fn n4_every_page_has_memory_behind_it() {
    let rig = Rig::new();
    let buffer = rig.workers.pin_with(&rig.context, 3 << 12, &rig.charged()).wait().expect("room");
    let asked: Vec<usize> = (0..3).map(|page| buffer.as_ptr().addr() + (page << 12)).collect();
    // A page that was never touched is on no node.
    let nodes = Machine::default().locate(&asked);
    assert!(nodes.is_err() || nodes.is_ok_and(|nodes| nodes.iter().all(|node| *node >= 0)));
    drop(buffer);
    rig.assert_nothing_is_held();
}

#[test]
fn n3_one_cpu_and_small_pages_are_enough() {
    let topology = Topology::here().expect("the kernel makes sense");
    let one = topology.cpus().iter().take(1).collect();
    let machine = Arc::new(Machine::default());
    let workers = NumaWorkerPool::new(topology.restricted_to(&one), machine.clone());
    let rig = Rig::new();
    let node = workers.topology().nodes().iter().find(|node| !node.cpus.is_empty());
    let options = rig.charged().small_pages();
    let options = match node {
        Some(node) => options.node(bursar_core::NumaNode::new(node.index)),
        None => options,
    };
    let buffer = workers.pin_with(&rig.context, 20 << 20, &options).wait().expect("room");
    assert_eq!(buffer.placement().huge_pages, StepOutcome::NotAsked);
    assert!(node.is_none() || buffer.placement().threads == 1, "{}", buffer.placement());
    drop(buffer);
    assert_eq!((machine.mapped(), rig.account.charged()), (0, 0));
}

/// Runs this test again in a process of its own, since the limit is one of the process.
#[test]
fn n3_a_limit_of_64_kib_on_locked_memory_does_not_keep_a_driver_from_pinning() {
    const INSIDE: &str = "BURSAR_HOST_TEST_INSIDE_LIMIT";
    let name = "n3_a_limit_of_64_kib_on_locked_memory_does_not_keep_a_driver_from_pinning";
    if std::env::var_os(INSIDE).is_none() {
        let this = std::env::current_exe().expect("a program");
        let ran = std::process::Command::new(this).args(["--exact", name]).env(INSIDE, "1").output();
        let ran = ran.expect("this program");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: the limit is ours, and is only read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0, "a limit can always be lowered");
    let machine = Machine::default();
    assert_eq!(machine.locked_memory().limit, Bytes::kib(64));
    let workers = NumaWorkerPool::new(Topology::default(), Arc::new(machine.clone()));
    let rig = Rig::new();
    let buffer = workers.pin_with(&rig.context, 8 << 20, &rig.charged()).wait().expect("nothing here is locked");
    assert_eq!(rig.pinned(), 8 << 20);
    drop(buffer);
    assert_eq!((rig.pinned(), machine.mapped(), rig.account.charged()), (0, 0, 0));
}
