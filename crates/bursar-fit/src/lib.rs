//! Computes how many workers fit into RAM or VRAM, and reserves the memory for them.
//!
//! Three layers, each usable alone and each using only those before it:
//!
//! - [`plan`](Plan): arithmetic. [`compute_fit`] and [`Plan`] are exact and pure, and tested without a machine.
//! - [`ram`](Ram): the memory that this machine and its control groups leave available.
//! - [`admission`](fit_workers): [`Spec::plan`] asks the machine and its devices what is available and plans with it;
//!   [`fit_workers`] also reserves the memory, so that two stages that ask at once never get the same bytes.
#![forbid(unsafe_code)]

mod admission;
mod error;
mod plan;
mod ram;

pub use admission::{DeviceShare, ReservedPlan, Spec, Worker, fit_workers};
pub use bursar_linux::ReadError;
pub use error::{FitError, ProbeError};
pub use plan::{
    Assignment, Candidate, ClusterPlacement, ClusterPlanner, ClusterRequest, Fit, Headroom, HeadroomError, MemoryKind,
    Need, OneMore, Overflow, Plan, UnknownMemoryKind, compute_fit,
};
pub use ram::{GroupLimit, Ram, RamReading, file_size};
