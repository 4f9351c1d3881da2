//! Memory that graphs own.
#![allow(unsafe_code)]

use super::shared::{LiveBlock, Shared};
use crate::context::{CaptureOrder, LaunchedMemory};
use crate::observe::GraphCount;
use crate::{
    AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Holder, MAX_ALIGN,
    MIN_ALIGN, Note, Refused, Result, Stream, StreamMisuse, Survey, is_size,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The lengths that segments are a multiple of, at least and at most.
const STEPS: [u64; 2] = [64 << 10, 2 << 20];

/// A block is not cut out of a run that is longer than this and so many times as long as the block, while there is other
/// memory: one that is kept would have the next capture take all of that once more.
const LONG_RUN: (u64, u64) = (STEPS[1], 64);

/// Returns the length that the next segment is a multiple of: about an eighth of what is held with it, so that many small
/// requests do not take a segment each and little is left over of the last.
fn step(held: u64) -> u64 {
    (held / 8).next_power_of_two().clamp(STEPS[0], STEPS[1])
}

/// Memory for graphs: what is allocated while a stream is captured, at addresses that stay for as long as a graph uses them.
///
/// Allocations in a capture come from memory that was taken from the stack below, charged there as held, and is nobody
/// else's until this memory and the graphs captured into it are gone. What is freed in a capture is used again in the same
/// one, by whatever comes after the free: at once on the same stream, on another that was [captured
/// too](crate::Capture::order) once it waits for that. Blocks that outlive the capture stay valid, and may be freed later on any
/// stream; then they are this memory's again.
///
/// Several graphs may be captured into one memory, one after another. Each begins with all that is not in a block, so
/// together they hold little more than the largest needs; in return they never run at once: [`Graph::launch`](crate::Graph::launch)
/// sees to that, and whoever launches by other means has to. A block that outlives its capture may lie where a graph that
/// was captured *before* has its own: launching that one overwrites it, and it is neither read nor written to until its own graph has been
/// launched again.
///
/// Statistics and refusals show its blocks under the tags that they were allocated with, and what it holds beyond them as
/// `graph memory`.
///
/// Clones are the same memory.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::graph::GraphMemory;
/// use bursar::memory::{Build, DeviceMemoryResource, Holder};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, PagePool, Result, Stack, leaf, tag};
/// use std::sync::Arc;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = Arc::new(Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&context)?);
/// let (memory, stream) = (GraphMemory::new(pool)?, context.create_stream(0)?);
///
/// let (graph, output) = memory.capture(stream, |capture| -> Result<_> {
///     let scratch = memory.allocate(1 << 20, 256, capture.stream(), tag!("scratch"))?;
///     // … work on the stream that uses it …
///     let address = scratch.ptr();
///     memory.deallocate(scratch, capture.stream())?;
///     let output = memory.allocate(1 << 20, 256, capture.stream(), tag!("output"))?;
///     assert_eq!(output.ptr(), address, "in the order of the stream the scratch is not needed any more");
///     Ok(output)
/// })?;
/// for _ in 0..3 {
///     graph.launch(stream)?;
/// }
/// assert_eq!((memory.bytes_outstanding(), memory.held()), (Bytes::mib(1), Bytes::mib(1)));
/// memory.deallocate(output, stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone)]
pub struct GraphMemory {
    pub(super) shared: Arc<Shared>,
}

impl GraphMemory {
    /// Makes memory for graphs out of `memory`; it holds nothing yet.
    pub fn new(memory: Arc<dyn DeviceMemoryResource>) -> Result<Self> {
        let shared = Arc::new(Shared::new(memory)?);
        let launched: Arc<dyn LaunchedMemory> = shared.clone();
        shared.context().enter_launched_memory(shared.owner, Arc::downgrade(&launched));
        Ok(Self { shared })
    }

    /// Returns the bytes that it holds of the memory below, in blocks or free for its graphs.
    pub fn held(&self) -> Bytes {
        Bytes(self.shared.state().arena.held())
    }

    /// Begins to take allocations on captured streams.
    pub(super) fn begin(&self, order: &Arc<CaptureOrder>) -> Result<()> {
        let mut state = self.shared.state();
        if state.capture.is_some() {
            return Err(Error::InvalidValue { what: "another graph is being captured into this memory" });
        }
        if state.is_released {
            return Err(Error::InvalidValue { what: "this memory was released, so no graph can be captured into it" });
        }
        state.capture = Some(order.clone());
        Ok(())
    }

    /// Takes no more allocations; what is free is everybody's who comes next.
    pub(super) fn end(&self) {
        let mut state = self.shared.state();
        state.capture = None;
        for (at, bytes) in std::mem::take(&mut state.freed_outside) {
            state.arena.put(at..at + bytes, Vec::new());
        }
        state.arena.settle();
    }

    /// Returns the capture under way, with `stream` part of it.
    pub(super) fn capture_with(&self, stream: Stream) -> Result<Arc<CaptureOrder>> {
        let (context, capture) = (self.context(), self.shared.state().capture.clone());
        let capture = capture.ok_or_else(|| self.not_captured(stream))?;
        if capture.contains(stream) {
            return Ok(capture);
        }
        let held = context.hold(stream)?;
        // SAFETY: the stream is live while it is held.
        let capturing = unsafe { context.driver().stream_is_capturing(context.device(), held.raw()) };
        match capturing.map_err(|error| context.failed(error))? {
            true => context.enter_new(&capture, stream).map_err(|_| self.not_captured(stream))?,
            false => return Err(self.not_captured(stream)),
        }
        Ok(capture)
    }

    #[cold]
    fn not_captured(&self, stream: Stream) -> Error {
        let (device, stream) = (self.context().device(), stream.number());
        Error::StreamMisuse { device, stream, why: StreamMisuse::NotCaptured }
    }

    /// Takes another segment that a request of `bytes` fits in.
    fn grow(&self, bytes: u64, align: u64) -> Result<()> {
        let Shared { below, own, .. } = &*self.shared;
        let (context, own) = (self.context(), *own);
        let step = step(self.held().get().saturating_add(bytes));
        let rounded = bytes.next_multiple_of(step);
        let segment = match below.allocate(rounded, align.max(MIN_ALIGN), own, GraphCount::tag()) {
            Err(error) if error.is_capacity() && rounded > bytes => {
                below.allocate(bytes, align.max(MIN_ALIGN), own, GraphCount::tag())?
            }
            granted => granted?,
        };
        // What was there before has run, so every stream may have it at once, captured or not.
        if let Err(error) = context.synchronize(own) {
            if let Err(Refused { block, .. }) = below.deallocate(segment, own) {
                self.shared.state().segments.push(block);
            }
            return Err(error);
        }
        let (ptr, len) = (segment.ptr(), segment.requested().get());
        self.shared.note_on_own(|stream| Note::Divided { ptr, bytes: len, stream });
        let mut state = self.shared.state();
        state.arena.add(ptr.0..ptr.0 + len);
        state.segments.push(segment);
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
impl Holder for GraphMemory {
    fn context(&self) -> &Arc<DeviceContext> {
        self.shared.context()
    }

    /// Returns what is in blocks. What was freed is this memory's again, which sees to it that nobody gets it early.
    fn bytes_outstanding(&self) -> Bytes {
        Bytes(self.shared.state().live.values().map(|block| block.bytes).sum())
    }

    fn released_total(&self) -> u64 {
        self.shared.state().released
    }

    fn reap(&self) -> Result<Bytes> {
        self.shared.below.reap().map(|_| Bytes::ZERO)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.shared.below.reap_blocking(patience).map(|_| Bytes::ZERO)
    }

    fn survey(&self, survey: &mut Survey) {
        self.shared.below.survey(survey);
    }
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for GraphMemory {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Error::InvalidAlignment { align });
        }
        match is_size(bytes) {
            true => Ok(Bytes(bytes.next_multiple_of(MIN_ALIGN))),
            false => Err(Error::InvalidSize { requested: bytes }),
        }
    }

    /// Allocates on a stream that is being captured into a graph of this memory. Others are refused, and all where some of
    /// this memory sleeps.
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.granted_size(bytes, align)?.get();
        self.context().fault().check()?;
        let capture = self.capture_with(stream)?;
        let _using = self.shared.use_awake()?;
        let align = align.max(MIN_ALIGN);
        let take = |longest| {
            capture.with_clock(stream, |comes_after| {
                let mut state = self.shared.state();
                let at = state.arena.take(granted, align, longest, comes_after)?;
                state.live.insert(at, LiveBlock { bytes: granted, origin: capture.origin_on(stream), tag });
                Some(at)
            })
        };
        let longest = LONG_RUN.0.max(granted.saturating_mul(LONG_RUN.1));
        let at = loop {
            if let Some(at) = take(longest) {
                break at;
            }
            let refused = match self.grow(granted, align) {
                Err(error) if !error.is_capacity() => return Err(error),
                grown => grown.err(),
            };
            match (take(u64::MAX), refused) {
                (Some(at), _) => break at,
                (None, Some(refused)) => return Err(refused),
                // Another thread was faster, and then there is one more turn.
                (None, None) => {}
            }
        };
        self.shared.count.granted(tag, Bytes(granted));
        let (ptr, owner) = (DevicePtr(at), self.shared.owner);
        let parts = BlockParts { ptr, requested: bytes, granted, tag, owner, offset: 0 };
        if let Ok(held) = self.context().hold(stream) {
            // SAFETY: the range is this memory's, and the stream is held.
            unsafe { self.context().note(Note::Granted { ptr, bytes: granted, stream: held.raw(), tag }) };
        }
        // SAFETY: the range was taken out of every run and is given out with this token alone.
        Ok(unsafe { DeviceBlock::from_parts(parts, stream) })
    }

    /// Frees a block: in the order of the capture that it was allocated in and `stream` is part of, or else in that of
    /// `stream`. A stream that is being captured into another graph is refused.
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        self.deallocate_after(block, &[stream])
    }

    /// A free is ordered after whatever its stream was made to wait for, in a capture and outside.
    fn tracks_use(&self) -> bool {
        true
    }
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphMemory")
            .field("device", &self.context().device())
            .field("held", &self.held())
            .field("outstanding", &self.bytes_outstanding())
            .finish_non_exhaustive()
    }
}
