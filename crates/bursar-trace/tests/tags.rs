//! Checks that every format preserves tags, whatever text they are.

use bursar_core::{AllocTag, Build, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf};
use bursar_memory::Logging;
use bursar_sim::Sim;
use bursar_trace::{
    EventOrigin, FilePosition, Format, Trace, TraceBuilder, convert, read, read_from, write, write_csv, write_jsonl,
};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Tags that are hard to write: whatever ends a field, a line or a text in some format.
const ODD: [&str; 22] = [
    "",
    " ",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\"",
    "\"\"",
    "\"\n\"",
    ",",
    "a,b",
    "a\nb",
    "\0",
    "#comment",
    " both ",
    "\t",
    "\u{feff}bom",
    "\u{85}\u{2028}",
    "untagged",
    "null",
    "=1+1",
    "1,0,free,0x1,5,0\n1,0,free,0x2,5,0",
];

/// Generates texts of at most 256 bytes, often such as are hard to write.
fn tags() -> impl Strategy<Value = Vec<String>> {
    let odd = prop::sample::select(&ODD[..]).prop_map(str::to_owned);
    let pieces = prop::collection::vec(prop::sample::select(&ODD[..]), 0..4).prop_map(|parts| parts.concat());
    let any = any::<String>().prop_filter("texts are cut at 256 bytes", |text| text.len() <= 256);
    prop::collection::vec(prop_oneof![odd, pieces, "[\"\r\n, ]{0,6}", any], 1..8)
}

/// Builds a trace with an allocation, a failure and a free for each tag.
fn trace(tags: &[String]) -> Trace {
    let mut builder = TraceBuilder::new("made up", Format::Csv);
    for (number, tag) in (1..).zip(tags) {
        let (origin, tag) =
            (EventOrigin { position: FilePosition(number), ..EventOrigin::default() }, AllocTag::intern(tag));
        builder.allocate(origin, number << 9, 64, tag).expect("within every limit");
        builder.fail(origin, 1, tag).expect("within every limit");
        builder.free(origin, number << 9, 64).expect("within every limit");
    }
    builder.finish()
}

/// A temporary folder, removed when dropped.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("bursar-tags-{process}-{count}"));
        std::fs::create_dir(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_dir_all(&self.0);
    }
}

/// Allocates a block with each tag and logs that to `path`.
fn log(tags: &[String], path: PathBuf) {
    let log = Logging::to_file(path).expect("a log");
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let stack = Stack::new().observe(log.clone()).over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.default_stream();
    for tag in tags {
        let block = memory.allocate(64, 1, stream, AllocTag::intern(tag)).expect("room");
        memory.deallocate(block, stream).expect("it is ours");
    }
    log.close(Duration::from_secs(120)).expect("the writer does not block");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn g1_any_tag_is_read_back_from_either_form_as_it_was(tags in tags()) {
        let trace = trace(&tags);
        let (mut csv, mut json) = (Vec::new(), Vec::new());
        write_csv(&trace, &mut csv).expect("memory");
        write_jsonl(&trace, &mut json).expect("memory");
        for bytes in [csv, json] {
            let again = read_from(&bytes[..], "again").expect("what we wrote");
            prop_assert_eq!(&again.events, &trace.events);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn g1_any_tag_is_converted_in_a_ring_and_stays(tags in tags()) {
        let (folder, trace) = (TempFolder::new(), trace(&tags));
        let names = ["0.csv", "1.jsonl", "2.csv.gz", "3.jsonl.gz", "4.csv"].map(|name| folder.0.join(name));
        write(&trace, &names[0]).expect("written");
        for pair in names.windows(2) {
            convert(&pair[0], &pair[1]).expect("converted");
        }
        prop_assert_eq!(read(&names[4]).expect("what we wrote").events, trace.events);
        let (first, last) = (std::fs::read(&names[0]), std::fs::read(&names[4]));
        prop_assert_eq!(first.expect("a file"), last.expect("a file"));
    }

    #[test]
    fn g1_any_tag_that_is_logged_is_read_back_as_it_was(tags in tags()) {
        let folder = TempFolder::new();
        for name in ["log.csv", "log.jsonl", "log.csv.gz"] {
            log(&tags, folder.0.join(name));
            let trace = read(folder.0.join(name)).expect("our own log");
            let read: Vec<&str> = trace.events.iter().step_by(2).map(|event| event.tag.name()).collect();
            prop_assert_eq!(read, tags.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

/// Lines within a quoted field are counted: an error after it names the line that an editor shows.
#[test]
fn g1_places_count_lines_also_within_quotes() {
    let log = "Thread,Time,Action,Pointer,Size,Stream,Device,Tag\n\
               1,0,allocate,0x1,5,0,0,\"two\r\n\r\nlines\"\r\n\
               1,0,allocate,0x2,5,0,0,\"a \"\"quote\"\"\"\n\
               1,0,allocate,0x3,wrong,0,0,x\n";
    let error = read_from(log.as_bytes(), "run").expect_err("a wrong size");
    assert_eq!(error.position, Some(FilePosition(6)), "{error}");
    let good = log.replace("wrong", "5");
    let trace = read_from(good.as_bytes(), "run").expect("a log");
    let names: Vec<&str> = trace.events.iter().map(|event| event.tag.name()).collect();
    assert_eq!(names, ["two\r\n\r\nlines", "a \"quote\"", "x"]);
    assert_eq!(trace.missing_frees.iter().map(|missing| missing.position.0).collect::<Vec<_>>(), [2, 5, 6]);
}

/// A quote that is never closed is reported at the row that opens it, even if more follows than a row may have.
#[test]
fn g1_an_open_quote_is_told_at_its_row() {
    for rows in [1, 100_000] {
        let rows = "1,0,allocate,0x2,5,0,0,x\n".repeat(rows);
        let log = format!("Thread,Time,Action,Pointer,Size,Stream,Device,Tag\n1,0,allocate,0x1,5,0,0,\"open\n{rows}");
        let error = read_from(log.as_bytes(), "run").expect_err("an open quote");
        assert!(error.to_string().contains("line 2: row is \"1,0,allocate,0x1,5,0,0,\\\"open"), "{error}");
        assert!(error.to_string().ends_with("expected its quotes to be closed"), "{error}");
    }
}

/// Ordinary rows have no quotes, so RMM's own readers can read them.
#[test]
fn g1_an_ordinary_tag_is_written_without_quotes() {
    let trace = trace(&["weights".to_owned(), "kv-cache/é #1".to_owned(), "untagged".to_owned()]);
    let mut csv = Vec::new();
    write_csv(&trace, &mut csv).expect("memory");
    assert!(!csv.contains(&b'"'), "{}", String::from_utf8_lossy(&csv));
}
