//! The available memory of machines whose files are written here.

mod machine;

use bursar_core::Bytes;
use bursar_fit::{ProbeError, Ram, ReadError, file_size};
use machine::{Group, Machine};

const GIB: u64 = 1 << 30;

fn gib(bytes: Bytes) -> f64 {
    bytes.get() as f64 / GIB as f64
}

#[test]
fn f3_without_control_groups_the_kernel_s_word_counts() {
    let machine = Machine::new(64 * GIB, 48 * GIB);
    let reading = machine.ram().read().expect("a machine");
    assert_eq!((reading.total, reading.available(), reading.group_limits.len()), (Bytes::gib(64), Bytes::gib(48), 0));
    assert_eq!(reading.bound(), "the machine");
}

#[test]
fn f3_a_container_with_a_namespace_of_its_own_sees_its_limit_at_the_mount() {
    let machine = Machine::new(256 * GIB, 200 * GIB);
    machine.in_group(0, "", "/").mounts_v2("/", "/sys/fs/cgroup");
    machine.v2("/sys/fs/cgroup", Group::of(8 * GIB, 3 * GIB).with_files(GIB, GIB / 2));
    let reading = machine.ram().read().expect("a container");
    assert_eq!(gib(reading.available()), 6.5, "meminfo lies, and files in memory can go");
    assert!(reading.bound().contains("/sys/fs/cgroup"), "{}", reading.bound());
}

#[test]
fn f3_a_systemd_slice_is_bound_by_the_tightest_wherever_it_is() {
    let path = "/user.slice/user-1000.slice/user@1000.service/app.slice/job.scope";
    for tightest in 0..5 {
        let machine = Machine::new(128 * GIB, 100 * GIB);
        machine.in_group(0, "", path).mounts_v2("/", "/sys/fs/cgroup");
        machine.v2("/sys/fs/cgroup", Group::default());
        let mut folder = "/sys/fs/cgroup".to_owned();
        for (depth, part) in path.split('/').skip(1).enumerate() {
            folder = format!("{folder}/{part}");
            let limit = if depth == tightest { 10 * GIB } else { (20 + depth as u64) * GIB };
            machine.v2(&folder, Group::of(limit, 2 * GIB));
        }
        let reading = machine.ram().read().expect("a slice");
        assert_eq!((gib(reading.available()), reading.group_limits.len()), (8.0, 5), "{tightest}");
        let part = path.split('/').nth(tightest + 1).expect("a level");
        assert!(reading.bound().ends_with(part), "{}", reading.bound());
    }
}

#[test]
fn f3_the_level_that_leaves_least_is_not_the_one_with_the_lowest_limit() {
    let machine = Machine::new(128 * GIB, 100 * GIB);
    machine.in_group(0, "", "/a/b").mounts_v2("/", "/sys/fs/cgroup");
    machine.v2("/sys/fs/cgroup/a", Group::of(32 * GIB, 30 * GIB));
    machine.v2("/sys/fs/cgroup/a/b", Group::of(16 * GIB, 4 * GIB));
    assert_eq!(gib(machine.ram().read().expect("nested").available()), 2.0);
}

#[test]
fn f3_max_is_no_limit_and_a_level_without_the_controller_has_none() {
    let machine = Machine::new(64 * GIB, 48 * GIB);
    machine.in_group(0, "", "/a/b/c").mounts_v2("/", "/sys/fs/cgroup");
    machine.write("/sys/fs/cgroup/a/memory.max", "max\n");
    machine.write("/sys/fs/cgroup/a/b/cgroup.procs", "1\n");
    machine.v2("/sys/fs/cgroup/a/b/c", Group::of(64 * GIB, 4 * GIB));
    let reading = machine.ram().read().expect("levels");
    assert_eq!(
        (gib(reading.available()), reading.group_limits.len()),
        (48.0, 1),
        "sixty are left, but the machine has fewer"
    );
}

