//! Writes records of 16 bytes.

use crate::{EventKind, Trace};
use std::io::{self, Write};

/// The bit that marks the stream of a free.
const FREE: u32 = 1 << 31;

/// Writes records of 16 bytes, little-endian: the stream's number, with the top bit set for a free, and the block's number,
/// each in four bytes; then the size. Programs without a parser read them as they are. Threads, tags and failed allocations
/// are not written, and a trace of several devices is refused.
///
/// ```
/// use bursar::trace::TraceFamily::Mix;
/// use bursar::trace::TraceGenerator;
///
/// let trace = TraceGenerator::new(Mix).rounds(10).generate();
/// let mut records = Vec::new();
/// bursar::trace::write_records(&trace, &mut records)?;
/// assert_eq!(records.len(), 16 * trace.events.len());
/// assert_eq!(bursar::trace::read_from(&records[..], "mix.bin")?.peak_live(), trace.peak_live());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_records(trace: &Trace, mut to: impl Write) -> io::Result<()> {
    for event in &trace.events {
        let mark = match event.kind {
            EventKind::Allocate => 0,
            EventKind::Free => FREE,
            EventKind::Fail => continue,
        };
        if event.device != trace.events[0].device {
            let several = "records of 16 bytes have no device, and the trace has several: use .csv or .jsonl";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, several));
        }
        let mut record = [0; 16];
        record[..4].copy_from_slice(&(u32::from(event.stream) | mark).to_le_bytes());
        record[4..8].copy_from_slice(&event.block.to_le_bytes());
        record[8..].copy_from_slice(&event.bytes.to_le_bytes());
        to.write_all(&record)?;
    }
    Ok(())
}
