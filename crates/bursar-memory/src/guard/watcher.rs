//! The guard of one device: what it asks of the memory below, when it fills and inspects blocks, and when they go back.

use super::findings::Findings;
use super::given_up::GivenUp;
use super::live_blocks::{LiveBlock, LiveBlocks, ReportOnce};
use super::quarantine::{FreedBlock, Quarantine, SleepingBlock};
use super::{CANARY, FREED, FRESH, Inspect, MARGIN};
use bursar_core::{
    Advice, AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Inspector, MIN_ALIGN,
    Member, MemoryUsage, OwnerId, RawStream, Refused, Result, Stream,
};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time that a reap which emptied the quarantine gives it to be inspected: this long, and as long again for every
/// MiB.
const SETTLE: Duration = Duration::from_millis(2);

/// The size of one block with its margins, as it is asked of the memory below.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaddedSize {
    /// The offset of the user's block.
    pub(super) front: u64,
    /// The bytes that the user asked for.
    bytes: u64,
    /// The bytes with both margins.
    pub(super) whole: u64,
}

impl PaddedSize {
    pub(super) fn of(bytes: u64, align: u64) -> Result<Self> {
        bursar_core::grant(bytes, align)?;
        let front = align.max(MIN_ALIGN);
        let whole = bytes.checked_add(front + MARGIN).ok_or(Error::InvalidSize { requested: bytes })?;
        Ok(Self { front, bytes, whole })
    }

    /// Puts the size that the user asked for in the place of the padded one that was refused.
    pub(super) fn name_requested(self, error: Error) -> Error {
        match error {
            Error::InvalidSize { .. } => Error::InvalidSize { requested: self.bytes },
            other => other,
        }
    }
}

/// The guard of one device.
pub(super) struct Watcher<R: DeviceMemoryResource> {
    inspector: Inspector,
    pub(super) inner: R,
    pub(super) owner: OwnerId,
    pub(super) live: LiveBlocks,
    pub(super) quarantine: Quarantine,
    patience: Duration,
    pub(super) findings: Arc<Findings>,
    given_up: Arc<GivenUp>,
}

impl<R: DeviceMemoryResource> Watcher<R> {
    pub(super) fn new(inner: R, quarantine: Bytes, patience: Duration) -> Self {
        Self {
            inspector: Inspector::new(inner.context().clone()),
            inner,
            owner: OwnerId::unique(),
            live: LiveBlocks::default(),
            quarantine: Quarantine::new(quarantine.get()),
            patience,
            findings: Arc::default(),
            given_up: Arc::default(),
        }
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        self.inner.context()
    }

    /// Allocates a padded block, giving up the quarantine where there is no memory for it.
    pub(super) fn allocate(&self, size: PaddedSize, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let attempt =
            || self.inner.allocate(size.whole, align, stream, tag).map_err(|error| size.name_requested(error));
        // The memory below may have the quarantine given up as well, and find too late what came back.
        let is_kept = self.quarantine.bytes() > 0;
        let decided = match attempt() {
            Err(error) if error.is_capacity() && (self.drain() > 0 || is_kept) => {
                self.inner.reap_blocking(self.patience)?;
                attempt()
            }
            decided => decided,
        };
        decided.map_err(must_wait)
    }

    /// Fills the margins and the block; one that cannot be filled goes back.
    pub(super) fn fill_fresh(&self, mut whole: DeviceBlock, size: PaddedSize, stream: Stream) -> Result<DeviceBlock> {
        let (context, version) = (self.context(), self.given_up.version());
        let PaddedSize { front, bytes, .. } = size;
        let margins = context.submit_fill(&mut whole, front - MARGIN, CANARY, MARGIN + bytes + MARGIN, stream);
        let filled = margins.and_then(|()| context.submit_fill(&mut whole, front, FRESH, bytes, stream));
        match filled {
            Ok(()) => {
                let start = whole.ptr().offset(front - MARGIN);
                self.given_up.remove_filled(start, MARGIN + bytes + MARGIN, version);
                Ok(whole)
            }
            Err(error) => {
                self.give_back(FreedBlock {
                    ptr: whole.ptr(),
                    generation: whole.generation(),
                    whole,
                    stream,
                    filled: None,
                    reported: ReportOnce::default(),
                });
                Err(error)
            }
        }
    }

