//! Source files that no target compiles.

use std::collections::BTreeSet;

use super::Finding;
use crate::lexer::{braced, offsets_of, preamble, words};
use crate::tree::{File, Tree};

pub(super) fn files_are_included(tree: &Tree) -> Vec<Finding> {
    let included = included_files(tree);
    tree.rust_files()
        .filter(|file| file.path_in_src().is_some() && !included.contains(file.path.as_str()))
        .map(|file| Finding::about(&file.path, "orphan", "no module declares this file"))
        .collect()
}

/// Returns the files that can be reached from a crate's root by `mod` declarations.
fn included_files(tree: &Tree) -> BTreeSet<&str> {
    let mut included = BTreeSet::new();
    let mut to_visit: Vec<&File> = tree.rust_files().filter(|file| file.is_crate_root()).collect();
    while let Some(file) = to_visit.pop() {
        if included.insert(file.path.as_str()) {
            let declared = declared_paths(file);
            to_visit.extend(declared.iter().filter_map(|path| tree.get(path)));
        }
    }
    included
}

/// Returns the possible paths of the modules that `file` declares.
fn declared_paths(file: &File) -> Vec<String> {
    let code = file.code();
    let mut paths = Vec::new();
    let mut inline: Vec<(&str, usize)> = Vec::new();
    for at in offsets_of(code, "mod") {
        inline.retain(|&(_, end)| at < end);
        let Some((name_at, name)) = words(&code[at..]).nth(1) else {
            continue;
        };
        let after_name = at + name_at + name.len();
        match code[after_name..].trim_start().chars().next() {
            Some('{') => inline.push((name, braced(code, after_name).end)),
            Some(';') => {
                let parents: String = inline.iter().map(|(name, _)| format!("{name}/")).collect();
                paths.extend(candidates(file, &parents, name, path_attribute(file, at)));
            }
            _ => {}
        }
    }
    paths
}

/// Returns the paths at which the compiler looks for a module, given the inline modules it is declared in.
fn candidates(file: &File, parents: &str, name: &str, attribute: Option<&str>) -> Vec<String> {
    let (folder, file_name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let own_folder = match file_name.strip_suffix(".rs") {
        Some(stem) if stem != "mod" && !file.is_crate_root() => format!("{folder}/{stem}"),
        _ => folder.to_owned(),
    };
    match attribute {
        Some(path) if parents.is_empty() => vec![resolve(folder, path)],
        Some(path) => vec![resolve(&format!("{own_folder}/{parents}"), path)],
        None => {
            let base = format!("{own_folder}/{parents}{name}");
            vec![format!("{base}.rs"), format!("{base}/mod.rs")]
        }
    }
}

/// Returns the literal in `#[path = "…"]` on the item at `item`.
fn path_attribute(file: &File, item: usize) -> Option<&str> {
    let attributes = preamble(file.code(), item);
    let start = item - attributes.len() + attributes.find("#[path")?;
    file.text[start..].split('"').nth(1)
}

/// Returns `path` relative to `folder`, without `.` and `..`.
pub(super) fn resolve(folder: &str, path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in folder.split('/').chain(path.split('/')) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_file_nobody_declares_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "mod used;\n// mod orphan;\n"),
            ("crates/a/src/used.rs", ""),
            ("crates/a/src/orphan.rs", "mod child;"),
            ("crates/a/src/orphan/child.rs", ""),
        ];
        let expected = [
            "crates/a/src/orphan.rs:1: orphan: no module declares this file",
            "crates/a/src/orphan/child.rs:1: orphan: no module declares this file",
        ];
        let mut found = shown(files_are_included, files);
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn modules_are_looked_for_where_the_language_does() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod b;\npub(crate) mod inline { mod c; }\nmod d;\n"),
            ("crates/a/src/b.rs", "mod e;"),
            ("crates/a/src/b/e.rs", ""),
            ("crates/a/src/inline/c.rs", ""),
            ("crates/a/src/d/mod.rs", "mod f;"),
            ("crates/a/src/d/f.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/common/unlisted.rs", ""),
        ];
        assert_eq!(shown(files_are_included, files), [""; 0]);
    }

    #[test]
    fn the_path_attribute_is_followed() {
        let root = "use x;\n#[cfg(unix)]\n#[path = \"sys/../unix.rs\"]\nmod sys;\n\
                    mod inline {\n    #[path = \"deep.rs\"]\n    mod renamed;\n}\n";
        let files = [
            ("crates/a/src/main.rs", root),
            ("crates/a/src/unix.rs", ""),
            ("crates/a/src/inline/deep.rs", ""),
            ("crates/a/src/sys.rs", ""),
        ];
        let found = shown(files_are_included, files);
        assert_eq!(found, ["crates/a/src/sys.rs:1: orphan: no module declares this file"]);
    }
}
