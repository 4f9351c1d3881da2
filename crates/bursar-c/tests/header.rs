//! Y1 as the header says it: `include/bursar.h` is what the code declares, and every call in it is entered the same way.
//!
//! With `BURSAR_WRITE_HEADER=1`, as `cargo xtask header` sets it, the header is written instead of compared.

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use std::fs;
use std::path::{Path, PathBuf};

/// The files that declare something, in the order in which they are read.
const FILES: [&str; 11] =
    ["status", "version", "driver", "tag", "device", "reservation", "stream", "stack", "sleep", "block", "graph"];

const PREAMBLE: &str = "\
/*
 * Bursar: device memory, budgets and reservations for programs that share GPUs.
 *
 * Every call returns a bursar_status; bursar_last_error tells the rest of a failure. Handles are small structures that are
 * passed by value, and {0} is null. A handle that is null, was closed or freed, or is of another kind is
 * BURSAR_INVALID_HANDLE, never undefined behaviour. Structures begin with their size, which the caller sets:
 *
 *     bursar_stack_options options = { .struct_size = sizeof(options) };
 *
 * Every call may be made from any thread at any time. Calls that close something wait for the calls of other threads that
 * are running, so a handle may be closed while others use it: they finish, or are told that it is closed. Nothing starts by
 * itself: loading the library opens no device and starts no thread.
 *
 * In a process that is forked off one that has opened a driver, every call that returns a bursar_status but those about the
 * last error is BURSAR_FORKED and does nothing, whatever other threads were doing. What the other process has stays its own.
 *
 * This file is written from the code by `cargo xtask header`.
 */
";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(name: &str) -> PathBuf {
    folder().join("src").join(name).with_extension("rs")
}

fn generated() -> String {
    let config = Config {
        language: Language::C,
        style: Style::Both,
        cpp_compat: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        header: Some(PREAMBLE.to_owned()),
        include_guard: Some("BURSAR_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        ..Config::default()
    };
    let builder = FILES.iter().fold(Builder::new().with_config(config), |builder, file| builder.with_src(source(file)));
    let mut text = Vec::new();
    builder.generate().expect("the code can be read").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

/// Returns the declarations of calls in the sources: the documentation and the text of each.
fn calls() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in FILES {
        let text = fs::read_to_string(source(file)).expect("a source");
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]\n") {
            let documentation: Vec<&str> =
                text[..at].lines().rev().take_while(|line| line.starts_with("///")).collect();
            let body = text[at..].split("\n}\n").next().unwrap_or_default();
            found.push((documentation.into_iter().rev().collect::<Vec<_>>().join("\n"), body.to_owned()));
        }
    }
    found
}

#[test]
fn y1_the_header_is_what_the_code_declares() {
    let (file, generated) = (folder().join("include/bursar.h"), generated());
    if std::env::var_os("BURSAR_WRITE_HEADER").is_some_and(|value| value == "1") {
        fs::write(&file, &generated).expect("the header can be written");
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let line = written.lines().zip(generated.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or_else(|| written.lines().count().min(generated.lines().count())) + 1;
    assert!(
        written == generated,
        "include/bursar.h differs from the code from line {line} on: run `cargo xtask header`"
    );
}

#[test]
fn y1_every_call_is_entered_so_that_nothing_unwinds_and_says_its_errors() {
    let calls = calls();
    let header = generated();
    let declared = header
        .lines()
        .filter(|line| !line.starts_with(['/', ' ', '#']) && line.contains("bursar_") && line.contains('('));
    assert_eq!(calls.len(), declared.count());
    for (documentation, text) in calls {
        for word in ["/// Errors: ", "/// Threads: ", "/// Ownership: "] {
            assert!(documentation.contains(word), "{word} is missing before {text}");
        }
        let (head, body) = text.split_once("{\n").expect("a function");
        let entered =
            ["    call(|| ", "    running_call(|running| ", "    call_about_errors(|| ", "    call_about_refusals(|| "]
                .iter()
                .any(|start| body.starts_with(start));
        assert!(entered || !head.contains("bursar_status {") && documentation.contains("Errors: none"), "{text}");
    }
}
