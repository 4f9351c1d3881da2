//! Control groups of machines whose files are written by the tests.

use bursar_linux::{MemoryInfo, ReadError, control_groups};
use proptest::prelude::*;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const GIB: u64 = 1 << 30;

/// The files of a machine, in a folder that is removed with it.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { root: std::env::temp_dir().join(format!("bursar-cgroup-{}-{number}", std::process::id())) }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        fs::write(path, text).expect("room");
    }

    /// Adds a line to a file.
    fn append(&self, path: &str, line: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
        file.write_all(&[line.as_ref(), b"\n"].concat()).expect("room");
    }

    /// Puts the process into a group of a hierarchy.
    fn in_group(&self, line: &str) -> &Self {
        self.append("/proc/self/cgroup", line);
        self
    }

    fn mounts_v2(&self, group: &str, point: &str) -> &Self {
        let line = format!("41 31 0:38 {group} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate");
        self.append("/proc/self/mountinfo", line);
        self
    }

    fn mounts_v1(&self, group: &str, point: &str) -> &Self {
        self.append(
            "/proc/self/mountinfo",
            format!("35 31 0:32 {group} {point} rw,relatime - cgroup cgroup rw,memory"),
        );
        self
    }

    fn v2(&self, folder: impl AsRef<Path>, limit: u64, used: u64) {
        let folder = folder.as_ref();
        self.write(folder.join("memory.max"), &format!("{limit}\n"));
        self.write(folder.join("memory.current"), &format!("{used}\n"));
        self.write(folder.join("memory.stat"), "anon 5\nactive_file 0\ninactive_file 0\n");
    }

    fn v1(&self, folder: impl AsRef<Path>, limit: u64, used: u64) {
        let folder = folder.as_ref();
        self.write(folder.join("memory.limit_in_bytes"), &format!("{limit}\n"));
        self.write(folder.join("memory.usage_in_bytes"), &format!("{used}\n"));
        self.write(folder.join("memory.stat"), "active_file 9\ntotal_active_file 0\ntotal_inactive_file 0\n");
    }

    /// Returns the folder, limit and used bytes of every group with a limit.
    fn limits(&self) -> Vec<(PathBuf, u64, u64)> {
        let groups = control_groups(&self.root).expect("groups");
        let limits = groups.iter().filter_map(|group| {
            let memory = group.memory().expect("a group that can be read")?;
            let folder = Path::new("/").join(group.folder().strip_prefix(&self.root).expect("below the root"));
            Some((folder, memory.limit, memory.used))
        });
        limits.collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn f3_every_group_from_ours_outwards_is_listed_at_the_mount_point_that_the_kernel_names() {
    let machine = Machine::new();
    machine.in_group("0::/a/b").mounts_v2("/", "/elsewhere");
    machine.v2("/elsewhere/a/b", 3, 1);
    machine.v2("/elsewhere/a", 5, 2);
    machine.v2("/sys/fs/cgroup/a", 1, 1);
    assert_eq!(machine.limits(), [("/elsewhere/a/b".into(), 3, 1), ("/elsewhere/a".into(), 5, 2)]);
    let folders: Vec<_> =
        control_groups(&machine.root).unwrap().iter().map(|group| group.folder().to_owned()).collect();
    assert_eq!(folders, ["/elsewhere/a/b", "/elsewhere/a", "/elsewhere"].map(|path| machine.path(path)));
}

#[test]
fn f3_groups_without_a_limit_have_none() {
    let machine = Machine::new();
    machine.in_group("0::/a/b").mounts_v2("/", "/v2").in_group("7:hugetlb,memory:/c").mounts_v1("/", "/v1");
    machine.write("/v2/a/memory.max", "max\n");
    machine.write("/v2/a/b/cgroup.procs", "1\n");
    machine.write("/v1/c/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(machine.limits(), []);
}

#[test]
fn f3_cached_files_are_not_counted_as_used() {
    let machine = Machine::new();
    machine.in_group("0::/a").mounts_v2("/", "/v2").in_group("7:memory:/a").mounts_v1("/", "/v1");
    machine.v2("/v2/a", 8 * GIB, 6 * GIB);
    machine.write("/v2/a/memory.stat", &format!("active_file {GIB}\ninactive_file {GIB}\n"));
    machine.v1("/v1/a", 8 * GIB, 6 * GIB);
    machine.write("/v1/a/memory.stat", &format!("active_file {GIB}\ninactive_file 0\n"));
    assert_eq!(machine.limits(), [("/v2/a".into(), 8 * GIB, 4 * GIB), ("/v1/a".into(), 8 * GIB, 5 * GIB)]);
    machine.write("/v2/a/memory.stat", &format!("active_file {0}\ninactive_file {0}\n", u64::MAX));
    assert_eq!(machine.limits()[0].2, 0, "numbers that no kernel writes do not overflow");
}

#[test]
fn f3_a_group_outside_the_namespace_is_limited_by_the_visible_one_around_it() {
    for (own, mounted) in [("/", "/../.."), ("/../sibling", "/")] {
        let machine = Machine::new();
        machine.in_group(&format!("0::{own}")).mounts_v2(mounted, "/v2");
        machine.v2("/v2", 6, 1);
        assert_eq!(machine.limits(), [("/v2".into(), 6, 1)], "{own}");
    }
    let machine = Machine::new();
    machine.in_group("0::/mine").mounts_v2("/somebody/else", "/other");
    machine.v2("/other", 1, 0);
    assert_eq!(machine.limits(), [], "another group's limit is not ours");
}

#[test]
fn f3_a_file_that_must_exist_and_does_not_is_named() {
    let machine = Machine::new();
    assert_eq!(machine.limits(), [], "neither file of the process exists");
    machine.in_group("0::/a").mounts_v2("/", "/v2");
    machine.write("/v2/a/memory.max", "100\n");
    let memory = || control_groups(&machine.root).unwrap()[0].memory().unwrap_err();
    assert!(matches!(memory(), ReadError::Unreadable { path, .. } if path == machine.path("/v2/a/memory.current")));
    machine.write("/v2/a/memory.current", "many\n");
    assert!(matches!(memory(), ReadError::Malformed { field, .. } if field == "memory.current"));
    machine.write("/proc/meminfo", "MemTotal: 64 kB\n");
    let error = MemoryInfo::read(&machine.root).unwrap_err();
    assert!(matches!(error, ReadError::MissingField { field, .. } if field == "MemAvailable"));
}

/// Returns a path as the kernel escapes it in `mountinfo`.
fn escaped(path: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.iter().flat_map(escape).collect()
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Names of groups: any bytes but a slash, a line break and a zero, and often such as are hard to parse.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let odd: [&[u8]; 16] = [
        b"\xff",
        b"\xe9t\xe9",
        b" ",
        b"a b",
        b"\\040",
        b"\\",
        b"\\\\134",
        b"\t",
        b"\r",
        b"a:b",
        b",memory",
        b" - ",
        b"#",
        b"..a",
        "\u{e9}\u{1f600}".as_bytes(),
        b"max",
    ];
    let odd = prop::collection::vec(prop::sample::select(odd.to_vec()), 1..4).prop_map(|parts| parts.concat());
    let any = prop::collection::vec(any::<u8>(), 1..20);
    let is_name =
        |name: &Vec<u8>| !name.iter().any(|byte| b"/\n\0".contains(byte)) && !matches!(&name[..], b"." | b"..");
    prop_oneof![odd, any].prop_filter("no name of a folder", is_name)
}

/// The version that limits memory.
#[derive(Clone, Copy, Debug)]
enum Kind {
    V1,
    V2,
    /// Version 1 limits memory, and version 2 is mounted beside it.
    Hybrid,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    /// The group `names[0]/names[1]/…`, of which the first `hidden` are above what is mounted at a folder of any name.
    #[test]
    fn f3_a_limit_is_found_whatever_its_group_is_called(
        kind in prop::sample::select(vec![Kind::V1, Kind::V2, Kind::Hybrid]),
        names in prop::collection::vec(name(), 1..4),
        point in name(),
        hidden in 0usize..4,
        limited in any::<prop::sample::Index>(),
    ) {
        let hidden = hidden.min(names.len());
        let slashed = |names: &[Vec<u8>]| [b"/", &names.join(&b'/')[..]].concat();
        let (own, root, point) = (slashed(&names), slashed(&names[..hidden]), [b"/mnt/", &point[..]].concat());
        let machine = Machine::new();
        let (mounted, filesystem) = match kind {
            Kind::V2 => ([b"0::", &own[..]].concat(), &b" rw - cgroup2 cgroup2 rw"[..]),
            Kind::V1 | Kind::Hybrid => ([b"7:cpu,memory:", &own[..]].concat(), &b" rw - cgroup cgroup rw,memory"[..]),
        };
        machine.append("/proc/self/cgroup", mounted);
        if let Kind::Hybrid = kind {
            machine.append("/proc/self/cgroup", b"0::/user");
            machine.mounts_v2("/", "/mnt");
        }
        machine.append(
            "/proc/self/mountinfo",
            [b"41 31 0:38 ", &escaped(&root)[..], b" ", &escaped(&point), filesystem].concat(),
        );
        let depth = hidden + limited.index(names.len() - hidden + 1);
        let folder = names[hidden..depth].iter().fold(path(&point).to_owned(), |folder, name| folder.join(path(name)));
        match kind {
            Kind::V2 => machine.v2(&folder, 5 * GIB, GIB),
            Kind::V1 | Kind::Hybrid => machine.v1(&folder, 5 * GIB, GIB),
        }
        prop_assert_eq!(machine.limits(), [(folder, 5 * GIB, GIB)]);
    }
}
