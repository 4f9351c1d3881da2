//! Checks that malformed traces get an error with the file, the line and the reason, and that none of them runs code, hangs or
//! exhausts the memory.

use bursar_trace::{Reason, Trace, TraceError, TraceLimit, convert, read, read_from};
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::Path;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn fails(bytes: &[u8]) -> TraceError {
    read_from(bytes, "bad").expect_err("a bad trace")
}

/// Returns the error of a log whose second row is wrong.
fn row(row: &str) -> String {
    fails(format!("{HEADER}1,0,allocate,0x1,5,0\n{row}\n").as_bytes()).to_string()
}

#[test]
fn nothing_is_an_error() {
    let header = HEADER.as_bytes();
    let idle: &[u8] = b"{\"action\":\"reap\"}\n";
    for bytes in [b"".as_slice(), header, idle] {
        let error = fails(bytes);
        assert!(matches!(error.reason, Reason::Empty));
        assert_eq!(error.to_string(), "bad: the trace is empty");
    }
    assert!(fails(b"\n \n").to_string().starts_with("bad: not a trace"));
}

#[test]
fn a_missing_file_is_named() {
    let error = read("no/such.csv").expect_err("no file");
    assert!(matches!(error.reason, Reason::Io(_)));
    assert!(error.to_string().starts_with("no/such.csv: "), "{error}");
    assert!(read(std::env::temp_dir()).expect_err("a folder").to_string().contains(": "));
}

#[test]
fn a_truncated_gzip_is_named_with_the_line_it_ends_in() {
    let error = read(fixture("truncated.csv.gz")).expect_err("cut");
    assert!(matches!(error.reason, Reason::Truncated { .. }) && error.position.is_some(), "{error}");
    let whole = std::fs::read(fixture("rmm.csv.gz")).expect("a fixture");
    for length in 1..whole.len() {
        let error = fails(&whole[..length]);
        assert!(!matches!(error.reason, Reason::Limit(_)), "{error}");
    }
    let mut corrupt = whole;
    corrupt[60] ^= 0x55;
    assert!(read_from(&corrupt[..], "bad").is_err());
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text).expect("memory");
    packed.finish().expect("memory")
}

/// Returns a gzipped log of two members, with `between` and `behind` around the second.
fn members(between: &[u8], behind: &[u8]) -> Vec<u8> {
    let rows = [format!("{HEADER}1,0,allocate,0x1,5,0\n"), "1,0,free,0x1,5,0\n".to_owned()];
    let [first, second] = rows.map(|rows| packed(rows.as_bytes()));
    [&first, between, &second, behind].concat()
}

#[test]
fn members_of_a_gzip_are_one_file_and_zeros_behind_them_are_padding() {
    for zeros in [0, 1, 2, 511, 70_000] {
        let zeros = vec![0; zeros];
        for bytes in [members(b"", &zeros), members(&zeros, b""), members(&zeros, &zeros)] {
            let trace = read_from(&bytes[..], "padded").expect("a log");
            assert_eq!((trace.events.len(), trace.missing_frees.len()), (2, 0), "{} zeros", zeros.len());
        }
    }
}

#[test]
fn bytes_behind_a_gzip_are_named_and_not_called_a_cut() {
    let length = members(b"", b"").len() as u64;
    for (behind, skipped) in [(&b"x"[..], 0), (b"more", 0), (b"\0\0\0more", 3), (b"\x1fmore", 0), (b"\n", 0)] {
        let error = fails(&members(b"", behind));
        let Reason::TrailingBytes { offset } = error.reason else { panic!("{behind:?}: {error}") };
        assert_eq!(offset, length + skipped, "{behind:?}");
        assert!(error.to_string().contains("behind its end, from byte"), "{error}");
    }
    for behind in [&b"\x1f"[..], b"\0\x1f", b"\x1f\x8b", b"\x1f\x8b\x08"] {
        let error = fails(&members(b"", behind));
        assert!(matches!(error.reason, Reason::Truncated { within: "its gzip stream" }), "{behind:?}: {error}");
    }
    let snapshot = packed(&snapshot(b"]](}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x05uea"));
    assert_eq!(read_from(&snapshot[..], "whole").expect("a snapshot").events.len(), 1);
    let error = fails(&[&snapshot[..], b"more"].concat());
    assert!(matches!(error.reason, Reason::TrailingBytes { .. }), "a snapshot too: {error}");
}

/// A pickle ends before its gzip stream, and only the checksum at the end shows that it is what was written.
#[test]
fn a_damaged_checksum_is_an_error_in_every_format() {
    let entry = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x05u".repeat(100);
    let traces = snapshot(&[b"]](", &entry[..], b"ea"].concat());
    let log = format!("{HEADER}1,0,allocate,0x1,5,0\n");
    for text in [&traces[..], log.as_bytes(), b"{\"action\":\"allocate\",\"pointer\":\"0x1\",\"bytes\":5}"] {
        let whole = packed(text);
        assert!(read_from(&whole[..], "whole").is_ok());
        for at in whole.len() - 8..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(matches!(fails(&damaged).reason, Reason::Io(_)), "byte {at} of {}", whole.len());
            assert!(matches!(fails(&whole[..at]).reason, Reason::Truncated { .. }), "cut at {at}");
        }
    }
}

