//! Captures, and the launches of the graphs that they make.

use super::active_call::ActiveCall;
use crate::machine::{Graph, GraphBody, GraphExec, NodeEffect, Output, StreamPoint, Work};
use crate::operation::{CallInfo, CallResult};
use crate::oracle::{OrderedOp, VectorClock};
use crate::{Executor, Operation};
use bursar_core::{RawGraph, RawGraphExec, RawStream, Status};
use std::ops::Range;

/// The state of a stream as a capture goes on.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
/// use bursar::sim::{CaptureStatus, Sim};
///
/// let (sim, device) = (Sim::seeded(1), DeviceId(0));
/// let stream = sim.stream_create(device, 0)?;
/// assert_eq!(sim.capture_status(device, stream)?, CaptureStatus::None);
/// sim.begin_capture(device, stream)?;
/// assert!(matches!(sim.capture_status(device, stream)?, CaptureStatus::Active(_)));
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is not being captured.
    None,
    /// It is being captured; the number is that of the capture, which no other one has.
    Active(u64),
    /// It is being captured, and something was done that no capture can have.
    Invalidated,
}

impl ActiveCall<'_> {
    pub(crate) fn capture_begin(&mut self, stream: RawStream) -> CallResult<()> {
        let device = self.device();
        let stream = self.stream(device, stream)?;
        self.begin_capture(device, stream)
    }

    pub(crate) fn capture_end(&mut self, stream: RawStream) -> CallResult<RawGraph> {
        let device = self.device();
        let stream = self.stream(device, stream)?;
        let call = self.call;
        self.end_capture(call, stream).map(RawGraph)
    }

    pub(crate) fn graph_instantiate(&mut self, graph: RawGraph) -> CallResult<RawGraphExec> {
        let device = self.device();
        let found = self.graphs.graphs.get(&graph.0).filter(|graph| graph.is_alive && graph.device == device);
        let count = found.ok_or(Status::InvalidValue)?.body.lanes.len();
        let number = self.graphs.number();
        let lanes = (0..count).map(|_| self.take_lane(device, number)).collect();
        self.graphs.execs.insert(number, GraphExec { device, graph: graph.0, lanes, last: None });
        Ok(RawGraphExec(number))
    }

    fn take_lane(&mut self, device: usize, number: u64) -> usize {
        let executor = Executor::Graph(number as u32);
        let spare = self.graphs.spare_lanes.iter().position(|(of, _)| *of == device);
        match spare {
            Some(at) => {
                let (_, lane) = self.graphs.spare_lanes.swap_remove(at);
                self.streams[lane].executor = executor;
                lane
            }
            None => self.create_lane(device, executor),
        }
    }

    pub(crate) fn graph_destroy(&mut self, graph: RawGraph) -> CallResult<()> {
        let device = self.device();
        let found = self.graphs.graphs.get_mut(&graph.0).filter(|graph| graph.is_alive && graph.device == device);
        found.ok_or(Status::InvalidValue)?.is_alive = false;
        self.drop_graph_if_unused(graph.0);
        Ok(())
    }

    pub(crate) fn graph_exec_destroy(&mut self, exec: RawGraphExec) -> CallResult<()> {
        let device = self.device();
        let found = self.graphs.execs.get(&exec.0).filter(|exec| exec.device == device);
        found.ok_or(Status::InvalidValue)?;
        if let Some(exec) = self.graphs.execs.remove(&exec.0) {
            self.graphs.spare_lanes.extend(exec.lanes.into_iter().map(|lane| (device, lane)));
            self.drop_graph_if_unused(exec.graph);
        }
        Ok(())
    }

    fn drop_graph_if_unused(&mut self, graph: u64) {
        let is_used = self.graphs.execs.values().any(|exec| exec.graph == graph);
        let is_over = |graph: &&Graph| !is_used && !graph.is_alive;
        if self.graphs.graphs.get(&graph).filter(is_over).is_some()
            && let Some(graph) = self.graphs.graphs.remove(&graph)
        {
            let call = self.call;
            self.outlive(call, graph.body.outputs);
        }
    }

    /// Submits everything in a graph, behind what the stream was given and the earlier launches of the graph.
    pub(crate) fn graph_launch(&mut self, exec: RawGraphExec, stream: RawStream) -> CallResult<()> {
        let call = self.call;
        let stream = self.open_stream(call.device, stream)?;
        let found = self.graphs.execs.get(&exec.0).filter(|exec| exec.device == call.device);
        let (graph, lanes, last) =
            found.map(|exec| (exec.graph, exec.lanes.clone(), exec.last.clone())).ok_or(Status::InvalidValue)?;
        let mut before = Vec::new();
        if let Some((point, clock)) = last {
            before.push(point);
            self.join(stream, &clock);
        }
        self.submit(call, stream, &before, &[], Work::Nothing);
        // The graph is put back below; nothing in between looks for it.
        let Some(graph_of) = self.graphs.graphs.remove(&graph) else { return Err(Status::InvalidValue) };
        let op = call.operation(self.streams[stream].executor);
        let live = graph_of.body.outputs.iter().filter(|output| !output.is_released);
        live.for_each(|output| self.end_output(output.range.start, op, stream));
        let overwritten = self.overwritten_by(&graph_of.body);
        overwritten.into_iter().for_each(|start| self.end_output(start, op, stream));
        let start = (self.end_of(stream), self.clock_of(stream));
        let mut passed: Vec<(StreamPoint, VectorClock)> = Vec::with_capacity(graph_of.body.nodes.len());
        for node in &graph_of.body.nodes {
            let lane = lanes[node.lane];
            let after: Vec<_> = match node.after.is_empty() {
                true => vec![start.clone()],
                false => node.after.iter().map(|at| passed[*at].clone()).collect(),
            };
            after.iter().for_each(|(_, clock)| self.join(lane, clock));
            let points: Vec<StreamPoint> = after.iter().map(|(point, _)| *point).collect();
            let of_node = CallInfo { number: call.number, ..node.call };
            let home = match &node.effect {
                NodeEffect::Freed { home: Some(home), .. } => Some(lanes[*home]),
                _ => None,
            };
            self.replay(of_node, lane, &points, &node.effect, home);
            passed.push((self.end_of(lane), self.clock_of(lane)));
        }
        let ends: Vec<StreamPoint> = lanes.iter().map(|lane| self.end_of(*lane)).collect();
        for lane in &lanes {
            let clock = self.clock_of(*lane);
            self.join(stream, &clock);
        }
        self.submit(call, stream, &ends, &[], Work::Nothing);
        let released = graph_of.body.outputs.iter().filter(|output| output.is_released);
        released.for_each(|output| self.end_output(output.range.start, op, stream));
        let end = (self.end_of(stream), self.clock_of(stream));
        self.graphs.graphs.insert(graph, graph_of);
        if let Some(exec) = self.graphs.execs.get_mut(&exec.0) {
            exec.last = Some(end);
        }
        Ok(())
    }

    /// Returns the blocks that other graphs have left behind where this one has its own. They are overwritten, and live again
    /// with the next launch of theirs.
    fn overwritten_by(&self, graph: &GraphBody) -> Vec<u64> {
        let granted = graph.nodes.iter().filter_map(|node| match &node.effect {
            NodeEffect::Granted { range, .. } => Some(range),
            _ => None,
        });
        let granted: Vec<&Range<u64>> = granted.collect();
        let is_overwritten = |output: &&Output| {
            let range = &output.range;
            !output.is_released && granted.iter().any(|own| own.start < range.end && range.start < own.end)
        };
        let others = self.graphs.graphs.values().flat_map(|other| &other.body.outputs);
        others.chain(&self.graphs.outlived).filter(is_overwritten).map(|output| output.range.start).collect()
    }

    /// Submits one node to the stream of its lane.
    fn replay(&mut self, call: CallInfo, lane: usize, after: &[StreamPoint], effect: &NodeEffect, home: Option<usize>) {
        let op = call.operation(self.streams[lane].executor);
        let device = self.device();
        match effect {
            NodeEffect::Work { touches, host, work } => {
                let epoch = self.submit(call, lane, after, touches, work.again());
                if let Some(oracle) = &mut self.oracle {
                    host.iter().for_each(|touch| oracle.check_host_access(touch, touch.by(op), epoch));
                }
            }
            NodeEffect::Granted { range, tag } => {
                self.submit(call, lane, after, &[], Work::Nothing);
                let Some(oracle) = &mut self.oracle else { return };
                let (epoch, clock) = oracle.point(lane, &[]);
                oracle.record_block(device, range.clone(), OrderedOp { op, epoch }, &clock, *tag);
            }
            NodeEffect::Freed { at, .. } => {
                self.submit(call, lane, after, &[], Work::Nothing);
                let Some(oracle) = &mut self.oracle else { return };
                let (epoch, clock) = oracle.point(lane, &[]);
                let home = home.map(|home| oracle.point(home, &[]));
                oracle.record_block_free(device, *at, OrderedOp { op, epoch }, &clock, home.as_ref());
            }
        }
    }

    /// Ends the life of a block that a graph leaves behind, at this point of a stream.
    fn end_output(&mut self, at: u64, op: Operation, stream: usize) {
        let device = self.device();
        let Some(oracle) = &mut self.oracle else { return };
        if oracle.devices[device].is_block(at) {
            let (epoch, clock) = oracle.point(stream, &[]);
            oracle.record_block_free(device, at, OrderedOp { op, epoch }, &clock, None);
        }
    }

    fn join(&mut self, stream: usize, clock: &VectorClock) {
        if let Some(oracle) = &mut self.oracle {
            oracle.wait(stream, clock);
        }
    }

    fn clock_of(&self, stream: usize) -> VectorClock {
        self.oracle.as_ref().map(|oracle| oracle.clock(stream).clone()).unwrap_or_default()
    }
}
