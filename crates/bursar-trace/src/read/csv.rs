//! RMM's CSV log: `Thread,Time,Action,Pointer,Size,Stream`, followed by Bursar's `Device,Tag,Granted,Generation`. A column
//! `Asked`, where there is one, is used instead of `Size`.

use super::lines::Lines;
use super::log::Rows;
use super::numbers::{address, excerpt, identifier, size, stream};
use super::tags::TagInterner;
use crate::{EventOrigin, FilePosition, Reason, TraceBuilder};
use bursar_core::AllocTag;
use std::io::Read;

/// RMM's columns, in its order. Columns after them are found by name.
const COLUMNS: [&[u8]; 6] = [b"Thread", b"Time", b"Action", b"Pointer", b"Size", b"Stream"];

/// The mark that some editors put before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The number of columns that are read; further ones are ignored.
const MAX_COLUMNS: usize = 16;

/// The fields of a row.
#[derive(Clone, Copy, Debug, Default)]
struct Row<'a> {
    fields: [&'a [u8]; MAX_COLUMNS],
    count: usize,
    /// A bit for each field that is in quotes.
    quoted: u16,
}

const _: () = assert!(MAX_COLUMNS <= u16::BITS as usize);

impl<'a> Row<'a> {
    fn push(&mut self, field: &'a [u8]) {
        if self.count < MAX_COLUMNS {
            self.fields[self.count] = field;
            self.count += 1;
        }
    }

    /// Returns the field in an optional column. An empty field counts as absent, unless it is in quotes.
    fn get(&self, column: Option<usize>) -> Option<&'a [u8]> {
        let column = column.filter(|&column| column < self.count)?;
        let field = self.fields[column];
        (!field.is_empty() || self.quoted & 1 << column != 0).then_some(field)
    }
}

/// The indices of Bursar's own columns.
#[derive(Clone, Copy, Debug)]
struct ExtraColumns {
    device: Option<usize>,
    tag: Option<usize>,
    asked: Option<usize>,
}

/// The rows of a CSV log. The header is the first of them.
pub(crate) struct CsvRows<R> {
    lines: Lines<R>,
    extra: Option<ExtraColumns>,
    tags: TagInterner,
}

impl<R: Read> CsvRows<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), extra: None, tags: TagInterner::default() }
    }
}

