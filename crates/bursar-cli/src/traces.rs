//! Traces that are read or made, and varied, common to `bursar replay` and `bursar convert`.

use crate::failure::Failure;
use bursar::trace::{FreeStream, Trace, TraceFile, TraceGenerator};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The options that vary a trace.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Variation {
    /// Deal the blocks over so many streams in turns; each is freed on its own, or with :foreign on the stream after its own.
    #[arg(long, value_name = "N[:foreign]")]
    pub(crate) deal: Option<Deal>,
    /// Vary the size of each block by at most so much, up or down.
    #[arg(long, value_name = "PERCENT")]
    pub(crate) jitter: Option<Percent>,
    /// The seed of --jitter.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "jitter")]
    pub(crate) seed: u64,
}

impl Variation {
    fn is_none(&self) -> bool {
        self.deal.is_none() && self.jitter.is_none()
    }

    /// Returns the trace, dealt and varied.
    fn of(&self, trace: Trace) -> Trace {
        let dealt = match self.deal {
            Some(Deal { streams, frees }) => trace.dealt(streams, frees),
            None => trace,
        };
        match self.jitter {
            Some(Percent(part)) => dealt.jittered(part, self.seed),
            None => dealt,
        }
    }
}

/// The number of streams that blocks are dealt over, and the stream that frees each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    streams: u16,
    frees: FreeStream,
}

/// Parses `4` or `4:foreign`.
impl FromStr for Deal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (streams, frees) = match text.split_once(':') {
            None => (text, FreeStream::Own),
            Some((streams, "foreign")) => (streams, FreeStream::Next),
            Some((_, other)) => return Err(format!("{other:?} is no way to free blocks: write 4 or 4:foreign")),
        };
        let most = TraceGenerator::MAX_STREAMS;
        match streams.parse() {
            Ok(streams) if (1..=most).contains(&streams) => Ok(Self { streams, frees }),
            _ => Err(format!("{streams:?} is no number of streams from 1 to {most}")),
        }
    }
}

impl fmt::Display for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let foreign = if self.frees == FreeStream::Next { ":foreign" } else { "" };
        write!(f, "{}{foreign}", self.streams)
    }
}

/// A part of a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Percent(f64);

impl Percent {
    pub(crate) const fn part(self) -> f64 {
        self.0
    }
}

/// Parses `10%`; the sign may be left out.
impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err(format!("{text:?} is no percentage from 0% to 100%")),
        }
    }
}

/// The origin of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceSource<'a> {
    File(&'a Path),
    Generator(&'a TraceGenerator),
}

impl TraceSource<'_> {
    /// Opens the trace. One that is neither made nor varied may be left in its file.
    pub(crate) fn open(self, variation: &Variation) -> Result<TraceFile, Failure> {
        match self {
            Self::File(path) if variation.is_none() => Ok(bursar::trace::open(path)?),
            _ => self.read(variation).map(TraceFile::from),
        }
    }

    /// Returns the trace, whole.
    pub(crate) fn read(self, variation: &Variation) -> Result<Trace, Failure> {
        Ok(variation.of(match self {
            Self::File(path) => bursar::trace::read(path)?,
            Self::Generator(generator) => generator.generate(),
        }))
    }
}

impl fmt::Display for TraceSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Generator(generator) => generator.fmt(f),
        }
    }
}
