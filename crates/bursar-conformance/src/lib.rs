//! The contracts of `docs/contracts.md` as trials: one suite that judges every stack on every driver.
//!
//! A [`Clause`] is a named trial of what a contract promises. It is run with a [`StackRig`], which is one stack built on one
//! device of one driver. [`table`] lists every clause for every pair of a [`DriverRow`] and a [`StackRow`] that it applies to,
//! so adding a driver or a stack is one line in the test that calls it. What differs between the simulated device and
//! hardware is a bug in one of them.
//!
//! A [`program::DriverProgram`] is a random sequence of driver calls whose outcome is known: drivers are compared by running
//! it on each of them, stacks are judged by running it through them. A [`uses::UseProgram`] does the same for use tracking.
//!
//! A driver that is absent shows its trials as ignored; with `BURSAR_REQUIRE_CUDA=1` they fail instead. The rows of CUDA
//! are also judged on the simulated `libcuda.so.1`, as rows of their own that run everywhere ([`CudaLibrary`]).
//!
//! # Modules
//!
//! `rows` describes drivers and stacks, `rig` builds one stack for a trial, `table` makes the trials, `trials/` has the
//! clauses, one file for each topic, `libcuda` runs a test once more with the simulated library, `program` and `uses` generate and run programs, and `sleep` has what the tests of other crates share about sleep and wake. Besides the core this crate depends on
//! the simulator: what is promised about failing drivers is promised on every driver, and [`Faults`](bursar_sim::Faults)
//! wraps any of them.

mod libcuda;
pub mod program;
mod rig;
mod rows;
pub mod sleep;
mod table;
pub mod trials;
pub mod uses;

pub use libcuda::CudaLibrary;
pub use rig::StackRig;
pub use rows::{DriverRow, LeakPolicy, OpenDriver, SetCapturing, StackKind, StackRow, requires_cuda};
pub use table::{Clause, Requirement, table};

/// The programs in the documents. They are compiled and run here, since a crate that is published has no file outside itself.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/01-first-budget.md")]
    struct FirstBudget;
    #[doc = include_str!("../../../docs/guide/02-streams-and-buffers.md")]
    struct StreamsAndBuffers;
    #[doc = include_str!("../../../docs/guide/03-sharing-a-card.md")]
    struct SharingACard;
    #[doc = include_str!("../../../docs/guide/04-explaining-an-out-of-memory.md")]
    struct ExplainingAnOutOfMemory;
    #[doc = include_str!("../../../docs/guide/05-testing-without-a-gpu.md")]
    struct TestingWithoutAGpu;
    #[doc = include_str!("../../../docs/guide/06-beside-cudarc.md")]
    struct BesideCudarc;
    #[doc = include_str!("../../../docs/guide/07-watching.md")]
    struct Watching;
}
