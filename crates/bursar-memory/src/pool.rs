//! The pool: blocks in nanoseconds, out of memory that never falls to pieces.
//!
//! Three floors. [`magazine`]s at the top hold what a thread freed on a stream a moment ago, and give it back with no lock
//! and no driver call. In the [`middle`], behind one short lock, lie the free [`runs`] of every stream's [`lane`] and those
//! that everyone may have. At the bottom is the [`ground`]: one long range of addresses, with frames mapped where they are
//! needed; before it grows, frames that are wholly free are moved. What has to be asked of the driver is planned in the
//! middle and done in [`traffic`], [`growth`] and [`frames`], with no lock held; `hands` makes the calls.

mod estate;
mod frames;
mod giving;
mod ground;
mod growth;
mod hand;
mod hands;
mod lane;
mod layer;
mod magazine;
mod middle;
mod plan;
mod progress;
mod runs;
mod shards;
mod shelf;
mod traffic;

pub use layer::{PagePool, PoolReading};

use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, FrameSource, Held, Holder, LatchGuard,
    MAX_ALIGN, MIN_ALIGN, Member, OwnerId, RawStream, Refused, Result, Standing, Stream,
};
use hand::Number;
use magazine::{Kept, Magazine};
use middle::{Limbo, Middle};
use runs::UNIT;
use shards::Here;
use shelf::Shelf;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a [`PagePool`] makes of a frame source: stream-ordered memory that is reused before more is taken from below.
///
/// A block that was freed may be granted again at once on the stream it was freed on. Another stream gets it when the
/// work before the free is known to have run, or after a wait that is put into that stream; so nothing is ever touched
/// early and nobody waits on the host. To those above, what is freed is released at once: see
/// [`bytes_outstanding`](Holder::bytes_outstanding).
///
/// ```
/// use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf, tag};
/// use bursar_memory::{GlobalDeviceBudget, PagePool};
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::gib(1))).over(leaf::Frames);
/// let memory = stack.build(&context)?;
/// let stream = context.create_stream(0)?;
///
/// let block = memory.allocate(1 << 20, 256, stream, tag!("batch"))?;
/// let address = block.ptr();
/// memory.deallocate(block, stream)?;
/// let again = memory.allocate(1 << 20, 256, stream, tag!("batch"))?;
/// assert_eq!(again.ptr(), address);
/// assert!(memory.inner().held() >= Bytes::mib(1));
/// memory.deallocate(again, stream)?;
/// # Ok::<(), bursar_core::Error>(())
/// ```
pub struct PagePoolResource<F: FrameSource> {
    source: F,
    context: Arc<DeviceContext>,
    owner: OwnerId,
    /// The same, where threads look for it.
    number: Number,
    settings: Settings,
    /// The pool's addresses, in units; empty where the device cannot map.
    addresses: Range<u64>,
    shelf: Arc<Shelf>,
}

/// What a [`PagePool`] was told.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// The one length there is, in units; zero where there are all.
    fixed: u64,
    /// The longest block that a thread keeps for itself, in units.
    longest_kept: u64,
    /// The same, in bytes.
    quick: u64,
    /// How long a request waits for frees that have not run before it fails.
    patience: Duration,
}

/// A request, made ready: the stream it is for is held, or stays.
#[derive(Clone, Copy, Debug)]
struct Want {
    len: u64,
    align: u64,
    place: usize,
}

