//! Checks that the top-level modules of a crate import each other in one direction.
//!
//! A module is a file or folder right below the root of a crate. It imports another where its code, or that of its
//! children, names it: by `crate::`, by `super::` that reaches the root, or by a name that the root re-exports from it.
//! Tests are left out: they may look at everything.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::lexer::{braced, offsets_of, preamble, words};
use crate::tree::{File, Tree};

/// For each module, the modules that it imports and where.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a File, usize)>>;

pub(super) fn go_one_way(tree: &Tree) -> Vec<Finding> {
    let roots = tree.rust_files().filter(|file| matches!(file.path_in_src(), Some("lib.rs" | "main.rs")));
    roots.flat_map(|root| cycles(tree, root)).collect()
}

fn cycles(tree: &Tree, root: &File) -> Vec<Finding> {
    let modules = declared(root);
    let exports = exports(root, &modules);
    let folder = root.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut imports: Imports<'_> = BTreeMap::new();
    for file in tree.rust_files() {
        let Some(inside) = file.path.strip_prefix(folder).and_then(|path| path.strip_prefix('/')) else { continue };
        let top = inside.split('/').next().unwrap_or("").trim_end_matches(".rs");
        let Some(&module) = modules.get(top) else { continue };
        for (name, at) in names_at_root(file, inside) {
            let imported = modules.get(name).or_else(|| exports.get(name)).copied();
            if let Some(imported) = imported.filter(|&imported| imported != module) {
                imports.entry(module).or_default().entry(imported).or_insert((file, at));
            }
        }
    }
    findings(&imports)
}

/// Returns a finding for each import that is part of a cycle.
fn findings(imports: &Imports<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (&from, targets) in imports {
        for (&to, &(file, at)) in targets {
            if reaches(imports, to, from) {
                let message = format!("`{from}` imports `{to}`, which imports `{from}`, itself or through others");
                findings.push(Finding::at(file, at, "import-cycle", message));
            }
        }
    }
    findings
}

fn reaches(imports: &Imports<'_>, from: &str, to: &str) -> bool {
    let (mut seen, mut to_visit) = (BTreeSet::new(), vec![from]);
    while let Some(module) = to_visit.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            to_visit.extend(imports.get(module).into_iter().flat_map(BTreeMap::keys));
        }
    }
    false
}

/// Returns the modules that a root declares, except tests, by their names.
fn declared(root: &File) -> BTreeMap<&str, &str> {
    let code = root.code();
    let names = offsets_of(code, "mod").filter(|&at| !preamble(code, at).contains("cfg(test)")).filter_map(|at| {
        let (start, name) = words(&code[at..]).nth(1)?;
        code[at + start + name.len()..].trim_start().starts_with(';').then_some(name)
    });
    names.map(|name| (name, name)).collect()
}

/// Returns the names that a root re-exports from its modules, each with its module.
fn exports<'a>(root: &'a File, modules: &BTreeMap<&'a str, &'a str>) -> BTreeMap<&'a str, &'a str> {
    let code = root.code();
    let mut exports = BTreeMap::new();
    for at in offsets_of(code, "use") {
        let statement = &code[at..at + code[at..].find(';').unwrap_or(0)];
        let mut path =
            words(statement).skip(1).map(|(_, word)| word).skip_while(|word| matches!(*word, "crate" | "self"));
        if let Some(&module) = path.next().and_then(|first| modules.get(first)) {
            exports.extend(path.map(|name| (name, module)));
        }
    }
    exports
}

