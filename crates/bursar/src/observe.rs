//! Observers: counts of what a device's memory is used for, logs of it, and the records they are made from.
//!
//! [`Statistics`] counts blocks and bytes, whole and by tag; [`Logging`] writes every event to a file that
//! [`trace`](crate::trace) reads. An [`Observer`] of one's own is told each [`Record`].

#[doc(inline)]
pub use bursar_core::{
    Action, Actions, Amount, Counts, EventSink, Observer, PartCount, QueryId, QueryScope, Record, Tally,
};
#[doc(inline)]
pub use bursar_memory::{LogFormat, LogSummary, Logging, LoggingBuilder, Scope, Statistics, StatisticsReport};
