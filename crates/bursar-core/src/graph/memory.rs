//! Memory that graphs own.
#![allow(unsafe_code)]

use super::arena::{Arena, FreePoint};
use super::launch::Launches;
use crate::context::{CaptureOrder, DeclaredUse, Point};
use crate::{
    AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Holder, MAX_ALIGN,
    MIN_ALIGN, Note, OwnerId, RawStream, Refused, Result, Stream, StreamMisuse, Survey, tag,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The least that is taken from the memory below at a time, and what longer segments are a multiple of.
const SEGMENT: u64 = 2 << 20;

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
/// was captured *before* has its own: launching that one overwrites it, until its own graph is launched again.
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
/// assert_eq!((memory.bytes_outstanding(), memory.held()), (Bytes::mib(1), Bytes::mib(2)));
/// memory.deallocate(output, stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone)]
pub struct GraphMemory {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    below: Arc<dyn DeviceMemoryResource>,
    owner: OwnerId,
    /// The stream that segments are taken on and given back on. It is never captured.
    own: Stream,
    state: Mutex<State>,
    pub(super) launches: Launches,
}

#[derive(Default)]
struct State {
    arena: Arena<Point>,
    /// The segments, which are blocks of the memory below.
    segments: Vec<DeviceBlock>,
    /// The live blocks, by address.
    live: BTreeMap<u64, LiveBlock>,
    capture: Option<Arc<CaptureOrder>>,
    /// Memory that streams outside the capture freed which uses it: it is free when that has ended.
    freed_outside: Vec<(u64, u64)>,
    released: u64,
    /// The uses of blocks that outlive their captures, with the numbers of those: a graph that was captured before may
    /// overwrite them.
    outputs: Vec<(u64, Arc<dyn DeclaredUse>)>,
}

#[derive(Clone, Copy)]
struct LiveBlock {
    bytes: u64,
    /// The number of the capture that it was allocated in.
    capture: u64,
}

impl FreePoint for Point {
    fn is_same_stream(self, other: Self) -> bool {
        self.0 == other.0
    }
}

impl GraphMemory {
    /// Makes memory for graphs out of `memory`; it holds nothing yet.
    pub fn new(memory: Arc<dyn DeviceMemoryResource>) -> Result<Self> {
        let own = memory.context().take_stream(0)?;
        let (owner, state, launches) = (OwnerId::unique(), Mutex::default(), Launches::default());
        Ok(Self { shared: Arc::new(Shared { below: memory, owner, own, state, launches }) })
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
    fn capture_with(&self, stream: Stream) -> Result<Arc<CaptureOrder>> {
        let (context, capture) = (self.context(), self.shared.state().capture.clone());
        let capture = capture.ok_or_else(|| self.not_captured(stream))?;
        if capture.contains(stream) {
            return Ok(capture);
        }
        let held = context.hold(stream)?;
        // SAFETY: the stream is live while it is held.
        let capturing = unsafe { context.driver().stream_is_capturing(context.device(), held.raw()) };
        match capturing.map_err(|error| context.failed(error))? {
            true if context.capture_of(stream).is_none() => context.enter_capture(&capture, stream)?,
            _ => return Err(self.not_captured(stream)),
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
        let rounded = bytes.checked_next_multiple_of(SEGMENT).ok_or(Error::InvalidSize { requested: bytes })?;
        let segment = match below.allocate(rounded, align.max(MIN_ALIGN), own, tag!("graph memory")) {
            Err(error) if error.is_capacity() && rounded > bytes => {
                below.allocate(bytes, align.max(MIN_ALIGN), own, tag!("graph memory"))?
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

    /// Frees a block in the order of the capture that it was allocated in.
    fn free_captured(&self, capture: &CaptureOrder, block: &DeviceBlock, stream: Stream) -> Result<()> {
        let context = self.context();
        let (held, home) = (context.hold(stream)?, context.hold(block.stream())?);
        // SAFETY: the range is this memory's, which takes it back; the streams are held.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw(), home: home.raw() }) };
        let points = capture.free_point(stream, block.stream());
        let (at, bytes) = (block.ptr().0, block.granted().get());
        let mut state = self.shared.state();
        state.forget(at, bytes);
        state.arena.put(at..at + bytes, points);
        Ok(())
    }

    /// Frees a block in the order of a stream that is not captured: whatever is launched next comes after that.
    fn free_outside(&self, block: &DeviceBlock, stream: Stream, is_captured: bool) -> Result<()> {
        let (context, own) = (self.context(), self.shared.own);
        let held = context.hold_for_memory(stream)?;
        context.order(stream, own)?;
        self.shared.launches.has_news();
        // SAFETY: the range is this memory's, which takes it back; the stream is held.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw(), home: held.raw() }) };
        let (at, bytes) = (block.ptr().0, block.granted().get());
        let mut state = self.shared.state();
        state.forget(at, bytes);
        if is_captured {
            state.freed_outside.push((at, bytes));
        } else {
            state.arena.put(at..at + bytes, Vec::new());
        }
        Ok(())
    }

    fn free(&self, block: &DeviceBlock, stream: Stream) -> Result<()> {
        let live = self.shared.state().live.get(&block.ptr().0).copied();
        let live = match live {
            Some(live) if block.owner() == self.shared.owner => live,
            _ => return Err(Error::ForeignBlock { device: self.context().device(), ptr: block.ptr() }),
        };
        let current = self.shared.state().capture.clone().filter(|capture| capture.number() == live.capture);
        match current {
            Some(capture) if self.capture_with(stream).is_ok() => self.free_captured(&capture, block, stream),
            current => self.free_outside(block, stream, current.is_some()),
        }
    }
}

impl State {
    fn forget(&mut self, at: u64, bytes: u64) {
        self.live.remove(&at);
        self.released = self.released.wrapping_add(bytes);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        self.below.context()
    }

    pub(super) const fn own(&self) -> Stream {
        self.own
    }

    /// Sends a note in the order of the memory's own stream.
    fn note_on_own(&self, note: impl FnOnce(RawStream) -> Note) {
        if let Ok(held) = self.context().hold(self.own) {
            // SAFETY: the range is a segment of this memory, and the stream is held.
            unsafe { self.context().note(note(held.raw())) };
        }
    }

    /// Remembers the uses of blocks of this memory that outlive the capture with this number.
    pub(super) fn keep_outputs<'a>(&self, capture: u64, uses: impl Iterator<Item = &'a Arc<dyn DeclaredUse>>) {
        let outputs: Vec<_> = uses.filter(|uses| self.is_of(&***uses) && uses.check_tracked().is_ok()).collect();
        let mut state = self.state();
        state.outputs.retain(|(_, uses)| uses.check_tracked().is_ok());
        state.outputs.extend(outputs.into_iter().map(|uses| (capture, uses.clone())));
    }

    /// Returns the uses of blocks that outlive captures after the one with this number.
    pub(super) fn outputs_after(&self, capture: u64) -> Vec<Arc<dyn DeclaredUse>> {
        let state = self.state();
        let later = state.outputs.iter().filter(|(of, uses)| *of > capture && uses.check_tracked().is_ok());
        later.map(|(_, uses)| uses.clone()).collect()
    }

    /// Returns whether uses are of a block of this memory. The address does not tell: a segment may lie where another block
    /// was before.
    pub(super) fn is_of(&self, uses: &dyn DeclaredUse) -> bool {
        uses.owner() == self.owner
    }
}

impl Drop for Shared {
    /// Gives the segments back that no block is in, after everything that was launched.
    fn drop(&mut self) {
        let is_over = self.launches.end(self.context(), self.own);
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        for segment in state.segments {
            let range = segment.ptr().0..segment.ptr().0 + segment.requested().get();
            if !is_over || state.live.range(range).next().is_some() {
                // A block of it is still out, or work of a graph may still use it: dropping the token keeps it held.
                continue;
            }
            self.note_on_own(|stream| Note::Rejoined { ptr: segment.ptr(), stream });
            if let Err(Refused { error: Error::Driver(error), .. }) = self.below.deallocate(segment, self.own) {
                self.context().fault().record(error);
            }
        }
        // The stream goes back to the context, which made it; a failure would mean that it did not.
        let _ = self.context().return_stream(self.own, 0);
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
        let rounded = bytes.checked_next_multiple_of(MIN_ALIGN).filter(|rounded| {
            // A segment has room for it and is a multiple of its own length.
            bytes > 0 && rounded.checked_add(MAX_ALIGN + SEGMENT).is_some()
        });
        rounded.map(Bytes).ok_or(Error::InvalidSize { requested: bytes })
    }

    /// Allocates on a stream that is being captured into a graph of this memory. Others are refused.
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.granted_size(bytes, align)?.get();
        self.context().fault().check()?;
        let capture = self.capture_with(stream)?;
        let align = align.max(MIN_ALIGN);
        let take = || {
            capture.with_clock(stream, |comes_after| {
                let mut state = self.shared.state();
                let at = state.arena.take(granted, align, comes_after)?;
                state.live.insert(at, LiveBlock { bytes: granted, capture: capture.number() });
                Some(at)
            })
        };
        let at = loop {
            match take() {
                Some(at) => break at,
                // Another thread may be faster, and then there is one more turn.
                None => self.grow(granted, align)?,
            }
        };
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
        match self.free(&block, stream) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { block, error }),
        }
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
