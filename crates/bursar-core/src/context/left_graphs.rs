//! Graphs that the driver failed to destroy, which are [left](DeviceContext::leave) to the context and tried again.
#![allow(unsafe_code)]

use super::{DeviceContext, Remains};
use crate::{Bytes, DriverResult, RawGraph, RawGraphExec};
use std::time::Duration;

/// A graph that nobody uses any more, as it was captured or as it is launched.
#[derive(Clone, Copy, Debug)]
enum GraphHandle {
    Captured(RawGraph),
    Launched(RawGraphExec),
}

impl GraphHandle {
    fn destroy(self, context: &DeviceContext) -> DriverResult<()> {
        let (driver, device) = (&context.driver, context.device);
        match self {
            // SAFETY: the graph came from this driver, and nobody else has it.
            Self::Captured(graph) => unsafe { driver.graph_destroy(device, graph) },
            // SAFETY: the graph came from this driver, and nobody launches it any more.
            Self::Launched(exec) => unsafe { driver.graph_exec_destroy(device, exec) },
        }
    }
}

/// A graph that is still to be destroyed; `None` once it was.
#[derive(Debug)]
struct LeftGraph(Option<GraphHandle>);

impl Remains for LeftGraph {
    fn give_back(&mut self, context: &DeviceContext, _: Duration) -> Bytes {
        if let Some(handle) = self.0 {
            match handle.destroy(context) {
                Ok(()) => self.0 = None,
                Err(error) => context.fault.record(error),
            }
        }
        Bytes::ZERO
    }

    fn bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl DeviceContext {
    /// Destroys what was captured. A failure is the device's next, and it is tried again.
    pub(crate) fn destroy_graph(&self, graph: RawGraph) {
        self.destroy_or_leave(GraphHandle::Captured(graph));
    }

    /// Destroys a graph that nobody launches any more; launches that were submitted still run. A failure is the device's next, and
    /// it is tried again.
    pub(crate) fn destroy_launched_graph(&self, exec: RawGraphExec) {
        self.destroy_or_leave(GraphHandle::Launched(exec));
    }

    fn destroy_or_leave(&self, handle: GraphHandle) {
        if let Err(error) = handle.destroy(self).or_else(|_| handle.destroy(self)) {
            self.fault.record(error);
            self.leave(LeftGraph(Some(handle)));
        }
    }
}
