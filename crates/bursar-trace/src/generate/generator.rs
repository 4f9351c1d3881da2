//! The families of traces, and the text that chooses a trace of one.

use super::writer::Writer;
use super::{mix, pipeline, server, training};
use crate::Trace;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A family of made traces: programs of one kind, each of which a seed decides.
///
/// ```
/// use bursar::trace::TraceFamily;
///
/// assert_eq!("pipeline".parse(), Ok(TraceFamily::Pipeline));
/// assert_eq!(TraceFamily::Server.to_string(), "server");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceFamily {
    /// Models that serve requests from one pool, a stream each: weights, pages of the key-value cache, activations of
    /// ragged prompts. Models that are idle are now and then replaced. A round is a request, a stream a model.
    Server,
    /// Stages that hand blocks from stream to stream: each is freed by the stage that used it last. A round is a
    /// micro-batch, a stream a stage.
    Pipeline,
    /// Forward and backward passes over ragged batches, with gradients that another stream frees. A round is a step.
    Training,
    /// Blocks of uniform and log-normal sizes with random lives, one in eight freed on another stream than its own. A round
    /// is an allocation.
    Mix,
}

impl TraceFamily {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Server, Self::Pipeline, Self::Training, Self::Mix];

    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Pipeline => "pipeline",
            Self::Training => "training",
            Self::Mix => "mix",
        }
    }

    /// Returns the most rounds of a trace, so that its events fit into a few hundred megabytes.
    pub const fn max_rounds(self) -> u32 {
        match self {
            Self::Server => 50_000,
            Self::Pipeline => 500_000,
            Self::Training => 10_000,
            Self::Mix => 5_000_000,
        }
    }

    /// Returns how many streams and rounds a trace has if nobody says.
    const fn defaults(self) -> (u16, u32) {
        match self {
            Self::Server => (3, 200),
            Self::Pipeline => (4, 2000),
            Self::Training => (2, 20),
            Self::Mix => (4, 50_000),
        }
    }
}

impl fmt::Display for TraceFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TraceFamily {
    type Err = ParseGeneratorError;

    fn from_str(text: &str) -> Result<Self, ParseGeneratorError> {
        let named = Self::ALL.into_iter().find(|family| family.name() == text);
        named.ok_or_else(|| ParseGeneratorError::Family { found: text.to_owned() })
    }
}

/// A trace that is made: its family, the seed, and how long it is.
///
/// As text it is the family and what differs from its defaults: `server,seed=3,streams=4,rounds=100`.
///
/// ```
/// use bursar::trace::{TraceFamily, TraceGenerator};
///
/// let generator: TraceGenerator = "pipeline,seed=3,rounds=100".parse()?;
/// assert_eq!(generator, TraceGenerator::new(TraceFamily::Pipeline).seed(3).rounds(100));
/// let trace = generator.generate();
/// assert_eq!(trace.name, "pipeline,seed=3,rounds=100");
/// trace.strict()?;
/// assert_ne!(generator.seed(4).generate().events, trace.events);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceGenerator {
    family: TraceFamily,
    seed: u64,
    streams: u16,
    rounds: u32,
}

impl TraceGenerator {
    /// The most streams of a trace.
    pub const MAX_STREAMS: u16 = 256;
    const SEED: u64 = 1;

    /// Makes a generator of a family, with seed 1.
    pub const fn new(family: TraceFamily) -> Self {
        let (streams, rounds) = family.defaults();
        Self { family, seed: Self::SEED, streams, rounds }
    }

    /// Sets the seed.
    #[must_use]
    pub const fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the number of streams: at least one and at most [`MAX_STREAMS`](Self::MAX_STREAMS).
    #[must_use]
    pub fn streams(self, streams: u16) -> Self {
        Self { streams: streams.clamp(1, Self::MAX_STREAMS), ..self }
    }

    /// Sets the number of rounds: at least one and at most [`max_rounds`](TraceFamily::max_rounds) of its family.
    #[must_use]
    pub fn rounds(self, rounds: u32) -> Self {
        Self { rounds: rounds.clamp(1, self.family.max_rounds()), ..self }
    }