    /// Orders a free on another stream after the block's own.
    pub(super) fn ordered(&self, block: &DeviceBlock, stream: Stream) -> Result<()> {
        self.context().check_stream(stream)?;
        self.context().order_after(block.stream(), stream)
    }

    /// Inspects the margins of a block that its user frees, and fills all of it, which then goes into quarantine. Neither
    /// happens where it could not be ordered; one that sleeps waits until it is awake.
    pub(super) fn retire(&self, live: LiveBlock, block: DeviceBlock, stream: Stream, ordered: bool) {
        let (ptr, generation, bytes) = (block.ptr(), block.generation(), block.requested().get());
        let inspected = ordered.then(|| self.inspect_margins(&live, stream));
        let (reported, whole) = (live.reported, live.fenced.open(block));
        let freed = FreedBlock { whole, stream, filled: None, ptr, generation, reported: ReportOnce::default() };
        let mut freed = SleepingBlock { freed, bytes, reported };
        match inspected.map(|inspected| inspected.and_then(|()| self.fill_freed(&mut freed))) {
            Some(Err(Error::Asleep { .. })) => return self.quarantine.keep_asleep(freed),
            Some(Err(error)) => self.record_fault(error),
            Some(Ok(())) | None => {}
        }
        self.keep(freed.freed);
    }

    /// Does for blocks that were freed asleep, and are awake, what was to be done then.
    pub(super) fn retire_awake(&self) {
        let awake = self.quarantine.take_awake(|freed| self.context().check_awake(freed.freed.ptr).is_ok());
        for mut freed in awake {
            freed.freed.stream = self.context().lasting(freed.freed.stream).unwrap_or(freed.freed.stream);
            match self.inspect_freed_margins(&freed).and_then(|()| self.fill_freed(&mut freed)) {
                Err(Error::Asleep { .. }) => {
                    self.quarantine.keep_asleep(freed);
                    continue;
                }
                Err(error) => self.record_fault(error),
                Ok(()) => {}
            }
            self.keep(freed.freed);
        }
    }

    /// Fills all of a block that was freed, margins included.
    fn fill_freed(&self, SleepingBlock { freed, bytes, .. }: &mut SleepingBlock) -> Result<()> {
        let start = freed.ptr.0 - freed.whole.ptr().0 - MARGIN;
        let (len, version) = (MARGIN + *bytes + MARGIN, self.given_up.version());
        self.context().submit_fill(&mut freed.whole, start, FREED, len, freed.stream)?;
        self.given_up.remove_filled(freed.whole.ptr().offset(start), len, version);
        freed.filled = Some(start..start + len);
        Ok(())
    }

    /// Keeps a block in quarantine, from which others leave where there is no room.
    fn keep(&self, freed: FreedBlock) {
        if let Some(freed) = self.quarantine.keep(freed) {
            // Nobody has had time to write to it.
            self.give_back(FreedBlock { filled: None, ..freed });
        }
        while let Some(freed) = self.quarantine.pop_excess() {
            self.give_back(freed);
        }
    }

    /// Has the device's next fallible call report what went wrong with an inspection.
    fn record_fault(&self, error: Error) {
        if let Error::Driver(error) = error {
            self.context().fault().record(error);
        }
    }

    /// Writes the margins of a block anew whose contents were given up; returns whether they were.
    fn renew_margins(&self, live: &mut LiveBlock, stream: Stream) -> Result<bool> {
        let (fenced, version) = (&mut live.fenced, self.given_up.version());
        let (ptr, bytes) = (fenced.ptr(), fenced.requested().get());
        if !self.has_lost_margins(ptr, bytes) {
            return Ok(false);
        }
        self.context().submit_fill_margins(fenced, MARGIN, CANARY, stream)?;
        for margin in margins(ptr, bytes) {
            self.given_up.remove_filled(margin, MARGIN, version);
        }
        Ok(true)
    }

