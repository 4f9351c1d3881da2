//! How much memory can be had before the kernel starts to kill: asked before anything is touched.
//!
//! File caches are counted as free, since the kernel drops them first. What cannot be read sets no limit.

use bursar_core::Bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A limit on memory, and what is left under it.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_host::Limit;
///
/// let machine = Limit { group: None, available: Bytes::gib(2), limit: Bytes::gib(4) };
/// assert!(machine.available < machine.limit);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The folder of the control group that sets it; without one it is the machine's own.
    pub group: Option<PathBuf>,
    /// What is left.
    pub available: Bytes,
    /// All there is.
    pub limit: Bytes,
}

/// The limits that hold for this process, as the files below `root` say.
pub(crate) fn read(root: &Path) -> Vec<Limit> {
    let mut limits: Vec<Limit> = machine(root).into_iter().collect();
    let groups = std::fs::read(root.join("proc/self/cgroup")).unwrap_or_default();
    // A name is any bytes without a line break.
    for line in groups.split(|byte| *byte == b'\n') {
        // `0::/path` is the second version of control groups, `5:memory:/path` the first.
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, files) = match controllers {
            b"" => ("sys/fs/cgroup", &SECOND),
            _ if controllers.split(|byte| *byte == b',').any(|name| name == b"memory") => {
                ("sys/fs/cgroup/memory", &FIRST)
            }
            _ => continue,
        };
        let mount = root.join(mount);
        // A group is under the limits of those above it. In a container the path may lead nowhere, and the mount is its own.
        let path = Path::new(OsStr::from_bytes(path));
        let folders = path.strip_prefix("/").unwrap_or(path).ancestors().map(|part| mount.join(part));
        limits.extend(folders.filter_map(|folder| group(&folder, files)));
    }
    limits
}

/// What the files of a control group are called.
struct Files {
    limit: &'static str,
    used: &'static str,
    caches: [&'static str; 2],
}

const SECOND: Files = Files { limit: "memory.max", used: "memory.current", caches: ["active_file", "inactive_file"] };
const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    caches: ["total_active_file", "total_inactive_file"],
};

fn group(folder: &Path, files: &Files) -> Option<Limit> {
    let number = |name| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = files.caches.iter().filter_map(|name| field(&stat, name)).fold(0, u64::saturating_add);
    let available = Bytes(limit.saturating_sub(used.saturating_sub(cached)));
    Some(Limit { group: Some(folder.to_owned()), available, limit: Bytes(limit) })
}

fn machine(root: &Path) -> Option<Limit> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name| field(&text, name).map(|kib| Bytes(kib.saturating_mul(1024)));
    Some(Limit { group: None, available: kib("MemAvailable:")?, limit: kib("MemTotal:")? })
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}
