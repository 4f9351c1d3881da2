//! A capture, from its beginning to a graph or a failure.
#![allow(unsafe_code)]

use super::launch::Graph;
use super::memory::GraphMemory;
use crate::context::{CaptureMaker, CaptureOrder, DeclaredUse};
use crate::{Access, Error, Holder, RawGraph, Result, Stream, StreamMisuse};
use std::fmt;
use std::sync::Arc;

/// A capture that is under way: work on its streams becomes part of a graph.
///
/// ```
/// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
/// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// let (stream, side) = (gpu.streams().lease()?, gpu.streams().lease()?);
/// let memory = gpu.graph_memory()?;
/// let (graph, ()) = memory.capture(&stream, |capture| -> Result<()> {
///     capture.order(capture.stream(), &side)?; // fork: the side stream is captured too
///     // … work on both …
///     capture.order(&side, capture.stream()) // join
/// })?;
/// graph.launch(&stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct Capture {
    memory: GraphMemory,
    order: Arc<CaptureOrder>,
    stream: Stream,
}

/// Announces a capture and has the memory take allocations on its streams.
fn announce(memory: &GraphMemory, origin: Option<Stream>, maker: CaptureMaker) -> Result<Arc<CaptureOrder>> {
    let context = memory.context();
    if origin.is_some_and(Stream::is_default) {
        return Err(Error::InvalidValue { what: "the default stream cannot be captured into a graph" });
    }
    let order = context.announce_capture(origin, maker)?;
    memory.begin(&order).inspect_err(|_| context.end_capture(&order))?;
    Ok(order)
}

/// The error of an order that begins with a stream of which nothing is captured.
const NOT_CAPTURED: Error = Error::InvalidValue { what: "the first of the two streams is not part of the capture" };

impl Capture {
    /// Returns the stream that the capture began on.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the memory that is allocated from.
    pub const fn memory(&self) -> &GraphMemory {
        &self.memory
    }

    /// Makes `then` come after what was captured on `first`; one that was not captured is from now on. A capture ends on the
    /// stream that it began on: every other is made to come before that in the end.
    pub fn order(&self, first: impl Into<Stream>, then: impl Into<Stream>) -> Result<()> {
        let (first, then) = (first.into(), then.into());
        if !self.memory.context().is_part_of(&self.order, first)? {
            return Err(NOT_CAPTURED);
        }
        self.memory.context().order_captured(&self.order, first, then)
    }

    /// Ends the capture here; where the driver still makes it, as after a failure, it is ended there and comes to nothing.
    fn end(&self, is_captured: bool) {
        let context = self.memory.context();
        if is_captured {
            // A capture that something has spoilt is no failure of its own. A call that failed for another reason is made
            // once more: the stream would stay captured.
            if context.end_at_driver(self.stream).or_else(|_| context.end_at_driver(self.stream)).is_err() {
                self.memory.end();
                return context.leave_captured(&self.order, self.stream);
            }
        }
        self.memory.end();
        context.end_capture(&self.order);
    }

    /// Makes the end of the capture come after all of its streams. What is freed there after they were joined, such as a
    /// buffer that the closure ends with, would otherwise spoil it.
    fn join(&self) -> Result<()> {
        let context = self.memory.context();
        for stream in self.order.beside(self.stream) {
            if context.is_part_of(&self.order, stream)? {
                context.order_captured(&self.order, stream, self.stream)?;
            }
        }
        Ok(())
    }

    /// Makes the graph of a capture that is over.
    fn finish(&self, uses: Vec<(Arc<dyn DeclaredUse>, Access)>, graph: RawGraph) -> Result<Graph> {
        let context = self.memory.context();
        // SAFETY: the graph came from this driver.
        let exec = unsafe { context.driver().graph_instantiate(context.device(), graph) };
        context.destroy_graph(graph);
        let exec = exec.map_err(|error| context.failed(error))?;
        Ok(Graph::new(self.memory.clone(), self.order.number(), exec, uses))
    }
}

