//! Graphs of a device: capturing with buffers and work as always.

use crate::Gpu;
use bursar_core::{Capture, Error, Graph, GraphMemory, Result, Stream};

/// A capture that is under way on a [`Gpu`]; see [`Gpu::capture`].
///
/// ```
/// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
/// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// let stream = gpu.streams().lease()?;
/// let (graph, sums) = gpu.capture(&stream, |capture| -> Result<_> {
///     let mut sums = capture.gpu().buffer::<u32>(4, capture.stream(), tag!("sums"))?;
///     capture.gpu().submit(capture.stream(), |work| work.fill(&mut sums, 7))?;
///     Ok(sums)
/// })?;
/// graph.launch(&stream)?;
/// assert_eq!(sums.to_vec()?, [7; 4]);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Debug)]
pub struct GpuCapture<'a> {
    gpu: Gpu,
    capture: &'a Capture,
}

impl GpuCapture<'_> {
    /// Returns a handle of the same device whose buffers are allocated in the memory of the graph. It is for streams of the
    /// capture; everything else about it is as of the handle that captures.
    pub const fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the stream that the capture began on.
    pub const fn stream(&self) -> Stream {
        self.capture.stream()
    }

    /// Returns the memory of the graph.
    pub const fn memory(&self) -> &GraphMemory {
        self.capture.memory()
    }

    /// Makes `then` come after what was captured on `first`; one that was not captured is from now on. Uses of a buffer on
    /// several captured streams are ordered without it.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let (stream, side) = (gpu.streams().lease()?, gpu.streams().lease()?);
    /// gpu.capture(&stream, |capture| -> Result<()> {
    ///     capture.order(capture.stream(), &side)?;
    ///     let buffer = capture.gpu().buffer::<u8>(100, &side, tag!("scratch"))?;
    ///     drop(buffer);
    ///     capture.order(&side, capture.stream())
    /// })?;
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn order(&self, first: impl Into<Stream>, then: impl Into<Stream>) -> Result<()> {
        self.capture.order(first, then)
    }
}

impl Gpu {
    /// Makes memory for graphs out of this handle's memory, which it is charged to for as long as a graph needs it.
    ///
    /// ```
    /// # use bursar::{Bytes, DeviceId, Gpu, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let memory = gpu.graph_memory()?;
    /// assert_eq!(memory.held(), Bytes::ZERO);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn graph_memory(&self) -> Result<GraphMemory> {
        GraphMemory::new(self.memory().clone())
    }

    /// Captures what `record` submits to a stream into a graph with memory of its own.
    ///
    /// Buffers of [`GpuCapture::gpu`] are allocated in that memory, at addresses that stay for as long as the graph lives; those
    /// dropped in the capture are used again by what comes after them there. Other buffers of the device are used as always:
    /// each launch is then ordered like any other work with them. What would wait for the stream is refused: reading and
    /// writing from the host, [`buffer_from`](Self::buffer_from) and the like.
    ///
    /// Nothing clears that memory between launches: a buffer holds what the last launch, or whoever wrote to it since, left
    /// there. [`zeros`](Self::zeros) captures its fill, so that the buffer is zero from there on in every launch; and not before
    /// the first, because nothing runs while it is captured.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let stream = gpu.streams().lease()?;
    /// let (graph, mut sums) =
    ///     gpu.capture(&stream, |capture| capture.gpu().zeros::<u32>(4, capture.stream(), tag!("sums")))?;
    /// sums.fill(9)?;
    /// graph.launch(&stream)?;
    /// assert_eq!(sums.to_vec()?, [0; 4]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn capture<R, E: From<Error>>(
        &self,
        stream: impl Into<Stream>,
        record: impl FnOnce(&GpuCapture<'_>) -> Result<R, E>,
    ) -> Result<(Graph, R), E> {
        self.capture_into(&self.graph_memory()?, stream, record)
    }

    /// Captures as [`capture`](Self::capture) does, into memory that graphs share which never run at once: their launches come
    /// one after another.
    ///
    /// ```
    /// # use bursar::{Bytes, DeviceId, Gpu, Result, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let (stream, memory) = (gpu.streams().lease()?, gpu.graph_memory()?);
    /// let mut graphs = Vec::new();
    /// for batch in [1 << 20, 2 << 20, 4 << 20] {
    ///     let (graph, ()) = gpu.capture_into(&memory, &stream, |capture| -> Result<()> {
    ///         let _activations = capture.gpu().buffer::<u8>(batch, capture.stream(), tag!("activations"))?;
    ///         Ok(())
    ///     })?;
    ///     graphs.push(graph);
    /// }
    /// assert!(memory.held() <= Bytes::mib(8), "less than for each alone");
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn capture_into<R, E: From<Error>>(
        &self,
        memory: &GraphMemory,
        stream: impl Into<Stream>,
        record: impl FnOnce(&GpuCapture<'_>) -> Result<R, E>,
    ) -> Result<(Graph, R), E> {
        let gpu = self.with_memory(memory.clone());
        memory.capture(stream, |capture| record(&GpuCapture { gpu, capture }))
    }
}
