//! The files of a machine, written into a folder that is removed with the test.

use bursar_fit::Ram;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A machine that is made of files.
#[derive(Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

/// The numbers in the files of a control group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    limit: Option<u64>,
    used: u64,
    active_files: u64,
    inactive_files: u64,
}

impl Group {
    pub(crate) fn of(limit: u64, used: u64) -> Self {
        Self { limit: Some(limit), used, ..Self::default() }
    }

    pub(crate) fn with_files(self, active_files: u64, inactive_files: u64) -> Self {
        Self { active_files, inactive_files, ..self }
    }
}

impl Machine {
    pub(crate) fn new(total: u64, available: u64) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let machine = Self { root: std::env::temp_dir().join(format!("bursar-ram-{}-{number}", std::process::id())) };
        let [total, available] = [total, available].map(|bytes| bytes / 1024);
        let text = format!("MemTotal: {total} kB\nMemFree: 17 kB\nMemAvailable:   {available} kB\nCached: 1 kB\n");
        machine.write("/proc/meminfo", &text);
        machine
    }

    pub(crate) fn ram(&self) -> Ram {
        Ram::below(&self.root)
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        fs::write(path, text).expect("room");
    }

    /// Adds a line to a file, whatever bytes are in it.
    pub(crate) fn append(&self, path: &str, line: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
        file.write_all(&[line.as_ref(), b"\n"].concat()).expect("room");
    }

    pub(crate) fn remove(&self, path: impl AsRef<Path>) {
        fs::remove_file(self.path(path)).expect("it was written");
    }

    /// Puts the program into the group `path` of a hierarchy.
    pub(crate) fn in_group(&self, number: u32, controllers: &str, path: &str) -> &Self {
        self.append("/proc/self/cgroup", format!("{number}:{controllers}:{path}"));
        self
    }

    pub(crate) fn mounts_v2(&self, group: &str, point: &str) -> &Self {
        let line = format!("41 31 0:38 {group} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate");
        self.append("/proc/self/mountinfo", &line);
        self
    }

    pub(crate) fn mounts_v1(&self, group: &str, point: &str, options: &str) -> &Self {
        self.append(
            "/proc/self/mountinfo",
            format!("35 31 0:32 {group} {point} rw,relatime - cgroup cgroup {options}"),
        );
        self
    }

    pub(crate) fn v2(&self, folder: impl AsRef<Path>, group: Group) {
        let (folder, limit) = (folder.as_ref(), group.limit.map_or("max".to_owned(), |limit| limit.to_string()));
        self.write(folder.join("memory.max"), &format!("{limit}\n"));
        self.write(folder.join("memory.current"), &format!("{}\n", group.used));
        let (active, inactive) = (group.active_files, group.inactive_files);
        self.write(folder.join("memory.stat"), &format!("anon 5\nactive_file {active}\ninactive_file {inactive}\n"));
    }

    pub(crate) fn v1(&self, folder: impl AsRef<Path>, group: Group) {
        let folder = folder.as_ref();
        let limit = group.limit.unwrap_or(i64::MAX as u64);
        self.write(folder.join("memory.limit_in_bytes"), &format!("{limit}\n"));
        self.write(folder.join("memory.usage_in_bytes"), &format!("{}\n", group.used));
        let (active, inactive) = (group.active_files, group.inactive_files);
        let own = "active_file 4096\ninactive_file 4096\n";
        let text = format!("{own}total_active_file {active}\ntotal_inactive_file {inactive}\n");
        self.write(folder.join("memory.stat"), &text);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.root);
    }
}
