//! The traits that layers implement: no method may be defaulted, and no layer may miss one.
//!
//! A defaulted method on a layer would silently bypass what lies below it.

use std::ops::Range;

use super::Finding;
use crate::lexer::{braced, compact, offsets_of, preamble, words};
use crate::tree::{File, Tree};

/// Traits whose implementations must implement every method themselves.
const FORWARDED: &[&str] = &["DeviceMemoryResource", "Driver", "FrameSource", "Holder", "Words"];

/// Traits that may have no default bodies.
const WITHOUT_DEFAULTS: &[&str] = &["DeviceMemoryResource", "Driver", "FrameSource", "Holder", "Words"];

const DENY: &str = "#[deny(clippy::missing_trait_methods)]";

pub(super) fn implementations_are_complete(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().filter(|file| holds_layers(file)).flat_map(implementations_without_deny).collect()
}

/// Returns whether a file is shipped source, as opposed to tests and support for them.
fn holds_layers(file: &File) -> bool {
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    file.path_in_src().is_some_and(|inside| !is_test(inside)) && !file.path.starts_with("crates/bursar-conformance/")
}

fn implementations_without_deny(file: &File) -> Vec<Finding> {
    let code = file.code();
    let tests = test_items(code);
    offsets_of(code, "impl")
        .filter(|at| !tests.iter().any(|range| range.contains(at)))
        .filter_map(|at| Some((at, implemented_trait(&code[at..])?)))
        .filter(|(_, name)| FORWARDED.contains(name))
        .filter(|&(at, _)| !compact(preamble(code, at)).contains(DENY))
        .map(|(at, name)| Finding::at(file, at, "missing-deny", format!("an implementation of {name} needs `{DENY}`")))
        .collect()
}

/// Returns the bodies of items that are compiled for tests only. `mod tests;` has none here.
fn test_items(code: &str) -> Vec<Range<usize>> {
    ["#[cfg(test)]", "#[cfg(all(test,"]
        .iter()
        .flat_map(|attribute| code.match_indices(attribute))
        .map(|(at, _)| signature_end(code, at))
        .filter(|&end| code[end..].starts_with('{'))
        .map(|end| braced(code, end))
        .collect()
}

/// Returns the trait's name in `impl<…> path::Trait<…> for …`, or `None` where `code` starts anything else.
fn implemented_trait(code: &str) -> Option<&str> {
    let header = code[..code.find(['{', ';'])?].strip_prefix("impl")?;
    let path_and_type = skip_generics(header.trim_start());
    let (path, _) = path_and_type.split_once(" for ").or(path_and_type.split_once("\nfor "))?;
    let (_, name) = words(path.split('<').next()?).last()?;
    Some(name)
}

/// Returns `text` without the `<…>` that it starts with, if any. The arrow in `Fn() -> T` closes nothing.
fn skip_generics(text: &str) -> &str {
    let mut depth = 0;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { text } else { &text[at + 1..] };
        }
        previous = c;
    }
    text
}

pub(super) fn traits_have_no_default_bodies(tree: &Tree) -> Vec<Finding> {
    let declares = |file: &&File| {
        ["core", "ledger"].iter().any(|name| file.path.starts_with(&format!("crates/bursar-{name}/src/")))
    };
    tree.rust_files().filter(declares).flat_map(default_bodies).collect()
}

fn default_bodies(file: &File) -> Vec<Finding> {
    let code = file.code();
    let mut findings = Vec::new();
    for at in offsets_of(code, "trait") {
        let (_, name) = words(&code[at..]).nth(1).unwrap_or_default();
        if WITHOUT_DEFAULTS.contains(&name) {
            findings.extend(defaulted_methods(code, braced(code, at)).map(|(at, method)| {
                let message = format!("{name}::{method} has a default body, which a layer could miss");
                Finding::at(file, at, "default-body", message)
            }));
        }
    }
    findings
}

