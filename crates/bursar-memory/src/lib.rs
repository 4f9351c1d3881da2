//! The layers of Bursar.
//!
//! [`GlobalDeviceBudget`] limits what a device may hold. [`Guard`] finds writes where none should be, and [`OnFailure`] asks
//! the program for memory before a request fails. [`Statistics`] and [`Logging`] subscribe to the event sink of a
//! device and count and write down what happens, without being layers at all.
#![deny(unsafe_code)]

mod budget;
mod charge;
mod courtesy;
mod credit;
mod guard;
mod logging;
mod on_failure;
mod pool;
mod quota;
mod statistics;
mod tab;

pub use budget::{BudgetLayer, BudgetReading, GlobalDeviceBudget, OnAccount, OwnLimit, SharedBudgetLayer};
pub use guard::{Guard, Guarded};
pub use logging::{LogFormat, LogSummary, Logging, LoggingBuilder};
pub use on_failure::{AfterFailure, Failure, OnFailure, Verdict};
pub use pool::{PagePool, Pool, PoolReading};
pub use quota::{Quota, Tenant};
pub use statistics::{Amount, Counts, Scope, Statistics, StatisticsReport};