#[test]
fn wrong_columns_are_shown() {
    for header in [
        "Thread,Time,Action,Pointer,Size",
        "Time,Thread,Action,Pointer,Size,Stream",
        "a,b",
        "Thread,Time,Action,Pointer,Stream,Size",
    ] {
        let error = fails(format!("{header}\n1,0,allocate,0x1,5,0\n").as_bytes());
        assert!(matches!(&error.reason, Reason::Columns { found } if found == header), "{error}");
        assert!(error.to_string().starts_with("bad: line 1: the columns are \""), "{error}");
    }
}

#[test]
fn bad_rows_name_their_line_and_what_is_wrong() {
    assert_eq!(row("1,0,free,0x1"), "bad: line 3: the row has 4 columns, expected at least 6");
    for (text, part) in [
        ("1,0,allocate,0x2,-5,0", "line 3: Size is \"-5\", expected a size in bytes"),
        ("1,0,allocate,0x2,99999999999999999999,0", "line 3: Size is \"99999999999999999999\", expected a size"),
        ("1,0,allocate,0x2,18446744073709551615,0", "line 3: an allocation of 18446744073709551615 bytes is absurd"),
        ("1,0,allocate,0x2,281474976710657,0", "line 3: an allocation of 281474976710657 bytes is absurd"),
        ("1,0,allocate,0x2,,0", "line 3: Size is \"\""),
        ("1,0,allocate,0x2,1e9,0", "line 3: Size is \"1e9\""),
        ("1,0,allocate,0x12345678123456789,5,0", "line 3: Pointer is"),
        ("1,0,allocate,here,5,0", "line 3: Pointer is \"here\""),
        ("x,0,allocate,0x2,5,0", "line 3: Thread is \"x\""),
        ("1,0,allocate,0x2,5,main", "line 3: Stream is \"main\""),
        ("1,0,malloc,0x2,5,0", "line 3: Action is \"malloc\", expected allocate, free or allocate failure"),
        ("1,0,\"allocate,0x2,5,0", "line 3: row is "),
    ] {
        let error = row(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn bad_json_names_its_line() {
    for (text, part) in [
        ("{\"action\":\"allocate\"}", "line 1: pointer is"),
        ("{\"action\":\"allocate\",\"pointer\":\"0x1\"}", "line 1: bytes is"),
        ("{\"action\":\"allocate\",\"pointer\":\"0x1\",\"bytes\":-1}", "line 1: invalid type: integer `-1`"),
        (
            "{\"action\":\"allocate\",\"pointer\":\"0x1\",\"bytes\":18446744073709551616}",
            "line 1: invalid type: floating",
        ),
        ("{\"action\":\"allocate\",\"pointer\":\"there\",\"bytes\":1}", "line 1: invalid value: string \"there\""),
        ("{\"action\":\"think\"}", "line 1: action is \"think\""),
        ("{\"action\":\"reap\"}\n{\"action\"", "line 2: EOF while parsing"),
        ("{\"action\":\"reap\"}\n{}", "line 2: missing field `action`"),
        ("{\"action\":\"free\",\"pointer\":\"0x1\",\"device\":256}", "line 1: device 256"),
    ] {
        let error = fails(text.as_bytes()).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let deep = format!("{{\"action\":\"reap\",\"x\":{}", "[".repeat(200_000));
    assert!(matches!(fails(deep.as_bytes()).reason, Reason::Json(_)));
}

#[test]
fn a_pickle_that_carries_code_is_refused_and_not_run() {
    for (name, opcode) in [("code-0.pickle", "GLOBAL"), ("code-2.pickle", "GLOBAL"), ("code-4.pickle", "STACK_GLOBAL")]
    {
        let error = read(fixture(name)).expect_err("code");
        assert!(matches!(error.reason, Reason::Code { opcode: found, .. } if found == opcode), "{error}");
        assert!(error.to_string().ends_with("it was not run"), "{error}");
        assert!(!Path::new("bursar-ran-a-pickle").exists());
    }
}

#[test]
fn every_instruction_that_calls_or_builds_is_refused() {
    for opcode in *b"cRbioPQ\x81\x82\x83\x84\x92\x93\x97\x98" {
        let error = fails(&[0x80, 4, b']', opcode, b'.']);
        assert!(matches!(error.reason, Reason::Code { offset: 3, .. }), "{opcode:#x}: {error}");
    }
}

/// Returns a pickle whose root is `{"device_traces": …}`.
fn snapshot(traces: &[u8]) -> Vec<u8> {
    [b"\x80\x04}\x8c\x0ddevice_traces".as_slice(), traces, b"s."].concat()
}

#[test]
fn pickles_that_are_no_snapshot_say_why() {
    for (bytes, part) in [
        (b"\x80\x04N.".to_vec(), "it has no device_traces"),
        (b"\x80\x04}.".to_vec(), "it has no device_traces"),
        (snapshot(b"N"), "device_traces is not a list"),
        (snapshot(b"](}\x8c\x06actionNse"), "the trace of a device is not a list"),
        (snapshot(b"](]\x94h\x00e"), "two devices share one trace"),
        (
            snapshot(b"]](}\x8c\x04sizeK\x01sea"),
            "record 1: not a PyTorch memory snapshot: an entry of device_traces has no action",
        ),
        (snapshot(b"]](}\x8c\x06action\x8c\x05allocs}\x8c\x06action\x8c\x04freesea"), "record 1: addr is \"\""),
        (
            snapshot(b"]](}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeJ\xff\xff\xff\xffuea"),
            "record 1: size is \"-1\"",
        ),
    ] {
        let error = fails(&bytes).to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(matches!(fails(&snapshot(b"]]a")).reason, Reason::Empty));
}

#[test]
fn malformed_pickles_are_errors() {
    for body in [
        b"".as_slice(),
        b".",
        b"0",
        b"1",
        b"2",
        b"a",
        b"e",
        b"u",
        b"s",
        b"t",
        b"l",
        b"d",
        b"\x94",
        b"q\x00",
        b"h\x00",
        b"j\xff\xff\xff\xff",
        b"]N(a",
        b"N(e",
        b"](Nu",
        b"}(Nu",
        b"}Ns",
        b"(.",
        b"N(0",
        b"N(\x94",
        b"N(2",
        b"\x85",
        b"N\x86",
        b"\xff",
        b"I",
        b"I7",
        b"Ix\n",
        b"I\n",
        b"L\n",
        b"Vopen",
        b"Sopen\n",
        b"S'open\n",
        b"F1.5",
        b"Np\n",
        b"Np-1\n",
        b"Npx\n",
        b"g0\n",
        b"g99999999999\n",
        b"p0\n",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffx",
        b"X\xff\xff\xff\xffx",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffx",
        b"\x8b\xff\xff\xff\x7fx",
        b"\x8a\x08x",
        b"\x95",
    ] {
        let error = fails(&[b"\x80\x04".as_slice(), body].concat());
        assert!(matches!(error.reason, Reason::Pickle { .. } | Reason::Truncated { .. }), "{body:?}: {error}");
    }
}

/// Returns `piece` repeated `count` times, gzipped: a bomb.
fn bomb(head: &[u8], piece: &[u8], count: usize) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(head).expect("memory");
    let block = piece.repeat(4096);
    for _ in 0..count.div_ceil(4096) {
        packed.write_all(&block).expect("memory");
    }
    packed.finish().expect("memory")
}

#[test]
fn bombs_are_errors_and_not_memory() {
    // A stack that never ends, marks that never end, nesting that never ends, a memo that never ends.
    for piece in [b"N".as_slice(), b"(", b"]", b"]\x94"] {
        let error = fails(&bomb(b"\x80\x04", piece, 2_000_000));
        assert!(matches!(error.reason, Reason::Pickle { .. }), "{error}");
    }
    for piece in [b"I7\n".as_slice(), b"Vx\n", b"(l", b"(d"] {
        let error = fails(&bomb(b"(dp0\n", piece, 2_000_000));
        assert!(matches!(error.reason, Reason::Pickle { .. }), "{error}");
    }
    // A line that never ends.
    for opcode in [b"V".as_slice(), b"S'", b"I", b"L", b"F", b"g"] {
        let error = fails(&bomb(&[b"(dp0\n", opcode].concat(), b"1", 2_000_000));
        assert!(matches!(error.reason, Reason::Truncated { .. }), "{error}");
    }
    let error = fails(&bomb(HEADER.as_bytes(), b"1", 2_000_000));
    assert!(matches!(error.reason, Reason::LongLine { .. }), "{error}");
}

#[test]
fn more_than_a_trace_can_hold_is_an_error() {
    let rows = |row: fn(u64) -> String| (0..70_000u64).map(row).collect::<String>();
    for (rows, limit) in [
        (rows(|i| format!("{i},0,allocate,{i:#x},5,0\n")), TraceLimit::Threads),
        (rows(|i| format!("1,0,allocate,{i:#x},5,{i}\n")), TraceLimit::Streams),
        (rows(|i| format!("1,0,allocate,{i:#x},{},0\n", Trace::MAX_BLOCK_BYTES)), TraceLimit::LiveBytes),
    ] {
        let error = fails(format!("{HEADER}{rows}").as_bytes());
        assert!(matches!(error.reason, Reason::Limit(found) if found == limit), "{error}");
        assert!(error.position.is_some());
    }
}

#[test]
fn an_unknown_extension_is_told_before_anything_is_read_or_written() {
    let error = convert("no/such.csv", "out.txt").expect_err("no format");
    assert!(matches!(error.reason, Reason::UnknownExtension));
    assert!(error.to_string().starts_with("out.txt: "));
}
