//! The files that a replay writes, without a browser.

use crate::command::{bursar, json, log, noisy, small};
use crate::common::Folder;
use bursar::trace::EventKind;

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("a_place_that_cannot_be_written_is_told_before_any_work", a_place_that_cannot_be_written_is_told_before_any_work),
    ("a_replay_that_fails_leaves_the_earlier_page_alone", a_replay_that_fails_leaves_the_earlier_page_alone),
    ("a_page_appears_whole_and_alone", a_page_appears_whole_and_alone),
    ("a_long_trace_still_gives_a_small_page", a_long_trace_still_gives_a_small_page),
    ("a_snapshot_is_of_one_run", a_snapshot_is_of_one_run),
    ("a_snapshot_reads_back_as_the_run_it_was_made_of", a_snapshot_reads_back_as_the_run_it_was_made_of),
    ("a_snapshot_tells_what_was_refused", a_snapshot_tells_what_was_refused),
    ("the_help_shows_how_to_make_a_page", the_help_shows_how_to_make_a_page),
];

fn a_place_that_cannot_be_written_is_told_before_any_work() {
    let folder = Folder::new();
    let taken = folder.path("taken");
    std::fs::create_dir(&taken).expect("room");
    for option in ["--html", "--snapshot"] {
        for place in [folder.path("no-such-folder/page"), taken.clone()] {
            let output = bursar(&["replay", "no-such-trace.csv", option, &place]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(&place) && !error.contains("no-such-trace"), "{error}");
        }
    }
    assert_eq!(folder.names(), ["taken"]);
}

fn a_replay_that_fails_leaves_the_earlier_page_alone() {
    let folder = Folder::new();
    let page = folder.file("page.html", "earlier");
    let bad = folder.file("bad.csv", "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,lots,1,0\n");
    let output = bursar(&["replay", &bad, "--html", &page]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&page).expect("still there"), "earlier");
    assert_eq!(folder.names(), ["bad.csv", "page.html"]);
}

fn a_page_appears_whole_and_alone() {
    let folder = Folder::new();
    let trace = folder.file("small.csv", small());
    let page = folder.file("page.html", "earlier");
    let report = json(&["replay", &trace, "--html", &page]);
    assert_eq!(report["html"], page.as_str());
    let text = std::fs::read_to_string(&page).expect("written");
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    assert_eq!(text.matches("{{").count(), 0, "every place of the template is filled");
    assert!(text.contains("<h1>Memory over operations</h1>") && !text.contains("over time"), "time plays no part");
    assert_eq!(folder.names(), ["page.html", "small.csv"]);
    let shown = bursar(&["replay", &trace, "--html", &page]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&format!("page: {page}")));
}

fn a_long_trace_still_gives_a_small_page() {
    let folder = Folder::new();
    let trace = folder.file("long.csv", noisy(700_000));
    let page = folder.path("page.html");
    assert_eq!(json(&["replay", &trace, "--html", &page])["traces"][0]["ops"], 700_000);
    let bytes = std::fs::metadata(&page).expect("written").len();
    assert!(bytes < 3 << 20, "{bytes} bytes");
}

fn a_snapshot_is_of_one_run() {
    let folder = Folder::new();
    let trace = folder.file("small.csv", small());
    let snapshot = folder.path("snapshot.pickle");
    let several_traces = ["replay", &trace, &trace, "--stack", "async", "--snapshot", &snapshot];
    let several_stacks = ["replay", &trace, "--stack", "async,direct", "--snapshot", &snapshot];
    let one_file = ["replay", &trace, "--snapshot", &snapshot, "--html", &snapshot];
    for (arguments, said) in [
        (&several_traces[..], "one trace and one --stack"),
        (&several_stacks[..], "one trace and one --stack"),
        (&one_file[..], "the same file"),
    ] {
        let output = bursar(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(folder.names(), ["small.csv"]);
}

fn a_snapshot_reads_back_as_the_run_it_was_made_of() {
    let folder = Folder::new();
    let trace = folder.file("small.csv", small());
    for stack in ["async", "direct"] {
        let snapshot = folder.path(&format!("{stack}.pickle"));
        let report = json(&["replay", &trace, "--stack", stack, "--snapshot", &snapshot]);
        assert_eq!(report["snapshot"], snapshot.as_str());
        let [run, replayed] = [&snapshot, &trace].map(|path| bursar::trace::read(path).expect("a trace"));
        assert_eq!(run.events, replayed.events, "{stack}");
        assert_eq!((&run.streams, run.unknown_frees.len()), (&replayed.streams, 0), "{stack}");
    }
}

fn a_snapshot_tells_what_was_refused() {
    let folder = Folder::new();
    let rows = [(false, 0, 1000, 0), (false, 1, 5000, 0), (true, 1, 5000, 0), (false, 2, 2000, 0), (true, 0, 1000, 0)];
    let trace = folder.file("large.csv", log(rows));
    let snapshot = folder.path("snapshot.pickle");
    let report = json(&["replay", &trace, "--stack", "async", "--limit", "4KiB", "--snapshot", &snapshot]);
    assert_eq!(report["traces"][0]["refused"], 1);
    let run = bursar::trace::read(&snapshot).expect("a trace");
    let kinds: Vec<_> = run.events.iter().map(|event| (event.kind, event.bytes)).collect();
    let expected =
        [(EventKind::Allocate, 1000), (EventKind::Fail, 5000), (EventKind::Allocate, 2000), (EventKind::Free, 1000)];
    assert_eq!(kinds, expected);
}

fn the_help_shows_how_to_make_a_page() {
    let help = String::from_utf8(bursar(&["replay", "--help"]).stdout).expect("text");
    assert!(help.contains("--html run.html") && help.contains("--snapshot placed.pickle"), "{help}");
}
