//! Reads every format as its writers write it.
//!
//! `fixtures/make.py` wrote the fixtures: an RMM log, plain, gzipped and truncated; a snapshot of the shape of PyTorch 2.11's
//! in each pickle protocol; and pickles that would run code. `torch-2.11-h200.pickle` is PyTorch's own.

use bursar_core::{AllocTag, Bytes};
use bursar_trace::{Event, EventKind, FilePosition, Format, Trace, UnmatchedEvent, bundled, read, read_from};

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn event(kind: EventKind, block: u32, bytes: u64, thread: u16, stream: u16) -> Event {
    Event { bytes, block, tag: AllocTag::UNTAGGED, thread, stream, kind, device: 0 }
}

#[test]
fn g1_an_rmm_log_is_read_plain_and_gzipped() {
    for name in ["rmm.csv", "rmm.csv.gz"] {
        let trace = read(fixture(name)).expect("a trace");
        assert_eq!(
            trace.events,
            [
                event(EventKind::Allocate, 0, 1024, 0, 0),
                event(EventKind::Allocate, 1, 512, 0, 0),
                event(EventKind::Allocate, 2, 256, 1, 1),
                event(EventKind::Fail, Event::NO_BLOCK, 99_999_999, 1, 1),
                event(EventKind::Free, 1, 512, 0, 0),
                event(EventKind::Allocate, 3, 2048, 0, 0),
                event(EventKind::Free, 0, 1024, 0, 0),
            ]
        );
        assert_eq!((&trace.threads[..], &trace.streams[..]), (&[140, 141][..], &[0, 0x55_d0c8][..]));
        assert_eq!(
            trace.unknown_frees,
            [UnmatchedEvent { position: FilePosition(7), pointer: 0x7f00_000f_fff0, bytes: 128 }]
        );
        assert_eq!(
            trace.missing_frees,
            [
                UnmatchedEvent { position: FilePosition(4), pointer: 0x7f00_0000_0600, bytes: 256 },
                UnmatchedEvent { position: FilePosition(8), pointer: 0x7f00_0000_0400, bytes: 2048 },
            ]
        );
        assert_eq!(trace.peak_live(), Bytes(1024 + 256 + 2048));
        let strict = trace.strict().expect_err("a free of nothing").to_string();
        assert!(
            strict.ends_with("line 7: free of 0x7f00000ffff0, which is not allocated (1 such in the trace)"),
            "{strict}"
        );
    }
}

