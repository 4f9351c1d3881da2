//! Free runs in the order of their addresses: the first that fits, and neighbours that grow together.
//!
//! Runs lie in chunks of at most [`CHUNK`], chunks in groups of [`GROUP`], and each knows how long a run in it may be. So
//! the first fit is found by three short scans, and a run's neighbours are the entries beside it: there is no record of
//! what is in use, and none in the memory itself. First fit keeps what is in use at low addresses and packed, which is
//! what leaves whole frames free; and what it costs hardly grows with the number of runs.
//!
//! A run that gets shorter leaves these bounds as they are: a search that meets one which promises too much puts it right,
//! and most are met again by a request that still fits.

use std::ops::Range;

const CHUNK: usize = 16;
const GROUP: usize = 64;

/// The unit of addresses and lengths here, in bytes: what every block is aligned to.
pub(super) const UNIT: u64 = bursar_core::MIN_ALIGN;

/// A stretch of free memory, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) at: u64,
    pub(super) len: u64,
    /// When the last of it was freed, in its lane's own time.
    pub(super) stamp: u64,
}

impl Run {
    pub(super) const fn end(&self) -> u64 {
        self.at + self.len
    }

    pub(super) const fn range(&self) -> Range<u64> {
        self.at..self.end()
    }
}

/// Where a run is; good until the runs change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    chunk: usize,
    entry: usize,
    pub(super) at: u64,
}

#[derive(Clone, Debug)]
struct Chunk {
    used: usize,
    at: [u64; CHUNK],
    len: [u64; CHUNK],
    stamp: [u64; CHUNK],
}

impl Chunk {
    const EMPTY: Self = Self { used: 0, at: [0; CHUNK], len: [0; CHUNK], stamp: [0; CHUNK] };

    fn longest(&self) -> u64 {
        longest(&self.len[..self.used])
    }

    fn get(&self, entry: usize) -> Run {
        Run { at: self.at[entry], len: self.len[entry], stamp: self.stamp[entry] }
    }

    fn set(&mut self, entry: usize, run: Run) {
        (self.at[entry], self.len[entry], self.stamp[entry]) = (run.at, run.len, run.stamp);
    }

    fn open(&mut self, entry: usize, run: Run) {
        self.at.copy_within(entry..self.used, entry + 1);
        self.len.copy_within(entry..self.used, entry + 1);
        self.stamp.copy_within(entry..self.used, entry + 1);
        self.used += 1;
        self.set(entry, run);
    }

    fn close(&mut self, entry: usize) {
        self.at.copy_within(entry + 1..self.used, entry);
        self.len.copy_within(entry + 1..self.used, entry);
        self.stamp.copy_within(entry + 1..self.used, entry);
        self.used -= 1;
    }
}

fn longest(lens: &[u64]) -> u64 {
    lens.iter().fold(0, |most, &len| most.max(len))
}

/// Free runs that touch no other run here.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "a chunk put in between moves pointers, not chunks")]
pub(super) struct Runs {
    chunks: Vec<Box<Chunk>>,
    /// Where each chunk begins.
    firsts: Vec<u64>,
    /// No run of each chunk is longer than this.
    most: Vec<u64>,
    /// No run of each group is longer than this.
    groups: Vec<u64>,
    total: u64,
    count: usize,
    /// For each power of two: no chunk before this one has a run that long.
    starts: [usize; CLASSES],
    /// Chunks that are not in use, so that runs which come and go allocate nothing.
    spare: Vec<Box<Chunk>>,
}

/// The powers of two that lengths are told apart by.
const CLASSES: usize = 40;

fn class(len: u64) -> usize {
    (len.ilog2() as usize).min(CLASSES - 1)
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            firsts: Vec::new(),
            most: Vec::new(),
            groups: Vec::new(),
            total: 0,
            count: 0,
            starts: [0; CLASSES],
            spare: Vec::new(),
        }
    }
}

