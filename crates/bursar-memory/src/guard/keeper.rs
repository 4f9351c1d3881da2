//! Who watches the blocks of one device: what is asked of the memory below, when blocks are filled and looked at, and when
//! they go back.

use super::findings::Findings;
use super::live::{Live, Once, Watched};
use super::quarantine::{Kept, Quarantine};
use super::{CANARY, FREED, FRESH, MARGIN, Watch};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Inspector, MIN_ALIGN, Member, OwnerId,
    RawStream, Refused, Result, Standing, Stream,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reap that emptied the quarantine gives it to be looked at: that long, and as long again for every MiB.
const SETTLE: Duration = Duration::from_millis(2);

/// What is asked of the memory below for one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) front: u64,
    bytes: u64,
    pub(super) whole: u64,
}

impl Shape {
    pub(super) fn of(bytes: u64, align: u64) -> Result<Self> {
        bursar_core::grant(bytes, align)?;
        let front = align.max(MIN_ALIGN);
        let whole = bytes.checked_add(front + MARGIN).ok_or(Error::InvalidSize { requested: bytes })?;
        Ok(Self { front, bytes, whole })
    }

    /// The size that was refused is the one that was asked for here.
    pub(super) fn named(self, error: Error) -> Error {
        match error {
            Error::InvalidSize { .. } => Error::InvalidSize { requested: self.bytes },
            other => other,
        }
    }
}

pub(super) struct Keeper<R: DeviceMemoryResource> {
    inspector: Inspector,
    pub(super) inner: R,
    pub(super) owner: OwnerId,
    pub(super) live: Live,
    pub(super) quarantine: Quarantine,
    patience: Duration,
    pub(super) findings: Arc<Findings>,
}

impl<R: DeviceMemoryResource> Keeper<R> {
    pub(super) fn new(inner: R, quarantine: Bytes, patience: Duration) -> Self {
        Self {
            inspector: Inspector::new(inner.context().clone()),
            inner,
            owner: OwnerId::unique(),
            live: Live::default(),
            quarantine: Quarantine::new(quarantine.get()),
            patience,
            findings: Arc::default(),
        }
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        self.inner.context()
    }

    pub(super) fn obtain(&self, shape: Shape, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let ask = || self.inner.allocate(shape.whole, align, stream, tag).map_err(|error| shape.named(error));
        match ask() {
            Err(error) if error.is_capacity() && self.drain() > 0 => {
                self.inner.reap_blocking(self.patience)?;
                ask()
            }
            obtained => obtained,
        }
    }

    /// Fills the margins and the block; what cannot be filled goes back.
    pub(super) fn paint(&self, mut whole: DeviceBlock, shape: Shape, stream: Stream) -> Result<DeviceBlock> {
        let context = self.context();
        let Shape { front, bytes, .. } = shape;
        let margins = context.submit_fill(&mut whole, front - MARGIN, CANARY, MARGIN + bytes + MARGIN, stream);
        let painted = margins.and_then(|()| context.submit_fill(&mut whole, front, FRESH, bytes, stream));
        match painted {
            Ok(()) => Ok(whole),
            Err(error) => {
                self.give_back(Kept {
                    ptr: whole.ptr(),
                    generation: whole.generation(),
                    whole,
                    stream,
                    filled: None,
                    reported: Once::default(),
                });
                Err(error)
            }
        }
    }

    /// Orders a free on another stream after the block's own.
    pub(super) fn ordered(&self, block: &DeviceBlock, stream: Stream) -> Result<()> {
        self.context().check_stream(stream)?;
        let home = self.context().lasting(block.stream())?;
        if home == stream { Ok(()) } else { self.context().order(home, stream) }
    }

    /// Looks at the margins of a block that its user frees, and fills all of it. Neither happens where it could not be
    /// ordered.
    pub(super) fn retire(&self, watched: Watched, block: DeviceBlock, stream: Stream, ordered: bool) -> Kept {
        let (ptr, generation, bytes) = (block.ptr(), block.generation(), block.requested().get());
        let looked = ordered.then(|| self.look_at_margins(&watched, stream));
        let mut whole = watched.fenced.open(block);
        let start = ptr.0 - whole.ptr().0 - MARGIN;
        let len = MARGIN + bytes + MARGIN;
        let filled = looked.and_then(|looked| {
            let filled = looked.and_then(|()| self.context().submit_fill(&mut whole, start, FREED, len, stream));
            filled.map(|()| start..start + len).map_err(|error| self.remember(error)).ok()
        });
        Kept { whole, stream, filled, ptr, generation, reported: Once::default() }
    }

    /// What went wrong with a look is reported by the device's next fallible call.
    fn remember(&self, error: Error) {
        if let Error::Driver(error) = error {
            self.context().fault().record(error);
        }
    }