    /// Returns whether the contents of a margin were given up.
    fn has_lost_margins(&self, ptr: DevicePtr, bytes: u64) -> bool {
        margins(ptr, bytes).into_iter().any(|margin| self.given_up.has_any(margin, MARGIN))
    }

    fn inspect_margins(&self, live: &LiveBlock, stream: Stream) -> Result<()> {
        let (fenced, reported, findings) = (&live.fenced, live.reported.clone(), self.findings.clone());
        let (ptr, generation, tag) = (fenced.ptr(), fenced.generation(), fenced.tag());
        let (given_up, version) = (self.given_up.clone(), self.given_up.version());
        if self.has_lost_margins(ptr, fenced.requested().get()) {
            return self.context().check_awake(ptr);
        }
        self.inspector.inspect_margins(fenced, MARGIN, CANARY, stream, move |damage| {
            if let Some(offset) = damage
                && given_up.version() == version
                && reported.set_first()
            {
                findings.add(Error::OutOfBounds { ptr, generation, tag, offset });
            }
        })
    }

    fn inspect_freed_margins(&self, SleepingBlock { freed, bytes, reported }: &SleepingBlock) -> Result<()> {
        let (ptr, generation, tag) = (freed.ptr, freed.generation, freed.whole.tag());
        let front = ptr.0 - freed.whole.ptr().0;
        let version = self.given_up.version();
        if self.has_lost_margins(ptr, *bytes) {
            return self.context().check_awake(ptr);
        }
        for margin in [front - MARGIN..front, front + bytes..front + bytes + MARGIN] {
            let (reported, findings, given_up) = (reported.clone(), self.findings.clone(), self.given_up.clone());
            self.inspector.inspect(&freed.whole, margin, CANARY, freed.stream, move |damage| {
                if let Some(at) = damage
                    && given_up.version() == version
                    && reported.set_first()
                {
                    let offset = at.cast_signed() - front.cast_signed();
                    findings.add(Error::OutOfBounds { ptr, generation, tag, offset });
                }
            })?;
        }
        Ok(())
    }

    fn inspect_freed(&self, freed: &FreedBlock, stream: Stream) -> Result<()> {
        let Some(filled) = freed.filled.clone() else { return Ok(()) };
        let (reported, findings) = (freed.reported.clone(), self.findings.clone());
        let (ptr, generation, tag) = (freed.ptr, freed.generation, freed.whole.tag());
        let (given_up, version) = (self.given_up.clone(), self.given_up.version());
        if given_up.has_any(freed.whole.ptr().offset(filled.start), filled.end - filled.start) {
            return self.context().check_awake(ptr);
        }
        self.inspector.inspect(&freed.whole, filled, FREED, stream, move |damage| {
            if damage.is_some() && given_up.version() == version && reported.set_first() {
                findings.add(Error::UseAfterFree { ptr, generation, tag });
            }
        })
    }

    /// Inspects a block for the last time and frees it; returns how much that was. One that sleeps stays, and one that the
    /// memory below does not take.
    pub(super) fn give_back(&self, mut freed: FreedBlock) -> u64 {
        freed.stream = self.context().lasting(freed.stream).unwrap_or(freed.stream);
        match self.inspect_freed(&freed, freed.stream) {
            Ok(()) => freed.filled = None,
            Err(Error::Asleep { .. }) => {
                self.quarantine.keep_stuck(freed);
                return 0;
            }
            Err(error) => self.record_fault(error),
        }
        self.free_whole(freed)
    }

    /// Frees a block that nobody looks at any more; returns how much that was. One that the memory below does not take stays.
    fn free_whole(&self, freed: FreedBlock) -> u64 {
        let bytes = freed.whole.granted().get();
        let FreedBlock { mut whole, mut stream, filled, ptr, generation, reported } = freed;
        while let Err(Refused { block, .. }) = self.inner.deallocate(whole, stream) {
            whole = block;
            match self.context().lasting(stream) {
                // There is an order by now.
                Ok(heir) if heir != stream => stream = heir,
                _ => {
                    self.quarantine.keep_stuck(FreedBlock { whole, stream, filled, ptr, generation, reported });
                    return 0;
                }
            }
        }
        bytes
    }