impl Runs {
    /// How much there is in all, in units.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The longest run, in units.
    pub(super) fn longest(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.longest()).max().unwrap_or(0)
    }

    /// The run of at least `len` units with the lowest address; `len` is at least one.
    #[inline]
    pub(super) fn find(&mut self, len: u64) -> Option<Spot> {
        let class = class(len);
        let (mut chunk, mut fruitless) = (self.starts[class], true);
        while chunk < self.most.len() {
            if chunk.is_multiple_of(GROUP) && self.groups[chunk / GROUP] < len {
                if fruitless && self.groups[chunk / GROUP] >= 1 << class {
                    fruitless = false;
                    self.start_at(class, chunk);
                }
                chunk += GROUP;
                continue;
            }
            if self.most[chunk] >= len {
                let inside = &self.chunks[chunk];
                if let Some(entry) = inside.len[..inside.used].iter().position(|&run| run >= len) {
                    if fruitless {
                        self.start_at(class, chunk);
                    }
                    return Some(Spot { chunk, entry, at: self.chunks[chunk].at[entry] });
                }
                self.most[chunk] = inside.longest();
            }
            if fruitless && self.most[chunk] >= 1 << class {
                fruitless = false;
                self.start_at(class, chunk);
            }
            chunk += 1;
        }
        self.tighten(len);
        None
    }

    /// The run with the lowest address that has room for `len` units from a multiple of `align` on, a power of two.
    #[inline]
    pub(super) fn find_aligned(&mut self, len: u64, align: u64) -> Option<Spot> {
        if align == 1 { self.find(len) } else { self.search_aligned(len, align) }
    }

    #[cold]
    fn search_aligned(&self, len: u64, align: u64) -> Option<Spot> {
        let chunks = self.chunks.iter().enumerate().filter(|&(chunk, _)| self.most[chunk] >= len);
        let mut spots = chunks.flat_map(|(chunk, inside)| {
            (0..inside.used).map(move |entry| (Spot { chunk, entry, at: inside.at[entry] }, inside.get(entry)))
        });
        let fits = |run: &Run| ((run.at + align - 1) & !(align - 1)) + len <= run.end();
        spots.find(|(_, run)| fits(run)).map(|(spot, _)| spot)
    }

    /// Lets searches for a class begin at a chunk: none before it has a run as long as the class, and so none of a longer
    /// one either.
    #[inline]
    fn start_at(&mut self, class: usize, chunk: usize) {
        for start in &mut self.starts[class..] {
            if *start >= chunk {
                break;
            }
            *start = chunk;
        }
    }

    /// Puts the bounds of groups right that promise a run of `len` units where there is none.
    #[cold]
    fn tighten(&mut self, len: u64) {
        for group in 0..self.groups.len() {
            if self.groups[group] >= len {
                self.groups[group] = self.longest_of_group(group);
            }
        }
    }

    /// The run at a spot.
    pub(super) fn get(&self, spot: Spot) -> Run {
        self.chunks[spot.chunk].get(spot.entry)
    }

    /// Takes `len` units out of the run at `spot`, from a multiple of `align` units on, a power of two; answers where that
    /// is. The run must have room for it.
    #[inline]
    pub(super) fn carve(&mut self, spot: Spot, len: u64, align: u64) -> u64 {
        let Spot { chunk, entry, at } = spot;
        let start = (at + align - 1) & !(align - 1);
        let inside = &mut self.chunks[chunk];
        if start > at || inside.len[entry] == len {
            self.remove(spot, start..start + len);
            return start;
        }
        self.total -= len;
        inside.at[entry] += len;
        inside.len[entry] -= len;
        if entry == 0 {
            self.firsts[chunk] = at + len;
        }
        start
    }

    /// Takes a range out of the run that holds it.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        let spot = self.spot_of(range.start);
        self.remove(spot, range);
    }

    #[inline]
    fn remove(&mut self, spot: Spot, range: Range<u64>) {
        let Spot { chunk, entry, .. } = spot;
        let run = self.chunks[chunk].get(entry);
        debug_assert!(run.at <= range.start && range.end <= run.end(), "{range:?} of {run:?}");
        self.total -= range.end - range.start;
        let before = Run { len: range.start - run.at, ..run };
        let after = Run { at: range.end, len: run.end() - range.end, ..run };
        match (before.len > 0, after.len > 0) {
            (true, true) => {
                self.replace(chunk, entry, before);
                self.insert_entry(chunk, entry + 1, after);
            }
            (true, false) => self.replace(chunk, entry, before),
            (false, true) => self.replace(chunk, entry, after),
            (false, false) => self.remove_entry(chunk, entry),
        }
    }

    /// Adds a run; neighbours become one with it. `false`, and nothing changes, where a part of it is here already.
    #[inline]
    pub(super) fn insert(&mut self, run: Run) -> bool {
        if self.chunks.is_empty() {
            self.total += run.len;
            self.start(run);
            return true;
        }
        let chunk = self.chunk_of(run.at);
        let inside = &self.chunks[chunk];
        let entry = inside.at[..inside.used].partition_point(|&at| at <= run.at);
        let before = (entry > 0).then(|| inside.get(entry - 1));
        let after = if entry < inside.used {
            Some(inside.get(entry))
        } else {
            self.chunks.get(chunk + 1).map(|next| next.get(0))
        };
        if before.is_some_and(|before| before.end() > run.at) || after.is_some_and(|after| after.at < run.end()) {
            return false;
        }
        self.total += run.len;
        let before = before.filter(|before| before.end() == run.at);
        let after = after.filter(|after| after.at == run.end());
        match (before, after) {
            (None, None) => self.insert_entry(chunk, entry, run),
            (Some(before), None) => self.replace(chunk, entry - 1, joined(before, run)),
            (None, Some(after)) => {
                let (chunk, entry) = if entry < self.chunks[chunk].used { (chunk, entry) } else { (chunk + 1, 0) };
                self.replace(chunk, entry, joined(run, after));
            }
            (Some(before), Some(after)) => {
                self.replace(chunk, entry - 1, joined(joined(before, run), after));
                let (chunk, entry) = if entry < self.chunks[chunk].used { (chunk, entry) } else { (chunk + 1, 0) };
                self.remove_entry(chunk, entry);
            }
        }
        true
    }

    /// Takes the run that ends at `end` out, if there is one.
    #[inline]
    pub(super) fn take_ending_at(&mut self, end: u64) -> Option<Run> {
        self.take_if(end.checked_sub(1)?, |run| run.end() == end)
    }

    /// Takes the run that begins at `at` out, if there is one.
    #[inline]
    pub(super) fn take_starting_at(&mut self, at: u64) -> Option<Run> {
        self.take_if(at, |run| run.at == at)
    }

    #[inline]
    fn take_if(&mut self, within: u64, is_it: impl Fn(&Run) -> bool) -> Option<Run> {
        let spot = self.at_or_before(within)?;
        let run = self.get(spot);
        is_it(&run).then(|| {
            self.total -= run.len;
            self.remove_entry(spot.chunk, spot.entry);
            run
        })
    }

    /// The run that ends at `end`.
    pub(super) fn ending_at(&self, end: u64) -> Option<Run> {
        let run = self.get(self.at_or_before(end.checked_sub(1)?)?);
        (run.end() == end).then_some(run)
    }

    /// Every run, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.chunks.iter().flat_map(|chunk| (0..chunk.used).map(|entry| chunk.get(entry)))
    }

    /// The runs of at least `len` units, lowest first.
    pub(super) fn iter_long(&self, len: u64) -> impl Iterator<Item = Run> + '_ {
        let chunks = self.chunks.iter().zip(&self.most).filter(move |&(_, &most)| most >= len);
        let runs = chunks.flat_map(|(chunk, _)| (0..chunk.used).map(|entry| chunk.get(entry)));
        runs.filter(move |run| run.len >= len)
    }

    fn at_or_before(&self, at: u64) -> Option<Spot> {
        if self.chunks.is_empty() {
            return None;
        }
        let chunk = self.chunk_of(at);
        let inside = &self.chunks[chunk];
        let entry = inside.at[..inside.used].partition_point(|&start| start <= at).checked_sub(1)?;
        Some(Spot { chunk, entry, at: inside.at[entry] })
    }

    fn spot_of(&self, at: u64) -> Spot {
        self.at_or_before(at).unwrap_or(Spot { chunk: 0, entry: 0, at: 0 })
    }

    /// The chunk that `at` belongs in.
    #[inline]
    fn chunk_of(&self, at: u64) -> usize {
        self.firsts.partition_point(|&first| first <= at).saturating_sub(1)
    }

    #[inline]
    fn replace(&mut self, chunk: usize, entry: usize, run: Run) {
        self.chunks[chunk].set(entry, run);
        if entry == 0 {
            self.firsts[chunk] = run.at;
        }
        self.note_length(chunk, run.len);
    }

    fn start(&mut self, run: Run) {
        let mut chunk = self.fresh_chunk();
        chunk.open(0, run);
        self.chunks.push(chunk);
        self.count = 1;
        self.firsts.push(run.at);
        self.most.push(run.len);
        self.groups.push(run.len);
    }

    fn fresh_chunk(&mut self) -> Box<Chunk> {
        self.spare.pop().unwrap_or_else(|| Box::new(Chunk::EMPTY))
    }

    /// Takes every run out.
    pub(super) fn clear(&mut self) {
        for mut chunk in self.chunks.drain(..) {
            chunk.used = 0;
            self.spare.push(chunk);
        }
        self.firsts.clear();
        self.most.clear();
        self.groups.clear();
        (self.total, self.count, self.starts) = (0, 0, [0; CLASSES]);
    }

    fn insert_entry(&mut self, mut chunk: usize, mut entry: usize, run: Run) {
        if self.chunks[chunk].used == CHUNK {
            self.split(chunk);
            if entry > CHUNK / 2 {
                (chunk, entry) = (chunk + 1, entry - CHUNK / 2);
            }
        }
        self.chunks[chunk].open(entry, run);
        self.count += 1;
        if entry == 0 {
            self.firsts[chunk] = run.at;
        }
        self.note_length(chunk, run.len);
    }

    fn remove_entry(&mut self, chunk: usize, entry: usize) {
        let inside = &mut self.chunks[chunk];
        inside.close(entry);
        self.count -= 1;
        if inside.used == 0 {
            let emptied = self.chunks.remove(chunk);
            self.spare.push(emptied);
            self.firsts.remove(chunk);
            self.most.remove(chunk);
            self.shift_starts(chunk, |start| start - 1);
            self.regroup(chunk);
            return;
        }
        if entry == 0 {
            self.firsts[chunk] = inside.at[0];
        }
    }

    /// Keeps the bounds of a chunk and of its group true when a run in it has become `len` units long.
    #[inline]
    fn note_length(&mut self, chunk: usize, len: u64) {
        if len > self.most[chunk] {
            self.most[chunk] = len;
            let group = &mut self.groups[chunk / GROUP];
            *group = len.max(*group);
        }
        // Searches for longer runs never begin earlier than those for shorter ones: the first that is right ends this.
        for start in self.starts[..=class(len)].iter_mut().rev() {
            if *start <= chunk {
                break;
            }
            *start = chunk;
        }
    }

    /// Chunks from `chunk` on have moved by one.
    fn shift_starts(&mut self, chunk: usize, shift: impl Fn(usize) -> usize) {
        self.starts.iter_mut().filter(|start| **start > chunk).for_each(|start| *start = shift(*start));
    }

    fn longest_of_group(&self, group: usize) -> u64 {
        longest(&self.most[group * GROUP..self.most.len().min((group + 1) * GROUP)])
    }

    fn split(&mut self, chunk: usize) {
        let mut high = self.fresh_chunk();
        let (low, half) = (&mut self.chunks[chunk], CHUNK / 2);
        high.at[..half].copy_from_slice(&low.at[half..]);
        high.len[..half].copy_from_slice(&low.len[half..]);
        high.stamp[..half].copy_from_slice(&low.stamp[half..]);
        (low.used, high.used) = (half, half);
        self.most[chunk] = low.longest();
        self.firsts.insert(chunk + 1, high.at[0]);
        self.most.insert(chunk + 1, high.longest());
        self.chunks.insert(chunk + 1, high);
        self.shift_starts(chunk, |start| start + 1);
        self.regroup(chunk);
    }

    /// Brings the bounds of the groups from that of `chunk` on up to date.
    fn regroup(&mut self, chunk: usize) {
        self.groups.resize(self.most.len().div_ceil(GROUP), 0);
        for group in chunk / GROUP..self.groups.len() {
            self.groups[group] = self.longest_of_group(group);
        }
    }
}

fn joined(low: Run, high: Run) -> Run {
    Run { at: low.at, len: low.len + high.len, stamp: low.stamp.max(high.stamp) }
}

#[cfg(test)]
mod tests;
