//! Writes CSV logs.

use super::{Row, rows, synthetic_layout};
use crate::{EventKind, Trace};
use bursar_core::AllocTag;
use std::borrow::Cow;
use std::io::{self, Write};

/// Writes a CSV log: RMM's six columns in its order, so that its tools can read it, then `Device,Tag,Granted,Generation`.
///
/// ```
/// let mut log = Vec::new();
/// bursar::trace::write_csv(&bursar::trace::bundled(), &mut log)?;
/// assert!(log.starts_with(b"Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_csv(trace: &Trace, mut to: impl Write) -> io::Result<()> {
    let layout = synthetic_layout(trace)?;
    let mut tag = (AllocTag::UNTAGGED, field(AllocTag::UNTAGGED.name()));
    writeln!(to, "Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation")?;
    for row in rows(trace, &layout) {
        let row = row?;
        if row.event.tag != tag.0 {
            tag = (row.event.tag, field(row.event.tag.name()));
        }
        write_row(row, &tag.1, &mut to)?;
    }
    Ok(())
}

fn write_row(row: Row, tag: &str, to: &mut impl Write) -> io::Result<()> {
    let Row { event, thread, stream, address, time_us } = row;
    let action = match event.kind {
        EventKind::Allocate => "allocate",
        EventKind::Free => "free",
        EventKind::Fail => "allocate failure",
    };
    let (seconds, micros) = (time_us / 1_000_000, time_us % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (bytes, device, generation) = (event.bytes, event.device, event.block.wrapping_add(1));
    writeln!(
        to,
        "{thread},{hours:02}:{minutes:02}:{seconds:02}.{micros:06},{action},{address:#x},{bytes},{stream},\
         {device},{tag},{bytes},{generation}"
    )
}

/// Returns a name as a field: in quotes, as in RFC 4180, if it would be read as something else without them. An empty name is
/// in quotes too, since an empty field means an allocation without a tag.
fn field(name: &str) -> Cow<'_, str> {
    let is_plain = !name.is_empty() && !name.contains([',', '"', '\n', '\r']) && name.trim() == name;
    if is_plain { Cow::Borrowed(name) } else { Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))) }
}
