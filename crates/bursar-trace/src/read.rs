//! Reading: the format is told from the content.

use crate::{Format, Reason, Trace, TraceError, csv, jsonl, torch};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

/// Enough of a file to tell its format by.
const HEAD: usize = 128;

/// Reads a trace: an RMM CSV log, Bursar's JSON lines or a PyTorch memory snapshot, any of them gzipped or not. Which it is
/// is told from the content. Frees and allocations without their other half are kept in the trace;
/// [`Trace::strict`] makes them an error.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-read-{}.csv", std::process::id()));
/// # std::fs::write(&path, "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x1000,512,0\n")?;
/// let trace = bursar_trace::read(&path)?;
/// assert_eq!(trace.missing_frees.len(), 1);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: impl AsRef<Path>) -> Result<Trace, TraceError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| TraceError::new(&name, error))?;
    read_from(file, &name)
}

/// Reads a trace that is called `name` in errors; see [`read`].
///
/// ```
/// let log = br#"{"action":"allocate","pointer":"0x1000","bytes":512}"#;
/// assert_eq!(bursar_trace::read_from(&log[..], "pipe")?.blocks, 1);
/// # Ok::<(), bursar_trace::TraceError>(())
/// ```
pub fn read_from(reader: impl Read, name: &str) -> Result<Trace, TraceError> {
    let failed = |error| TraceError::new(name, Reason::of_read(error));
    let (head, reader) = look_ahead(reader).map_err(failed)?;
    let trace = if head.starts_with(b"\x1f\x8b") {
        let (head, unpacked) = look_ahead(MultiGzDecoder::new(BufReader::new(reader))).map_err(failed)?;
        read_as(Format::of_content(&head), unpacked, name)?
    } else if head.is_empty() {
        return Err(TraceError::new(name, Reason::Empty));
    } else {
        read_as(Format::of_content(&head), reader, name)?
    };
    if trace.events.is_empty() && trace.unknown_frees.is_empty() {
        return Err(TraceError::new(name, Reason::Empty));
    }
    Ok(trace)
}

/// The first bytes of a reader, and a reader that has them still.
fn look_ahead<R: Read>(mut reader: R) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(HEAD);
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}

fn read_as(format: Option<Format>, reader: impl Read, name: &str) -> Result<Trace, TraceError> {
    match format {
        Some(Format::Csv) => csv::read(reader, name),
        Some(Format::JsonLines) => jsonl::read(reader, name),
        Some(Format::TorchSnapshot) => torch::read(BufReader::with_capacity(1 << 18, reader), name),
        None => Err(TraceError::new(name, Reason::UnknownFormat)),
    }
}