impl<F: FrameSource> PagePoolResource<F> {
    #[inline(always)]
    fn middle(&self) -> LatchGuard<'_, Middle> {
        self.shelf.middle()
    }

    fn here(&self) -> Here<'_> {
        self.shelf.here()
    }

    /// What it holds of the device.
    pub fn held(&self) -> Bytes {
        Bytes(self.middle().ground.held() * UNIT)
    }

    /// What it holds and nobody uses, whether or not everyone may have it yet.
    pub fn cached(&self) -> Bytes {
        // With the middle in hand, so that nothing moves there from a magazine and is counted twice.
        let middle = self.middle();
        Bytes((middle.free_units() + self.shelf.shards.kept()) * UNIT)
    }

    /// What is cached and not known to be done with by the streams it was freed on.
    pub fn pending(&self) -> Bytes {
        let middle = self.middle();
        Bytes((middle.unsettled() + self.shelf.shards.kept()) * UNIT)
    }

    /// The most that lies free in one piece. More can be granted: frames are moved together where it takes that.
    pub fn largest_free_run(&self) -> Bytes {
        Bytes(self.middle().longest() * UNIT)
    }

    /// What of the cached memory does not lie in the largest free run, between 0 and 1.
    pub fn fragmentation(&self) -> f64 {
        let cached = self.cached().get().max(1) as f64;
        (1.0 - self.largest_free_run().get() as f64 / cached).clamp(0.0, 1.0)
    }

    /// Gives whole free frames back to the driver until no more than `keep` is cached, as far as frames that nobody uses
    /// reach; answers how much went. It waits for nothing: what is pending stays.
    pub fn trim(&self, keep: Bytes) -> Bytes {
        self.drain(None, None);
        if let Err(error) = self.look_everywhere() {
            self.context.fault().record(error);
        }
        self.give_back(keep.get().div_ceil(UNIT))
    }

    /// Makes sure that `bytes` can be granted in one piece on `stream` without asking the driver for memory.
    pub fn prime(&self, bytes: Bytes, stream: Stream) -> Result<()> {
        let block = self.allocate(bytes.get(), MIN_ALIGN, stream, AllocTag::UNTAGGED)?;
        Ok(self.deallocate(block, stream)?)
    }

    fn reading(&self) -> PoolReading {
        let (device, live) = (self.context.device(), self.bytes_outstanding());
        let Standing { held, cached, pending, largest_free_run } = self.shelf.standing();
        PoolReading { device, held, live, cached, pending, largest_free_run: largest_free_run.unwrap_or_default() }
    }

    /// Empties magazines, of one thread or all and for one stream or all; `true` if there was anything.
    fn drain(&self, thread: Option<usize>, place: Option<usize>) -> bool {
        self.shelf.drain(thread, place)
    }

    /// A block that is not in the thread's magazine.
    #[inline(always)]
    fn obtain(&self, want: Want) -> Result<u64> {
        match self.take_free(want) {
            Some(at) => Ok(at),
            None => self.find(want),
        }
    }

    /// What the stream or everyone has free, unless some streams should be asked first.
    #[inline(always)]
    fn take_free(&self, want: Want) -> Option<u64> {
        let mut middle = self.middle();
        if middle.should_look(want.place, want.len) {
            return None;
        }
        middle.gather_alone(want.place);
        middle.take(want.place, want.len, want.align)
    }

    /// Gives back what the thread's magazine has no room for.
    #[cold]
    fn overflow(&self, magazine: &Magazine, place: usize, kept: Kept) {
        if let Some(Kept { at, len }) = magazine.exchange(kept) {
            self.middle().give(place, at, len);
        }
    }

    /// Grants what the thread's magazine does not have, for a stream that it has at hand.
    #[inline(never)]
    fn grant_at_hand(&self, bytes: u64, stream: Stream, tag: AllocTag, magazine: &Magazine) -> Result<DeviceBlock> {
        let (len, align) = self.settings.units(bytes, MIN_ALIGN)?;
        let at = self.obtain(Want { len, align, place: stream.slot() })?;
        magazine.granted(len * UNIT);
        Ok(hands::block((at, len), bytes, stream, tag, self.owner))
    }

    /// Takes back what the thread's magazine has no place for, on a stream that it has at hand.
    #[inline(never)]
    fn accept_at_hand(&self, block: DeviceBlock, stream: Stream, magazine: &Magazine) -> Result<(), Refused> {
        if !self.is_own(&block) {
            return Err(Refused { error: self.foreign(&block), block });
        }
        let Kept { at, len } = kept(&block);
        if len <= self.settings.longest_kept {
            self.overflow(magazine, stream.slot(), Kept { at, len });
        } else if !self.middle().free(stream.slot(), at, len) {
            return Err(free_already(block));
        }
        magazine.released(len * UNIT);
        Ok(())
    }

    #[cold]
    fn foreign(&self, block: &DeviceBlock) -> Error {
        Error::ForeignBlock { device: self.context.device(), ptr: block.ptr() }
    }

    /// Whether a block can be one of this pool's: made here, in one piece of its memory.
    #[inline]
    fn is_own(&self, block: &DeviceBlock) -> bool {
        let (at, len) = (block.ptr().0, block.granted().get());
        let inside = self.addresses.contains(&(at / UNIT)) || self.addresses.is_empty();
        block.owner() == self.owner && inside && (at | len).is_multiple_of(UNIT) && len > 0
    }

    /// What the thread remembers to have at hand for a stream that stays and is not being captured, if there was no alarm
    /// since it looked and no driver listens, which would have to be told.
    #[inline(always)]
    fn at_hand(&self, stream: Stream) -> Option<&Magazine> {
        hands::remembered(self, self.context.alarms(), stream)
    }

    /// The same, for those who tell a driver that listens.
    fn at_hand_or_told(&self, stream: Stream) -> Option<&Magazine> {
        hands::remembered(self, self.signed(self.context.alarms()), stream)
    }

    /// Marks what is remembered where a driver listens.
    fn signed(&self, alarms: u32) -> u32 {
        alarms | u32::from(self.context.listens()) << 31
    }

    /// Remembers what the thread has at hand for such a stream, `alarms` having been read before there was found to be no
    /// fault.
    fn reach(&self, stream: Stream, alarms: u32) {
        if self.context.own_stream(stream).is_some()
            && let Some(shard) = self.shelf.shards.own()
            && let Some(magazine) = shard.magazine(stream.slot())
        {
            hand::remember(hand::key(self.number, self.signed(alarms)), stream, magazine);
        }
    }

    /// Grants a request, wherever the memory comes from.
    #[inline(never)]
    fn grant(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let size = self.settings.units(bytes, align)?;
        let alarms = self.context.alarms();
        self.context.fault().check()?;
        let at = match self.at_hand_or_told(stream) {
            Some(magazine) => {
                let at = self.take(size, stream, Some(magazine))?;
                magazine.granted(size.0 * UNIT);
                at
            }
            None => self.take_held(size, stream, alarms)?,
        };
        Ok(hands::grant(&self.context, (at, size.0), bytes, stream, tag, self.owner))
    }

    /// Memory for a stream that has to be held, or that the thread has not used lately.
    #[inline(never)]
    fn take_held(&self, size: (u64, u64), stream: Stream, alarms: u32) -> Result<u64> {
        let _held = self.context.hold_for_memory(stream)?;
        let here = self.here();
        let magazine = here.magazine(stream.slot());
        self.reach(stream, alarms);
        let at = self.take(size, stream, magazine)?;
        here.granted(size.0 * UNIT);
        Ok(at)
    }

    /// Memory from a magazine, or from wherever it is.
    #[inline]
    fn take(&self, size: (u64, u64), stream: Stream, magazine: Option<&Magazine>) -> Result<u64> {
        let (len, align) = size;
        if len <= self.settings.longest_kept
            && align == 1
            && let Some(at) = magazine.and_then(|magazine| magazine.take(len))
        {
            return Ok(at);
        }
        self.obtain(Want { len, align, place: stream.slot() })
    }

    /// Takes a block back, wherever it goes.
    #[inline(never)]
    fn accept(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let bytes = block.granted().get();
        if self.is_own(&block)
            && block.stream() == stream
            && let Some(magazine) = self.at_hand_or_told(stream)
        {
            hands::freed(&self.context, &block, stream);
            if !self.put(kept(&block), stream, Some(magazine)) {
                return Err(free_already(block));
            }
            magazine.released(bytes);
            return Ok(());
        }
        let _held = match self.check_free(&block, stream) {
            Ok(held) => held,
            Err(error) => return self.accept_unordered(block, stream, error),
        };
        hands::freed(&self.context, &block, stream);
        let here = self.here();
        if !self.put(kept(&block), stream, here.magazine(stream.slot())) {
            return Err(free_already(block));
        }
        here.released(bytes);
        Ok(())
    }

    /// Takes a block back that the driver could not order after its own stream. Whatever else is wrong with a free is its
    /// caller's business.
    #[cold]
    fn accept_unordered(&self, block: DeviceBlock, stream: Stream, error: Error) -> Result<(), Refused> {
        let failed = self.context.failed_order(&error, stream).filter(|_| self.is_own(&block));
        let Some(failed) = failed else { return Err(Refused { block, error }) };
        self.context.fault().record(failed);
        let (Kept { at, len }, home) = (kept(&block), block.stream());
        self.middle().limbo.push(Limbo { at, len, home, stream, untold: Some(block.ptr()) });
        self.here().released(len * UNIT);
        Ok(())
    }

    /// Puts what was a block of this pool into a magazine, or where everything goes; `false` where it is there already.
    #[inline]
    fn put(&self, kept: Kept, stream: Stream, magazine: Option<&Magazine>) -> bool {
        match magazine {
            Some(magazine) if kept.len <= self.settings.longest_kept => {
                if !magazine.put(kept) {
                    self.overflow(magazine, stream.slot(), kept);
                }
                true
            }
            _ => self.middle().free(stream.slot(), kept.at, kept.len),
        }
    }

    fn check_free(&self, block: &DeviceBlock, stream: Stream) -> Result<Held<'_>> {
        let context = &self.context;
        if !self.is_own(block) {
            return Err(self.foreign(block));
        }
        if block.stream() != stream {
            context.order_after(block.stream(), stream)?;
        }
        context.hold_for_free(stream)
    }
}