    /// Makes the trace. Every block in it is freed.
    pub fn generate(&self) -> Trace {
        let mut writer = Writer::new(self.to_string(), self.streams, self.seed);
        match self.family {
            TraceFamily::Server => server::write(&mut writer, self.streams, self.rounds),
            TraceFamily::Pipeline => pipeline::write(&mut writer, self.streams, self.rounds),
            TraceFamily::Training => training::write(&mut writer, self.streams, self.rounds),
            TraceFamily::Mix => mix::write(&mut writer, self.streams, self.rounds),
        }
        writer.finish()
    }
}

impl fmt::Display for TraceGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, seed, streams, rounds } = self;
        let usual = family.defaults();
        write!(f, "{family},seed={seed}")?;
        if *streams != usual.0 {
            write!(f, ",streams={streams}")?;
        }
        if *rounds != usual.1 {
            write!(f, ",rounds={rounds}")?;
        }
        Ok(())
    }
}

impl FromStr for TraceGenerator {
    type Err = ParseGeneratorError;

    fn from_str(text: &str) -> Result<Self, ParseGeneratorError> {
        let mut words = text.split(',').map(str::trim);
        let mut generator = Self::new(words.next().unwrap_or_default().parse()?);
        let mut names = Vec::new();
        for word in words {
            generator = generator.with(word)?;
            let name = word.split('=').next();
            if names.contains(&name) {
                return Err(ParseGeneratorError::Twice { found: word.to_owned() });
            }
            names.push(name);
        }
        Ok(generator)
    }
}

impl TraceGenerator {
    /// Sets what a word of the form `name=number` says.
    fn with(self, word: &str) -> Result<Self, ParseGeneratorError> {
        let unknown = || ParseGeneratorError::Option { found: word.to_owned() };
        let (name, number) = word.split_once('=').ok_or_else(unknown)?;
        let number = |most: u64| {
            let parsed = number.parse().map_err(|_: ParseIntError| None);
            let in_range = |number: &u64| name == "seed" || (1..=most).contains(number);
            let checked = parsed.and_then(|number| Some(number).filter(in_range).ok_or(Some(most)));
            checked.map_err(|most| ParseGeneratorError::Number { found: word.to_owned(), most })
        };
        match name {
            "seed" => Ok(self.seed(number(u64::MAX)?)),
            "streams" => Ok(self.streams(number(Self::MAX_STREAMS.into())? as u16)),
            "rounds" => Ok(self.rounds(number(self.family.max_rounds().into())? as u32)),
            _ => Err(unknown()),
        }
    }
}

/// The reason why a text names no [`TraceGenerator`].
///
/// ```
/// use bursar::trace::TraceGenerator;
///
/// let error = "server,speed=3".parse::<TraceGenerator>().unwrap_err();
/// assert_eq!(error.to_string(), "\"speed=3\" is no option of a family: seed=N, streams=N or rounds=N");
/// let error = "mix,rounds=5,rounds=6".parse::<TraceGenerator>().unwrap_err();
/// assert_eq!(error.to_string(), "\"rounds=6\" says for a second time what was said before");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseGeneratorError {
    /// A family that does not exist.
    #[error("no family of traces is called {found:?}: server, pipeline, training or mix")]
    Family {
        /// The name.
        found: String,
    },
    /// An option that was given before.
    #[error("{found:?} says for a second time what was said before")]
    Twice {
        /// The text of the option.
        found: String,
    },
    /// An option that no family has.
    #[error("{found:?} is no option of a family: seed=N, streams=N or rounds=N")]
    Option {
        /// The text of the option.
        found: String,
    },
    /// A number that is none, or too small or too large.
    #[error("{found:?} needs a whole number{}", most.map(|most| format!(" from 1 to {most}")).unwrap_or_default())]
    Number {
        /// The text of the option.
        found: String,
        /// The largest number that is accepted, if it was a number.
        most: Option<u64>,
    },
}
