//! Traces that are made and not recorded: variations of a given one, and families that a seed draws from.
//!
//! An allocator that is judged by a few recordings alone is soon tuned to them. A family has no such file: every seed is
//! another program of its kind.

mod generator;
mod mix;
mod pipeline;
mod server;
mod training;
mod variation;
mod writer;

pub use generator::{ParseGeneratorError, TraceFamily, TraceGenerator};
pub use variation::FreeStream;