#[test]
fn a_missing_free_alone_is_an_error_only_in_strict_reading() {
    let trace =
        read_from(&b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,2048,0\n"[..], "run").expect("ok");
    let strict = trace.strict().expect_err("never freed").to_string();
    assert_eq!(strict, "run: line 2: 2 KiB at 0x10 is never freed (1 such in the trace)");
}

#[test]
fn g1_bursars_own_columns_are_read_and_what_was_asked_counts() {
    let log = "Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Asked,Generation\r\n\
               7,2026-11-15T03:10:00.000001Z,allocate,0x7f00,512,3,1,weights,500,17\r\n\
               \r\n\
               7,2026-11-15T03:10:00.000002Z,allocate failure,0x0,4096,3,1,\"kv, \"\"hot\"\"\",4000,\r\n\
               8,2026-11-15T03:10:00.000003Z,free,0x7f00,512,0,1,weights,500,17\r\n";
    let trace = read_from(log.as_bytes(), "ours.csv").expect("a trace");
    let weights = AllocTag::intern("weights");
    let expected =
        |kind, bytes, tag, thread, stream, block| Event { bytes, block, tag, thread, stream, kind, device: 1 };
    assert_eq!(
        trace.events,
        [
            expected(EventKind::Allocate, 500, weights, 0, 1, 0),
            expected(EventKind::Fail, 4000, AllocTag::intern("kv, \"hot\""), 0, 1, Event::NO_BLOCK),
            expected(EventKind::Free, 500, weights, 1, 0, 0),
        ]
    );
}

#[test]
fn the_same_address_on_two_devices_is_two_blocks() {
    let log = "Thread,Time,Action,Pointer,Size,Stream,Device\n1,0,allocate,0x10,1,0,0\n1,0,allocate,0x10,2,0,1\n\
               1,0,free,0x10,0,0,1\n1,0,free,0x10,0,0,0\n";
    let trace = read_from(log.as_bytes(), "two.csv").expect("a trace");
    let blocks: Vec<_> = trace.events.iter().map(|event| (event.block, event.bytes)).collect();
    assert_eq!(blocks, [(0, 1), (1, 2), (1, 2), (0, 1)]);
    trace.strict().expect("every half has its other");
}

#[test]
fn g1_json_lines_are_read_and_what_says_nothing_of_blocks_is_passed_over() {
    let log = r#"{"time":"2026-11-15T03:10:00.000001Z","thread":1,"action":"allocate","pointer":"0x7f0000000000","bytes":512,"asked":500,"stream":0,"device":0,"tag":"weights","query":0,"generation":17,"result":"ok"}
{"time":1.5,"thread":2,"action":"use","pointer":"0x7f0000000000","bytes":512,"stream":4}
{"time":1.6,"thread":2,"action":"refuse","bytes":0,"asked":9000,"stream":4,"tag":"kv\n\u00e9"}
{"time":1.6,"thread":2,"action":"fail","pointer":null,"bytes":0,"asked":9000,"stream":4,"tag":"kv\n\u00e9","result":"out of budget"}
{"action":"reap"}
{"action":"grow","bytes":1}
{"action":"free","pointer":139637976727552,"stream":"0x4"}
"#;
    let trace = read_from(log.as_bytes(), "ours.jsonl").expect("a trace");
    let (weights, kv) = (AllocTag::intern("weights"), AllocTag::intern("kv\né"));
    let expected =
        |kind, bytes, tag, thread, stream, block| Event { bytes, block, tag, thread, stream, kind, device: 0 };
    assert_eq!(
        trace.events,
        [
            expected(EventKind::Allocate, 500, weights, 0, 0, 0),
            expected(EventKind::Fail, 9000, kv, 1, 1, Event::NO_BLOCK),
            expected(EventKind::Free, 500, weights, 2, 1, 0),
        ]
    );
    assert_eq!((trace.format, trace.threads), (Format::JsonLines, vec![1, 2, 0]));
}

#[test]
fn a_snapshot_is_the_same_in_every_protocol() {
    let traces: Vec<Trace> = ["0", "1", "2", "4", "5"]
        .iter()
        .map(|p| read(fixture(&format!("snapshot-{p}.pickle.gz"))).expect("a trace"))
        .collect();
    for trace in &traces {
        assert_eq!(trace.events.len(), 2404);
        assert_eq!(trace.streams, [0, 94_000_000_000_000]);
        assert_eq!(
            trace.unknown_frees,
            [UnmatchedEvent { position: FilePosition(1), pointer: 0x7f5a_0000_0900, bytes: 700 }]
        );
        assert_eq!(trace.missing_frees.len(), 1);
        assert_eq!(trace.events, traces[0].events);
        let failures: Vec<_> = trace.events.iter().filter(|event| event.kind == EventKind::Fail).collect();
        assert_eq!((failures.len(), failures[0].bytes), (1, 1 << 40));
        // The second device's two events fall in the middle of the first one's.
        let second: Vec<_> =
            (0..).zip(&trace.events).filter(|(_, event)| event.device == 1).map(|(at, _)| at).collect();
        assert_eq!(second, [2, 4]);
    }
}

#[test]
fn the_bundled_trace_is_what_it_says() {
    let trace = bundled();
    assert_eq!((trace.events.len(), trace.peak_live()), (8666, Bytes(8_536_673_936)));
    assert_eq!((trace.unknown_frees.len(), trace.missing_frees.len()), (0, 482));
}

#[test]
fn requests_for_nothing_are_no_events() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x0,0,0\n1,0,allocate,(nil),0,0\n1,0,free,0x0,0,0\n\
               1,0,free,0x0,0,0\n1,0,allocate,0x10,0,0\n1,0,allocate,0x20,5,0\n1,0,free,0x10,0,0\n";
    let trace = read_from(log.as_bytes(), "nothing.csv").expect("a trace");
    assert_eq!((trace.events.len(), trace.unknown_frees.len(), trace.missing_frees.len()), (1, 0, 1));
}

#[test]
fn a_block_allocated_over_another_tells_of_the_missing_free() {
    let log =
        "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,5,0\n1,0,allocate,0x10,6,0\n1,0,free,0x10,6,0\n";
    let trace = read_from(log.as_bytes(), "over.csv").expect("a trace");
    assert_eq!(trace.missing_frees, [UnmatchedEvent { position: FilePosition(2), pointer: 0x10, bytes: 5 }]);
    assert_eq!(trace.events[2], event(EventKind::Free, 1, 6, 0, 0));
}

#[test]
fn g1_the_size_column_is_what_was_asked_where_no_other_says() {
    let log = "Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation\n\
               1,03:10:00.000001,allocate,0x7f0000000000,500,0,0,weights,512,65537\n\
               1,03:10:00.000009,allocate failure,0x0,8388608,0,0,cache,0,0\n\
               1,03:10:00.000012,free,0x7f0000000000,500,0,0,weights,512,65537\n";
    let trace = read_from(log.as_bytes(), "logging.csv").expect("a trace");
    let sizes: Vec<_> = trace.events.iter().map(|event| event.bytes).collect();
    assert_eq!(sizes, [500, 8_388_608, 500]);
    trace.strict().expect("every half has its other");
}
