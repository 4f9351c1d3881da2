//! What a thread used last: the way to a magazine without looking for it.
//!
//! Each thread remembers, for a few streams, which magazine of which pool it found there. An entry is only ever used by the
//! pool whose number it carries, while that pool is alive, and a number is never given twice; so what it points to is there.
#![allow(unsafe_code)]

use super::magazine::Magazine;
use super::shards::Shard;
use bursar_core::{OwnerId, RawStream, Stream};
use std::cell::Cell;

/// What a thread has at hand for one stream of one pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand<'a> {
    pub(super) raw: RawStream,
    pub(super) shard: &'a Shard,
    pub(super) magazine: &'a Magazine,
}

/// A [`Hand`] of some pool, as it is remembered.
struct Entry {
    /// The pool's number, and what its context said of exposed streams then; zero where nothing is remembered.
    key: Cell<u64>,
    stream: Cell<[u64; 2]>,
    raw: Cell<RawStream>,
    shard: Cell<*const Shard>,
    magazine: Cell<*const Magazine>,
}

/// How many streams a thread remembers.
const ENTRIES: usize = 8;

impl Entry {
    const fn empty() -> Self {
        Self {
            key: Cell::new(0),
            stream: Cell::new([0; 2]),
            raw: Cell::new(RawStream::LEGACY),
            shard: Cell::new(std::ptr::null()),
            magazine: Cell::new(std::ptr::null()),
        }
    }
}

thread_local! {
    static REMEMBERED: [Entry; ENTRIES] = const { [const { Entry::empty() }; ENTRIES] };
}

#[inline]
fn key(owner: OwnerId, exposures: u32) -> u64 {
    u64::from(owner.get()) | u64::from(exposures) << 32
}

/// The hand that a pool's thread remembers for a stream.
///
/// # Safety
/// Every hand remembered for `owner` is of the pool that has this number, and `'a` is within that pool's life.
#[inline(always)]
pub(super) unsafe fn remembered<'a>(owner: OwnerId, exposures: u32, stream: Stream) -> Option<Hand<'a>> {
    REMEMBERED.with(|entries| {
        let entry = &entries[stream.slot() % ENTRIES];
        if entry.key.get() != key(owner, exposures) || entry.stream.get() != stream.words() {
            return None;
        }
        // SAFETY: set together with the key, from references into that pool, which the caller says is alive.
        let shard = unsafe { &*entry.shard.get() };
        // SAFETY: as above.
        let magazine = unsafe { &*entry.magazine.get() };
        Some(Hand { raw: entry.raw.get(), shard, magazine })
    })
}

/// Remembers a hand of a pool that has this number.
pub(super) fn remember(owner: OwnerId, exposures: u32, stream: Stream, hand: Hand<'_>) {
    REMEMBERED.with(|entries| {
        let entry = &entries[stream.slot() % ENTRIES];
        entry.key.set(key(owner, exposures));
        entry.stream.set(stream.words());
        entry.raw.set(hand.raw);
        entry.shard.set(hand.shard);
        entry.magazine.set(hand.magazine);
    });
}

/// Forgets everything, at the thread's end.
pub(super) fn forget() {
    REMEMBERED.with(|entries| entries.iter().for_each(|entry| entry.key.set(0)));
}