/// Ends a capture that its closure did not come to the end of.
struct Unfinished<'a>(&'a Capture);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl GraphMemory {
    /// Captures what `record` submits to a stream, and to others that [it orders](Capture::order) after that, into a graph.
    /// Nothing of it runs before the graph is launched.
    ///
    /// Work is submitted as always ([`Submission`](crate::Submission), and `Work` above it); what would wait for the stream,
    /// copies from and to host memory included, is refused. Whatever fails, and if `record` panics, the capture is over
    /// when this returns, and the stream is what it was before.
    pub fn capture<R, E: From<Error>>(
        &self,
        stream: impl Into<Stream>,
        record: impl FnOnce(&Capture) -> Result<R, E>,
    ) -> Result<(Graph, R), E> {
        let (stream, context) = (stream.into(), self.context());
        context.fault().check()?;
        context.hold_for_memory(stream)?;
        self.find_freed()?;
        let capture =
            Capture { memory: self.clone(), order: announce(self, Some(stream), CaptureMaker::Context)?, stream };
        let held = context.hold(stream).inspect_err(|_| capture.end(false))?;
        // SAFETY: the stream is live while it is held, and not the default stream.
        let begun = unsafe { context.driver().capture_begin(context.device(), held.raw()) };
        drop(held);
        begun.map_err(|error| context.failed(error)).inspect_err(|_| capture.end(false))?;
        let unfinished = Unfinished(&capture);
        let recorded = record(&capture)?;
        capture.join()?;
        std::mem::forget(unfinished);
        let graph = context.capture_end(stream);
        let uses = capture.order.take_uses();
        capture.end(graph.is_err());
        let graph = capture.finish(uses, graph?)?;
        Ok((graph, recorded))
    }

    /// Has allocations on `stream` come from this memory while somebody else captures it, until the result is dropped: a
    /// library that makes its graphs itself. Allocations on other streams that the driver is capturing meanwhile count as of
    /// the same capture.
    ///
    /// What is freed on one captured stream is reused on another only where the order was [declared](ForeignCapture::order),
    /// since nobody else knows of the library's events. Launches are [reported](Self::launched). Nobody orders them, so this
    /// waits for the streams on which blocks were freed, or launches reported, since the last capture.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::graph::GraphMemory;
    /// # fn show(memory: &GraphMemory, stream: Stream) -> Result<()> {
    /// let capture = memory.capture_of(stream)?;
    /// // … cuStreamBeginCapture(stream), work, cuStreamEndCapture …
    /// let block = memory.allocate(4096, 256, stream, tag!("scratch"))?;
    /// memory.deallocate(block, stream)?;
    /// drop(capture);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture_of(&self, stream: impl Into<Stream>) -> Result<ForeignCapture> {
        self.announce_foreign(Some(stream.into()))
    }

    /// Does as [`capture_of`](Self::capture_of) does for a capture whose streams are not known yet:
    /// [they enter it](ForeignCapture::enter).
    pub fn capture_of_any(&self) -> Result<ForeignCapture> {
        self.announce_foreign(None)
    }

    /// Has the memory below find out what has been freed and done with: in a capture its streams cannot be asked.
    fn find_freed(&self) -> Result<()> {
        self.shared.below.reap().map(drop)
    }

    fn announce_foreign(&self, origin: Option<Stream>) -> Result<ForeignCapture> {
        self.shared.launches.settle(self.context(), self.shared.own)?;
        self.find_freed()?;
        Ok(ForeignCapture { memory: self.clone(), order: announce(self, origin, CaptureMaker::Others)? })
    }
}

/// A capture that somebody else makes, for as long as this lives: [`GraphMemory::capture_of`].
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use bursar::graph::GraphMemory;
/// # fn show(memory: &GraphMemory, stream: Stream, side: Stream) -> Result<()> {
/// let capture = memory.capture_of(stream)?;
/// // … the library records an event on `stream`, which `side` waits for …
/// capture.order(stream, side)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the capture ends when this is dropped"]
pub struct ForeignCapture {
    memory: GraphMemory,
    order: Arc<CaptureOrder>,
}

impl ForeignCapture {
    /// Returns the memory that is allocated from.
    pub const fn memory(&self) -> &GraphMemory {
        &self.memory
    }

    /// Says that a stream is part of the capture. The driver is asked nothing, and nothing is known of its order.
    pub fn enter(&self, stream: impl Into<Stream>) -> Result<()> {
        self.memory.context().enter_new(&self.order, stream.into())
    }

    /// Returns whether the driver captures none of its streams any more: whoever captured them has ended it, or it failed. One that
    /// has no streams yet is not over.
    ///
    /// A library that says nothing of captures which failed is asked about them this way, before the next one begins: a stream is
    /// part of one capture at a time.
    pub fn is_over(&self) -> Result<bool> {
        let streams = self.order.streams();
        for &stream in &streams {
            match self.memory.context().check_stream(stream) {
                Ok(()) => {}
                Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(!streams.is_empty())
    }

    /// Says that `then` comes after what was captured on `first`, and is part of the capture too.
    pub fn order(&self, first: impl Into<Stream>, then: impl Into<Stream>) -> Result<()> {
        let (first, then) = (first.into(), then.into());
        if !self.order.contains(first) {
            return Err(NOT_CAPTURED);
        }
        self.enter(then)?;
        self.order.joined(first, then);
        Ok(())
    }
}

impl Drop for ForeignCapture {
    fn drop(&mut self) {
        self.memory.end();
        self.memory.context().end_capture(&self.order);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("stream", &self.stream).field("memory", &self.memory).finish_non_exhaustive()
    }
}
