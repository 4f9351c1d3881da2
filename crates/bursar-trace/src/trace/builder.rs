//! Builds a trace from rows: matches frees to allocations and numbers threads, streams and blocks.

use super::live_blocks::{LiveBlock, LiveBlocks};
use super::numbering::Numbering;
use super::{Event, EventKind, FilePosition, Format, Trace, TraceLimit, UnmatchedEvent};
use bursar_core::AllocTag;

/// The origin of an event: its position in the file, and the recording's identifiers of thread, stream and device.
///
/// ```
/// use bursar::trace::{EventOrigin, FilePosition};
///
/// let origin = EventOrigin { position: FilePosition(2), thread: 1, ..EventOrigin::default() };
/// assert_eq!((origin.stream, origin.device), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOrigin {
    /// The line or record.
    pub position: FilePosition,
    /// The recording's identifier of the thread.
    pub thread: u64,
    /// The recording's identifier of the stream; 0 is the default stream.
    pub stream: u64,
    /// The device's ordinal.
    pub device: u64,
}

/// Builds a trace row by row: matches each free to its allocation, and replaces the identifiers of threads and streams by
/// small numbers.
///
/// A request for zero bytes got no memory: neither it nor its free is an event.
///
/// ```
/// use bursar::Bytes;
/// use bursar::memory::AllocTag;
/// use bursar::trace::{EventOrigin, FilePosition, Format, TraceBuilder};
///
/// let mut builder = TraceBuilder::new("run.csv", Format::Csv);
/// let at = |line| EventOrigin { position: FilePosition(line), ..EventOrigin::default() };
/// builder.allocate(at(2), 0x1000, 512, AllocTag::UNTAGGED)?;
/// builder.free(at(3), 0x1000, 512)?;
/// builder.free(at(4), 0x2000, 256)?;
/// let trace = builder.finish();
/// assert_eq!((trace.events.len(), trace.peak_live()), (2, Bytes(512)));
/// assert_eq!(trace.unknown_frees[0].position, FilePosition(4));
/// # Ok::<(), bursar::trace::TraceLimit>(())
/// ```
#[derive(Debug)]
pub struct TraceBuilder {
    trace: Trace,
    threads: Numbering,
    streams: Numbering,
    live: LiveBlocks,
    live_bytes: u64,
}

impl Default for TraceBuilder {
    fn default() -> Self {
        Self::new("", Format::default())
    }
}

impl TraceBuilder {
    /// Creates a builder of an empty trace called `name`.
    pub fn new(name: impl Into<String>, format: Format) -> Self {
        Self {
            trace: Trace { name: name.into(), format, ..Trace::default() },
            threads: Numbering::default(),
            streams: Numbering::starting_with(0),
            live: LiveBlocks::default(),
            live_bytes: 0,
        }
    }

    /// Adds an allocation of `bytes` at `pointer`. A block that is already live there is recorded as never freed.
    pub fn allocate(&mut self, origin: EventOrigin, pointer: u64, bytes: u64, tag: AllocTag) -> Result<(), TraceLimit> {
        let mut live = LiveBlock { bytes, position: origin.position, block: Event::NO_BLOCK, tag };
        let device = device(origin)?;
        if bytes > 0 {
            if bytes > Trace::MAX_BLOCK_BYTES {
                return Err(TraceLimit::BlockBytes { bytes });
            }
            self.live_bytes = self.live_bytes.checked_add(bytes).ok_or(TraceLimit::LiveBytes)?;
            live.block = self.trace.blocks;
            if live.block == Event::NO_BLOCK {
                return Err(TraceLimit::Blocks);
            }
            self.trace.blocks += 1;
            self.push(EventKind::Allocate, origin, live)?;
        } else if pointer == 0 {
            return Ok(());
        }
        if let Some(lost) = self.live.insert(device, pointer, live) {
            self.add_missing_free(pointer, lost);
        }
        Ok(())
    }

    /// Adds a free of the block at `pointer`. `bytes` is the size that the row gives, which is used only where there is no
    /// matching allocation.
    pub fn free(&mut self, origin: EventOrigin, pointer: u64, bytes: u64) -> Result<(), TraceLimit> {
        match self.live.remove(device(origin)?, pointer) {
            Some(live) if live.block == Event::NO_BLOCK => Ok(()),
            Some(live) => {
                self.live_bytes -= live.bytes;
                self.push(EventKind::Free, origin, live)
            }
            None if pointer == 0 => Ok(()),
            None => {
                self.trace.unknown_frees.push(UnmatchedEvent { position: origin.position, pointer, bytes });
                Ok(())
            }
        }
    }

    /// Adds a request for `bytes` that was not granted.
    pub fn fail(&mut self, origin: EventOrigin, bytes: u64, tag: AllocTag) -> Result<(), TraceLimit> {
        self.push(EventKind::Fail, origin, LiveBlock { bytes, position: origin.position, block: Event::NO_BLOCK, tag })
    }

    /// Returns the number of events and unknown frees that were added and not yet taken out.
    pub(crate) fn pending_events(&self) -> usize {
        self.trace.events.len() + self.trace.unknown_frees.len()
    }

    /// Returns what was added so far, without the identifiers of threads and streams. Its events may be taken out: the
    /// builder goes on with live blocks alone.
    pub(crate) fn partial_trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// Returns the trace, with the blocks that were never freed in the order of their allocation.
    pub fn finish(mut self) -> Trace {
        for (pointer, live) in std::mem::take(&mut self.live) {
            self.add_missing_free(pointer, live);
        }
        self.trace.missing_frees.sort_unstable_by_key(|missing| (missing.position, missing.pointer));
        self.trace.threads = self.threads.into_names();
        self.trace.streams = self.streams.into_names();
        self.trace
    }

    fn push(&mut self, kind: EventKind, origin: EventOrigin, live: LiveBlock) -> Result<(), TraceLimit> {
        let event = Event {
            bytes: live.bytes,
            block: live.block,
            tag: live.tag,
            thread: self.threads.number(origin.thread).ok_or(TraceLimit::Threads)?,
            stream: self.streams.number(origin.stream).ok_or(TraceLimit::Streams)?,
            kind,
            device: device(origin)?,
        };
        self.trace.events.push(event);
        Ok(())
    }

    fn add_missing_free(&mut self, pointer: u64, live: LiveBlock) {
        if live.block != Event::NO_BLOCK {
            self.trace.missing_frees.push(UnmatchedEvent { position: live.position, pointer, bytes: live.bytes });
        }
    }
}

fn device(origin: EventOrigin) -> Result<u8, TraceLimit> {
    u8::try_from(origin.device).map_err(|_| TraceLimit::Device { device: origin.device })
}
