//! What a pool keeps: pieces that nobody uses, by size, and pieces that a stream may be using.

use super::in_flight::{InFlight, Lane};
use super::{PinnedBuffer, Releaser};
use crate::HostError;
use crate::memory::{Piece, Slab};
use bursar_core::{Bytes, DeviceContext, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much a pool holds.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_host::PinnedPoolCounts;
///
/// assert_eq!(PinnedPoolCounts::default().held, Bytes::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPoolCounts {
    /// All of its slabs.
    pub held: Bytes,
    /// Pieces that nobody uses.
    pub free: Bytes,
    /// Pieces that a stream was using when it was last asked.
    pub in_flight: Bytes,
}

/// What pool and buffers share.
#[derive(Debug)]
pub(crate) struct PieceCache {
    bins: Mutex<Bins>,
    flight: InFlight,
    releaser: Arc<Releaser>,
}

#[derive(Debug, Default)]
struct Bins {
    /// Sizes, ascending, each with the place of its bin.
    sizes: Vec<(usize, u32)>,
    bins: Vec<Bin>,
    held: u64,
    closed: bool,
}

/// The pieces of one size.
#[derive(Debug, Default)]
struct Bin {
    free: Vec<Piece>,
    /// How many there are, wherever they are: the room that is kept in `free`, so that putting one back allocates nothing.
    total: usize,
}

impl PieceCache {
    pub(crate) fn new(releaser: Arc<Releaser>) -> Self {
        Self { bins: Mutex::default(), flight: InFlight::default(), releaser }
    }

    #[inline]
    fn bins(&self) -> MutexGuard<'_, Bins> {
        self.bins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes in a piece of `class`, if one is free.
    #[inline]
    pub(crate) fn take(cache: &Arc<Self>, class: usize, len: usize) -> Option<PinnedBuffer> {
        let mut bins = cache.bins();
        let at = bins.sizes.binary_search_by_key(&class, |(size, _)| *size).ok()?;
        let bin = bins.sizes[at].1;
        let piece = bins.bins[bin as usize].free.pop()?;
        drop(bins);
        Some(PinnedBuffer::of_pool(piece, len, cache.clone(), bin))
    }

    /// Takes a piece back.
    #[inline]
    pub(crate) fn put(&self, piece: Piece, bin: u32) {
        let mut bins = self.bins();
        if bins.closed {
            drop(bins);
            return self.releaser.submit(vec![piece]);
        }
        bins.bins[bin as usize].free.push(piece);
    }

    /// Cuts a slab into pieces of `class` and keeps them; answers the first as a buffer if `len` is given.
    pub(crate) fn insert_slab(cache: &Arc<Self>, slab: Slab, class: usize, len: Option<usize>) -> Option<PinnedBuffer> {
        let bytes = slab.len() as u64;
        let mut pieces: Vec<Piece> = slab.cut(class).collect();
        let wanted = len.and_then(|len| Some((pieces.pop()?, len)));
        let mut bins = cache.bins();
        if bins.closed {
            drop(bins);
            cache.releaser.submit(pieces);
            // The buffer goes the same way when it comes back.
            return wanted.map(|(piece, len)| PinnedBuffer::of_pool(piece, len, cache.clone(), 0));
        }
        let place = bins.bin_index(class);
        bins.held += bytes;
        let bin = &mut bins.bins[place as usize];
        bin.total += pieces.len() + usize::from(wanted.is_some());
        let room = bin.total - bin.free.len();
        bin.free.reserve(room);
        bin.free.extend(pieces);
        drop(bins);
        wanted.map(|(piece, len)| PinnedBuffer::of_pool(piece, len, cache.clone(), place))
    }

    /// Takes pieces out that make up whole slabs, the largest first, until at most `keep` bytes of such are left; answers
    /// them, and how many bytes their slabs have.
    pub(crate) fn take_whole_slabs(&self, keep: Bytes) -> (Vec<Piece>, Bytes) {
        let mut bins = self.bins();
        let places: Vec<(usize, usize)> = bins.sizes.iter().rev().map(|(size, at)| (*size, *at as usize)).collect();
        let whole: Vec<_> = places.iter().map(|(size, at)| bins.bins[*at].whole_slabs(*size)).collect();
        let mut left: u64 = whole.iter().flat_map(HashMap::values).sum();
        let before = bins.held;
        let mut evictable = Vec::new();
        for ((_, at), mut goes) in places.into_iter().zip(whole) {
            goes.retain(|_, bytes| {
                let goes = left > keep.get();
                left -= if goes { *bytes } else { 0 };
                goes
            });
            bins.held -= goes.values().sum::<u64>();
            let bin = &mut bins.bins[at];
            let is_spare = |piece: &mut Piece| goes.contains_key(&Arc::as_ptr(piece.slab()));
            let taken = evictable.len();
            evictable.extend(bin.free.extract_if(.., is_spare));
            bin.total -= evictable.len() - taken;
        }
        (evictable, Bytes(before - bins.held))
    }

    /// Keeps a piece until a stream has passed everything it was given by now.
    pub(crate) fn put_after(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.flight.add(context, stream, piece, bin);
    }

    /// Finds out, without waiting, which streams have passed what.
    pub(crate) fn collect(&self) -> Result<(), HostError> {
        let (reusable, answer) = self.flight.collect();
        reusable.into_iter().for_each(|(piece, bin)| self.put(piece, bin));
        Ok(answer?)
    }

    pub(crate) fn counts(&self) -> PinnedPoolCounts {
        let in_flight = self.flight.bytes();
        let bins = self.bins();
        let free = bins.bins.iter().flat_map(|bin| &bin.free).map(|piece| piece.len() as u64).sum();
        PinnedPoolCounts { held: Bytes(bins.held), free: Bytes(free), in_flight }
    }

    /// Whether pieces are kept no longer.
    pub(crate) fn is_closed(&self) -> bool {
        self.bins().closed
    }

    /// From now on pieces that come back are given back.
    pub(crate) fn close(&self) {
        let mut bins = self.bins();
        bins.closed = true;
        let free: Vec<Piece> = bins.bins.iter_mut().flat_map(|bin| bin.free.drain(..)).collect();
        drop(bins);
        self.releaser.submit(free);
        let reusable: Vec<Piece> = self.flight.take().into_iter().flat_map(Lane::settle).collect();
        self.releaser.submit(reusable);
    }
}

impl Bins {
    /// The place of the bin of a size, made if there is none.
    fn bin_index(&mut self, class: usize) -> u32 {
        match self.sizes.binary_search_by_key(&class, |(size, _)| *size) {
            Ok(at) => self.sizes[at].1,
            Err(at) => {
                let place = self.bins.len() as u32;
                self.bins.push(Bin::default());
                self.sizes.insert(at, (class, place));
                place
            }
        }
    }
}

impl Bin {
    /// The slabs all of whose pieces are free, with their sizes.
    fn whole_slabs(&self, class: usize) -> HashMap<*const Slab, u64> {
        let mut free: HashMap<*const Slab, (usize, usize)> = HashMap::new();
        for piece in &self.free {
            free.entry(Arc::as_ptr(piece.slab())).or_insert((0, piece.slab().len())).0 += 1;
        }
        let whole = free.into_iter().filter(|(_, (count, bytes))| *count == bytes / class);
        whole.map(|(slab, (_, bytes))| (slab, bytes as u64)).collect()
    }
}
