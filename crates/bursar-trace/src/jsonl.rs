//! Bursar's own log: a JSON object a line, with everything.

use crate::lines::Lines;
use crate::number::{address, shown, stream};
use crate::read::Rows;
use crate::tags::Tags;
use crate::{Place, Reason, Site, TraceBuilder};
use bursar_core::AllocTag;
use serde::de::{self, Deserializer, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// What a trace needs of a record; the other fields are for people and other tools.
#[derive(Debug, serde::Deserialize)]
struct Line<'a> {
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

/// The rows of a log that is being read.
pub(crate) struct JsonRows<R> {
    lines: Lines<R>,
    tags: Tags,
}

impl<R: Read> JsonRows<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), tags: Tags::default() }
    }
}

impl<R: Read> Rows for JsonRows<R> {
    fn place(&self) -> Place {
        self.lines.place()
    }

    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason> {
        while builder.waiting() < events {
            let Some((place, line)) = self.lines.next()? else { return Ok(false) };
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
            let line: Line<'_> = serde_json::from_slice(line).map_err(|error| Reason::Json(without_line(&error)))?;
            read_line(&line, place, &mut self.tags, builder)?;
        }
        Ok(true)
    }
}

fn read_line(line: &Line<'_>, place: Place, tags: &mut Tags, builder: &mut TraceBuilder) -> Result<(), Reason> {
    let site = Site { place, thread: line.thread.0, stream: line.stream.0, device: line.device.0 };
    let size = || line.asked.or(line.bytes).map(|Number(bytes)| bytes).ok_or_else(|| missing("bytes"));
    let pointer = || line.pointer.0.ok_or_else(|| missing("pointer"));
    let tag = |tags: &mut Tags| line.tag.as_ref().map_or(AllocTag::UNTAGGED, |name| tags.get(name.as_bytes()));
    match &*line.action {
        "allocate" => {
            let tag = tag(tags);
            builder.allocate(site, pointer()?, size()?, tag)?;
        }
        "free" => builder.free(site, pointer()?, size().unwrap_or(0))?,
        "fail" => {
            let tag = tag(tags);
            builder.fail(site, size()?, tag)?;
        }
        // A refusal by a layer is followed by the failure of the stack, and the rest says nothing of blocks.
        "refuse" | "reap" | "grow" | "remap" | "trim" | "use" => {}
        other => {
            let expected = "allocate, free, fail, refuse, reap, grow, remap, trim or use";
            return Err(Reason::Field { field: "action", found: shown(other.as_bytes()), expected });
        }
    }
    Ok(())
}

fn missing(field: &'static str) -> Reason {
    Reason::Field { field, found: String::new(), expected: "it to be there" }
}

/// The message with its column only: the line within the line is always 1.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line 1 ") {
        Some((what, column)) => format!("{what} at {column}"),
        None => message,
    }
}

/// A number that is not negative.
#[derive(Clone, Copy, Debug, Default)]
struct Number(u64);

/// An address: a hexadecimal string, or a number.
#[derive(Clone, Copy, Debug, Default)]
struct Address(Option<u64>);

/// A stream: a number, or a string as in the CSV log; none is the default stream.
#[derive(Clone, Copy, Debug, Default)]
struct StreamName(u64);

type OfText = fn(&'static str, &[u8]) -> Result<u64, Reason>;

/// Reads a number, or a string by `of_text`, or `null`.
struct NumberVisitor {
    expected: &'static str,
    of_text: Option<OfText>,
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
        let of_text = self.of_text.ok_or_else(wrong)?;
        of_text("", text.as_bytes()).map(Some).map_err(|_| wrong())
    }
}

impl<'de> de::Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor { expected: "a number from 0 to 18446744073709551615", of_text: None };
        Ok(Self(from.deserialize_any(visitor)?.unwrap_or(0)))
    }
}

impl<'de> de::Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor { expected: "a hexadecimal address in a string", of_text: Some(address) };
        from.deserialize_any(visitor).map(Self)
    }
}

impl<'de> de::Deserialize<'de> for StreamName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = NumberVisitor { expected: "a stream: a number or a hexadecimal string", of_text: Some(stream) };
        Ok(Self(from.deserialize_any(visitor)?.unwrap_or(0)))
    }
}
