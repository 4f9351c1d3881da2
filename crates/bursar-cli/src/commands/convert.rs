//! `bursar convert`: converts a trace from one format to another, or writes one that is made.

use crate::failure::Failure;
use crate::output::Show;
use crate::traces::{TraceSource, Variation};
use bursar::Bytes;
use bursar::trace::{Format, TraceGenerator};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// The options of `bursar convert`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// The trace to read, and the one to write; with --generate the latter alone.
    #[arg(value_names = ["IN", "OUT"], required = true, num_args = 1..=2)]
    paths: Vec<PathBuf>,
    /// Write a trace that is made: server, pipeline, training or mix, with seed=N, streams=N and rounds=N behind it.
    #[arg(long, value_name = "FAMILY[,seed=N,…]")]
    generate: Option<TraceGenerator>,
    #[command(flatten)]
    variation: Variation,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar convert snapshot.pickle run.csv.gz
  bursar convert run.csv.gz run.bin --deal 4:foreign
  bursar convert --generate server,seed=3 server.bin";

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

/// Writes a trace that is read or made to the format that the extension of the path names.
pub(crate) fn convert(args: &ConvertArgs) -> Result<Conversion, Failure> {
    let (source, to) = match (&args.generate, &args.paths[..]) {
        (None, [from, to]) => (TraceSource::File(from), to),
        (Some(generator), [to]) => (TraceSource::Generator(generator), to),
        (None, _) => return Err(Failure::Usage("convert reads IN and writes OUT: give both")),
        (Some(_), _) => return Err(Failure::Usage("with --generate nothing is read: give OUT alone")),
    };
    // Before a long trace is read.
    Format::of_output(to)?;
    let trace = source.read(&args.variation)?;
    bursar::trace::write(&trace, to)?;
    Ok(Conversion {
        from: source.to_string(),
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
