//! Graphs: work that is captured once and launched often, and the memory inside.
//!
//! [`Gpu::capture`](crate::Gpu::capture) captures with buffers and work as always and returns a [`Graph`], which owns the
//! memory that was allocated meanwhile. Graphs that never run at once share a [`GraphMemory`]. Libraries that capture by
//! themselves get memory from one too ([`GraphMemory::capture_of`]).

#[doc(inline)]
pub use bursar_core::{Capture, ForeignCapture, Graph, GraphMemory};
#[doc(inline)]
pub use bursar_device::GpuCapture;
