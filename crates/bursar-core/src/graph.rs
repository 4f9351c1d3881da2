//! Memory inside graphs, and the graphs themselves.
//!
//! A graph uses the same addresses in every replay. So what is allocated while a stream is captured comes from a
//! [`GraphMemory`]: *segments* that it takes from the memory below and keeps for as long as a graph needs them. Nothing of it
//! is moved, trimmed or given to others before.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `arena.rs` | free runs of the segments, and who may have which of them |
//! | `shared.rs` | segments and blocks, which the handles and graphs of one memory share |
//! | `memory.rs` | [`GraphMemory`], which allocates in the order of a capture |
//! | `frees.rs` | frees, in the order of a capture and outside, and the end of a memory |
//! | `capture.rs` | [`Capture`], from its beginning to a graph or a failure |
//! | `launch.rs` | [`Graph`], and the order between its launches and everything else |
//!
//! # Invariants
//! **A run is granted to a stream that comes after its free, in the order of the capture.** What was free before the capture
//! began is everybody's, because all of the graph comes after that.
//!
//! **A capture is asked for nothing that it forbids.** Segments are taken on a stream of the memory's own, which is never
//! captured, and waited for; the captured streams are asked for nothing but whether they are captured, and given events that
//! become part of the graph.
//!
//! **Launches of graphs with common memory come one after another.** Each leaves an event, which the next one on another
//! stream waits for, and the end of the memory too. Where the driver failed to record it, whoever is next orders itself after the
//! stream of that launch, or is refused.

mod arena;
mod capture;
mod frees;
mod launch;
mod memory;
mod shared;

pub use capture::{Capture, ForeignCapture};
pub use launch::Graph;
pub use memory::GraphMemory;
