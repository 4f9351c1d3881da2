//! The layers of Bursar.
//!
//! [`GlobalDeviceBudget`] limits what a device may hold. [`Guard`] finds writes where none should be, and [`OnFailure`] asks
//! the program for memory before a request fails. [`Statistics`] and [`Logging`] subscribe to the event sink of a
//! device and count and write down what happens, without being layers at all.
#![deny(unsafe_code)]

mod budget;
mod guard;
mod logging;
mod on_failure;
mod pool;
mod quota;
mod statistics;

pub use budget::{BudgetReading, GlobalDeviceBudget, GlobalDeviceBudgetResource, OnAccount, OwnLimit};
pub use guard::{Guard, GuardResource};
pub use logging::{LogFormat, LogSummary, Logging, LoggingBuilder};
pub use on_failure::{Failure, FailureAction, OnFailure, OnFailureResource};
pub use pool::{PagePool, PagePoolResource, PoolReading};
pub use quota::{Quota, QuotaResource};
pub use statistics::{Amount, Counts, Scope, Statistics, StatisticsReport};
