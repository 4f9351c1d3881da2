//! Checks that users of the facade reach everything through it.

use std::collections::BTreeSet;

use super::Finding;
use crate::lexer::{offsets_of, words};
use crate::tree::{File, Tree};

/// The crates whose names the facade distributes over its modules.
const DISTRIBUTED: &[&str] = &["bursar-core", "bursar-device", "bursar-memory", "bursar-metrics"];

/// The crates that the facade re-exports whole.
const WHOLE: &[&str] = &["bursar-cuda", "bursar-fit", "bursar-host", "bursar-ledger", "bursar-sim", "bursar-trace"];

const FACADE: &str = "crates/bursar/src/";

/// Every name that a distributed crate exports is exported by the facade.
pub(super) fn has_every_name(tree: &Tree) -> Vec<Finding> {
    let reached: BTreeSet<&str> = sources(tree, FACADE).flat_map(exported).map(|(_, name)| name).collect();
    if reached.is_empty() {
        return Vec::new();
    }
    let roots = DISTRIBUTED.iter().filter_map(|package| tree.get(&format!("crates/{package}/src/lib.rs")));
    let names = roots.flat_map(|root| exported(root).map(move |(at, name)| (root, at, name)));
    let missing = names.filter(|(_, _, name)| !reached.contains(name));
    missing
        .map(|(file, at, name)| {
            let message = format!("`{name}` is in no module of the facade; list it in one of {FACADE}*.rs");
            Finding::at(file, at, "facade", message)
        })
        .collect()
}

/// Doc examples import the facade, through which readers meet them, and not the crate they stand in.
pub(super) fn examples_import_it(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust_files().filter(|file| file.path_in_src().is_some());
    files
        .flat_map(|file| imports_in_examples(file).map(move |(line, name)| (file, line, name)))
        .map(misdirected)
        .collect()
}

fn misdirected((file, line, name): (&File, usize, &str)) -> Finding {
    let message = format!("an example imports `{name}`, which readers have as `bursar`");
    Finding { path: file.path.clone(), line, rule: "example-import", message }
}

/// Returns the crates that the facade re-exports and that examples in the documentation name, each with its line.
fn imports_in_examples(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    file.text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            in_code = false;
            return None;
        };
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        let named = words(text).map(|(_, word)| word).find(|word| is_reexported(word));
        named.filter(|_| in_code).map(|name| (index + 1, name))
    })
}

fn is_reexported(name: &str) -> bool {
    let package = name.replace('_', "-");
    DISTRIBUTED.contains(&package.as_str()) || WHOLE.contains(&package.as_str())
}

fn sources<'a>(tree: &'a Tree, folder: &'static str) -> impl Iterator<Item = &'a File> {
    tree.rust_files().filter(move |file| file.path.starts_with(folder))
}

/// Returns the names that a file re-exports by `pub use`, each with its offset.
fn exported(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let code = file.code();
    offsets_of(code, "use").filter(|&at| code[..at].ends_with("\npub ")).flat_map(move |at| {
        let end = code[at..].find(';').map_or(code.len(), |length| at + length);
        let listed = move |&(start, name): &(usize, &str)| {
            let after = code[at + start + name.len()..end].trim_start();
            !after.starts_with("::") && name != "as"
        };
        words(&code[at..end]).skip(1).filter(listed).map(move |(start, name)| (at + start, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn a_name_that_the_facade_lacks_is_found() {
        let files = [
            (
                "crates/bursar-core/src/lib.rs",
                "//! Core.\n\npub use values::{\n    Bytes, Tag,\n};\nuse values::Own;\n",
            ),
            ("crates/bursar-sim/src/lib.rs", "//! Whole.\n\npub use sim::Sim;\n"),
            ("crates/bursar/src/lib.rs", "//! Bursar.\n\npub mod memory;\n"),
            ("crates/bursar/src/memory.rs", "//! Memory.\n\npub use bursar_core::{Bytes};\nuse bursar_core::Tag;\n"),
        ];
        let expected = "crates/bursar-core/src/lib.rs:4: facade: `Tag` is in no module of the facade; list it in one of \
                        crates/bursar/src/*.rs";
        assert_eq!(shown(has_every_name, files), [expected]);
    }

    #[test]
    fn an_example_that_imports_another_crate_is_found() {
        let text = "//! See [`Driver`](bursar_core::Driver).\n//!\n//! ```\n//! use bursar::Bytes;\n//! ```\n\n\
                    use bursar_core::Bytes;\n\n/// A pool.\n///\n/// ```\n/// # use bursar_sim::Sim;\n\
                    /// # Ok::<(), bursar_core::Error>(())\n/// ```\n/// Of bursar_core.\nstruct Pool;\n";
        let found = shown(examples_import_it, [("crates/a/src/lib.rs", text), ("crates/a/tests/b.rs", text)]);
        let expected = [
            "crates/a/src/lib.rs:12: example-import: an example imports `bursar_sim`, which readers have as `bursar`",
            "crates/a/src/lib.rs:13: example-import: an example imports `bursar_core`, which readers have as `bursar`",
        ];
        assert_eq!(found, expected);
    }
}
