//! Observation of a device's memory: records of events, the sink that delivers them, and counts without records.
//!
//! # Invariants
//! **No clock and no strings on the way.** A [`Record`] carries neither time nor thread, and a tag is a number. An
//! observer that wants them reads them when it is called, so that nobody else pays.
//!
//! # Counting without records
//! An observer that only counts gives the sink its [`Tally`], and [`ObservedResource`](crate::ObservedResource) counts
//! there without making a record: no virtual call and no copy. All other observers are called.

mod query;
mod record;
mod scope;
mod sink;
mod tally;

pub use query::{QueryId, QueryScope};
pub use record::{Action, Actions, Record};
pub use scope::PartCount;
pub(crate) use scope::{GraphCount, StackCount};
pub use sink::{EventSink, Observer};
pub use tally::{Amount, Counts, Tally};
