//! RMM's CSV log: `Thread,Time,Action,Pointer,Size,Stream`, and Bursar's `Device,Tag,Granted,Generation` behind them. Where there
//! is a column `Asked`, it counts instead of `Size`.

use crate::lines::Lines;
use crate::number::{address, identifier, shown, size, stream};
use crate::read::Rows;
use crate::tags::Tags;
use crate::{Place, Reason, Site, TraceBuilder};
use std::io::Read;

/// RMM's columns, in its order. Whatever stands behind them is found by its name.
const COLUMNS: [&[u8]; 6] = [b"Thread", b"Time", b"Action", b"Pointer", b"Size", b"Stream"];

/// Columns past this one are not looked at.
const MAX_COLUMNS: usize = 16;

/// The fields of a row, and how many there are.
type Row<'a> = ([&'a [u8]; MAX_COLUMNS], usize);

/// Where Bursar's own columns are.
#[derive(Clone, Copy, Debug)]
struct Extra {
    device: Option<usize>,
    tag: Option<usize>,
    asked: Option<usize>,
}

/// The rows of a log that is being read. The header is the first of them.
pub(crate) struct CsvRows<R> {
    lines: Lines<R>,
    extra: Option<Extra>,
    tags: Tags,
}

impl<R: Read> CsvRows<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), extra: None, tags: Tags::default() }
    }
}

impl<R: Read> Rows for CsvRows<R> {
    fn place(&self) -> Place {
        self.lines.place()
    }

    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason> {
        let extra = match self.extra {
            Some(extra) => extra,
            None => {
                let Some((_, line)) = self.lines.next()? else { return Ok(false) };
                let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
                *self.extra.insert(with_fields(line, |row| header(line, row))?)
            }
        };
        while builder.waiting() < events {
            let Some((place, line)) = self.lines.next()? else { return Ok(false) };
            with_fields(line, |row| read_row(row, extra, place, &mut self.tags, builder))?;
        }
        Ok(true)
    }
}

fn header(line: &[u8], (fields, count): Row<'_>) -> Result<Extra, Reason> {
    let fields = &fields[..count];
    let matching = fields.iter().zip(COLUMNS).filter(|(field, name)| field.trim_ascii() == *name).count();
    if matching < COLUMNS.len() {
        return Err(Reason::Columns { found: shown(line) });
    }
    let find = |name: &[u8]| fields.iter().position(|field| field.trim_ascii() == name);
    Ok(Extra { device: find(b"Device"), tag: find(b"Tag"), asked: find(b"Asked") })
}

fn read_row(
    (fields, count): Row<'_>,
    extra: Extra,
    place: Place,
    tags: &mut Tags,
    builder: &mut TraceBuilder,
) -> Result<(), Reason> {
    if count < COLUMNS.len() {
        return Err(Reason::TooFewColumns { found: count });
    }
    // A field that is not there, or empty, says nothing.
    let extra_field = |column: Option<usize>| fields[..count].get(column?).filter(|field| !field.is_empty());
    let device = extra_field(extra.device).map_or(Ok(0), |text| identifier("Device", text))?;
    let site = Site { place, thread: identifier("Thread", fields[0])?, stream: stream("Stream", fields[5])?, device };
    let bytes = size("Size", fields[4])?;
    match fields[2].trim_ascii() {
        b"free" => builder.free(site, address("Pointer", fields[3])?, bytes)?,
        action @ (b"allocate" | b"allocate failure") => {
            let asked = extra_field(extra.asked).map_or(Ok(bytes), |text| size("Asked", text))?;
            let tag = tags.get(extra_field(extra.tag).copied().unwrap_or_default());
            if action == b"allocate" {
                builder.allocate(site, address("Pointer", fields[3])?, asked, tag)?;
            } else {
                builder.fail(site, asked, tag)?;
            }
        }
        other => {
            let expected = "allocate, free or allocate failure";
            return Err(Reason::Field { field: "Action", found: shown(other), expected });
        }
    }
    Ok(())
}

/// Splits `line` into its fields; only one with a quote in it costs an allocation.
fn with_fields<T>(line: &[u8], read: impl FnOnce(Row<'_>) -> Result<T, Reason>) -> Result<T, Reason> {
    let mut fields: [&[u8]; MAX_COLUMNS] = [&[]; MAX_COLUMNS];
    let (mut count, mut start) = (0, 0);
    for end in memchr::memchr2_iter(b',', b'"', line) {
        if line[end] == b'"' {
            return with_quoted_fields(line, read);
        }
        if count < MAX_COLUMNS {
            fields[count] = &line[start..end];
            count += 1;
        }
        start = end + 1;
    }
    if count < MAX_COLUMNS {
        fields[count] = &line[start..];
        count += 1;
    }
    read((fields, count))
}

fn with_quoted_fields<T>(line: &[u8], read: impl FnOnce(Row<'_>) -> Result<T, Reason>) -> Result<T, Reason> {
    let unquoted = unquote(line)?;
    let mut fields: [&[u8]; MAX_COLUMNS] = [&[]; MAX_COLUMNS];
    for (field, text) in fields.iter_mut().zip(&unquoted) {
        *field = text;
    }
    read((fields, unquoted.len().min(MAX_COLUMNS)))
}

/// The fields of a line where some are in quotes: commas inside them do not count, and `""` is a quote. A quoted field
/// ends on its line.
fn unquote(line: &[u8]) -> Result<Vec<Vec<u8>>, Reason> {
    let mut fields = vec![Vec::new()];
    let mut quoted = false;
    let mut bytes = line.iter().peekable();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' if quoted && bytes.next_if_eq(&&b'"').is_some() => push(&mut fields, b'"'),
            b'"' => quoted = !quoted,
            b',' if !quoted => fields.push(Vec::new()),
            _ => push(&mut fields, byte),
        }
    }
    if quoted {
        return Err(Reason::Field { field: "row", found: shown(line), expected: "its quotes to be closed" });
    }
    Ok(fields)
}

fn push(fields: &mut [Vec<u8>], byte: u8) {
    if let Some(field) = fields.last_mut() {
        field.push(byte);
    }
}
