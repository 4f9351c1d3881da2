//! Bursar's own log: one JSON object per line, with every field of a record.

use super::lines::Lines;
use super::log::Rows;
use super::numbers::{address, excerpt, stream};
use super::tags::TagInterner;
use crate::{EventOrigin, FilePosition, Reason, TraceBuilder};
use bursar_core::AllocTag;
use serde::de::{self, Deserializer, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// The fields of a record that a trace needs; the others are for people and other tools.
#[derive(Debug, serde::Deserialize)]
struct JsonRecord<'a> {
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(default)]
    thread: Number,
    #[serde(default)]
    pointer: Address,
    #[serde(default)]
    bytes: Option<Number>,
    #[serde(default)]
    asked: Option<Number>,
    #[serde(default)]
    stream: StreamName,
    #[serde(default)]
    device: Number,
    #[serde(borrow, default)]
    tag: Option<Cow<'a, str>>,
}

/// The rows of a JSON lines log.
pub(crate) struct JsonRows<R> {
    lines: Lines<R>,
    tags: TagInterner,
}

impl<R: Read> JsonRows<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), tags: TagInterner::default() }
    }
}

impl<R: Read> Rows for JsonRows<R> {
    fn position(&self) -> FilePosition {
        self.lines.position()
    }

    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason> {
        while builder.pending_events() < events {
            let Some((position, line)) = self.lines.next()? else { return Ok(false) };
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
            let record: JsonRecord<'_> =
                serde_json::from_slice(line).map_err(|error| Reason::Json(without_line(&error)))?;
            read_record(&record, position, &mut self.tags, builder)?;
        }
        Ok(true)
    }
}

fn read_record(
    record: &JsonRecord<'_>,
    position: FilePosition,
    tags: &mut TagInterner,
    builder: &mut TraceBuilder,
) -> Result<(), Reason> {
    let origin = EventOrigin { position, thread: record.thread.0, stream: record.stream.0, device: record.device.0 };
    let size = || record.asked.or(record.bytes).map(|Number(bytes)| bytes).ok_or_else(|| missing("bytes"));
    let pointer = || record.pointer.0.ok_or_else(|| missing("pointer"));
    let tag = |tags: &mut TagInterner| record.tag.as_ref().map_or(AllocTag::UNTAGGED, |name| tags.get(name.as_bytes()));
    match &*record.action {
        "allocate" => {
            let tag = tag(tags);
            builder.allocate(origin, pointer()?, size()?, tag)?;
        }
        "free" => builder.free(origin, pointer()?, size().unwrap_or(0))?,
        "fail" => {
            let tag = tag(tags);
            builder.fail(origin, size()?, tag)?;
        }
        // A refusal by a layer is followed by the failure of the stack, and the other actions concern no block.
        "refuse" | "reap" | "grow" | "remap" | "trim" | "use" => {}
        other => {
            let expected = "allocate, free, fail, refuse, reap, grow, remap, trim or use";
            return Err(Reason::Field { field: "action", found: excerpt(other.as_bytes()), expected });
        }
    }
    Ok(())
}

fn missing(field: &'static str) -> Reason {
    Reason::Field { field, found: String::new(), expected: "a value" }
}

/// Returns the message of an error without its line number, which is always 1 here; the column stays.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line 1 ") {
        Some((what, column)) => format!("{what} at {column}"),
        None => message,
    }
}

/// A number of at least 0.
#[derive(Clone, Copy, Debug, Default)]
struct Number(u64);

/// An address: a hexadecimal string, or a number.
#[derive(Clone, Copy, Debug, Default)]
struct Address(Option<u64>);

/// A stream: a number, or a string as in the CSV log. An absent one is the default stream.
#[derive(Clone, Copy, Debug, Default)]
struct StreamName(u64);

type ParseText = fn(&'static str, &[u8]) -> Result<u64, Reason>;

/// Reads a number, a string by `parse_text`, or `null`.
struct NumberVisitor {
    expected: &'static str,
    parse_text: Option<ParseText>,
}

impl Visitor<'_> for NumberVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Option<u64>, E> {
        Ok(Some(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<u64>, E> {
        let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
        let parse_text = self.parse_text.ok_or_else(wrong)?;
        parse_text("", text.as_bytes()).map(Some).map_err(|_| wrong())
    }
}

impl<'de> de::Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor { expected: "a number from 0 to 18446744073709551615", parse_text: None };
        Ok(Self(from.deserialize_any(visitor)?.unwrap_or(0)))
    }
}

impl<'de> de::Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor { expected: "a hexadecimal address in a string", parse_text: Some(address) };
        from.deserialize_any(visitor).map(Self)
    }
}

impl<'de> de::Deserialize<'de> for StreamName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor =
            NumberVisitor { expected: "a stream: a number or a hexadecimal string", parse_text: Some(stream) };
        Ok(Self(from.deserialize_any(visitor)?.unwrap_or(0)))
    }
}
