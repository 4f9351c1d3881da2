//! The memory of one handle, where several handles share a resource.
//!
//! What a handle allocates is counted here, so that limits and reports are about that handle alone, whatever others take
//! from the same memory. Totals are kept in stripes: threads do not meet on them.

use crate::live_blocks::{AllocationScope, LiveBlocks, UNCOUNTED_HANDLE};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceId, DeviceMemoryResource, Holder, Holding, Refused, Result, Stream, Tally,
    ThreadIndex, forward_holder, forward_memory_resource,
};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The key under which a handle, which has one device, counts by tag.
const ONLY: DeviceId = DeviceId(0);

/// Memory that other handles use as well: counts what this one holds of it.
///
/// What was freed is the inner memory's again, which counts it until its work has run; so nothing is pending here.
pub(crate) struct HandleMemory {
    inner: Arc<dyn DeviceMemoryResource>,
    /// The number of the handle, unique in the process and not [`UNCOUNTED_HANDLE`].
    number: u64,
    live: LiveBlocks,
    counts: Arc<HandleCounts>,
    /// The handle above, whose reports leave out what is counted here.
    above: Option<Arc<HandlesUnder>>,
}

impl HandleMemory {
    pub(crate) fn new(
        inner: Arc<dyn DeviceMemoryResource>,
        live: LiveBlocks,
        above: Option<Arc<HandlesUnder>>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(UNCOUNTED_HANDLE + 1);
        let counts = Arc::new(HandleCounts::default());
        if let Some(above) = &above {
            above.lock().live.push(counts.clone());
        }
        Self { inner, number: NEXT.fetch_add(1, Ordering::Relaxed), live, counts, above }
    }

    /// Returns the number that the handle's blocks are recorded under.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns what the handle holds for each tag, in any order.
    pub(crate) fn holders(&self) -> Vec<Holding> {
        self.counts.holders()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Holder for HandleMemory {
    forward_holder!(self.inner; context, survey);

    fn bytes_outstanding(&self) -> Bytes {
        self.counts.outstanding()
    }

    fn released_total(&self) -> u64 {
        self.counts.total(|stripe| &stripe.released)
    }

    /// Has the inner memory look for frees that have completed; none of them is outstanding here.
    fn reap(&self) -> Result<Bytes> {
        self.inner.reap().map(|_| Bytes::ZERO)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.inner.reap_blocking(patience).map(|_| Bytes::ZERO)
    }
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for HandleMemory {
    forward_memory_resource!(self.inner; granted_size, tracks_use);

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let _scope = self.live.has_sites().then(|| AllocationScope::enter_handle(self.number));
        let block = self.inner.allocate(bytes, align, stream, tag)?;
        self.counts.stripe().granted.fetch_add(block.granted().get(), Ordering::Release);
        self.counts.tags.granted(ONLY, tag, block.granted());
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (tag, granted) = (block.tag(), block.granted());
        self.inner.deallocate(block, stream)?;
        self.counts.stripe().released.fetch_add(granted.get(), Ordering::Release);
        self.counts.tags.freed(ONLY, tag, granted);
        Ok(())
    }
}

impl Drop for HandleMemory {
    /// Nothing can be freed through it any more, so what it holds stays held, and stays its own.
    fn drop(&mut self) {
        if let Some(above) = &self.above {
            let mut under = above.lock();
            under.live.retain(|counts| !Arc::ptr_eq(counts, &self.counts));
            under.lost.extend(self.counts.holders());
        }
    }
}

impl fmt::Debug for HandleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleMemory")
            .field("outstanding", &self.bytes_outstanding())
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

const STRIPES: usize = 64;

/// The totals of some threads, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    granted: AtomicU64,
    released: AtomicU64,
}

/// The total and the counts by tag of one handle.
struct HandleCounts {
    stripes: [Stripe; STRIPES],
    tags: Tally,
}

impl Default for HandleCounts {
    fn default() -> Self {
        Self { stripes: std::array::from_fn(|_| Stripe::default()), tags: Tally::default() }
    }
}

impl HandleCounts {
    #[inline]
    fn stripe(&self) -> &Stripe {
        &self.stripes[ThreadIndex::current().map_or(0, ThreadIndex::get) % STRIPES]
    }

    /// Returns a total of all threads, modulo 2⁶⁴.
    fn total(&self, of: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.stripes.iter().fold(0, |sum, stripe| sum.wrapping_add(of(stripe).load(Ordering::Acquire)))
    }

    /// Returns what is live. What was released is read first: whoever sees a free sees its grant too.
    fn outstanding(&self) -> Bytes {
        let released = self.total(|stripe| &stripe.released);
        Bytes(self.total(|stripe| &stripe.granted).wrapping_sub(released))
    }

    fn holders(&self) -> Vec<Holding> {
        self.tags.holders(ONLY).unwrap_or_default()
    }
}

/// The handles under one handle. What they hold is in their own reports, also when they are gone.
#[derive(Default)]
pub(crate) struct HandlesUnder {
    state: Mutex<UnderState>,
}

#[derive(Default)]
struct UnderState {
    live: Vec<Arc<HandleCounts>>,
    /// The holdings of handles that are gone, which nobody can free any more.
    lost: Vec<Holding>,
}

impl HandlesUnder {
    fn lock(&self) -> MutexGuard<'_, UnderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that they hold.
    pub(crate) fn bytes(&self) -> Bytes {
        let state = self.lock();
        let live = state.live.iter().map(|counts| counts.outstanding());
        live.chain(state.lost.iter().map(|holding| holding.bytes)).fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Returns what they hold for each tag; a tag may be listed more than once.
    pub(crate) fn holders(&self) -> Vec<Holding> {
        let state = self.lock();
        state.live.iter().flat_map(|counts| counts.holders()).chain(state.lost.iter().copied()).collect()
    }
}
