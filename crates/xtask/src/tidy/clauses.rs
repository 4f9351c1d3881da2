//! Checks that every clause of the contract appears once and is held by a test.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::lexer::words;
use crate::tree::{File, Tree};

const CONTRACT: &str = "docs/contracts.md";

pub(super) fn stand_once(tree: &Tree) -> Vec<Finding> {
    let mut lines = BTreeMap::new();
    let mut findings = Vec::new();
    for (line, number) in tree.get(CONTRACT).into_iter().flat_map(clauses) {
        if let Some(other) = lines.insert(number, line) {
            findings.push(at(line, "clause-twice", format!("{number} stands in line {other} too")));
        }
    }
    findings
}

pub(super) fn are_held_by_tests(tree: &Tree) -> Vec<Finding> {
    let rust = tree.rust_files().flat_map(test_prefixes);
    let python = tree.files().filter(|file| file.path.ends_with(".py")).flat_map(python_test_prefixes);
    let held: BTreeSet<String> = rust.chain(python).collect();
    let clauses = tree.get(CONTRACT).into_iter().flat_map(clauses);
    let missing = clauses.filter(|(_, number)| !held.contains(&number.to_lowercase()));
    missing.map(|(line, number)| at(line, "clause-test", format!("no test's name begins with {number}'s"))).collect()
}

fn at(line: usize, rule: &'static str, message: String) -> Finding {
    Finding { path: CONTRACT.to_owned(), line, rule, message }
}

/// Returns the numbers of a contract's clauses (`- **R1** …`), each with its line.
fn clauses(contract: &File) -> impl Iterator<Item = (usize, &str)> {
    contract.text.lines().enumerate().filter_map(|(index, line)| {
        let (number, _) = line.strip_prefix("- **")?.split_once("**")?;
        Some((index + 1, number))
    })
}

/// Returns the parts before the first `_` of the names that a file gives to functions and, in string literals, to trials.
fn test_prefixes(file: &File) -> impl Iterator<Item = String> {
    let code: Vec<&str> = words(file.code()).map(|(_, word)| word).collect();
    let functions = code.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1]);
    let trials = file.text.split('"').skip(1).step_by(2).filter(|literal| !literal.contains(' '));
    let prefixes = functions.chain(trials).filter_map(|name| Some(name.split_once('_')?.0.to_owned()));
    prefixes.collect::<Vec<String>>().into_iter()
}

/// Returns the parts between `test_` and the next `_` of the names that a Python file gives to tests.
fn python_test_prefixes(file: &File) -> impl Iterator<Item = String> {
    let definitions = file.text.lines().map(|line| line.trim_start().trim_start_matches("async "));
    let names = definitions.filter_map(|line| line.strip_prefix("def test_"));
    names.filter_map(|name| Some(name.split_once('_')?.0.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    const CLAUSES: &str = "# Promises\n\n- **R1** One.\n- **R2** Two, see **R1**.\n- **R10** Ten.\n- **R1** Again.\n";

    #[test]
    fn a_number_that_stands_twice_is_found() {
        let found = shown(stand_once, [(CONTRACT, CLAUSES)]);
        assert_eq!(found, ["docs/contracts.md:6: clause-twice: R1 stands in line 3 too"]);
    }

    #[test]
    fn a_clause_without_a_test_is_found() {
        let tests = "fn r1_holds() {}\n// fn r2_is_planned() {}\nconst TRIALS: &[&str] = &[\"r10_holds\"];\n";
        let found = shown(are_held_by_tests, [(CONTRACT, CLAUSES), ("crates/a/tests/all.rs", tests)]);
        assert_eq!(found, ["docs/contracts.md:4: clause-test: no test's name begins with R2's"]);
        let python = "def test_r2_holds() -> None:\n";
        let files = [(CONTRACT, CLAUSES), ("crates/a/tests/all.rs", tests), ("python/tests/test_a.py", python)];
        assert!(shown(are_held_by_tests, files).is_empty());
    }
}
