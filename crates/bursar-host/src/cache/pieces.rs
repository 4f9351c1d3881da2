//! The free pieces of a pool by size, and the pieces that streams may be using.

use super::in_flight::InFlight;
use super::{PinnedBuffer, Releaser};
use crate::HostError;
use crate::memory::{Piece, Slab};
use bursar_core::{Bytes, DeviceContext, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of a pool at one moment. What neither is free nor in flight is in use, or belongs to no piece.
///
/// ```
/// use bursar::Bytes;
/// use bursar::host::PinnedPoolCounts;
///
/// assert_eq!(PinnedPoolCounts::default().held, Bytes::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPoolCounts {
    /// The bytes of all its slabs.
    pub held: Bytes,
    /// The bytes of pieces that nobody uses.
    pub free: Bytes,
    /// The bytes of pieces that a stream was still using when it was last queried.
    pub in_flight: Bytes,
}

/// The pieces that a pool keeps, shared with its buffers.
#[derive(Debug)]
pub(crate) struct PieceCache {
    bins: Mutex<Bins>,
    flight: InFlight,
    releaser: Arc<Releaser>,
}

#[derive(Debug, Default)]
struct Bins {
    /// The sizes in ascending order, each with the index of its bin.
    sizes: Vec<(usize, u32)>,
    bins: Vec<Bin>,
    held: u64,
    /// The bytes of pieces in flight, those included whose streams are being queried. They are counted here, under the same
    /// lock as free pieces, so that a piece is never counted twice or not at all.
    in_flight: u64,
    closed: bool,
}

/// The pieces of one size.
#[derive(Debug, Default)]
struct Bin {
    free: Vec<Piece>,
    /// The number of pieces of this size, free or not: the capacity of `free`, so that returning one allocates nothing.
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

    /// Returns a buffer of `len` bytes in a piece of `class`, if one is free.
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
        self.put_in(self.bins(), piece, bin);
    }

    /// Takes back a piece that was in flight.
    fn put_landed(&self, piece: Piece, bin: u32) {
        let mut bins = self.bins();
        bins.in_flight -= piece.len() as u64;
        self.put_in(bins, piece, bin);
    }

    #[inline]
    fn put_in(&self, mut bins: MutexGuard<'_, Bins>, piece: Piece, bin: u32) {
        if bins.closed {
            drop(bins);
            return self.releaser.submit(vec![piece]);
        }
        bins.bins[bin as usize].free.push(piece);
    }

    /// Cuts a slab into pieces of `class` and keeps them. Returns the first as a buffer if `len` is given.
    pub(crate) fn insert_slab(cache: &Arc<Self>, slab: Slab, class: usize, len: Option<usize>) -> Option<PinnedBuffer> {
        let bytes = slab.len() as u64;
        let mut pieces: Vec<Piece> = slab.cut(class).collect();
        let wanted = len.and_then(|len| Some((pieces.pop()?, len)));
        let mut bins = cache.bins();
        if bins.closed {
            drop(bins);
            cache.releaser.submit(pieces);
            // The buffer is released in the same way when it comes back.
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

    /// Removes free pieces that make up whole slabs, the largest slabs first, until at most `keep` bytes of such slabs are
    /// left. Returns the pieces, and the bytes of their slabs.
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

    /// Keeps a piece until a stream has passed everything submitted to it so far.
    pub(crate) fn put_after(&self, context: &Arc<DeviceContext>, stream: Stream, piece: Piece, bin: u32) {
        self.bins().in_flight += piece.len() as u64;
        self.flight.add(context, stream, piece, bin);
    }

    /// Frees the pieces that streams have finished with, without waiting.
    pub(crate) fn collect(&self) -> Result<(), HostError> {
        let (reusable, result) = self.flight.collect();
        reusable.into_iter().for_each(|(piece, bin)| self.put_landed(piece, bin));
        Ok(result?)
    }

    pub(crate) fn counts(&self) -> PinnedPoolCounts {
        let bins = self.bins();
        let free = bins.bins.iter().flat_map(|bin| &bin.free).map(|piece| piece.len() as u64).sum();
        PinnedPoolCounts { held: Bytes(bins.held), free: Bytes(free), in_flight: Bytes(bins.in_flight) }
    }

    /// Returns whether the pool is gone, so that pieces are no longer kept.
    pub(crate) fn is_closed(&self) -> bool {
        self.bins().closed
    }

    /// Releases all free pieces, and from now on every piece that is returned.
    pub(crate) fn close(&self) {
        let mut bins = self.bins();
        bins.closed = true;
        let free: Vec<Piece> = bins.bins.iter_mut().flat_map(|bin| bin.free.drain(..)).collect();
        drop(bins);
        self.releaser.submit(free);
        self.releaser.settle(self.flight.take());
    }
}

impl Bins {
    /// Returns the index of the bin of a size, created if there is none.
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
    /// Returns the slabs all of whose pieces are free, with their sizes.
    fn whole_slabs(&self, class: usize) -> HashMap<*const Slab, u64> {
        let mut free: HashMap<*const Slab, (usize, usize)> = HashMap::new();
        for piece in &self.free {
            free.entry(Arc::as_ptr(piece.slab())).or_insert((0, piece.slab().len())).0 += 1;
        }
        let whole = free.into_iter().filter(|(_, (count, bytes))| *count == bytes / class);
        whole.map(|(slab, (_, bytes))| (slab, bytes as u64)).collect()
    }
}
