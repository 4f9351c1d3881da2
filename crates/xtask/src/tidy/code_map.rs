//! Checks the code map of ARCHITECTURE.md against the manifests, and that the files which the document names exist.

use std::collections::BTreeSet;

use super::Finding;
use crate::tree::{File, Tree};

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) fn agrees_with_the_manifests(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.get(DOCUMENT) else { return Vec::new() };
    let rows: Vec<Row<'_>> = rows(document).collect();
    let mut findings = Vec::new();
    for package in tree.packages_with("Cargo.toml") {
        let Some(manifest) = tree.manifest(package) else { continue };
        let used = dependencies(&manifest.text);
        let message = match rows.iter().find(|row| row.package == package) {
            None => (1, format!("the code map has no row for {package}")),
            Some(row) if row.may_use() != used => {
                let used: Vec<&str> = used.into_iter().collect();
                (row.line, format!("{package} uses {}", if used.is_empty() { "–".into() } else { used.join(", ") }))
            }
            Some(_) => continue,
        };
        findings.push(at(message.0, "code-map", message.1));
    }
    let is_package = |row: &&Row<'_>| tree.manifest(row.package).is_none();
    findings.extend(
        rows.iter()
            .filter(is_package)
            .map(|row| at(row.line, "code-map", format!("there is no package {}", row.package))),
    );
    findings
}

fn at(line: usize, rule: &'static str, message: String) -> Finding {
    Finding { path: DOCUMENT.to_owned(), line, rule, message }
}

/// A row of the code map: `` | `package` | what to look for | may use | ``.
struct Row<'a> {
    line: usize,
    package: &'a str,
    uses: &'a str,
}

impl<'a> Row<'a> {
    fn may_use(&self) -> BTreeSet<&'a str> {
        self.uses.split(',').map(str::trim).filter(|name| *name != "–").collect()
    }
}

fn rows(document: &File) -> impl Iterator<Item = Row<'_>> {
    document.text.lines().enumerate().filter_map(|(index, line)| {
        let row = line.strip_prefix("| `")?.strip_suffix('|')?;
        let (package, rest) = row.split_once("` |")?;
        let (_, uses) = rest.rsplit_once('|')?;
        let is_package = package.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        is_package.then_some(Row { line: index + 1, package, uses })
    })
}

/// Returns the packages of this workspace in a manifest's `[dependencies]`, without `bursar-`; the facade is `bursar`.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', '=', ' ']).next())
        .filter(|name| name.starts_with("bursar"))
        .map(|name| name.strip_prefix("bursar-").unwrap_or(name))
        .collect()
}

/// Checks the files that are named in code spans, by their path or the end of it.
pub(super) fn named_files_exist(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.get(DOCUMENT) else { return Vec::new() };
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_source(name)) {
            let end = format!("/{name}");
            if !tree.files().any(|file| file.path == *name || file.path.ends_with(&end)) {
                findings.push(at(index + 1, "named-file", format!("there is no {name}")));
            }
        }
    }
    findings
}

fn is_source(span: &str) -> bool {
    span.ends_with(".rs") && !span.contains([' ', '*', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    const MAP: &str = "| crate | look for | may use |\n| --- | --- | --- |\n\
                       | `bursar-core` | `a.rs` \\| more | – |\n| `bursar-sim` | x | core, linux |\n| `gone` | x | – |\n";

    #[test]
    fn a_code_map_that_says_something_else_is_found() {
        let sim = "[package]\n\n[dependencies]\nbursar-core.workspace = true\ntracing = \"1\"\n\n[dev-dependencies]\nbursar-linux.workspace = true\n";
        let files = [
            (DOCUMENT, MAP),
            ("crates/bursar-core/Cargo.toml", "[package]\n"),
            ("crates/bursar-sim/Cargo.toml", sim),
            ("crates/bursar-new/Cargo.toml", "[package]\n"),
        ];
        let expected = [
            "ARCHITECTURE.md:1: code-map: the code map has no row for bursar-new",
            "ARCHITECTURE.md:4: code-map: bursar-sim uses core",
            "ARCHITECTURE.md:5: code-map: there is no package gone",
        ];
        assert_eq!(shown(agrees_with_the_manifests, files), expected);
    }

    #[test]
    fn a_file_that_does_not_exist_is_found() {
        let text = "See `pool/allocate.rs`, `gone.rs` and `Pool::x`.\n";
        let found = shown(named_files_exist, [(DOCUMENT, text), ("crates/a/src/pool/allocate.rs", "")]);
        assert_eq!(found, ["ARCHITECTURE.md:1: named-file: there is no gone.rs"]);
    }
}
