//! The two forms a log can have.

use super::entry::Entry;
use super::file_name::FileName;
use super::text::{csv_field, cut, decimal, hexadecimal, json_string};
use bursar_core::{Action, Actions, Error};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// The form of a log.
///
/// # CSV
/// Allocations, frees and failed allocations, the way RMM logs them: its six columns first and in its order, so that
/// its own tools read them, then ours.
///
/// ```text
/// Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation
/// 1,03:10:00.000001,allocate,0x7f0000000000,500,0,0,weights,512,65537
/// 1,03:10:00.000009,allocate failure,0x0,8388608,0,0,cache,0,0
/// 1,03:10:00.000012,free,0x7f0000000000,500,0,0,weights,512,65537
/// ```
///
/// - `Thread` counts from 1 in the order in which threads were first heard of, and is never given to another thread.
/// - `Time` is the time of day in UTC.
/// - `Size` is what was asked for, and `Granted` what was granted.
/// - `Stream` is 0 for the default stream, and otherwise the stream's number in its device's table, which is 0 to 1023.
/// - `Tag` is in quotes where it needs them, by RFC 4180; one with a line break in it goes on over several lines.
/// - `Generation` tells the lives of an address apart; 0 where there is no block.
///
/// # JSON lines
/// Everything that happens, one object a line, always with the same keys in the same order:
///
/// ```text
/// {"time":"2026-11-15T03:10:00.000001Z","thread":1,"action":"allocate","pointer":"0x7f0000000000","bytes":512,"asked":500,"stream":0,"device":0,"tag":"weights","query":0,"generation":65537,"result":"ok"}
/// ```
///
/// `action` is what [`Action`] shows as, `bytes` what was granted, `stream` null where none was
/// named, `query` the [`QueryId`](bursar_core::QueryId) of the thread, and `result` either `ok` or what went wrong.
///
/// In both, tags and results are cut at 256 bytes, between characters.
///
/// ```
/// use bursar::observe::LogFormat;
///
/// assert_eq!(LogFormat::of("memory.csv.gz".as_ref()), Some(LogFormat::Csv));
/// assert_eq!(LogFormat::of("memory.jsonl".as_ref()), Some(LogFormat::JsonLines));
/// assert_eq!(LogFormat::of("memory.txt".as_ref()), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// The columns that RMM writes, and a few more.
    Csv,
    /// One JSON object a line.
    JsonLines,
}

impl LogFormat {
    /// Returns the form that the name of a file stands for: `.csv`, or `.jsonl` and `.json`, each with or without `.gz`
    /// after it.
    pub fn of(path: &Path) -> Option<Self> {
        match FileName::of(path)?.extension?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" | "json" => Some(Self::JsonLines),
            _ => None,
        }
    }

    /// Returns the actions that it can show.
    pub(super) const fn interest(self) -> Actions {
        match self {
            Self::Csv => Actions::of(&[Action::Allocate, Action::Free, Action::Fail]),
            Self::JsonLines => Actions::ALL,
        }
    }

    /// Returns the first line of each file.
    pub(super) const fn header(self) -> &'static str {
        match self {
            Self::Csv => "Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation\n",
            Self::JsonLines => "",
        }
    }

    /// Appends one line.
    pub(super) fn push(self, entry: &Entry, out: &mut Vec<u8>) {
        match self {
            Self::Csv => push_csv(entry, out),
            Self::JsonLines => push_json(entry, out),
        }
    }
}

fn push_csv(entry: &Entry, out: &mut Vec<u8>) {
    decimal(out, entry.thread);
    out.push(b',');
    entry.timestamp.push_time_of_day(out);
    out.extend_from_slice(match entry.action {
        Action::Allocate => b",allocate,",
        Action::Free => b",free,",
        _ => b",allocate failure,",
    });
    hexadecimal(out, entry.ptr.0);
    out.push(b',');
    decimal(out, entry.asked.get());
    out.push(b',');
    decimal(out, entry.stream.map_or(0, |stream| u64::from(stream.0)));
    out.push(b',');
    decimal(out, u64::from(entry.device.0));
    out.push(b',');
    csv_field(out, cut(entry.tag.name()));
    out.push(b',');
    decimal(out, entry.granted.get());
    out.push(b',');
    decimal(out, entry.generation.map_or(0, |generation| generation.get()));
    out.push(b'\n');
}

