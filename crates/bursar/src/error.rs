//! Errors: what was refused, by which limit, who holds the rest, and what would help.
//!
//! [`Error`] is that of every call here but those of modules with an error of their own, which convert to it. A refusal is a
//! [`Shortage`]: `{error:#}` explains it in lines, and its fields have the numbers.

#[doc(inline)]
pub use bursar_core::{
    Advice, Claim, Claims, Error, ExternalError, Holding, LimitName, LimitReading, MemoryUsage, PoolFigures, Result,
    Shortage, StreamMisuse, StreamNumber, Survey, SurveyStep, WaitingClaim, explain,
};
