//! The lengths of frames: as long as the blocks they are made for, and short where blocks share them.
//!
//! A frame moves whole, so a block that lies in a part of it keeps all of it where it is. What a block has for itself is
//! therefore made as one frame, up to the largest, and the page that its end shares with the next block is a frame of its
//! own: what is free is then free in whole frames, and driver calls cost by the frame and not by the byte.
//!
//! Once blocks come and go, a block may be put where a longer one was. Up to the *shared length* a frame is shared; a
//! longer one is split first. In a pool that can only be small, or that was refused more memory, a frame of a page is the
//! longest that blocks share, so that every whole free page can be moved; so it is in a small pool of one stream, which
//! seldom has to. Elsewhere it is a 176th of the pool: a few frames that stay because of a small block are then about a
//! hundredth of it, and a large block is gathered from at most that many.
//!
//! What a stream reuses before its work has run cannot be split, so blocks come to lie in parts of longer frames whatever
//! was planned. Where a stream runs ahead of the device, frames are therefore made short, a thousandth of the pool, and are
//! shared at that length, unless the pool can only be small: to split them would take longer than it saves.

/// The lengths that frames can have, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSizes {
    /// The smallest frame, which the device dictates: a page.
    pub(super) page: u64,
    /// The largest frame.
    pub(super) largest: u64,
    /// The size up to which a pool is small.
    pub(super) small_pool: u64,
}

/// The number of shared frames that a large pool is made of, at most.
const SHARED_FRAMES: u64 = 176;

/// The number of frames that a pool is made of, at most, where a stream runs ahead of the device, and the pages of the
/// shortest of them: each block leaves about half a frame free at its end, so that is about two hundredths of a pool of
/// hundreds of blocks, and shorter frames take longer to map than they save.
const FRAMES_AHEAD: u64 = 1536;
const PAGES_AHEAD: u64 = 4;

impl FrameSizes {
    /// Returns the longest frame that blocks share in a pool that holds `held` units and can hold `most`, where several
    /// streams use it, or one.
    pub(super) fn shared_len(self, held: u64, has_streams: bool, most: u64) -> u64 {
        if held < self.small_pool && (!has_streams || most <= self.small_pool) {
            return self.page;
        }
        (held / SHARED_FRAMES).next_multiple_of(self.page).clamp(self.page, self.largest)
    }

    /// Returns the lengths for a pool that holds `held` units, where a stream runs ahead of the device.
    pub(super) fn ahead(self, held: u64) -> Self {
        let part = (held / FRAMES_AHEAD).next_multiple_of(self.page).max(self.page * PAGES_AHEAD);
        Self { largest: part.min(self.largest), ..self }
    }

    /// Returns the last page border at or before an address, as far as pages are counted from `start`.
    const fn page_at(self, start: u64, at: u64) -> u64 {
        start + (at - start) / self.page * self.page
    }

    /// Cuts `len` units, from a page border on, into frames for a block that ends after `used` of them: those that it
    /// covers, as long as they can be, and then pages.
    pub(super) fn for_block(self, len: u64, used: u64) -> Vec<u64> {
        let own = used.min(len) / self.page * self.page;
        let mut lens = pieces(own, self.largest);
        lens.extend(pieces(len - own, self.page));
        lens
    }

    /// Cuts `len` units into frames of `each`, the last of which is a page where the end of a block `shares` it.
    pub(super) fn gathered(self, len: u64, each: u64, shares: bool) -> Vec<u64> {
        if !shares || len <= self.page {
            return pieces(len, each);
        }
        let mut lens = pieces(len - self.page, each);
        lens.push(self.page);
        lens
    }

    /// Cuts a frame of `len` units at `at` for a block, so that what the block does not cover can be moved: before it,
    /// where it lies, and behind it in frames that double, since the next block there is likely to be as small.
    pub(super) fn split(self, (at, len): (u64, u64), block: (u64, u64), shared: u64) -> Vec<u64> {
        let end = at + len;
        let (from, to) = (block.0.clamp(at, end), (block.0 + block.1).clamp(at, end));
        let low = at + (from - at) / shared * shared;
        let high = (at + (to - at).next_multiple_of(shared)).min(end);
        let mut lens = pieces(low - at, self.largest);
        if shared == self.page {
            let (own, own_end) = (at + (from - at).next_multiple_of(self.page), self.page_at(at, to));
            lens.extend((low < own).then_some(self.page));
            lens.extend(pieces(own_end.saturating_sub(own), self.largest));
            lens.extend((own_end.max(own) < high).then_some(self.page));
        } else {
            lens.extend(pieces(high - low, shared));
        }
        let (mut next, mut step) = (high, (high - low).max(shared).min(self.largest));
        while next < end {
            let piece = step.min(end - next);
            lens.push(piece);
            // The frame may be many times as long as those that are made by now.
            (next, step) = (next + piece, (step * 2).min(self.largest));
        }
        lens
    }
}

