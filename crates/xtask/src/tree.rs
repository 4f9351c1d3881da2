//! The files of the workspace, read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::lexer::{self, Masks};

/// One file. Its path is relative to the workspace and uses `/`.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    /// The contents; empty if the file is not UTF-8 text.
    pub(crate) text: String,
    /// The masks of [`text`](Self::text); empty if the file is not Rust.
    pub(crate) masks: Masks,
}

impl File {
    fn new(path: String, text: String) -> Self {
        let masks = if path.ends_with(".rs") { lexer::mask(&text) } else { Masks::default() };
        Self { path, text, masks }
    }

    /// Returns the code of a Rust file, with comments and literals blanked.
    pub(crate) fn code(&self) -> &str {
        &self.masks.code
    }

    /// Returns the path after the folder `src` of a package, if the file is there.
    pub(crate) fn path_in_src(&self) -> Option<&str> {
        let (_, inside) = in_package(&self.path)?;
        inside.strip_prefix("src/")
    }

    /// Returns whether the file is the root of a target: `lib.rs`, `main.rs` or a program in `bin/`.
    pub(crate) fn is_crate_root(&self) -> bool {
        let segments: Vec<&str> = self.path_in_src().unwrap_or("").split('/').collect();
        matches!(segments[..], ["lib.rs" | "main.rs"] | ["bin", _] | ["bin", _, "main.rs"])
    }
}

/// A numbered example, `crates/PACKAGE/examples/NN-….rs`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Example<'a> {
    pub(crate) name: &'a str,
}

impl<'a> Example<'a> {
    pub(crate) fn at(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').collect();
        let ["crates", _, "examples", file] = segments[..] else {
            return None;
        };
        let name = file.strip_suffix(".rs")?;
        match name.as_bytes() {
            [tens, units, b'-', _, ..] if tens.is_ascii_digit() && units.is_ascii_digit() => Some(Self { name }),
            _ => None,
        }
    }
}

/// The files of a workspace, in the order of their paths.
#[derive(Debug)]
pub(crate) struct Tree {
    files: BTreeMap<String, File>,
}

impl Tree {
    /// Reads the files that git tracks or would track under `root`; without git, everything but build output.
    pub(crate) fn read(root: &Path) -> Result<Self, Error> {
        let paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        let mut files = Vec::new();
        for path in paths {
            let full = root.join(&path);
            // The index still names a file that has been deleted, and git lists a link as a file.
            if full.is_file() {
                let bytes = fs::read(&full).map_err(|source| Error::Read { path: full, source })?;
                files.push((path, String::from_utf8(bytes).unwrap_or_default()));
            }
        }
        Ok(Self::from_texts(files))
    }

    /// Creates a tree of the given paths and texts.
    pub(crate) fn from_texts<P, T>(files: impl IntoIterator<Item = (P, T)>) -> Self
    where
        P: Into<String>,
        T: Into<String>,
    {
        let files = files.into_iter().map(|(path, text)| {
            let path = path.into();
            (path.clone(), File::new(path, text.into()))
        });
        Self { files: files.collect() }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.path.ends_with(".rs"))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Returns whether `path` is a file, or a folder that contains one.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = self.files.range(folder.clone()..).next();
        self.files.contains_key(path) || below.is_some_and(|(next, _)| next.starts_with(&folder))
    }

    /// Returns the packages that have a file at `inside`, by the names of their folders.
    pub(crate) fn packages_with(&self, inside: &str) -> impl Iterator<Item = &str> {
        self.files.keys().filter_map(move |path| {
            let (package, rest) = in_package(path)?;
            (rest == inside).then_some(package)
        })
    }

    /// Returns the manifest of a package, by the name of its folder.
    pub(crate) fn manifest(&self, package: &str) -> Option<&File> {
        self.get(&format!("crates/{package}/Cargo.toml")).or_else(|| self.get(&format!("{package}/Cargo.toml")))
    }
}

/// The package that is not in `crates`: it has Python beside Rust.
const BESIDE_CRATES: &str = "python";

/// Returns the folder of the package that a path is in, and the path inside.
pub(crate) fn in_package(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("crates/") {
        Some(inside) => inside.split_once('/'),
        None => path.split_once('/').filter(|(folder, _)| *folder == BESIDE_CRATES),
    }
}

/// Returns the paths that git lists; `None` if there is no git, or no repository with these files.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = names.split_terminator('\0').map(String::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Result<Vec<String>, Error> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let full = root.join(&folder);
        let read_error = |source| Error::Read { path: full.clone(), source };
        for entry in fs::read_dir(&full).map_err(read_error)? {
            let entry = entry.map_err(read_error)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !entry.file_type().map_err(read_error)?.is_dir() {
                paths.push(folder.clone() + &name);
            } else if name != "target" && name != ".git" {
                folders.push(format!("{folder}{name}/"));
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_git_is_walked() {
        let root = std::env::temp_dir().join(format!("xtask-walk-{}", std::process::id()));
        for path in ["crates/a/src/lib.rs", "target/debug/out.rs", "README.md"] {
            let full = root.join(path);
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, "text").unwrap();
        }
        let mut paths = walked(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        paths.sort();
        assert_eq!(paths, ["README.md", "crates/a/src/lib.rs"]);
    }

    #[test]
    fn the_real_tree_has_this_file() {
        let tree = Tree::read(crate::workspace_root()).unwrap();
        assert!(tree.contains("crates/xtask/src/tree.rs"));
        assert!(tree.packages_with("src/tree.rs").any(|name| name == "xtask"));
    }

    #[test]
    fn folders_are_contained_by_whole_segments() {
        let tree = Tree::from_texts([("docs/guide.md", ""), ("docs-old.md", "")]);
        assert!(tree.contains("docs"));
        assert!(tree.contains("docs/guide.md"));
        assert!(!tree.contains("doc"));
        assert!(!tree.contains("docs/guide"));
    }

    #[test]
    fn crate_roots_are_recognised() {
        let is_root = |path: &str| File::new(path.into(), String::new()).is_crate_root();
        assert!(is_root("crates/a/src/lib.rs"));
        assert!(is_root("crates/a/src/bin/tool.rs"));
        assert!(is_root("python/src/lib.rs"));
        assert!(!is_root("docs/src/lib.rs"));
        assert!(is_root("crates/a/src/bin/tool/main.rs"));
        assert!(!is_root("crates/a/src/pool/main.rs"));
        assert!(!is_root("crates/a/tests/lib.rs"));
    }

    #[test]
    fn numbered_examples_are_recognised() {
        let example = Example::at("crates/bursar/examples/01-budget.rs");
        assert_eq!(example, Some(Example { name: "01-budget" }));
        for path in [
            "crates/bursar/examples/budget.rs",
            "crates/bursar/examples/1-budget.rs",
            "crates/bursar/examples/01-.rs",
            "crates/bursar/tests/01-budget.rs",
        ] {
            assert_eq!(Example::at(path), None, "{path}");
        }
    }
}
