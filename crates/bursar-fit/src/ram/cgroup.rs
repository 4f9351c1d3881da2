//! The limits of control groups, version 2 and version 1, all the way up.

use super::text::{File, find_bytes};
use crate::ProbeError;
use bursar_core::Bytes;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// A control group that limits the memory of this program.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::Level;
///
/// let level = Level { folder: "/sys/fs/cgroup/job".into(), limit: Bytes::gib(8), used: Bytes::gib(5) };
/// assert_eq!(level.available(), Bytes::gib(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The folder of its files.
    pub folder: PathBuf,
    /// The most that all its processes may use.
    pub limit: Bytes,
    /// The bytes that they use, less the page cache, which the kernel would reclaim.
    pub used: Bytes,
}

impl Level {
    /// Returns the bytes that it leaves.
    pub fn available(&self) -> Bytes {
        self.limit.saturating_sub(self.used)
    }
}

/// The names of the files of one version.
struct Version {
    filesystem: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The fields of the page cache; of each pair, the first name that exists counts.
    files: [[&'static str; 2]; 2],
}

const VERSIONS: [Version; 2] = [
    Version {
        filesystem: "cgroup2",
        limit: "memory.max",
        used: "memory.current",
        files: [["active_file", ""], ["inactive_file", ""]],
    },
    Version {
        filesystem: "cgroup",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        // Usage includes the groups below, and so do the totals; the plain names do not.
        files: [["total_active_file", "active_file"], ["total_inactive_file", "inactive_file"]],
    },
];

/// The least value that means "no limit" in version 1, which writes the largest multiple of a page; pages have at most
/// 64 KiB.
const UNLIMITED: u64 = i64::MAX as u64 - 0xffff;

/// Returns every control group with a limit, from this program's outwards, as far as can be seen from here.
pub(super) fn levels(root: &Path) -> Result<Vec<Level>, ProbeError> {
    let Some(groups) = find_bytes(&root.join("proc/self/cgroup"))? else { return Ok(Vec::new()) };
    let Some(mounts) = find_bytes(&root.join("proc/self/mountinfo"))? else { return Ok(Vec::new()) };
    let mounts: Vec<Mount> = mounts.split(is_line_end).filter_map(Mount::parse).collect();
    let mut levels = Vec::new();
    for version in &VERSIONS {
        let Some(own) = own_group(&groups, version) else { continue };
        for (mount_point, below) in visible_at(&mounts, version, &own) {
            for group in below.ancestors() {
                let folder = under(root, &mount_point.join(group));
                levels.extend(level(folder, version)?);
            }
        }
    }
    Ok(levels)
}

/// Returns whether a byte ends a line. Names may hold any other byte: the kernel creates no group with this one, and
/// escapes it in `mountinfo`.
fn is_line_end(byte: &u8) -> bool {
    *byte == b'\n'
}

/// Returns the path of this program's group in the hierarchy that limits memory.
fn own_group(groups: &[u8], version: &Version) -> Option<PathBuf> {
    groups.split(is_line_end).find_map(|line| {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match version.filesystem {
            "cgroup2" => number == b"0" && controllers.is_empty(),
            _ => is_in_list(controllers, b"memory"),
        };
        is_ours.then(|| PathBuf::from(OsStr::from_bytes(path)))
    })
}

fn is_in_list(list: &[u8], wanted: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|name| name == wanted)
}

/// A line of `mountinfo` about control groups.
#[derive(Debug)]
struct Mount {
    /// The group that is visible at the mount point.
    root: PathBuf,
    point: PathBuf,
    filesystem: Vec<u8>,
    options: Vec<u8>,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        // Between the mount point and a dash are options, and any number of optional fields.
        words.find(|word| *word == b"-")?;
        let (kind, _source, options) = (words.next()?, words.next()?, words.next()?);
        let [root, point] = [root, point].map(|path| PathBuf::from(OsString::from_vec(unescaped(path))));
        Some(Self { root, point, filesystem: kind.to_owned(), options: options.to_owned() })
    }

    fn limits_memory(&self, version: &Version) -> bool {
        self.filesystem == version.filesystem.as_bytes()
            && (version.filesystem == "cgroup2" || is_in_list(&self.options, b"memory"))
    }
}

/// Returns where this program's group is visible: mount points, each with the path from there.
fn visible_at<'a>(mounts: &'a [Mount], version: &Version, own: &Path) -> Vec<(&'a Path, PathBuf)> {
    let mounts: Vec<&Mount> = mounts.iter().filter(|mount| mount.limits_memory(version)).collect();
    let seen = |mount: &&&Mount| !leads_outside(own) && own.starts_with(&mount.root);
    let below = |mount: &&'a Mount| {
        let below = own.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        (mount.point.as_path(), below.to_owned())
    };
    let found: Vec<_> = mounts.iter().filter(seen).map(below).collect();
    if !found.is_empty() {
        return found;
    }
    // From inside a namespace, the path of a group outside it begins with `..`: what is mounted then is a group around ours,
    // or the nearest to it that is visible.
    let around = mounts.iter().filter(|mount| leads_outside(&mount.root) || leads_outside(own));
    around.map(|mount| (mount.point.as_path(), PathBuf::new())).collect()
}

fn leads_outside(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Returns `path`, which is absolute, below `root`.
fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads the limit of the group whose files are in `folder`, if it has one.
fn level(folder: PathBuf, version: &Version) -> Result<Option<Level>, ProbeError> {
    // The outermost group, and a group that does not control memory, have no such file.
    let Some(limit) = File::find(folder.join(version.limit))? else { return Ok(None) };
    if limit.word() == "max" {
        return Ok(None);
    }
    let limit = limit.bytes(version.limit, limit.word())?;
    if limit.get() >= UNLIMITED && version.filesystem == "cgroup" {
        return Ok(None);
    }
    let current = File::read(folder.join(version.used))?;
    let stat = File::read(folder.join("memory.stat"))?;
    let mut files = Bytes::ZERO;
    for [name, other] in version.files {
        let word = stat.find_field(name).map_or_else(|| stat.field(if other.is_empty() { name } else { other }), Ok)?;
        files = files.saturating_add(stat.bytes(name, word)?);
    }
    let used = current.bytes(version.used, current.word())?.saturating_sub(files);
    Ok(Some(Level { folder, limit, used }))
}

/// Decodes a path of `mountinfo`, where blanks and the like are three octal digits after a backslash.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [first, tail @ ..] = rest {
        let (byte, used) = match tail {
            [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] if *first == b'\\' => {
                ((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'), 3)
            }
            _ => (*first, 0),
        };
        bytes.push(byte);
        rest = &tail[used..];
    }
    bytes
}
