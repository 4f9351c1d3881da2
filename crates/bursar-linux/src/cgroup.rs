//! The control groups that limit this process: version 2 and version 1, from its own group outwards.

mod mounts;

use crate::ReadError;
use crate::text::{TextFile, find_bytes};
use mounts::Mount;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A control group of this process, or one that encloses it, in a hierarchy that controls memory.
///
/// ```
/// for group in bursar_linux::control_groups("/")? {
///     if let Some(memory) = group.memory()? {
///         println!("{}: {} of {} bytes left", group.folder().display(), memory.available(), memory.limit);
///     }
/// }
/// # Ok::<(), bursar_linux::ReadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    version: &'static Version,
}

/// The memory limit of a control group, and the part of it that is used.
///
/// ```
/// let memory = bursar_linux::GroupMemory { limit: 8 << 30, used: 5 << 30 };
/// assert_eq!(memory.available(), 3 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// The most bytes that all processes of the group may use together.
    pub limit: u64,
    /// The bytes they use, without cached files, which the kernel drops before it refuses memory.
    pub used: u64,
}

impl GroupMemory {
    /// Returns the bytes that are left under the limit.
    pub fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The names that a version of control groups gives its files and fields.
#[derive(Debug)]
struct Version {
    number: u8,
    filesystem: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The fields of `memory.stat` that count cached files, each with another name to use where the first is missing.
    caches: [[&'static str; 2]; 2],
}

static VERSIONS: [Version; 2] = [
    Version {
        number: 2,
        filesystem: "cgroup2",
        limit: "memory.max",
        used: "memory.current",
        caches: [["active_file", "active_file"], ["inactive_file", "inactive_file"]],
    },
    Version {
        number: 1,
        filesystem: "cgroup",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        // Usage includes the groups below, and so do the totals; the plain names do not.
        caches: [["total_active_file", "active_file"], ["total_inactive_file", "inactive_file"]],
    },
];

/// The least number that means "no limit" in version 1: the largest multiple of a page, where pages have at most 64 KiB.
const UNLIMITED: u64 = i64::MAX as u64 - 0xffff;

/// Returns the control groups that can limit this process's memory, each hierarchy from the innermost group outwards.
///
/// `proc/self/cgroup` and `proc/self/mountinfo` are read below `root`, and so are the groups, at the mount points listed there.
/// Where either file is missing there are no groups.
pub fn control_groups(root: impl AsRef<Path>) -> Result<Vec<ControlGroup>, ReadError> {
    let root = root.as_ref();
    let Some(memberships) = find_bytes(&root.join("proc/self/cgroup"))? else { return Ok(Vec::new()) };
    let Some(mounts) = find_bytes(&root.join("proc/self/mountinfo"))? else { return Ok(Vec::new()) };
    let mounts: Vec<Mount> = mounts.split(is_line_end).filter_map(Mount::parse).collect();
    let mut groups = Vec::new();
    for version in &VERSIONS {
        let Some(own) = own_group(&memberships, version) else { continue };
        for (mount_point, below) in mounts::visible(&mounts, version, &own) {
            let folders = below.ancestors().map(|group| rebased(root, &mount_point.join(group)));
            groups.extend(folders.map(|folder| ControlGroup { folder, version }));
        }
    }
    Ok(groups)
}

/// Returns whether `byte` ends a line. Names of groups are any other bytes: the kernel allows no group with a line break, and
/// escapes one in `mountinfo`.
fn is_line_end(byte: &u8) -> bool {
    *byte == b'\n'
}

/// Returns the path of this process's group in the hierarchy of `version` that controls memory.
///
/// A line is `0::/path` in version 2 and `5:cpu,memory:/path` in version 1.
fn own_group(memberships: &[u8], version: &Version) -> Option<PathBuf> {
    memberships.split(is_line_end).find_map(|line| {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match version.number {
            2 => hierarchy == b"0" && controllers.is_empty(),
            _ => is_in_list(controllers, b"memory"),
        };
        is_ours.then(|| PathBuf::from(OsStr::from_bytes(path)))
    })
}

fn is_in_list(list: &[u8], wanted: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|name| name == wanted)
}

/// Returns the absolute `path` below `root`.
fn rebased(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

impl ControlGroup {
    /// Returns the folder that holds the group's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads the memory limit of the group, or returns none where it has no limit.
    pub fn memory(&self) -> Result<Option<GroupMemory>, ReadError> {
        let version = self.version;
        // The outermost group, and one that does not control memory, have no such file.
        let Some(limit) = TextFile::find(self.folder.join(version.limit))? else { return Ok(None) };
        if limit.word() == "max" {
            return Ok(None);
        }
        let limit = limit.number(version.limit, limit.word())?;
        if version.number == 1 && limit >= UNLIMITED {
            return Ok(None);
        }
        let used = TextFile::read(self.folder.join(version.used))?;
        let used = used.number(version.used, used.word())?;
        Ok(Some(GroupMemory { limit, used: used.saturating_sub(self.cached()?) }))
    }

    /// Reads the bytes of files that the kernel caches for the group.
    fn cached(&self) -> Result<u64, ReadError> {
        let stat = TextFile::read(self.folder.join("memory.stat"))?;
        let mut cached = 0u64;
        for [name, otherwise] in self.version.caches {
            let word = stat.find_field(name).map_or_else(|| stat.field(otherwise), Ok)?;
            cached = cached.saturating_add(stat.number(name, word)?);
        }
        Ok(cached)
    }
}
