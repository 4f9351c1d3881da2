//! The documents beside the code, and what they point at.

use super::Finding;
use super::modules::resolve;
use crate::tree::{File, Tree};

const EXPECTED: &[&str] =
    &["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

pub(super) fn the_usual_ones_exist(tree: &Tree) -> Vec<Finding> {
    EXPECTED
        .iter()
        .filter(|path| tree.get(path).is_none())
        .map(|path| Finding::about(*path, "missing-file", "the workspace needs this file"))
        .collect()
}

pub(super) fn links_lead_somewhere(tree: &Tree) -> Vec<Finding> {
    let documents = tree.files().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|document| dead_links(tree, document)).collect()
}

fn dead_links(tree: &Tree, document: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, prose) in prose_lines(&document.text) {
        for link in links(&prose) {
            if let Some(path) = linked_path(document, link).filter(|path| !tree.contains(path)) {
                let message = format!("there is no {path}");
                let path = document.path.clone();
                findings.push(Finding { path, line, rule: "dead-link", message });
            }
        }
    }
    findings
}

/// Returns the lines outside fenced blocks, numbered, without their code spans.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then(|| (index + 1, line.split('`').step_by(2).collect()))
    })
}

/// Returns the targets of a line's links: `[text](target)`, and `[label]: target` on a line of its own.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let inline = prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let defined = prose.starts_with('[').then(|| prose.split_once("]: ")).flatten();
    inline.chain(defined.map(|(_, target)| target))
}

/// Returns the path in this workspace that `link` names, or `None` if it leads out or to its own page.
fn linked_path(document: &File, link: &str) -> Option<String> {
    let target = link.split_whitespace().next()?.trim_matches(['<', '>']);
    let path = target.split('#').next()?;
    if path.is_empty() || path.contains(':') {
        return None;
    }
    let (folder, _) = document.path.rsplit_once('/').unwrap_or_default();
    Some(resolve(if path.starts_with('/') { "" } else { folder }, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn missing_documents_are_found() {
        let found = shown(the_usual_ones_exist, [("README.md", ""), ("docs/CHANGELOG.md", "")]);
        assert_eq!(found.len(), EXPECTED.len() - 1);
        assert!(found.contains(&"CHANGELOG.md:1: missing-file: the workspace needs this file".to_owned()));
    }

    #[test]
    fn dead_links_are_found() {
        let text = "# Guide\n\n[a](gone.md) and [b](../src/lib.rs)\n\n[c]: ../README.md#top \"Top\"\n";
        let files = [("docs/guide.md", text), ("src/lib.rs", "")];
        let expected = [
            "docs/guide.md:3: dead-link: there is no docs/gone.md",
            "docs/guide.md:5: dead-link: there is no README.md",
        ];
        assert_eq!(shown(links_lead_somewhere, files), expected);
    }

    #[test]
    fn live_links_addresses_and_code_are_left_alone() {
        let text = "[a](docs/) [b](docs/b.md#part) [c](#here) [d](https://example.org/x)\n\
                    [e](mailto:a@example.org) `v[i](gone)` [f](/docs/b.md)\n\
                    ```rust\nlet x = f[0](gone);\n```\n";
        let files = [("README.md", text), ("docs/b.md", "")];
        assert!(shown(links_lead_somewhere, files).is_empty());
    }
}
