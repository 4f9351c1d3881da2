//! Writes JSON lines.

use super::{rows, synthetic_layout};
use crate::{EventKind, Trace};
use bursar_core::AllocTag;
use std::io::{self, Write};

/// Writes Bursar's JSON lines. Times are seconds since the first event.
///
/// ```
/// let mut log = Vec::new();
/// bursar::trace::write_jsonl(&bursar::trace::bundled(), &mut log)?;
/// assert!(log.starts_with(br#"{"time":0.000000,"thread":1,"action":"allocate","pointer":"0x7f0000000000""#));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_jsonl(trace: &Trace, mut to: impl Write) -> io::Result<()> {
    let layout = synthetic_layout(trace)?;
    let mut tag = (AllocTag::UNTAGGED, serde_json::to_string(AllocTag::UNTAGGED.name())?);
    for row in rows(trace, &layout) {
        let row = row?;
        if row.event.tag != tag.0 {
            tag = (row.event.tag, serde_json::to_string(row.event.tag.name())?);
        }
        let (action, result) = match row.event.kind {
            EventKind::Allocate => ("allocate", "ok"),
            EventKind::Free => ("free", "ok"),
            EventKind::Fail => ("fail", "failed"),
        };
        let (seconds, micros) = (row.time_us / 1_000_000, row.time_us % 1_000_000);
        let (thread, pointer, bytes, stream) = (row.thread, row.address, row.event.bytes, row.stream);
        let (device, tag, generation) = (row.event.device, &tag.1, row.event.block.wrapping_add(1));
        writeln!(
            to,
            "{{\"time\":{seconds}.{micros:06},\"thread\":{thread},\"action\":\"{action}\",\
             \"pointer\":\"{pointer:#x}\",\"bytes\":{bytes},\"asked\":{bytes},\"stream\":{stream},\
             \"device\":{device},\"tag\":{tag},\"query\":0,\"generation\":{generation},\"result\":\"{result}\"}}"
        )?;
    }
    Ok(())
}
