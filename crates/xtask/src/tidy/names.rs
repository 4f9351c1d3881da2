//! Checks that no two public types of the workspace share a name.

use std::collections::BTreeMap;

use super::Finding;
use crate::lexer::{offsets_of, preamble, words};
use crate::tree::{File, Tree};

const KINDS: &[&str] = &["struct", "enum", "union", "trait", "type"];

pub(super) fn public_types_are_unique(tree: &Tree) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in tree.rust_files().filter(|file| file.path_in_src().is_some()) {
        for (at, name) in public_types(file) {
            match first.get(name) {
                Some(other) => {
                    let message = format!("`{name}` is also a public type of {other}");
                    findings.push(Finding::at(file, at, "shared-name", message));
                }
                None => drop(first.insert(name, &file.path)),
            }
        }
    }
    findings
}

/// Returns the public types of a file outside functions, implementations and macros, each with its offset.
fn public_types(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let code = file.code();
    let items = KINDS.iter().flat_map(move |kind| offsets_of(code, kind).map(move |at| (at, kind.len())));
    items.filter(move |&(at, _)| is_public_item(code, at)).filter_map(move |(at, len)| {
        let (start, name) = words(&code[at + len..]).next()?;
        Some((at + len + start, name))
    })
}

/// Returns whether a public item of the file itself is at `at`: such an item is not indented.
fn is_public_item(code: &str, at: usize) -> bool {
    let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
    matches!(&code[line..at], "pub " | "pub unsafe ") && preamble(code, at).contains("pub")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_name_that_two_crates_make_public_is_found() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "pub struct Pool;\npub(crate) enum Place {}\npub trait Grow {\n    type Place;\n}\n",
            ),
            (
                "crates/b/src/pool.rs",
                "// pub struct Grow;\npub(super) struct Grow;\npub enum Place {}\n\npub enum Pool {}\n",
            ),
            ("crates/b/tests/pool.rs", "pub struct Place;\n"),
        ];
        let found = shown(public_types_are_unique, files);
        assert_eq!(found, ["crates/b/src/pool.rs:5: shared-name: `Pool` is also a public type of crates/a/src/lib.rs"]);
    }
}
