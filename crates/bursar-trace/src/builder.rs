//! Building a trace: rows in, matched events out.

use crate::live::{Live, LiveBlocks};
use crate::numbering::Numbering;
use crate::{Event, EventKind, Format, Limit, Place, Trace, Unmatched};
use bursar_core::AllocTag;

/// Where something happened: its place in the file, and the recording's own names of thread, stream and device.
///
/// ```
/// use bursar_trace::{Place, Site};
///
/// let site = Site { place: Place(2), thread: 1, ..Site::default() };
/// assert_eq!((site.stream, site.device), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The line or record.
    pub place: Place,
    /// The thread, as the recording names it.
    pub thread: u64,
    /// The stream, as the recording names it; 0 is the default stream.
    pub stream: u64,
    /// The device's ordinal.
    pub device: u64,
}

/// Puts a trace together, row by row: frees find their allocations, threads and streams become small numbers.
///
/// A request for no bytes got no memory: neither it nor its free is an event.
///
/// ```
/// use bursar_core::{AllocTag, Bytes};
/// use bursar_trace::{Format, Place, Site, TraceBuilder};
///
/// let mut builder = TraceBuilder::new("run.csv", Format::Csv);
/// let at = |line| Site { place: Place(line), ..Site::default() };
/// builder.allocate(at(2), 0x1000, 512, AllocTag::UNTAGGED)?;
/// builder.free(at(3), 0x1000, 512)?;
/// builder.free(at(4), 0x2000, 256)?;
/// let trace = builder.finish();
/// assert_eq!((trace.events.len(), trace.peak_live()), (2, Bytes(512)));
/// assert_eq!(trace.unknown_frees[0].place, Place(4));
/// # Ok::<(), bursar_trace::Limit>(())
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
    /// An empty trace, to be called `name`.
    pub fn new(name: impl Into<String>, format: Format) -> Self {
        Self {
            trace: Trace { name: name.into(), format, ..Trace::default() },
            threads: Numbering::default(),
            streams: Numbering::starting_with(0),
            live: LiveBlocks::default(),
            live_bytes: 0,
        }
    }

    /// `bytes` were allocated at `pointer`. Where a block is live there already, its free is missing.
    pub fn allocate(&mut self, site: Site, pointer: u64, bytes: u64, tag: AllocTag) -> Result<(), Limit> {
        let mut live = Live { bytes, place: site.place, block: Event::NO_BLOCK, tag };
        let device = device(site)?;
        if bytes > 0 {
            if bytes > Trace::MAX_BLOCK_BYTES {
                return Err(Limit::BlockBytes { bytes });
            }
            self.live_bytes = self.live_bytes.checked_add(bytes).ok_or(Limit::LiveBytes)?;
            live.block = self.trace.blocks;
            if live.block == Event::NO_BLOCK {
                return Err(Limit::Blocks);
            }
            self.trace.blocks += 1;
            self.push(EventKind::Allocate, site, live)?;
        } else if pointer == 0 {
            return Ok(());
        }
        if let Some(lost) = self.live.insert(device, pointer, live) {
            self.miss(pointer, lost);
        }
        Ok(())
    }

    /// What is at `pointer` was freed; `bytes` is what the row says of its size, and only told where there is no
    /// allocation to say it.
    pub fn free(&mut self, site: Site, pointer: u64, bytes: u64) -> Result<(), Limit> {
        match self.live.remove(device(site)?, pointer) {
            Some(live) if live.block == Event::NO_BLOCK => Ok(()),
            Some(live) => {
                self.live_bytes -= live.bytes;
                self.push(EventKind::Free, site, live)
            }
            None if pointer == 0 => Ok(()),
            None => {
                self.trace.unknown_frees.push(Unmatched { place: site.place, pointer, bytes });
                Ok(())
            }
        }
    }

    /// A request for `bytes` was not granted.
    pub fn fail(&mut self, site: Site, bytes: u64, tag: AllocTag) -> Result<(), Limit> {
        self.push(EventKind::Fail, site, Live { bytes, place: site.place, block: Event::NO_BLOCK, tag })
    }

    /// How much was put in and not yet taken out: events, and frees of nothing.
    pub(crate) fn waiting(&self) -> usize {
        self.trace.events.len() + self.trace.unknown_frees.len()
    }

    /// What was put in so far, with no names yet, to be looked at and taken out: only live blocks are needed to go on.
    pub(crate) fn so_far(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// The trace, with what was never freed in the order it was allocated.
    pub fn finish(mut self) -> Trace {
        for (pointer, live) in std::mem::take(&mut self.live) {
            self.miss(pointer, live);
        }
        self.trace.missing_frees.sort_unstable_by_key(|missing| (missing.place, missing.pointer));
        self.trace.threads = self.threads.into_names();
        self.trace.streams = self.streams.into_names();
        self.trace
    }

    fn push(&mut self, kind: EventKind, site: Site, live: Live) -> Result<(), Limit> {
        let event = Event {
            bytes: live.bytes,
            block: live.block,
            tag: live.tag,
            thread: self.threads.number(site.thread).ok_or(Limit::Threads)?,
            stream: self.streams.number(site.stream).ok_or(Limit::Streams)?,
            kind,
            device: device(site)?,
        };
        self.trace.events.push(event);
        Ok(())
    }

    fn miss(&mut self, pointer: u64, live: Live) {
        if live.block != Event::NO_BLOCK {
            self.trace.missing_frees.push(Unmatched { place: live.place, pointer, bytes: live.bytes });
        }
    }
}

fn device(site: Site) -> Result<u8, Limit> {
    u8::try_from(site.device).map_err(|_| Limit::Device { device: site.device })
}