/// Returns the methods of a trait's `body` that have bodies themselves, each with its offset.
fn defaulted_methods(code: &str, body: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
    let mut resume = body.start;
    offsets_of(&code[..body.end], "fn").filter_map(move |at| {
        if at < resume {
            return None;
        }
        let end = signature_end(code, at);
        if !code[end..].starts_with('{') {
            return None;
        }
        resume = braced(code, end).end;
        Some((at, words(&code[at..]).nth(1)?.1))
    })
}

/// Returns the offset of the `;` or the body after the signature that starts at `from`. `[u8; 4]` ends nothing.
fn signature_end(code: &str, from: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code[from..].bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' | b'{' if depth == 0 => return from + at,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    const BARE: &str = "impl<R: DeviceMemoryResource> DeviceMemoryResource for Budget<R> {}\n";

    #[test]
    fn a_layer_without_the_deny_is_found() {
        let found = shown(implementations_are_complete, [("crates/a/src/budget.rs", BARE)]);
        let expected = "crates/a/src/budget.rs:1: missing-deny: an implementation of \
                        DeviceMemoryResource needs `#[deny(clippy::missing_trait_methods)]`";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn every_shape_of_implementation_is_recognised() {
        for header in [
            "impl Holder for Pool",
            "unsafe impl Driver for Pool",
            "impl<F: Fn() -> Vec<u8>> crate::FrameSource for Pool<F>",
            "unsafe impl<T> core::Holder<T> for Pool<T>",
            "impl<T> FrameSource for Pool<T>\nwhere\n    T: for<'a> Fn(&'a u8),",
            "impl<T>\n    Holder\nfor Pool<T>",
        ] {
            let text = format!("use a::b;\n#[derive(Debug)]\nstruct S;\n{header} {{}}\n");
            let found = shown(implementations_are_complete, [("crates/a/src/pool.rs", &*text)]);
            assert_eq!(found.len(), 1, "{header}");
        }
    }

    #[test]
    fn the_deny_is_looked_for_on_the_item_itself() {
        let denied = format!("/// A layer.\n{DENY}\n// And why.\n#[doc(hidden)]\n{BARE}");
        let elsewhere = format!("{DENY}\nimpl Other for Budget {{}}\n\n{BARE}");
        let files = [("crates/a/src/denied.rs", &*denied), ("crates/a/src/elsewhere.rs", &*elsewhere)];
        let found = shown(implementations_are_complete, files);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src/elsewhere.rs:4: missing-deny: "));
    }

    #[test]
    fn uses_of_the_trait_are_not_implementations() {
        let text = "impl<R: Holder> Layer for Budget<R> { fn f(x: impl Holder) { for y in x {} } }\n\
                    impl Budget { fn f(&self) -> impl Holder + use<> { g() } }\n";
        assert!(shown(implementations_are_complete, [("crates/a/src/lib.rs", text)]).is_empty());
    }

    #[test]
    fn implementations_in_tests_are_free() {
        let in_module = format!("struct S;\n#[cfg(test)]\nmod tests {{\n{BARE}}}\n");
        let files = [
            ("crates/a/src/inline.rs", &*in_module),
            ("crates/a/src/pool/tests.rs", BARE),
            ("crates/a/tests/stack.rs", BARE),
            ("crates/bursar-conformance/src/lib.rs", BARE),
        ];
        assert!(shown(implementations_are_complete, files).is_empty());
    }

    #[test]
    fn a_test_module_in_its_own_file_frees_nothing_here() {
        let text = format!("#[cfg(test)]\nmod tests;\nmod layers {{\n{BARE}}}\n");
        let found = shown(implementations_are_complete, [("crates/a/src/pool.rs", &*text)]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_default_body_is_found() {
        let text = "pub trait Driver: Send {\n    fn a(&self, x: [u8; 4]) -> u8;\n\
                    \x20   fn b(&self) {\n        fn inner() {}\n    }\n    fn c(&self);\n}\n\
                    trait Free { fn d(&self) {} }\n";
        let found = shown(traits_have_no_default_bodies, [("crates/bursar-core/src/driver.rs", text)]);
        let expected = "crates/bursar-core/src/driver.rs:3: default-body: \
                        Driver::b has a default body, which a layer could miss";
        assert_eq!(found, [expected]);
    }
}