fn push_json(entry: &Entry, out: &mut Vec<u8>) {
    let number = |out: &mut Vec<u8>, key: &str, number: u64| {
        out.extend_from_slice(key.as_bytes());
        decimal(out, number);
    };
    out.extend_from_slice(b"{\"time\":\"");
    entry.timestamp.push_rfc3339(out);
    number(out, "\",\"thread\":", entry.thread);
    // Writing to a vector does not fail.
    let _ = write!(out, ",\"action\":\"{}\",\"pointer\":\"", entry.action);
    hexadecimal(out, entry.ptr.0);
    number(out, "\",\"bytes\":", entry.granted.get());
    number(out, ",\"asked\":", entry.asked.get());
    match entry.stream {
        Some(stream) => number(out, ",\"stream\":", u64::from(stream.0)),
        None => out.extend_from_slice(b",\"stream\":null"),
    }
    number(out, ",\"device\":", u64::from(entry.device.0));
    out.extend_from_slice(b",\"tag\":");
    json_string(out, cut(entry.tag.name()));
    number(out, ",\"query\":", entry.query.0);
    number(out, ",\"generation\":", entry.generation.map_or(0, |generation| generation.get()));
    out.extend_from_slice(b",\"result\":");
    match &entry.error {
        None => out.extend_from_slice(b"\"ok\""),
        Some(error) => json_string(out, cut(&with_causes(error))),
    }
    out.extend_from_slice(b"}\n");
}

/// Returns an error with its causes, in words.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::timestamp::Timestamp;
    use super::*;
    use bursar_core::{AllocTag, Bytes, DeviceId, DevicePtr, DriverError, Generation, QueryId, Status, StreamNumber};

    fn entry(action: Action) -> Entry {
        Entry {
            timestamp: Timestamp(1_794_712_200_000_001),
            thread: 1,
            query: QueryId::NONE,
            ptr: DevicePtr(0x7f00_0000_0000),
            granted: Bytes(512),
            asked: Bytes(500),
            generation: Generation::from_raw(17),
            stream: Some(StreamNumber(0)),
            device: DeviceId(0),
            tag: AllocTag::intern("weights"),
            action,
            error: None,
        }
    }

    fn failed(error: Error) -> Entry {
        let (ptr, granted) = (DevicePtr(0), Bytes(0));
        Entry { ptr, granted, generation: None, error: Some(error), ..entry(Action::Fail) }
    }

    fn line(format: LogFormat, entry: &Entry) -> String {
        let mut out = Vec::new();
        format.push(entry, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn g1_csv_lines_are_these() {
        let csv = |entry| line(LogFormat::Csv, &entry);
        assert!(LogFormat::Csv.header().starts_with("Thread,Time,Action,Pointer,Size,Stream,"), "RMM's six columns");
        assert_eq!(csv(entry(Action::Allocate)), "1,03:10:00.000001,allocate,0x7f0000000000,500,0,0,weights,512,17\n");
        let elsewhere = Entry { stream: Some(StreamNumber(12)), device: DeviceId(3), ..entry(Action::Free) };
        assert_eq!(csv(elsewhere), "1,03:10:00.000001,free,0x7f0000000000,500,12,3,weights,512,17\n");
        let failure = Entry { tag: AllocTag::intern("a,\"b\""), ..failed(Error::NoDevice) };
        assert_eq!(csv(failure), "1,03:10:00.000001,allocate failure,0x0,500,0,0,\"a,\"\"b\"\"\",0,0\n");
        let columns = LogFormat::Csv.header().split(',').count();
        assert_eq!(csv(entry(Action::Allocate)).split(',').count(), columns);
    }

    #[test]
    fn g1_json_lines_are_these() {
        let json = |entry| line(LogFormat::JsonLines, &entry);
        assert_eq!(
            json(entry(Action::Allocate)),
            "{\"time\":\"2026-11-15T03:10:00.000001Z\",\"thread\":1,\"action\":\"allocate\",\
             \"pointer\":\"0x7f0000000000\",\"bytes\":512,\"asked\":500,\"stream\":0,\"device\":0,\
             \"tag\":\"weights\",\"query\":0,\"generation\":17,\"result\":\"ok\"}\n"
        );
        let broken = DriverError::new("cuStreamCreate", DeviceId(0), Status::OutOfMemory);
        let failure = Entry { stream: None, query: QueryId(9), ..failed(Error::CreateFailed(broken)) };
        assert_eq!(
            json(failure),
            "{\"time\":\"2026-11-15T03:10:00.000001Z\",\"thread\":1,\"action\":\"fail\",\
             \"pointer\":\"0x0\",\"bytes\":0,\"asked\":500,\"stream\":null,\"device\":0,\
             \"tag\":\"weights\",\"query\":9,\"generation\":0,\"result\":\"a stream could not be created: \
             cuStreamCreate failed on gpu0: CUDA_ERROR_OUT_OF_MEMORY (2)\"}\n"
        );
    }
}
