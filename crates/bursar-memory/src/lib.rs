//! The layers of Bursar.
//!
//! [`GlobalDeviceBudget`] limits what a device may hold. [`Statistics`] and [`Logging`] subscribe to the event sink of a
//! device and count and write down what happens, without being layers at all.
#![forbid(unsafe_code)]

mod budget;
mod charge;
mod logging;
mod statistics;

pub use budget::{BudgetLayer, BudgetReading, GlobalDeviceBudget};
pub use logging::{LogFormat, LogSummary, Logging, LoggingBuilder};
pub use statistics::{Amount, Counts, Scope, Statistics, StatisticsReport};