/// Cuts a length into pieces of `each`, the last of them shorter.
pub(super) fn pieces(len: u64, each: u64) -> Vec<u64> {
    (0..len.div_ceil(each)).map(|nth| each.min(len - nth * each)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: FrameSizes = FrameSizes { page: 8, largest: 64, small_pool: 1024 };

    #[test]
    fn p3_blocks_share_pages_where_the_pool_is_small_for_good_or_has_one_stream() {
        for (held, has_streams, most, shared) in [
            (0, false, 1 << 20, 8),
            (1023, false, 1 << 20, 8),
            (1023, true, 1024, 8),
            (1023, true, 1025, 8),
            (17 * 176, true, 1024, 24),
            (17 * 176, false, 1 << 20, 24),
            (1 << 20, true, 1 << 20, 64),
        ] {
            assert_eq!(SIZES.shared_len(held, has_streams, most), shared, "{held} of {most}, {has_streams}");
        }
        let roomy = FrameSizes { small_pool: 1 << 20, ..SIZES };
        assert_eq!(roomy.shared_len(17 * 176, true, 1 << 21), 24, "several streams, and more can be had");
        assert_eq!(roomy.shared_len(17 * 176, true, 1 << 20), 8, "it stays small");
        assert_eq!(roomy.shared_len(17 * 176, false, 1 << 21), 8, "one stream");
    }

    #[test]
    fn p3_frames_are_short_where_a_stream_runs_ahead() {
        let sizes = FrameSizes { largest: 1024, ..SIZES };
        for (held, largest) in [(0, 32), (32 * 1536, 32), (33 * 1536, 40), (100 * 1536, 104), (1 << 30, 1024)] {
            assert_eq!(sizes.ahead(held).largest, largest, "{held}");
        }
        assert_eq!(FrameSizes { largest: 8, ..SIZES }.ahead(1 << 30).largest, 8, "no longer than they may be");
    }

    #[test]
    fn p3_a_frame_is_split_however_much_longer_it_is_than_those_that_are_made_by_now() {
        let sizes = FrameSizes { largest: SIZES.page, ..SIZES };
        for pages in [1, 63, 64, 65, 1000] {
            let frames = sizes.split((0, pages * SIZES.page), (0, SIZES.page), SIZES.page);
            assert_eq!(frames, vec![SIZES.page; pages as usize]);
        }
    }

    proptest! {
        /// Whatever is cut adds up, in frames of whole pages up to the largest.
        #[test]
        fn p3_frames_add_up_to_what_is_cut(pages in 1..40u64, used in 0..400u64, from in 0..320u64, len in 1..320u64) {
            let whole = pages * SIZES.page;
            let frames = SIZES.for_block(whole, used);
            prop_assert_eq!(frames.iter().sum::<u64>(), whole);
            prop_assert!(frames.iter().all(|&len| len % SIZES.page == 0 && len <= SIZES.largest && len > 0));
            let gathered = SIZES.gathered(whole, 24, true);
            prop_assert_eq!(gathered.iter().sum::<u64>(), whole);
            prop_assert_eq!(gathered.last(), Some(&SIZES.page));
            let from = from % whole;
            let frames = SIZES.split((800, whole), (800 + from, len), SIZES.page);
            prop_assert_eq!(frames.iter().sum::<u64>(), whole);
            // No frame of more than a page is in part the block's.
            let (mut at, block) = (800, 800 + from..800 + from + len);
            for frame in frames {
                prop_assert!(frame % SIZES.page == 0 && frame <= SIZES.largest && frame > 0);
                let covered = (at + frame).min(block.end).saturating_sub(at.max(block.start));
                prop_assert!(covered == 0 || covered == frame || frame == SIZES.page, "{covered} of {frame} at {at}");
                at += frame;
            }
            let shared = SIZES.split((800, whole), (800 + from, len), 24);
            prop_assert_eq!(shared.iter().sum::<u64>(), whole);
        }
    }
}