/// Where a block of a pool lies, in units.
#[inline]
fn kept(block: &DeviceBlock) -> Kept {
    Kept { at: block.ptr().0 / UNIT, len: block.granted().get() / UNIT }
}

#[cold]
fn free_already(block: DeviceBlock) -> Refused {
    let error = Error::UseAfterFree { ptr: block.ptr(), generation: block.generation(), tag: block.tag() };
    Refused { block, error }
}

impl Settings {
    /// What a request takes and what it is aligned to, in units; an error where it cannot be granted.
    #[inline]
    fn units(&self, bytes: u64, align: u64) -> Result<(u64, u64)> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Error::InvalidAlignment { align });
        }
        let align = align.max(UNIT) / UNIT;
        // A run is found with room for the alignment, so that much must not overflow either.
        match bytes.checked_add(MAX_ALIGN + UNIT) {
            Some(_) if bytes > 0 && self.fixed == 0 => Ok((bytes.div_ceil(UNIT), align)),
            Some(_) if bytes > 0 => self.fixed_units(bytes).map(|len| (len, align)),
            _ => Err(Error::InvalidSize { requested: bytes }),
        }
    }

    fn fixed_units(&self, bytes: u64) -> Result<u64> {
        match bytes.div_ceil(UNIT) {
            len if len <= self.fixed => Ok(self.fixed),
            _ => Err(Error::InvalidNumber { what: "larger than the blocks of a pool of one size", number: bytes }),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FrameSource> Holder for PagePoolResource<F> {
    #[inline]
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    /// What users hold. What they freed is the pool's again, which sees to it that nobody gets it early.
    fn bytes_outstanding(&self) -> Bytes {
        Bytes(self.shelf.shards.outstanding())
    }

    fn released_total(&self) -> u64 {
        self.shelf.shards.released_total()
    }

    /// Finds out what everyone may have by now. To users it was released when they freed it.
    fn reap(&self) -> Result<Bytes> {
        self.context().fault().check()?;
        self.drain(None, None);
        self.look_everywhere().and_then(|()| self.unstick()).map_err(|error| self.context().failed(error))?;
        self.source.reap().map(|_| Bytes::ZERO)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.context.order_ended(patience);
        self.reap()?;
        self.wait_for_pending(patience)?;
        self.source.reap_blocking(patience).map(|_| Bytes::ZERO)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FrameSource> DeviceMemoryResource for PagePoolResource<F> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.settings.units(bytes, align).map(|(len, _)| Bytes(len * UNIT))
    }

    #[inline(always)]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        if align != MIN_ALIGN && (align > MIN_ALIGN || !align.is_power_of_two()) {
            return self.grant(bytes, align, stream, tag);
        }
        let Some(magazine) = self.at_hand(stream) else { return self.grant(bytes, align, stream, tag) };
        let last = bytes.wrapping_sub(1);
        if last < self.settings.quick
            && let len = (last / UNIT + 1).max(self.settings.fixed)
            && let Some(at) = magazine.take(len)
        {
            magazine.granted(len * UNIT);
            return Ok(hands::block((at, len), bytes, stream, tag, self.owner));
        }
        self.grant_at_hand(bytes, stream, tag, magazine)
    }

    #[inline(always)]
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (at, bytes) = (block.ptr().0, block.granted().get());
        if block.owner() != self.owner || block.stream() != stream || !(at | bytes).is_multiple_of(UNIT) {
            return self.accept(block, stream);
        }
        let Some(magazine) = self.at_hand(stream) else { return self.accept(block, stream) };
        if bytes.wrapping_sub(UNIT) < self.settings.quick
            && let Some(place) = magazine.place_for(bytes / UNIT)
        {
            place.fill(at / UNIT);
            magazine.released(bytes);
            return Ok(());
        }
        self.accept_at_hand(block, stream, magazine)
    }

    /// Blocks may be used on several streams: a free is ordered after whatever its stream was made to wait for.
    fn tracks_use(&self) -> bool {
        true
    }
}

impl<F: FrameSource> Member for PagePoolResource<F> {
    fn trim(&self) -> Bytes {
        PagePoolResource::trim(self, Bytes::ZERO)
    }

    /// The shelf is a member too, and says how both stand.
    fn standing(&self) -> Standing {
        Standing::default()
    }

    /// The shelf hears of it.
    fn stream_ends(&self, _: Stream, _: RawStream) {}
}

impl<F: FrameSource> fmt::Debug for PagePoolResource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePoolResource")
            .field("device", &self.context.device())
            .field("held", &self.held())
            .field("cached", &self.cached())
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
