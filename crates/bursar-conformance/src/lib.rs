//! One suite that judges every stack on every driver.
//!
//! A *clause* is a named trial of what the contracts promise; it takes a [`Rig`], which is one stack built on one device
//! of one driver. [`table`] lists every clause for every pair of a [`DriverRow`] and a [`StackRow`] that can hold it, so
//! adding a driver or a stack is one line in the test that calls it.
//!
//! A [`program`] is a random sequence of calls whose outcome is known: drivers are compared by running it on each of
//! them, stacks are judged by running it through them. Programs of [`uses`] are the same for use tracking.
//!
//! A driver that is absent shows its trials as ignored; with `BURSAR_REQUIRE_CUDA=1` they fail instead.

pub mod program;
mod rig;
mod rows;
pub mod trials;
pub mod uses;

pub use rig::Rig;
pub use rows::{Clause, DriverRow, Kind, Leaks, Needs, Opened, SetCapturing, StackRow, requires_cuda, table};