    /// Empties the quarantine and returns how much was in it; what sleeps stays.
    pub(super) fn drain(&self) -> u64 {
        self.retire_awake();
        self.quarantine.take_all().into_iter().map(|freed| self.give_back(freed)).sum()
    }

    /// Empties the quarantine and finds out what is free, giving what was drained a moment to be inspected.
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

/// Returns where the margins of a block begin.
fn margins(ptr: DevicePtr, bytes: u64) -> [DevicePtr; 2] {
    [DevicePtr(ptr.0 - MARGIN), ptr.offset(bytes)]
}

/// Completes the advice of the memory below: what is freed here goes there later.
#[cold]
fn must_wait(mut refused: Error) -> Error {
    if let Some(Advice::Free { must_wait, .. }) = refused.shortage_mut().map(|shortage| &mut shortage.advice) {
        *must_wait = true;
    }
    refused
}

/// Passes over what sleeps, which is looked at when it is awake.
fn unless_asleep(inspected: Result<()>) -> Result<()> {
    match inspected {
        Err(Error::Asleep { .. }) => Ok(()),
        inspected => inspected,
    }
}

impl<R: DeviceMemoryResource> Inspect for Watcher<R> {
    fn inspect_all(&self) -> Result<()> {
        self.retire_awake();
        let mut streams = BTreeSet::new();
        let live = self.live.try_for_each(|live| {
            let stream = self.context().lasting(live.fenced.stream())?;
            streams.insert(stream);
            unless_asleep(match self.renew_margins(live, stream) {
                Ok(false) => self.inspect_margins(live, stream),
                renewed => renewed.map(drop),
            })
        });
        let freed = self.quarantine.take_all();
        let quarantined = freed.iter().try_for_each(|freed| {
            let stream = self.context().lasting(freed.stream)?;
            streams.insert(stream);
            unless_asleep(self.inspect_freed(freed, stream))
        });
        self.quarantine.put_back(freed);
        let inspected = live.and(quarantined);
        let waited = streams.into_iter().try_for_each(|stream| self.context().synchronize(stream));
        self.findings.emit(self.context());
        inspected.and(waited)
    }
}

impl<R: DeviceMemoryResource> Member for Watcher<R> {
    fn trim(&self) -> Bytes {
        self.drain_and_reap().unwrap_or_else(|error| {
            self.record_fault(error);
            Bytes::ZERO
        })
    }

    /// Returns what is in quarantine; the memory below tells the rest.
    fn usage(&self) -> MemoryUsage {
        MemoryUsage { pending: Bytes(self.quarantine.bytes()), ..MemoryUsage::default() }
    }

    /// Returns nothing: what is kept in quarantine is not spare.
    fn spare(&self) -> Bytes {
        Bytes::ZERO
    }

    fn stream_ends(&self, _: Stream, _: RawStream) {}

    fn contents_given_up(&self, ranges: &[Range<DevicePtr>]) {
        self.given_up.add(ranges);
    }
}

impl<R: DeviceMemoryResource> Drop for Watcher<R> {
    fn drop(&mut self) {
        self.context().order_ended(Duration::MAX);
        self.retire_awake();
        let freed = self.quarantine.take_all();
        let streams: BTreeSet<_> = freed.iter().filter_map(|freed| self.context().lasting(freed.stream).ok()).collect();
        freed.into_iter().for_each(|freed| _ = self.give_back(freed));
        // What sleeps now is not looked at any more.
        let asleep = self.quarantine.take_awake(|_| true).into_iter().map(|asleep| asleep.freed);
        for freed in asleep.chain(self.quarantine.take_all()) {
            let stream = self.context().lasting(freed.stream).unwrap_or(freed.stream);
            self.free_whole(FreedBlock { stream, ..freed });
        }
        for stream in streams {
            if let Err(error) = self.context().synchronize(stream) {
                self.record_fault(error);
            }
        }
        self.findings.emit(self.context());
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Watcher<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("quarantined", &self.quarantine.bytes()).finish_non_exhaustive()
    }
}
