//! How many workers fit, on RAM or on VRAM.
//!
//! Three layers, each usable alone. [`compute_fit`] and [`Plan`] are arithmetic: exact, pure, and tested without a
//! machine. [`Ram`] reads what this machine and its control groups leave. [`Spec::plan`] asks for both, and
//! [`fit_workers`] ends in a reservation that makes the answer true: of two stages that ask at once, each gets bytes of its
//! own.
#![forbid(unsafe_code)]

mod admission;
mod error;
mod fit;
mod headroom;
mod one_more;
mod plan;
mod pool;
mod ram;
mod source;
mod spec;
mod words;

pub use admission::{Admitted, Share, fit_workers};
pub use error::{FitError, ProbeError};
pub use fit::{Fit, Overflow, compute_fit};
pub use headroom::{Headroom, HeadroomError};
pub use one_more::OneMore;
pub use plan::{Need, Place, Plan, Seat};
pub use pool::{Pool, UnknownPool};
pub use ram::{Level, Ram, RamReading, file_size};
pub use spec::Spec;
