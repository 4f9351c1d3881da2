//! A set of pages: which of them belong to exclusive frames.

use std::ops::Range;

/// A set of the pages of a range of addresses.
#[derive(Debug)]
pub(super) struct PageSet {
    start: u64,
    page: u64,
    pages: Vec<u64>,
    count: u64,
}

impl PageSet {
    /// Makes the empty set of a range of addresses; one that has no pages where the range is empty.
    pub(super) fn new(range: Range<u64>, page: u64) -> Self {
        let words = (range.end - range.start).div_ceil(page).div_ceil(u64::from(u64::BITS));
        Self { start: range.start, page, pages: vec![0; words as usize], count: 0 }
    }

    pub(super) const fn is_nowhere(&self) -> bool {
        self.pages.is_empty()
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the word and the bit of the page that an address lies in.
    #[inline]
    const fn bit(&self, at: u64) -> (usize, u64) {
        let page = (at - self.start) / self.page;
        ((page / u64::BITS as u64) as usize, 1 << (page % u64::BITS as u64))
    }

    #[inline]
    pub(super) fn contains(&self, at: u64) -> bool {
        let (word, bit) = self.bit(at);
        self.pages[word] & bit != 0
    }

    pub(super) fn insert(&mut self, at: u64, len: u64) {
        for page in 0..len / self.page {
            let (word, bit) = self.bit(at + page * self.page);
            self.count += u64::from(self.pages[word] & bit == 0);
            self.pages[word] |= bit;
        }
    }

    pub(super) fn remove(&mut self, at: u64, len: u64) {
        if self.count > 0 {
            for page in 0..len / self.page {
                let (word, bit) = self.bit(at + page * self.page);
                self.count -= u64::from(self.pages[word] & bit != 0);
                self.pages[word] &= !bit;
            }
        }
    }
}
