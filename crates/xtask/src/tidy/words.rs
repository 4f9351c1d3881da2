//! Words and phrases that may not appear in a file.

use super::Finding;
use crate::lexer::{offsets_of, words};
use crate::tree::{File, Tree};

/// Marks of unfinished work, in this case only.
const MARKS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Phrases about history and plans, in any case.
const PHRASES: &[&[&str]] =
    &[&["previously"], &["used", "to", "be"], &["for", "now"], &["in", "a", "future", "version"]];

/// Folders that exist on one machine, as the segments an absolute path starts with.
const MACHINE_FOLDERS: &[&[&str]] = &[&["work", ""], &["home", ""], &["root", ""], &["tmp", "bash"]];

pub(super) fn comments_say_what_lasts(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().flat_map(|file| marks(file).chain(phrases(file))).collect()
}

fn marks(file: &File) -> impl Iterator<Item = Finding> {
    words(&file.masks.comments)
        .filter(|(_, word)| MARKS.contains(word))
        .map(|(at, word)| Finding::at(file, at, "unfinished", format!("{word}: finish it, or say what lasts")))
}

fn phrases(file: &File) -> impl Iterator<Item = Finding> {
    let comments: Vec<(usize, &str)> = words(&file.masks.comments).collect();
    let found = PHRASES.iter().flat_map(move |phrase| {
        let starts: Vec<usize> =
            comments.windows(phrase.len()).filter(|run| is_phrase(file, run, phrase)).map(|run| run[0].0).collect();
        starts.into_iter().map(move |at| (at, phrase))
    });
    found.map(|(at, phrase)| {
        let message = format!("\"{}\": comments tell neither history nor plans", phrase.join(" "));
        Finding::at(file, at, "not-lasting", message)
    })
}

/// Returns whether `run` spells `phrase` with nothing but blanks and the start of one comment line between.
fn is_phrase(file: &File, run: &[(usize, &str)], phrase: &[&str]) -> bool {
    let adjacent = run.windows(2).all(|pair| {
        let gap = &file.text[pair[0].0 + pair[0].1.len()..pair[1].0];
        gap.matches('\n').count() <= 1 && gap.chars().all(|c| c.is_whitespace() || "/!*".contains(c))
    });
    let spelled = run.iter().zip(phrase).all(|((_, word), wanted)| word.eq_ignore_ascii_case(wanted));
    adjacent && spelled
}

/// Words that open a fragment. Documentation opens with a noun for the thing, or a verb for what a function does.
const FRAGMENTS: &[&str] = &["What", "How", "Whether", "Who", "Whose", "Answers", "Answer", "Told", "Where"];

pub(super) fn documentation_names_its_subject(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().filter(|file| file.path_in_src().is_some()).flat_map(fragments).collect()
}

fn fragments(file: &File) -> impl Iterator<Item = Finding> {
    let mut offset = 0;
    let mut was_documentation = false;
    file.masks.comments.split_inclusive('\n').filter_map(move |line| {
        let start = offset;
        offset += line.len();
        let text = line.trim_start();
        let is_documentation = text.starts_with("///") || text.starts_with("//!");
        let opens = !std::mem::replace(&mut was_documentation, is_documentation) && is_documentation;
        let (at, first) = words(text).next().filter(|_| opens)?;
        let message = format!("\"{first} …\": begin with what it is, or with a verb (\"Returns …\")");
        let at = start + line.len() - text.len() + at;
        FRAGMENTS.contains(&first).then(|| Finding::at(file, at, "fragment", message))
    })
}

pub(super) fn nothing_is_left_from_debugging(tree: &Tree) -> Vec<Finding> {
    let macros = tree.rust_files().flat_map(|file| {
        let calls =
            offsets_of(file.code(), "dbg").filter(|at| file.code()[at + "dbg".len()..].trim_start().starts_with('!'));
        calls.map(move |at| Finding::at(file, at, "debugging", "a `dbg!` call"))
    });
    macros.collect()
}

