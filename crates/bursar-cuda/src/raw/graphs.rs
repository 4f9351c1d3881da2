//! Calls about captures and graphs.
#![allow(unsafe_code)]

use super::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};
use super::{Api, CallResult, output};
use std::ptr;

impl Api {
    /// Begins a capture in the relaxed mode.
    ///
    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn capture_begin(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }

    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn capture_end(&self, stream: CUstream) -> CallResult<CUgraph> {
        // SAFETY: the driver writes one handle; for the rest, the caller's own promise.
        output(ptr::null_mut(), |graph| unsafe { self.cuStreamEndCapture(stream, graph) })
    }

    /// # Safety
    /// `graph` is live.
    pub(crate) unsafe fn graph_instantiate(&self, graph: CUgraph) -> CallResult<CUgraphExec> {
        // SAFETY: the driver writes one handle; for the rest, the caller's own promise.
        output(ptr::null_mut(), |exec| unsafe { self.cuGraphInstantiateWithFlags(exec, graph, 0) })
    }

    /// # Safety
    /// `graph` is live and not used again.
    pub(crate) unsafe fn graph_destroy(&self, graph: CUgraph) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuGraphDestroy(graph) }
    }

    /// # Safety
    /// `graph` and `stream` are live, and the memory that the graph uses is valid until it has run.
    pub(crate) unsafe fn graph_launch(&self, graph: CUgraphExec, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuGraphLaunch(graph, stream) }
    }

    /// # Safety
    /// `graph` is live and not used again.
    pub(crate) unsafe fn graph_exec_destroy(&self, graph: CUgraphExec) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuGraphExecDestroy(graph) }
    }
}
