//! The style of the workspace as rules that a program checks.
//!
//! Each rule reads the whole [`Tree`] and returns its findings; none of them changes a file.

mod clauses;
mod code_map;
mod crates;
mod documents;
mod facade;
mod imports;
mod modules;
mod names;
mod seams;
mod unsafety;
mod unused;
mod words;

use std::fmt;
use std::path::Path;

use crate::error::Error;
use crate::tree::{File, Tree};

/// A violation of a rule, shown as `path:line: rule: message`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    /// Creates a finding at a byte offset of `file`.
    fn at(file: &File, offset: usize, rule: &'static str, message: impl Into<String>) -> Self {
        let line = file.text[..offset].matches('\n').count() + 1;
        Self { path: file.path.clone(), line, rule, message: message.into() }
    }

    /// Creates a finding about a whole file, which need not exist.
    fn about(path: impl Into<String>, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: 1, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    clauses::stand_once,
    clauses::are_held_by_tests,
    code_map::agrees_with_the_manifests,
    code_map::named_files_exist,
    crates::lints_are_inherited,
    crates::roots_are_documented,
    crates::files_are_short,
    documents::the_usual_ones_exist,
    documents::links_lead_somewhere,
    facade::has_every_name,
    facade::examples_import_it,
    imports::go_one_way,
    modules::files_are_included,
    names::public_types_are_unique,
    seams::implementations_are_complete,
    seams::traits_have_no_default_bodies,
    unsafety::stays_in_its_rooms,
    unsafety::is_forbidden_elsewhere,
    unused::nothing_is_left_over,
    words::comments_say_what_lasts,
    words::documentation_names_its_subject,
    words::nothing_is_left_from_debugging,
    words::no_path_of_one_machine,
];

/// Returns every finding in `tree`, in the order of paths and lines.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

/// Prints the findings under `root`; any finding is an error.
pub(crate) fn run(root: &Path) -> Result<(), Error> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{} files are tidy", tree.files().count());
            Ok(())
        }
        findings => Err(Error::Untidy { findings }),
    }
}

/// Runs one rule over files given as path and text, and returns its findings as text.
#[cfg(test)]
fn shown<const N: usize>(rule: Rule, files: [(&str, &str); N]) -> Vec<String> {
    rule(&Tree::from_texts(files)).iter().map(Finding::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let tree = Tree::read(crate::workspace_root()).unwrap();
        let findings: Vec<String> = check(&tree).iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }

    #[test]
    fn findings_come_in_reading_order() {
        let tree = Tree::from_texts([
            ("crates/b/src/lib.rs", "//! B.\nfn f() {}\n// TODO\nfn g() { dbg!(1); }\n"),
            ("crates/a/src/lib.rs", "//! A.\nmod gone;\n// FIXME\n"),
        ]);
        let lines: Vec<(String, usize)> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        let in_crates: Vec<_> = lines.iter().filter(|(path, _)| path.starts_with("cr")).collect();
        assert!(in_crates.is_sorted());
        assert_eq!(in_crates.len(), 3);
    }

    #[test]
    fn an_untidy_tree_is_an_error() {
        let root = std::env::temp_dir().join(format!("xtask-untidy-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("notes.md"), "[gone](gone.md)").unwrap();
        let outcome = run(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(matches!(outcome, Err(Error::Untidy { findings: 7 })), "{outcome:?}");
    }
}