impl<R: Read> Rows for CsvRows<R> {
    fn position(&self) -> FilePosition {
        self.lines.position()
    }

    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason> {
        let Self { lines, extra, tags } = self;
        let extra = match *extra {
            Some(extra) => extra,
            None => match next_row(lines, |_, row, line| header(row, line))? {
                Some(found) => *extra.insert(found),
                None => return Ok(false),
            },
        };
        while builder.pending_events() < events {
            if next_row(lines, |position, row, _| read_row(row, extra, position, tags, builder))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Gives the next row to `read`, with its position and its text. Returns `None` at the end of the file.
fn next_row<R: Read, T>(
    lines: &mut Lines<R>,
    read: impl FnOnce(FilePosition, &Row<'_>, &[u8]) -> Result<T, Reason>,
) -> Result<Option<T>, Reason> {
    let Some((position, line)) = lines.next()? else { return Ok(None) };
    match plain_fields(line) {
        Some(row) => read(position, &row, line).map(Some),
        None => quoted_row(lines, position, read).map(Some),
    }
}

fn header(row: &Row<'_>, line: &[u8]) -> Result<ExtraColumns, Reason> {
    let mut fields = row.fields;
    fields[0] = fields[0].strip_prefix(BYTE_ORDER_MARK).unwrap_or(fields[0]);
    let fields = fields[..row.count].iter().map(|field| field.trim_ascii());
    if fields.clone().zip(COLUMNS).filter(|(found, name)| found == name).count() < COLUMNS.len() {
        return Err(Reason::Columns { found: excerpt(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)) });
    }
    let find = |name: &[u8]| fields.clone().position(|found| found == name);
    Ok(ExtraColumns { device: find(b"Device"), tag: find(b"Tag"), asked: find(b"Asked") })
}

fn read_row(
    row: &Row<'_>,
    extra: ExtraColumns,
    position: FilePosition,
    tags: &mut TagInterner,
    builder: &mut TraceBuilder,
) -> Result<(), Reason> {
    let Row { fields, count, .. } = row;
    if *count < COLUMNS.len() {
        return Err(Reason::TooFewColumns { found: *count });
    }
    let device = row.get(extra.device).map_or(Ok(0), |text| identifier("Device", text))?;
    let origin = EventOrigin {
        position,
        thread: identifier("Thread", fields[0])?,
        stream: stream("Stream", fields[5])?,
        device,
    };
    let bytes = size("Size", fields[4])?;
    match fields[2].trim_ascii() {
        b"free" => builder.free(origin, address("Pointer", fields[3])?, bytes)?,
        action @ (b"allocate" | b"allocate failure") => {
            let asked = row.get(extra.asked).map_or(Ok(bytes), |text| size("Asked", text))?;
            let tag = row.get(extra.tag).map_or(AllocTag::UNTAGGED, |name| tags.get(name));
            if action == b"allocate" {
                builder.allocate(origin, address("Pointer", fields[3])?, asked, tag)?;
            } else {
                builder.fail(origin, asked, tag)?;
            }
        }
        other => {
            let expected = "allocate, free or allocate failure";
            return Err(Reason::Field { field: "Action", found: excerpt(other), expected });
        }
    }
    Ok(())
}

/// Splits a line into its fields. Returns `None` if there is a quote in it.
#[inline]
fn plain_fields(line: &[u8]) -> Option<Row<'_>> {
    let (mut row, mut start) = (Row::default(), 0);
    for end in memchr::memchr2_iter(b',', b'"', line) {
        if line[end] == b'"' {
            return None;
        }
        row.push(&line[start..end]);
        start = end + 1;
    }
    row.push(&line[start..]);
    Some(row)
}

/// Reads the row that begins with the line read last, where some fields are in quotes. Such a field may span several lines,
/// as in RFC 4180.
#[cold]
fn quoted_row<R: Read, T>(
    lines: &mut Lines<R>,
    position: FilePosition,
    read: impl FnOnce(FilePosition, &Row<'_>, &[u8]) -> Result<T, Reason>,
) -> Result<T, Reason> {
    let mut quotes = QuoteState::default();
    let Some(record) = lines.join(|line| quotes.is_open_after(line))? else {
        let found = excerpt(lines.record());
        return Err(Reason::Field { field: "row", found, expected: "its quotes to be closed" });
    };
    let fields = unquote(record);
    let mut row = Row::default();
    for (at, field) in fields.iter().enumerate().take(MAX_COLUMNS) {
        row.push(&field.text);
        row.quoted |= u16::from(field.is_quoted) << at;
    }
    read(position, &row, record)
}

/// The state of the field parser: in quotes, at the beginning of a field, or elsewhere in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum QuoteState {
    #[default]
    FieldBegins,
    Plain,
    Open,
    /// After a quote within quotes: a second one makes it a quote of the text, anything else closes the quotes.
    Closing,
}

impl QuoteState {
    /// Advances by one byte, and returns whether it belongs to the text of the field.
    fn advance(&mut self, byte: u8) -> bool {
        let (next, is_text) = match (*self, byte) {
            (Self::Open, b'"') => (Self::Closing, false),
            (Self::Open, _) => (Self::Open, true),
            (Self::Closing, b'"') => (Self::Open, true),
            (_, b',') => (Self::FieldBegins, false),
            (Self::FieldBegins, b'"') => (Self::Open, false),
            _ => (Self::Plain, true),
        };
        *self = next;
        is_text
    }

    /// Advances by a line, and returns whether the next line belongs to the same row.
    fn is_open_after(&mut self, line: &[u8]) -> bool {
        for &byte in line {
            self.advance(byte);
        }
        *self == Self::Open
    }
}

/// A field without its quotes.
#[derive(Debug, Default)]
struct Field {
    text: Vec<u8>,
    is_quoted: bool,
}

/// Returns the fields of a row. Commas and line ends within quotes belong to the field, and `""` there is a quote. A quote
/// that does not begin a field is an ordinary character.
fn unquote(record: &[u8]) -> Vec<Field> {
    let (mut fields, mut field, mut quotes) = (Vec::new(), Field::default(), QuoteState::default());
    for &byte in record {
        let begins = quotes == QuoteState::FieldBegins;
        if quotes.advance(byte) {
            field.text.push(byte);
        } else if quotes == QuoteState::FieldBegins {
            fields.push(std::mem::take(&mut field));
        } else if begins {
            field.is_quoted = true;
        }
    }
    fields.push(field);
    fields
}
