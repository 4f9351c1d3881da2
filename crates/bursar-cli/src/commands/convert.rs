//! `bursar convert`: converts a trace from one format to another.

use crate::failure::Failure;
use crate::output::Show;
use bursar::Bytes;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// The result of a conversion.
#[derive(Debug, Serialize)]
pub(crate) struct Conversion {
    from: String,
    to: String,
    events: usize,
    peak_live_bytes: u64,
    unknown_frees: usize,
    missing_frees: usize,
}

/// Converts the trace `from` to the format of `to`, chosen by its extension.
pub(crate) fn convert(from: &Path, to: &Path) -> Result<Conversion, Failure> {
    let trace = bursar::trace::convert(from, to)?;
    Ok(Conversion {
        from: from.display().to_string(),
        to: to.display().to_string(),
        events: trace.events.len(),
        peak_live_bytes: trace.peak_live().get(),
        unknown_frees: trace.unknown_frees.len(),
        missing_frees: trace.missing_frees.len(),
    })
}

impl Show for Conversion {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { from, to, events, peak_live_bytes, .. } = self;
        writeln!(out, "{from} → {to}: {events} events, {} live at the peak", Bytes(*peak_live_bytes))
    }
}