pub(super) fn no_path_of_one_machine(tree: &Tree) -> Vec<Finding> {
    let folders: Vec<String> = MACHINE_FOLDERS.iter().map(|segments| format!("/{}", segments.join("/"))).collect();
    let mut findings = Vec::new();
    for file in tree.files() {
        for folder in &folders {
            let found = file.text.match_indices(folder.as_str());
            findings.extend(found.filter(|&(at, _)| is_absolute(&file.text[..at])).map(|(at, _)| {
                let message = format!("a path below {folder} exists on one machine only");
                Finding::at(file, at, "machine-path", message)
            }));
        }
    }
    findings
}

/// Returns whether a path that follows `before` is absolute, and not the end of a longer one.
fn is_absolute(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "_-.~*$})>".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    #[test]
    fn marks_of_unfinished_work_are_found() {
        for mark in MARKS {
            let text = format!("//! A file.\nfn f() {{}} // {mark}: later\n");
            let found = shown(comments_say_what_lasts, [("crates/a/src/lib.rs", &*text)]);
            assert_eq!(found.len(), 1, "{mark}");
            assert!(found[0].starts_with("crates/a/src/lib.rs:2: unfinished: "), "{found:?}");
        }
    }

    #[test]
    fn history_and_plans_are_found() {
        for phrase in PHRASES {
            let text = format!("//! A file.\n/// It {} so.\nfn f() {{}}\n", phrase.join(" "));
            let found = shown(comments_say_what_lasts, [("crates/a/tests/b.rs", &*text)]);
            assert_eq!(found.len(), 1, "{phrase:?}");
            assert!(found[0].starts_with("crates/a/tests/b.rs:2: not-lasting: "), "{found:?}");
        }
    }

    #[test]
    fn a_phrase_is_found_across_a_line_break_and_in_capitals() {
        let text = "/// Enough FOR\n/// Now.\nfn f() {}\n";
        assert_eq!(shown(comments_say_what_lasts, [("a.rs", text)]).len(), 1);
    }

    #[test]
    fn innocent_words_are_left_alone() {
        let text = "// What for. Now it is\n// for nowhere; HACKNEY.\nconst S: &str = \"TODO for now\";\n\
                    // for\n\n// now\n";
        assert!(shown(comments_say_what_lasts, [("a.rs", text)]).is_empty());
    }

    #[test]
    fn documentation_that_opens_with_a_fragment_is_found() {
        let text = "//! How far it is.\n\n/// What it holds.\nfn a() {}\n\n/// Returns what it holds.\n/// What else.\nfn b() {}\n\n\
                    // What follows\n    /// Answers it.\n    fn c() {}\n";
        let files = [("crates/a/src/lib.rs", text), ("crates/a/tests/all.rs", text)];
        let expected = [("1", "How"), ("3", "What"), ("11", "Answers")].map(|(line, word)| {
            let message = "begin with what it is, or with a verb (\"Returns …\")";
            format!("crates/a/src/lib.rs:{line}: fragment: \"{word} …\": {message}")
        });
        assert_eq!(shown(documentation_names_its_subject, files), expected);
    }

    #[test]
    fn debugging_calls_are_found() {
        let text = "fn f() {\n    dbg!(1);\n}\n// dbg!(2)\nfn dbg() {}\n";
        let found = shown(nothing_is_left_from_debugging, [("crates/a/examples/b.rs", text)]);
        assert_eq!(found, ["crates/a/examples/b.rs:2: debugging: a `dbg!` call"]);
    }

    #[test]
    fn paths_of_one_machine_are_found_in_any_text_file() {
        for segments in MACHINE_FOLDERS {
            let folder = format!("/{}", segments.join("/"));
            let text = format!("line\nsee `{folder}x`\n");
            let found = shown(no_path_of_one_machine, [("notes.md", &*text)]);
            assert_eq!(found.len(), 1, "{folder}");
            assert!(found[0].starts_with("notes.md:2: machine-path: "), "{found:?}");
        }
    }

    #[test]
    fn relative_paths_and_addresses_are_left_alone() {
        let text = "crates/work/a ../home/b https://example.org/root/c $DIR/work/d\n";
        assert!(shown(no_path_of_one_machine, [("notes.md", text)]).is_empty());
    }
}