#[test]
fn f3_kubernetes_without_a_namespace_names_the_whole_path_and_mounts_its_end() {
    let path = "/kubepods/burstable/pod1234/container5678";
    let machine = Machine::new(512 * GIB, 300 * GIB);
    machine.in_group(4, "cpu,cpuacct", path).in_group(7, "memory", path);
    machine.mounts_v1(path, "/sys/fs/cgroup/memory", "rw,memory");
    machine.mounts_v1(path, "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct");
    machine.v1("/sys/fs/cgroup/memory", Group::of(4 * GIB, 3 * GIB).with_files(GIB / 2, GIB / 4));
    machine.v1("/sys/fs/cgroup/cpu,cpuacct", Group::of(1, 1));
    assert_eq!(gib(machine.ram().read().expect("a pod").available()), 1.75);
}

#[test]
fn f3_kubernetes_on_version_2_is_bound_by_the_pod_too() {
    let machine = Machine::new(512 * GIB, 300 * GIB);
    machine.in_group(0, "", "/kubepods.slice/pod.slice/container.scope").mounts_v2("/", "/sys/fs/cgroup");
    machine.write("/sys/fs/cgroup/kubepods.slice/memory.max", "max\n");
    machine.v2("/sys/fs/cgroup/kubepods.slice/pod.slice", Group::of(12 * GIB, 11 * GIB));
    machine.v2("/sys/fs/cgroup/kubepods.slice/pod.slice/container.scope", Group::of(8 * GIB, 2 * GIB));
    assert_eq!(gib(machine.ram().read().expect("a pod").available()), 1.0);
}

#[test]
fn f3_version_1_counts_the_totals_of_the_groups_below_and_knows_its_number_for_unlimited() {
    for unlimited in [9_223_372_036_854_771_712, 9_223_372_036_854_710_272, i64::MAX as u64] {
        let machine = Machine::new(64 * GIB, 48 * GIB);
        machine.in_group(7, "hugetlb,memory", "/docker/abc").mounts_v1("/", "/sys/fs/cgroup/memory", "rw,memory");
        machine.v1("/sys/fs/cgroup/memory/docker/abc", Group::of(8 * GIB, 6 * GIB).with_files(2 * GIB, GIB));
        machine.write("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", &format!("{unlimited}\n"));
        machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", &format!("{unlimited}\n"));
        let reading = machine.ram().read().expect("unlimited levels need say nothing else");
        assert_eq!((gib(reading.available()), reading.group_limits.len()), (5.0, 1));
    }
    let machine = Machine::new(64 * GIB, 48 * GIB);
    machine.in_group(7, "memory", "/a").mounts_v1("/", "/sys/fs/cgroup/memory", "rw,memory");
    machine.v1("/sys/fs/cgroup/memory/a", Group::of(8 * GIB, 6 * GIB));
    machine.write("/sys/fs/cgroup/memory/a/memory.stat", "active_file 1073741824\ninactive_file 0\n");
    assert_eq!(
        gib(machine.ram().read().expect("no hierarchy").available()),
        3.0,
        "without totals the plain names count"
    );
}

#[test]
fn f3_both_versions_at_once_are_both_looked_at() {
    let machine = Machine::new(64 * GIB, 48 * GIB);
    machine.in_group(4, "memory", "/job").in_group(0, "", "/").mounts_v2("/", "/sys/fs/cgroup/unified");
    machine.mounts_v1("/", "/sys/fs/cgroup/memory", "rw,memory");
    machine.write("/sys/fs/cgroup/unified/cgroup.controllers", "");
    machine.v1("/sys/fs/cgroup/memory/job", Group::of(9 * GIB, 2 * GIB));
    assert_eq!(gib(machine.ram().read().expect("hybrid").available()), 7.0);
}

