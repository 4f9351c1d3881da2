//! The contents of logs, and the files they are in.

mod common;
mod logging_shared;

use bursar_core::{
    Action, AllocTag, Build, Bytes, DeviceId, DeviceMemoryResource, DevicePtr, Error, Generation, Observer, QueryId,
    QueryScope, Record, Stack, leaf, tag,
};
use bursar_memory::{GlobalDeviceBudget, LogFormat, Logging};
use bursar_sim::Sim;
use common::context;
use logging_shared::{Folder, HEADER, PATIENCE, Paper, closed, csv_rows, json_lines, number, tell, unzipped};
use proptest::prelude::*;
use std::io::ErrorKind;

const ACTIONS: [Action; 9] = [
    Action::Allocate,
    Action::Free,
    Action::Refuse,
    Action::Fail,
    Action::Reap,
    Action::Grow,
    Action::Remap,
    Action::Trim,
    Action::Use,
];

#[test]
fn g1_json_lines_hold_every_action_with_all_it_has() {
    let paper = Paper::default();
    let logging = Logging::builder().to_writer(paper.clone()).expect("a log");
    let context = context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    let generation = Generation::next();
    let _working = QueryScope::enter(QueryId(77));
    for action in ACTIONS {
        logging.record(&Record {
            action,
            device: DeviceId(5),
            stream: Some(stream),
            tag: tag!("all of it"),
            ptr: DevicePtr(0xabc00),
            granted: Bytes(1024),
            asked: Bytes(1000),
            generation: Some(generation),
            error: (action == Action::Fail).then_some(&Error::NoDevice),
        });
    }
    assert_eq!(closed(&logging).written, ACTIONS.len() as u64);

    let lines = json_lines(&paper.text());
    let actions: Vec<_> = ACTIONS.iter().map(Action::to_string).collect();
    assert_eq!(lines.iter().map(|line| line["action"].as_str().expect("a name")).collect::<Vec<_>>(), actions);
    for line in &lines {
        assert_eq!(number(&line["pointer"]), 0xabc00);
        assert_eq!((number(&line["bytes"]), number(&line["asked"])), (1024, 1000));
        assert_eq!((number(&line["stream"]), number(&line["device"])), (stream.number().0.into(), 5));
        assert_eq!((number(&line["query"]), number(&line["generation"])), (77, generation.get()));
        assert_eq!((&line["thread"], &line["tag"]), (&lines[0]["thread"], &"all of it".into()));
        let expected = if line["action"] == "fail" { "there is no device" } else { "ok" };
        assert_eq!(line["result"], expected);
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
}

#[test]
fn g1_csv_holds_allocations_frees_and_failures_of_a_stack() {
    let paper = Paper::default();
    let logging = Logging::builder().format(LogFormat::Csv).to_writer(paper.clone()).expect("a log");
    let context = context(Sim::immediate());
    let stack = Stack::new().observe(logging.clone()).layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let block = memory.allocate(1000, 256, stream, tag!("odd, \"quoted\"\nname")).expect("room");
    let (ptr, generation) = (block.ptr().to_string(), block.generation().get().to_string());
    assert!(memory.allocate(8 << 20, 256, stream, tag!("too much")).is_err());
    memory.deallocate(block, stream).expect("its own");
    assert_eq!(closed(&logging).written, 3, "refusals and the like have no place in it");

    let rows = csv_rows(&paper.text());
    let number = stream.number().0.to_string();
    let odd = "odd, \"quoted\"\nname";
    for (row, expected) in rows.iter().zip([
        ["allocate", &ptr, "1000", &number, "0", odd, "1024", &generation],
        ["allocate failure", "0x0", "8388608", &number, "0", "too much", "0", "0"],
        ["free", &ptr, "1000", &number, "0", odd, "1024", &generation],
    ]) {
        assert_eq!(row[2..], expected);
        let shape: String = row[1].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!((shape.as_str(), &row[0]), ("00:00:00.000000", &rows[0][0]));
    }
    assert_eq!(rows.len(), 3);
}

#[test]
fn g1_records_are_in_order_and_flushed_before_the_log_is_closed() {
    let paper = Paper::default();
    let logging = Logging::builder().to_writer(paper.clone()).expect("a log");
    for round in 1..=3 {
        tell(&logging, 1000);
        assert!(logging.flush(PATIENCE));
        assert_eq!((logging.written(), logging.dropped()), (round * 1000, 0));
        let sizes: Vec<_> = json_lines(&paper.text()).iter().map(|line| number(&line["asked"])).collect();
        assert_eq!(sizes, (1..=1000).cycle().take(round as usize * 1000).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn g1_tags_and_results_are_cut_at_256_bytes_between_characters(text in "[a-zß€𝄞,\n\"\\\\]{60,300}") {
        let paper = Paper::default();
        let logging = Logging::builder().to_writer(paper.clone()).expect("a log");
        let error = Error::NoDriver { why: text.as_str().into() };
        let record = Record::new(Action::Fail, DeviceId(0));
        logging.record(&Record { tag: AllocTag::intern(&text), error: Some(&error), ..record });
        closed(&logging);
        let line = &json_lines(&paper.text())[0];
        for key in ["tag", "result"] {
            let kept = line[key].as_str().expect("text");
            prop_assert!(text.starts_with(kept) && kept.len() <= 256);
            let next = text[kept.len()..].chars().next().map_or(usize::MAX, char::len_utf8);
            prop_assert!(kept.len().saturating_add(next) > 256, "more would have fitted");
        }
    }
}

#[test]
fn g1_the_name_of_a_file_chooses_its_form() {
    let folder = Folder::new();
    for (name, is_csv, is_gz) in [
        ("a.csv", true, false),
        ("a.csv.gz", true, true),
        ("a.jsonl", false, false),
        ("a.json", false, false),
        ("a.json.gz", false, true),
    ] {
        let path = folder.path(name);
        let logging = Logging::to_file(&path).expect("a log");
        tell(&logging, 2);
        closed(&logging);
        let text = if is_gz { unzipped(&path) } else { std::fs::read_to_string(&path).expect("a file") };
        let records = if is_csv { csv_rows(&text).len() } else { json_lines(&text).len() };
        assert_eq!(records, 2, "{name}");
    }
    for (opened, kind) in [
        (Logging::to_file(folder.path("a.txt")), ErrorKind::InvalidInput),
        (Logging::to_file(folder.path("no/such/folder.csv")), ErrorKind::NotFound),
        (Logging::builder().capacity(0).to_file(folder.path("b.csv")), ErrorKind::InvalidInput),
        (Logging::builder().rotate_at(Bytes(1)).to_writer(Paper::default()), ErrorKind::InvalidInput),
    ] {
        assert_eq!(opened.expect_err("nonsense").kind(), kind);
    }
    assert_eq!(folder.names().len(), 5, "nothing was made of nonsense");
}

#[test]
fn g1_a_log_with_nothing_in_it_can_be_read() {
    let paper = Paper::default();
    let logging = Logging::builder().format(LogFormat::Csv).to_writer(paper.clone()).expect("a log");
    closed(&logging);
    assert_eq!(csv_rows(&paper.text()), Vec::<Vec<String>>::new());
}

/// Logs a thousand records in files of 10,000 bytes of text and reads them back, with how many files there were.
fn rotated(folder: &Folder, name: &str, limit: u64, read: impl Fn(&std::path::Path) -> String) -> (String, usize) {
    let log = Logging::builder().rotate_at(Bytes(limit)).to_file(folder.path(name)).expect("a log");
    tell(&log, 600);
    assert!(log.flush(PATIENCE));
    tell(&log, 400);
    let summary = closed(&log);
    assert_eq!((summary.written, summary.dropped), (1000, 0));
    let (stem, extension) = name.split_once('.').expect("an extension");
    let (mut all, mut files) = (String::new(), 0);
    for number in 0.. {
        let name = if number == 0 { name.to_owned() } else { format!("{stem}.{number}.{extension}") };
        if !folder.path(&name).exists() {
            break;
        }
        let text = read(&folder.path(&name));
        assert!(text.len() as u64 <= limit || text.lines().count() <= 2, "{name} has {} bytes", text.len());
        assert!(text.ends_with('\n'), "{name} ends with a whole record");
        all.push_str(match text.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix('\n')) {
            Some(rest) => rest,
            None if name.contains(".csv") => panic!("{name} does not begin with the header"),
            None => &text,
        });
        files += 1;
    }
    assert_eq!(folder.names().len(), files, "and no other files");
    (all, files)
}

#[test]
fn g1_a_log_is_continued_in_files_of_whole_records() {
    let plain = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file");
    let sizes: Vec<_> = (1..=600).chain(1..=400).collect();
    for (name, limit, zipped) in
        [("m.csv", 10_000, false), ("m.jsonl", 10_000, false), ("m.csv.gz", 10_000, true), ("m.csv", 1, false)]
    {
        let folder = Folder::new();
        let read: &dyn Fn(&std::path::Path) -> String = if zipped { &unzipped } else { &plain };
        let (text, files) = rotated(&folder, name, limit, read);
        let read: Vec<_> = if name.contains("csv") {
            let rows = csv_rows(&format!("{HEADER}\n{text}"));
            rows.iter().map(|row| row[4].parse().expect("a size")).collect()
        } else {
            json_lines(&text).iter().map(|line| number(&line["asked"])).collect()
        };
        assert_eq!(read, sizes, "{name}");
        let least = if limit == 1 { 1000 } else { text.len() as u64 / limit };
        assert!(files as u64 >= least && files as u64 <= least * 6 / 5 + 1, "{files} files of {limit} bytes");
    }
}

#[test]
fn g1_a_log_that_may_be_continued_begins_without_an_earlier_logs_files() {
    let folder = Folder::new();
    for name in ["m.1.csv", "m.2.csv", "m.4.csv", "other.1.csv"] {
        std::fs::write(folder.path(name), "earlier").expect("a file");
    }
    closed(&Logging::builder().rotate_at(Bytes::mib(1)).to_file(folder.path("m.csv")).expect("a log"));
    assert_eq!(folder.names(), ["m.4.csv", "m.csv", "other.1.csv"]);
}

#[test]
fn g1_a_compressed_log_can_be_read_after_a_flush() {
    let folder = Folder::new();
    let path = folder.path("m.jsonl.gz");
    let logging = Logging::to_file(&path).expect("a log");
    for round in 1..=3 {
        tell(&logging, 2000);
        assert!(logging.flush(PATIENCE));
        assert_eq!(json_lines(&unzipped(&path)).len(), round * 2000);
    }
    let packed = std::fs::metadata(&path).expect("a file").len();
    assert!(packed < unzipped(&path).len() as u64 / 5, "{packed} bytes");
}