    fn look_at_margins(&self, watched: &Watched, stream: Stream) -> Result<()> {
        let (fenced, reported, findings) = (&watched.fenced, watched.reported.clone(), self.findings.clone());
        let (ptr, generation, tag) = (fenced.ptr(), fenced.generation(), fenced.tag());
        self.inspector.inspect_margins(fenced, MARGIN, CANARY, stream, move |damage| {
            if let Some(offset) = damage
                && reported.first()
            {
                findings.add(Error::OutOfBounds { ptr, generation, tag, offset });
            }
        })
    }

    fn look_at_all(&self, kept: &Kept, stream: Stream) -> Result<()> {
        let Some(filled) = kept.filled.clone() else { return Ok(()) };
        let (reported, findings) = (kept.reported.clone(), self.findings.clone());
        let (ptr, generation, tag) = (kept.ptr, kept.generation, kept.whole.tag());
        self.inspector.inspect(&kept.whole, filled, FREED, stream, move |damage| {
            if damage.is_some() && reported.first() {
                findings.add(Error::UseAfterFree { ptr, generation, tag });
            }
        })
    }

    /// Looks at a block for the last time and frees it. One that the memory below does not take stays.
    pub(super) fn give_back(&self, mut kept: Kept) {
        kept.stream = self.context().lasting(kept.stream).unwrap_or(kept.stream);
        match self.look_at_all(&kept, kept.stream) {
            Ok(()) => kept.filled = None,
            Err(error) => self.remember(error),
        }
        let Kept { mut whole, mut stream, filled, ptr, generation, reported } = kept;
        while let Err(Refused { block, .. }) = self.inner.deallocate(whole, stream) {
            whole = block;
            match self.context().lasting(stream) {
                // There is an order by now.
                Ok(heir) if heir != stream => stream = heir,
                _ => return self.quarantine.keep_stuck(Kept { whole, stream, filled, ptr, generation, reported }),
            }
        }
    }

    /// Empties the quarantine; answers how much was in it.
    pub(super) fn drain(&self) -> u64 {
        let kept = self.quarantine.take_all();
        let bytes = kept.iter().map(|kept| kept.whole.granted().get()).sum();
        kept.into_iter().for_each(|kept| self.give_back(kept));
        bytes
    }

    /// Empties the quarantine and finds out what is free, giving what was drained a moment to be looked at.
    pub(super) fn drain_and_reap(&self) -> Result<Bytes> {
        let (start, before) = (Instant::now(), self.inner.released_total());
        let drained = self.drain();
        let moment = SETTLE * u32::try_from(1 + (drained >> 20)).unwrap_or(u32::MAX);
        let released = || self.inner.released_total().wrapping_sub(before);
        self.inner.reap()?;
        while released() < drained && start.elapsed() < moment {
            std::thread::yield_now();
            self.inner.reap()?;
        }
        Ok(Bytes(released()))
    }
}

impl<R: DeviceMemoryResource> Watch for Keeper<R> {
    fn look(&self) -> Result<()> {
        let mut streams = BTreeSet::new();
        let live = self.live.look(|watched| {
            let stream = self.context().lasting(watched.fenced.stream())?;
            streams.insert(stream);
            self.look_at_margins(watched, stream)
        });
        let kept = self.quarantine.take_all();
        let quarantined = kept.iter().try_for_each(|kept| {
            let stream = self.context().lasting(kept.stream)?;
            streams.insert(stream);
            self.look_at_all(kept, stream)
        });
        self.quarantine.put_back(kept);
        let looked = live.and(quarantined);
        let waited = streams.into_iter().try_for_each(|stream| self.context().synchronize(stream));
        self.findings.tell(self.context());
        looked.and(waited)
    }
}

impl<R: DeviceMemoryResource> Member for Keeper<R> {
    fn trim(&self) -> Bytes {
        self.drain_and_reap().unwrap_or_else(|error| {
            self.remember(error);
            Bytes::ZERO
        })
    }

    /// What is in quarantine; the rest is the memory's below.
    fn standing(&self) -> Standing {
        Standing { pending: Bytes(self.quarantine.bytes()), ..Standing::default() }
    }

    fn stream_ends(&self, _: Stream, _: RawStream) {}
}

impl<R: DeviceMemoryResource> Drop for Keeper<R> {
    fn drop(&mut self) {
        self.context().order_ended(Duration::MAX);
        let kept = self.quarantine.take_all();
        let streams: BTreeSet<_> = kept.iter().filter_map(|kept| self.context().lasting(kept.stream).ok()).collect();
        kept.into_iter().for_each(|kept| self.give_back(kept));
        for stream in streams {
            if let Err(error) = self.context().synchronize(stream) {
                self.remember(error);
            }
        }
        self.findings.tell(self.context());
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Keeper<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("quarantined", &self.quarantine.bytes()).finish_non_exhaustive()
    }
}