#[test]
fn f3_a_group_outside_the_namespace_is_bound_by_what_can_be_seen_around_it() {
    for (own, mounted) in [("/", "/../.."), ("/../sibling", "/")] {
        let machine = Machine::new(64 * GIB, 48 * GIB);
        machine.in_group(0, "", own).mounts_v2(mounted, "/sys/fs/cgroup");
        machine.v2("/sys/fs/cgroup", Group::of(6 * GIB, GIB));
        assert_eq!(gib(machine.ram().read().expect("around").available()), 5.0, "{own}");
    }
    let machine = Machine::new(64 * GIB, 48 * GIB);
    machine.in_group(0, "", "/mine").mounts_v2("/somebody/else", "/mnt/other\\040group");
    machine.v2("/mnt/other group", Group::of(GIB, 0));
    assert_eq!(gib(machine.ram().read().expect("not ours").available()), 48.0, "another's limit is not ours");
    machine.mounts_v2("/", "/mnt/all\\040groups");
    machine.v2("/mnt/all groups/mine", Group::of(3 * GIB, GIB));
    assert_eq!(gib(machine.ram().read().expect("ours").available()), 2.0, "a name with a blank is found");
}

#[test]
fn f3_more_used_than_allowed_leaves_nothing_and_more_files_than_used_leave_all() {
    for (used, files, left) in [(9 * GIB, 0, 0.0), (GIB, 3 * GIB, 8.0), (u64::MAX, u64::MAX, 8.0)] {
        let machine = Machine::new(64 * GIB, 48 * GIB);
        machine.in_group(0, "", "/").mounts_v2("/", "/sys/fs/cgroup");
        machine.v2("/sys/fs/cgroup", Group::of(8 * GIB, used).with_files(files, files));
        assert_eq!(gib(machine.ram().read().expect("odd numbers").available()), left);
    }
}

#[test]
fn f3_what_is_missing_is_an_error_that_names_it() {
    let limited = || {
        let machine = Machine::new(64 * GIB, 48 * GIB);
        machine.in_group(0, "", "/").mounts_v2("/", "/sys/fs/cgroup");
        machine.v2("/sys/fs/cgroup", Group::of(8 * GIB, GIB));
        machine
    };
    for (file, text, said) in [
        ("/proc/meminfo", "MemTotal: 64 kB\nMemFree: 3 kB\n", "meminfo says nothing about MemAvailable"),
        ("/proc/meminfo", "MemTotal: 64 kB\nMemAvailable: many kB\n", "MemAvailable is \"many\", which is no number"),
        ("/sys/fs/cgroup/memory.max", "a lot\n", "memory.max is \"a lot\", which is no number"),
        ("/sys/fs/cgroup/memory.current", "-1\n", "memory.current is \"-1\", which is no number"),
        ("/sys/fs/cgroup/memory.stat", "active_file 1\n", "memory.stat says nothing about inactive_file"),
    ] {
        let machine = limited();
        machine.write(file, text);
        let error = machine.ram().read().expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    for file in ["/proc/meminfo", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"] {
        let machine = limited();
        machine.remove(file);
        let error = machine.ram().read().expect_err(file);
        assert!(
            matches!(&error, ProbeError::Read(ReadError::Unreadable { path, .. }) if path.to_string_lossy().ends_with(file)),
            "{error}"
        );
    }
    let machine = limited();
    machine.remove("/proc/self/mountinfo");
    assert_eq!(gib(machine.ram().read().expect("no control groups in sight").available()), 48.0);
}

#[test]
fn f3_this_machine_can_be_read() {
    let reading = Ram::of_this_machine().read().expect("Linux");
    assert!(reading.available() <= reading.mem_available && reading.mem_available <= reading.total, "{reading:?}");
}

#[test]
fn f6_the_size_of_a_missing_file_is_none() {
    let machine = Machine::new(GIB, GIB);
    machine.write("/weights", &"x".repeat(1234));
    assert_eq!(file_size(machine.path("/weights")), Some(Bytes(1234)));
    assert_eq!(file_size(machine.path("/missing")), None);
    assert_eq!(file_size(machine.path("/")), None, "a folder is no file");
}
