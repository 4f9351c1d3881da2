//! Captures of streams into graphs, and the graphs.
//!
//! Work that is submitted to a captured stream becomes a node. It depends on the node before it on that stream and on what
//! the stream has waited for; a stream that waits for an event of the capture becomes part of it. Each captured stream is a
//! *lane* of the graph. What is launched of a graph runs on streams of its own, one a lane, which nobody else can name.

use super::{MachineState, StreamPoint, Work};
use crate::Executor;
use crate::operation::{CallInfo, CallResult};
use crate::oracle::{RangeAccess, VectorClock};
use bursar_core::{AllocTag, Note, RawEvent, Status};
use std::collections::BTreeMap;
use std::ops::Range;

/// The statuses that CUDA has for captures, besides [`Status::Capturing`].
const fn status(code: i32, name: &'static str) -> Status {
    Status::Other { code, name, sticky: false }
}

pub(crate) const ILLEGAL_STATE: Status = status(401, "CUDA_ERROR_ILLEGAL_STATE");
const INVALIDATED: Status = status(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
const MERGE: Status = status(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE");
const UNMATCHED: Status = status(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED");
const UNJOINED: Status = status(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
const ISOLATION: Status = status(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION");
const IMPLICIT: Status = status(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
const CAPTURED_EVENT: Status = status(907, "CUDA_ERROR_CAPTURED_EVENT");

/// The effect of a node when it is replayed.
#[derive(Debug)]
pub(crate) enum NodeEffect {
    /// Work of the device or the host, with the memory that it touches.
    Work { touches: Vec<RangeAccess>, host: Vec<RangeAccess>, work: Work },
    /// A range is a block from here on.
    Granted { range: Range<u64>, tag: AllocTag },
    /// The block is free from here on; its own lane has come to this node then.
    Freed { at: u64, home: Option<usize> },
}

/// A node of a graph.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) call: CallInfo,
    pub(crate) lane: usize,
    /// The nodes that it comes after; without any, the launch.
    pub(crate) after: Vec<usize>,
    pub(crate) effect: NodeEffect,
}

/// A block that a graph leaves behind.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) range: Range<u64>,
    pub(crate) tag: AllocTag,
    /// True once it was freed outside the graph: then every launch ends with its free.
    pub(crate) is_released: bool,
}

/// A graph, or what has been captured of one so far.
#[derive(Debug, Default)]
pub(crate) struct GraphBody {
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<Output>,
    /// The streams that were captured, by lane.
    pub(crate) lanes: Vec<usize>,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    device: usize,
    origin: usize,
    is_valid: bool,
    pub(crate) body: GraphBody,
    /// For each lane, the nodes that its next one comes after.
    ends: Vec<Vec<usize>>,
}

/// The capture that an event was last recorded in, and the nodes that it marks.
#[derive(Clone, Debug)]
pub(crate) struct CapturedRecord {
    capture: u64,
    after: Vec<usize>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct GraphExec {
    pub(crate) device: usize,
    pub(crate) graph: u64,
    /// The streams that its lanes run on.
    pub(crate) lanes: Vec<usize>,
    /// The end of its last launch.
    pub(crate) last: Option<(StreamPoint, VectorClock)>,
}

/// A captured graph, which lives as long as something that was instantiated from it.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) device: usize,
    pub(crate) body: GraphBody,
    /// False once it was destroyed.
    pub(crate) is_alive: bool,
}

/// All captures and graphs of the machine.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    next: u64,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) execs: BTreeMap<u64, GraphExec>,
    /// Blocks that graphs have left behind which are gone, or never came to be. An earlier graph may still overwrite them.
    pub(crate) outlived: Vec<Output>,
    /// Streams for lanes that no graph needs any more, with their devices.
    pub(crate) spare_lanes: Vec<(usize, usize)>,
}

impl Graphs {
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Records that a block was freed outside of captures. Returns whether a graph has left it behind.
    fn release(&mut self, at: u64) -> bool {
        let Self { captures, graphs, outlived, .. } = self;
        let before = outlived.len();
        outlived.retain(|output| output.range.start != at);
        let of_captures = captures.values_mut().map(|capture| &mut capture.body);
        let bodies = of_captures.chain(graphs.values_mut().map(|graph| &mut graph.body));
        // Every one of them is told, so this does not stop at the first.
        let told = bodies.filter_map(|body| body.release(at).then_some(())).count();
        told > 0 || outlived.len() < before
    }
}

fn add_all(into: &mut Vec<usize>, from: &[usize]) {
    into.extend_from_slice(from);
    into.sort_unstable();
    into.dedup();
}

impl Capture {
    /// Returns the lane of a stream, which becomes part of the capture if it is not.
    fn lane(&mut self, stream: usize) -> usize {
        let found = self.body.lanes.iter().position(|other| *other == stream);
        found.unwrap_or_else(|| {
            self.body.lanes.push(stream);
            self.ends.push(Vec::new());
            self.body.lanes.len() - 1
        })
    }

    fn add(&mut self, call: CallInfo, stream: usize, effect: NodeEffect) {
        let lane = self.lane(stream);
        let after = std::mem::replace(&mut self.ends[lane], vec![self.body.nodes.len()]);
        self.body.nodes.push(Node { call, lane, after, effect });
    }

    /// Returns whether everything on every lane comes before the end of the first, on which the capture ends.
    fn is_joined(&self) -> bool {
        let mut seen = vec![false; self.body.nodes.len()];
        let mut open = self.ends[0].clone();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                open.extend_from_slice(&self.body.nodes[node].after);
            }
        }
        self.ends.iter().flatten().all(|node| seen[*node])
    }
}

impl GraphBody {
    /// Records that a block was freed outside the graph. Returns whether it is an output that was not freed yet.
    fn release(&mut self, at: u64) -> bool {
        let output = self.outputs.iter_mut().find(|output| output.range.start == at && !output.is_released);
        output.is_some_and(|output| {
            output.is_released = true;
            true
        })
    }
}

impl MachineState {
    /// Returns whether a stream is being captured; also if its capture was invalidated.
    pub(crate) fn is_capturing(&self, stream: usize) -> bool {
        self.streams[stream].capture.is_some()
    }

    /// Returns the capture that a stream is part of, if work can be added to it.
    pub(crate) fn valid_capture(&mut self, stream: usize) -> CallResult<Option<&mut Capture>> {
        let Some(id) = self.streams[stream].capture else { return Ok(None) };
        match self.graphs.captures.get_mut(&id) {
            Some(capture) if capture.is_valid => Ok(Some(capture)),
            _ => Err(INVALIDATED),
        }
    }

    /// Invalidates the capture of a stream, which was asked for something that no capture can have.
    pub(crate) fn spoil_capture(&mut self, stream: usize) {
        let capture = self.streams[stream].capture.and_then(|id| self.graphs.captures.get_mut(&id));
        if let Some(capture) = capture {
            capture.is_valid = false;
        }
    }

    /// Refuses work on the legacy default stream that would wait for a captured stream, and spoils that capture.
    pub(crate) fn check_implicit(&mut self, stream: usize) -> CallResult<()> {
        let captured: Vec<usize> =
            self.implicit_waits(stream).into_iter().filter(|other| self.is_capturing(*other)).collect();
        captured.iter().for_each(|other| self.spoil_capture(*other));
        if captured.is_empty() { Ok(()) } else { Err(IMPLICIT) }
    }

    pub(crate) fn begin_capture(&mut self, device: usize, stream: usize) -> CallResult<()> {
        if stream < self.devices.len() {
            return Err(Status::Capturing);
        }
        if self.is_capturing(stream) {
            return Err(ILLEGAL_STATE);
        }
        let id = self.graphs.number();
        let body = GraphBody { lanes: vec![stream], ..GraphBody::default() };
        let capture = Capture { device, origin: stream, is_valid: true, body, ends: vec![Vec::new()] };
        self.graphs.captures.insert(id, capture);
        self.enter_capture(stream, id);
        Ok(())
    }

    fn enter_capture(&mut self, stream: usize, id: u64) {
        self.streams[stream].capture = Some(id);
        self.block_shortcuts();
    }

    /// Ends the capture that began on a stream. Returns the number of its graph.
    pub(crate) fn end_capture(&mut self, call: CallInfo, stream: usize) -> CallResult<u64> {
        let id = self.streams[stream].capture.ok_or(ILLEGAL_STATE)?;
        if self.graphs.captures.get(&id).is_some_and(|capture| capture.origin != stream) {
            self.spoil_capture(stream);
            return Err(UNMATCHED);
        }
        let capture = self.leave_capture(id).ok_or(ILLEGAL_STATE)?;
        let failure = match capture {
            Capture { is_valid: false, .. } => Some(INVALIDATED),
            _ if !capture.is_joined() => Some(UNJOINED),
            _ => None,
        };
        if let Some(failure) = failure {
            self.outlive(call, capture.body.outputs);
            return Err(failure);
        }
        self.begin_outputs(call, &capture.body.outputs);
        let graph = self.graphs.number();
        self.graphs.graphs.insert(graph, Graph { device: capture.device, body: capture.body, is_alive: true });
        Ok(graph)
    }

    /// Makes the blocks that a capture leaves behind usable to everybody who comes after what was freed there before.
    fn begin_outputs(&mut self, call: CallInfo, outputs: &[Output]) {
        let op = call.operation(Executor::Host);
        let Some(oracle) = &mut self.oracle else { return };
        for output in outputs.iter().filter(|output| !output.is_released) {
            oracle.begin_output(call.device, output.range.clone(), op, output.tag);
        }
    }

    /// Keeps the blocks that a graph leaves behind which is no more.
    pub(crate) fn outlive(&mut self, call: CallInfo, outputs: Vec<Output>) {
        self.begin_outputs(call, &outputs);
        self.graphs.outlived.extend(outputs.into_iter().filter(|output| !output.is_released));
    }

    /// Takes the streams of a capture out of it.
    fn leave_capture(&mut self, id: u64) -> Option<Capture> {
        let capture = self.graphs.captures.remove(&id)?;
        for index in 0..self.streams.len() {
            if self.streams[index].capture == Some(id) {
                self.streams[index].capture = None;
                self.unblock_shortcuts();
            }
        }
        Some(capture)
    }

    /// Ends what a stream that is destroyed has to do with captures.
    pub(crate) fn abandon_capture(&mut self, stream: usize) {
        let Some(id) = self.streams[stream].capture else { return };
        self.spoil_capture(stream);
        if self.graphs.captures.get(&id).is_none_or(|capture| capture.origin == stream) {
            self.leave_capture(id);
        } else {
            self.streams[stream].capture = None;
            self.unblock_shortcuts();
        }
    }

    /// Adds work to the capture of a stream. Returns the work where the stream is not being captured.
    pub(crate) fn capture_work(
        &mut self,
        call: CallInfo,
        stream: usize,
        touches: &[RangeAccess],
        host: &[RangeAccess],
        work: Work,
    ) -> CallResult<Option<Work>> {
        let Some(capture) = self.valid_capture(stream)? else { return Ok(Some(work)) };
        if !work.repeats() {
            capture.is_valid = false;
            return Err(Status::Capturing);
        }
        let effect = NodeEffect::Work { touches: touches.to_vec(), host: host.to_vec(), work };
        capture.add(call, stream, effect);
        Ok(None)
    }

    /// Records an event on a captured stream. Returns whether the stream is one.
    pub(crate) fn capture_record(&mut self, stream: usize, event: RawEvent) -> CallResult<bool> {
        let Some(id) = self.streams[stream].capture else { return Ok(false) };
        let Some(capture) = self.valid_capture(stream)? else { return Ok(false) };
        let lane = capture.lane(stream);
        let record = CapturedRecord { capture: id, after: capture.ends[lane].clone() };
        if let Some(event) = self.events.get_mut(&event.0) {
            event.captured = Some(record);
        }
        Ok(true)
    }

    /// Has a stream wait for an event where either of them is in a capture. Returns whether one is.
    pub(crate) fn capture_wait(&mut self, stream: usize, event: RawEvent) -> CallResult<bool> {
        let event = self.events.get(&event.0).ok_or(Status::InvalidHandle)?;
        let (record, was_recorded) = (event.captured.clone(), event.record.is_some());
        let own = self.streams[stream].capture;
        let Some(record) = record else {
            if own.is_some() && was_recorded {
                self.spoil_capture(stream);
                return Err(ISOLATION);
            }
            return Ok(own.is_some());
        };
        if !self.graphs.captures.contains_key(&record.capture) {
            self.spoil_capture(stream);
            return Err(CAPTURED_EVENT);
        }
        match own {
            None if stream < self.devices.len() => return Err(IMPLICIT),
            None => self.enter_capture(stream, record.capture),
            Some(own) if own != record.capture => {
                self.spoil_capture(stream);
                if let Some(other) = self.graphs.captures.get_mut(&record.capture) {
                    other.is_valid = false;
                }
                return Err(MERGE);
            }
            Some(_) => {}
        }
        if let Some(capture) = self.valid_capture(stream)? {
            let lane = capture.lane(stream);
            add_all(&mut capture.ends[lane], &record.after);
        }
        Ok(true)
    }

    /// Refuses to ask about an event that was last recorded in a capture, and spoils that capture.
    pub(crate) fn check_not_captured(&mut self, event: RawEvent) -> CallResult<()> {
        let Some(record) = self.events.get(&event.0).and_then(|event| event.captured.as_ref()) else { return Ok(()) };
        if let Some(capture) = self.graphs.captures.get_mut(&record.capture) {
            capture.is_valid = false;
        }
        Err(CAPTURED_EVENT)
    }

    /// Adds a note about a block to the capture of its stream. Returns whether the note is about a capture or an output of a
    /// graph and needs no more.
    pub(crate) fn capture_note(&mut self, call: CallInfo, stream: usize, note: Note) -> CallResult<bool> {
        if self.is_capturing(stream) {
            let home = match note {
                Note::Freed { home, stream: raw, .. } if home != raw => Some(self.stream(call.device, home)?),
                _ => None,
            };
            // Also in a capture that comes to nothing: its blocks live on.
            let id = self.streams[stream].capture;
            if let Some(capture) = id.and_then(|id| self.graphs.captures.get_mut(&id)) {
                capture.note(call, stream, note, home);
            }
            return Ok(true);
        }
        let Note::Freed { ptr, .. } = note else { return Ok(false) };
        let is_output = self.graphs.release(ptr.0);
        let is_live = self.oracle.as_ref().is_some_and(|oracle| oracle.devices[call.device].is_block(ptr.0));
        Ok(is_output && !is_live)
    }
}

impl Capture {
    fn note(&mut self, call: CallInfo, stream: usize, note: Note, home: Option<usize>) {
        match note {
            Note::Granted { ptr, bytes, tag, .. } => {
                let range = ptr.0..ptr.0.saturating_add(bytes);
                self.body.outputs.push(Output { range: range.clone(), tag, is_released: false });
                self.add(call, stream, NodeEffect::Granted { range, tag });
            }
            Note::Freed { ptr, .. } => {
                self.body.outputs.retain(|output| output.range.start != ptr.0);
                let home = home.and_then(|home| self.body.lanes.iter().position(|lane| *lane == home));
                self.add(call, stream, NodeEffect::Freed { at: ptr.0, home });
            }
            _ => {}
        }
    }
}