/// Returns the names that a file looks up in the root of its crate, each with its offset.
fn names_at_root<'a>(file: &'a File, inside: &str) -> Vec<(&'a str, usize)> {
    let code = file.code();
    let tests = test_modules(code);
    let depth = inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').count();
    let words: Vec<(usize, &str)> = words(code).collect();
    let mut names = Vec::new();
    let mut index = 0;
    while index < words.len() {
        let (at, word) = words[index];
        let ups = words[index..].iter().take_while(|&&(at, word)| word == "super" && is_path(code, at, word)).count();
        index += ups.max(1);
        let is_at_root = (word == "crate" && is_path(code, at, word)) || (ups > 0 && ups == depth);
        if is_at_root && !tests.iter().any(|test| test.contains(&at)) {
            let after = words[index - 1].0 + words[index - 1].1.len();
            names.extend(first_names(code, after + "::".len()));
        }
    }
    names
}

fn is_path(code: &str, at: usize, word: &str) -> bool {
    code[at + word.len()..].starts_with("::")
}

/// Returns the first segments of the paths after `::`: one name, or those of a group.
fn first_names(code: &str, at: usize) -> Vec<(&str, usize)> {
    if !code[at..].starts_with('{') {
        return words(&code[at..])
            .next()
            .filter(|(start, _)| *start == 0)
            .map(|(_, name)| (name, at))
            .into_iter()
            .collect();
    }
    let group = braced(code, at);
    let (mut depth, mut starts, mut names) = (0, true, Vec::new());
    for (offset, c) in code[group.clone()].char_indices() {
        match c {
            '{' => (depth, starts) = (depth + 1, depth == 0),
            '}' => depth -= 1,
            ',' if depth == 1 => starts = true,
            _ if c.is_whitespace() => {}
            _ if starts && depth == 1 => {
                let from = group.start + offset;
                names.extend(words(&code[from..]).next().map(|(_, name)| (name, from)));
                starts = false;
            }
            _ => {}
        }
    }
    names
}

/// Returns the bodies of modules that are compiled for tests only.
fn test_modules(code: &str) -> Vec<std::ops::Range<usize>> {
    let is_test = |&at: &usize| preamble(code, at).contains("test");
    offsets_of(code, "mod").filter(is_test).map(|at| braced(code, at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_cycle_is_found_at_each_import_that_is_part_of_it() {
        let files = [
            ("crates/a/src/lib.rs", "mod high;\nmod low;\nmod apart;\npub use low::{Low, deep::Deeper};\n"),
            ("crates/a/src/high.rs", "use crate::{Bytes, Deeper as D, apart::X};\n"),
            ("crates/a/src/low.rs", "mod inner;\n"),
            ("crates/a/src/low/inner.rs", "use std::fmt;\nuse super::super::high::High;\n"),
            ("crates/a/src/apart.rs", "use crate::Low;"),
        ];
        let expected = [
            "crates/a/src/high.rs:1: import-cycle: `high` imports `low`, which imports `high`, itself or through others",
            "crates/a/src/low/inner.rs:2: import-cycle: `low` imports `high`, which imports `low`, itself or through others",
            "crates/a/src/high.rs:1: import-cycle: `high` imports `apart`, which imports `high`, itself or through others",
            "crates/a/src/apart.rs:1: import-cycle: `apart` imports `low`, which imports `apart`, itself or through others",
        ];
        let found = shown(go_one_way, files);
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), expected.map(str::to_owned).iter().collect());
    }

    #[test]
    fn parents_children_and_tests_are_left_alone() {
        let files = [
            ("crates/a/src/lib.rs", "mod high;\nmod low;\n#[cfg(test)]\nmod model;\npub use high::High;\n"),
            ("crates/a/src/high.rs", "mod part;\nuse crate::low::Low;\nuse part::Part;\n"),
            ("crates/a/src/high/part.rs", "use super::High;\nuse crate::high::other;\n"),
            ("crates/a/src/low.rs", "// crate::high\n#[cfg(test)]\nmod tests {\n    use crate::High;\n}\n"),
            ("crates/a/src/model.rs", "use crate::high::High;\n"),
            ("crates/b/src/lib.rs", "mod low;\nmod high;\n"),
            ("crates/b/src/low.rs", "use crate::high;\n"),
        ];
        assert_eq!(shown(go_one_way, files), [""; 0]);
    }
}
