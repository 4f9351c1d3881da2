//! Rules for every crate: inherited lints, documented roots, short files.

use super::Finding;
use crate::tree::{File, Tree};

/// The most lines of a file. A longer one contains more than one idea.
const LINES_MAX: usize = 800;

pub(super) fn lints_are_inherited(tree: &Tree) -> Vec<Finding> {
    tree.packages_with("Cargo.toml")
        .filter_map(|package| tree.manifest(package))
        .filter(|manifest| !inherits_lints(&manifest.text))
        .map(|manifest| Finding::about(&manifest.path, "crate-lints", "needs `[lints]` with `workspace = true`"))
        .collect()
}

fn inherits_lints(manifest: &str) -> bool {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line == "workspace = true")
}

pub(super) fn roots_are_documented(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter(|file| file.is_crate_root() && !is_documented(file))
        .map(|file| Finding::about(&file.path, "crate-docs", "a crate's root opens with a `//!` comment"))
        .collect()
}

/// Returns whether the file has documentation of its own: an inner comment that is not indented can be nothing else.
fn is_documented(file: &File) -> bool {
    file.masks.comments.lines().any(|line| line.starts_with("//!"))
}

pub(super) fn files_are_short(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter(|file| file.path_in_src().is_some())
        .filter_map(|file| {
            let lines = file.text.lines().count();
            let message = format!("{lines} lines, where {LINES_MAX} are the most");
            (lines > LINES_MAX).then(|| Finding::about(&file.path, "file-length", message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_manifest_without_the_lint_table_is_found() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n\n[lints]\n\n[x]\nworkspace = true\n"),
            ("crates/a/tests/fixture/Cargo.toml", "[package]\n"),
        ];
        let found = shown(lints_are_inherited, files);
        assert_eq!(found, ["crates/b/Cargo.toml:1: crate-lints: needs `[lints]` with `workspace = true`"]);
    }

    #[test]
    fn an_undocumented_root_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "#![no_std]\n\n//! Documented.\n"),
            ("crates/b/src/lib.rs", "// Not documented.\nmod c {\n    //! C.\n}\n"),
            ("crates/b/src/d.rs", ""),
        ];
        let found = shown(roots_are_documented, files);
        assert_eq!(found, ["crates/b/src/lib.rs:1: crate-docs: a crate's root opens with a `//!` comment"]);
    }

    #[test]
    fn a_long_file_is_found_with_its_length() {
        let (longest, long) = ("\n".repeat(LINES_MAX), "\n".repeat(LINES_MAX + 1));
        let files = [
            ("crates/a/src/longest.rs", &*longest),
            ("crates/a/src/long.rs", &*long),
            ("crates/a/tests/long.rs", &*long),
        ];
        let found = shown(files_are_short, files);
        assert_eq!(found, ["crates/a/src/long.rs:1: file-length: 801 lines, where 800 are the most"]);
    }
}
