//! Checks that unsafe code is only in the places listed here, and that a file with unsafe code opts in itself.

use super::Finding;
use crate::lexer::{compact, offsets_of};
use crate::tree::{Example, File, Tree};

/// Paths, and prefixes of paths, that may have unsafe code. Numbered examples may too: they show the raw level to users.
const ROOMS: &[&str] = &[
    "crates/bursar-c/src/",
    "crates/bursar-c/tests/",
    "crates/bursar-conformance/",
    "crates/bursar-core/src/",
    "crates/bursar-core/tests/",
    "crates/bursar-cuda/",
    "crates/bursar-device/tests/",
    "crates/bursar-enforce/src/",
    "crates/bursar-enforce/tests/",
    "crates/bursar-host/examples/numa-init.rs",
    "crates/bursar-host/examples/typed-copies.rs",
    "crates/bursar-host/src/cache/host_memory.rs",
    "crates/bursar-host/src/memory/slab.rs",
    "crates/bursar-host/src/system/",
    "crates/bursar-host/tests/",
    "crates/bursar-ledger/src/system/mapping.rs",
    "crates/bursar-ledger/src/system/linux.rs",
    "crates/bursar-ledger/tests/fork.rs",
    "crates/bursar-libcuda/src/arguments.rs",
    "crates/bursar-libcuda/src/define.rs",
    "crates/bursar-libcuda/src/host_functions.rs",
    "crates/bursar-libcuda/src/memory_file.rs",
    "crates/bursar-libcuda/src/nvml/table.rs",
    "crates/bursar-libcuda/src/port.rs",
    "crates/bursar-libcuda/src/process.rs",
    "crates/bursar-libcuda/src/table.rs",
    "crates/bursar-libcuda/tests/",
    "crates/bursar-memory/src/pool/",
    "crates/bursar-memory/tests/",
    "crates/bursar-sim/src/",
    "crates/bursar-sim/tests/",
    "python/src/buffer",
    "python/src/dlpack.rs",
    "python/src/pool",
    "python/src/throw.rs",
    "python/src/torch",
];

/// Packages without unsafe code, which must have the compiler forbid it.
const FORBIDDING: &[&str] =
    &["bursar", "bursar-cli", "bursar-fit", "bursar-linux", "bursar-metrics", "bursar-trace", "xtask"];

pub(super) fn stays_in_its_rooms(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().filter_map(misplaced).collect()
}

fn misplaced(file: &File) -> Option<Finding> {
    let keyword = offsets_of(file.code(), "unsafe").next();
    let opt_in = opt_in(file.code());
    if !has_room(&file.path) {
        let at = keyword.or(opt_in)?;
        return Some(Finding::at(
            file,
            at,
            "unsafe-room",
            "unsafe code may not live here; the rooms are listed in crates/xtask/src/tidy/unsafety.rs",
        ));
    }
    match (keyword, opt_in) {
        (Some(at), None) => Some(Finding::at(
            file,
            at,
            "unsafe-opt-in",
            "a file with unsafe code carries its own `#![allow(unsafe_code)]`, where a reader sees it",
        )),
        _ => None,
    }
}

fn has_room(path: &str) -> bool {
    ROOMS.iter().any(|room| path.starts_with(room)) || Example::at(path).is_some()
}

/// Returns the offset at which the lint is first switched off: `unsafe_code` inside `allow(…)` or `expect(…)`.
fn opt_in(code: &str) -> Option<usize> {
    offsets_of(code, "unsafe_code").find(|&at| {
        let (before, _) = code[..at].rsplit_once('(').unwrap_or_default();
        before.ends_with("allow") || before.ends_with("expect")
    })
}

pub(super) fn is_forbidden_elsewhere(tree: &Tree) -> Vec<Finding> {
    FORBIDDING
        .iter()
        .flat_map(|package| {
            let folder = format!("crates/{package}/");
            tree.rust_files().filter(move |file| file.path.starts_with(&folder))
        })
        .filter(|file| file.is_crate_root())
        .filter(|file| !compact(file.code()).contains("#![forbid(unsafe_code"))
        .map(|file| Finding::about(&file.path, "unsafe-forbid", "this root needs `#![forbid(unsafe_code)]`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::shown;

    const BLOCK: &str = "#![allow(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";

    #[test]
    fn unsafe_outside_its_rooms_is_found() {
        let found = shown(stays_in_its_rooms, [("crates/bursar-memory/src/budget.rs", BLOCK)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/bursar-memory/src/budget.rs:3: unsafe-room: "));
    }

    #[test]
    fn a_bare_opt_in_outside_the_rooms_is_found() {
        let text = "//! Fit.\n#![expect(missing_docs, unsafe_code, reason = \"\")]\n";
        let found = shown(stays_in_its_rooms, [("crates/bursar-fit/src/lib.rs", text)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/bursar-fit/src/lib.rs:2: unsafe-room: "));
    }

    #[test]
    fn unsafe_in_its_rooms_is_fine() {
        let files = [
            ("crates/bursar-core/src/block.rs", BLOCK),
            ("crates/bursar-ledger/src/system/mapping.rs", BLOCK),
            ("crates/bursar-memory/src/pool/frames.rs", BLOCK),
            ("crates/bursar-device/tests/raw.rs", BLOCK),
            ("crates/bursar/examples/07-raw.rs", BLOCK),
        ];
        assert!(shown(stays_in_its_rooms, files).is_empty());
    }

    #[test]
    fn unsafe_without_an_opt_in_of_its_own_is_found() {
        let text = "//! Raw calls.\nunsafe fn f() {}\n";
        let found = shown(stays_in_its_rooms, [("crates/bursar-cuda/src/sys.rs", text)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/bursar-cuda/src/sys.rs:2: unsafe-opt-in: "));
    }

    #[test]
    fn the_word_in_comments_strings_and_lints_is_not_unsafe_code() {
        let text = "//! No unsafe here.\n#![forbid(unsafe_code)]\nconst S: &str = \"unsafe\";\n";
        assert!(shown(stays_in_its_rooms, [("crates/bursar-fit/src/lib.rs", text)]).is_empty());
    }

    #[test]
    fn roots_that_must_forbid_unsafe_are_checked() {
        let files = [
            ("crates/bursar/src/lib.rs", "//! Bursar.\n"),
            ("crates/bursar/src/prelude.rs", "//! A module forbids nothing.\n"),
            ("crates/bursar-cli/src/main.rs", "//! The command.\n#![forbid(unsafe_code)]\n"),
            ("crates/bursar-memory/src/lib.rs", "//! The pool has a room.\n"),
        ];
        let found = shown(is_forbidden_elsewhere, files);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/bursar/src/lib.rs:1: unsafe-forbid: "));
    }
}
