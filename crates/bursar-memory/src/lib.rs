//! The layers of Bursar: what stands in a stack between a leaf and its user.
//!
//! A layer has the name that users write, and what it makes is called a resource:
//!
//! | layer | makes | which |
//! | --- | --- | --- |
//! | [`PagePool`] | [`PagePoolResource`] | reuses memory in stream order, over frames |
//! | [`GlobalDeviceBudget`] | [`GlobalDeviceBudgetResource`] | limits what a device may hold, alone or with others |
//! | [`Quota`] | [`QuotaResource`] | limits what one tenant of a shared pool is granted |
//! | [`Guard`] | [`GuardResource`] | finds writes outside blocks and after their end |
//! | [`OnFailure`] | [`OnFailureResource`] | lets the program free memory before a request fails |
//!
//! [`Statistics`] and [`Logging`] are no layers: they subscribe to the event sink of a device and count and write down
//! what happens.
//!
//! Every implementation of a forwarding trait denies `clippy::missing_trait_methods`, because a defaulted method would
//! silently bypass what lies below.
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
