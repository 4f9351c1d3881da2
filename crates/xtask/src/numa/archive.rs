//! Writes an archive that the kernel unpacks as its first file system: cpio in the format `newc`.
//!
//! Each entry is a header of hexadecimal numbers, the path with a zero after it, and the contents, the last two filled up to
//! a multiple of four bytes. An entry named `TRAILER!!!` ends the archive.

use std::collections::BTreeSet;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive in memory.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds a file that may be run, at an absolute path, with the folders that lead to it.
    pub(super) fn add(&mut self, path: &str, contents: &[u8]) {
        self.add_folders_of(path);
        self.entry(path, PROGRAM, (0, 0), contents);
    }

    /// Adds the kernel's console as a device, which the first process has for its output before anything is mounted.
    pub(super) fn add_console(&mut self) {
        self.add_folders_of("/dev/console");
        self.entry("/dev/console", CONSOLE, (5, 1), &[]);
    }

    fn add_folders_of(&mut self, path: &str) {
        let folders: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        for folder in folders.into_iter().rev().filter_map(Path::to_str).filter(|folder| *folder != "/") {
            if self.folders.insert(folder.to_owned()) {
                self.entry(folder, FOLDER, (0, 0), &[]);
            }
        }
    }

    /// Returns the bytes of the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let name = path.trim_start_matches('/');
        let length = u32::try_from(contents.len()).expect("no program has 4 GiB");
        let links = if mode == FOLDER { 2 } else { 1 };
        // Number, mode, user, group, links, time, length, its device, the device it is, length of the path, checksum.
        let fields = [self.entries, mode, 0, 0, links, 0, length, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| self.bytes.extend_from_slice(format!("{field:08x}").as_bytes()));
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.fill();
        self.bytes.extend_from_slice(contents);
        self.fill();
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive as the kernel does: paths with modes and contents.
    fn unpacked(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        loop {
            assert_eq!((&bytes[at..at + 6], at % 4), (&b"070701"[..], 0));
            let field = |n: usize| {
                let start = at + 6 + 8 * n;
                u32::from_str_radix(str::from_utf8(&bytes[start..start + 8]).unwrap(), 16).unwrap()
            };
            let (mode, length, name) = (field(1), field(6) as usize, field(11) as usize);
            let path = str::from_utf8(&bytes[at + 110..at + 110 + name - 1]).unwrap().to_owned();
            let contents = (at + 110 + name).next_multiple_of(4);
            if path == "TRAILER!!!" {
                return found;
            }
            found.push((path, mode, bytes[contents..contents + length].to_vec()));
            at = (contents + length).next_multiple_of(4);
        }
    }

    #[test]
    fn every_file_has_its_folders_before_it_and_once() {
        let mut archive = Archive::default();
        archive.add_console();
        archive.add("/bin/deep/a", b"12345");
        archive.add("/bin/b", b"");
        let found = unpacked(&archive.finish());
        let paths: Vec<&str> = found.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(paths, ["dev", "dev/console", "bin", "bin/deep", "bin/deep/a", "bin/b"]);
        assert_eq!((found[4].1, &*found[4].2), (PROGRAM, &b"12345"[..]));
        assert_eq!(found[2].1, FOLDER);
    }
}
