//! The layers of Bursar.
//!
//! [`GlobalDeviceBudget`] limits what a device may hold. [`Statistics`] subscribes to the event sink of a device and
//! counts, without being a layer at all.
#![forbid(unsafe_code)]

mod budget;
mod charge;
mod statistics;

pub use budget::{BudgetLayer, BudgetReading, GlobalDeviceBudget};
pub use statistics::{Amount, Counts, Scope, Statistics, StatisticsReport};
