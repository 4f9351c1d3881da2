//! The mount points of control groups, as `/proc/self/mountinfo` lists them.

use super::{Version, is_in_list};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// A line of `mountinfo`.
#[derive(Debug)]
pub(super) struct Mount {
    /// The group that appears at the mount point.
    root: PathBuf,
    point: PathBuf,
    filesystem: Vec<u8>,
    options: Vec<u8>,
}

impl Mount {
    /// Parses a line; returns none where it is not complete.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        // Between the mount point and a dash there are options and any number of optional fields.
        words.find(|word| *word == b"-")?;
        let (kind, _source, options) = (words.next()?, words.next()?, words.next()?);
        let [root, point] = [root, point].map(|path| PathBuf::from(OsString::from_vec(unescaped(path))));
        Some(Self { root, point, filesystem: kind.to_owned(), options: options.to_owned() })
    }

    fn controls_memory(&self, version: &Version) -> bool {
        self.filesystem == version.filesystem.as_bytes()
            && (version.number == 2 || is_in_list(&self.options, b"memory"))
    }
}

/// Returns the mount points at which the group `own` is visible, each with the path from there to the group.
pub(super) fn visible<'a>(mounts: &'a [Mount], version: &Version, own: &Path) -> Vec<(&'a Path, PathBuf)> {
    let mounts: Vec<&Mount> = mounts.iter().filter(|mount| mount.controls_memory(version)).collect();
    let contains_own = |mount: &&&Mount| !leads_outside(own) && own.starts_with(&mount.root);
    let path_to_own = |mount: &&'a Mount| {
        let below = own.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        (mount.point.as_path(), below.to_owned())
    };
    let visible: Vec<_> = mounts.iter().filter(contains_own).map(path_to_own).collect();
    if !visible.is_empty() {
        return visible;
    }
    // Seen from inside a namespace, a group outside it begins with `..`: the mounted group then encloses ours, or is the
    // nearest to it that is visible.
    let enclosing = mounts.iter().filter(|mount| leads_outside(&mount.root) || leads_outside(own));
    enclosing.map(|mount| (mount.point.as_path(), PathBuf::new())).collect()
}

fn leads_outside(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Returns a path of `mountinfo` without its escapes: blanks and the like are three octal digits after a backslash there.
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
