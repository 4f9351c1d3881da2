//! Plans which card of many each request gets, and who is served next when one ends.
//!
//! Requests come one by one and end in any order. A decision looks at one card or at one request, never at all of them, so it
//! costs the same on eight cards and nearly the same on eight thousand:
//!
//! - A request that comes goes to the card that it leaves the least of.
//! - Where something ends, one of the largest requests that fit there is served, so that what is free is used: of the
//!   closest 32 the one that came first.
//! - Large ones first would have some wait for ever. So a request that was overtaken too often gets a card to itself, the one with
//!   the most free of those that are large enough, where nobody else is served until it is. At most one card in a hundred
//!   is kept so.

use bursar_core::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The number of a request, in the order of arrival.
pub type ClusterRequest = u64;

/// A request and the card that it was given, by its place in the list of cards.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{ClusterPlacement, ClusterPlanner};
///
/// let mut planner = ClusterPlanner::new([Bytes::gib(24), Bytes::gib(80)]);
/// let request = planner.request(Bytes::gib(40)).unwrap();
/// assert_eq!(planner.place(), Some(ClusterPlacement { request, card: 1 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterPlacement {
    /// The request.
    pub request: ClusterRequest,
    /// The place of its card in the list.
    pub card: usize,
}

/// A planner of requests over cards of any sizes, each request on one card.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::ClusterPlanner;
///
/// let mut planner = ClusterPlanner::new([Bytes::gib(8), Bytes::gib(8)]);
/// let sizes = [6, 6, 3].map(Bytes::gib);
/// let requests = sizes.map(|bytes| planner.request(bytes).unwrap());
/// // Four gibibytes are left, on two cards: three of one are not to be had.
/// assert_eq!(std::iter::from_fn(|| planner.place()).count(), 2);
/// planner.end(requests[1]);
/// assert_eq!(planner.place().map(|placement| (placement.request, placement.card)), Some((requests[2], 1)));
/// assert_eq!(planner.request(Bytes::gib(9)), Err(Bytes::gib(8)));
/// ```
#[derive(Debug, Default)]
pub struct ClusterPlanner {
    cards: Vec<ClusterCard>,
    /// The cards that anybody may have, by what is free of them.
    by_free: BTreeSet<(u64, usize)>,
    /// The requests that wait, in the order of arrival: their size, and how many were placed before they came.
    waiting: BTreeMap<ClusterRequest, (u64, u64)>,
    /// The same by size, and among equals the first to come last.
    by_size: BTreeSet<(u64, std::cmp::Reverse<ClusterRequest>)>,
    /// The requests that came and the cards of which something was freed since they were last looked at.
    arrived: BTreeSet<ClusterRequest>,
    freed: BTreeSet<usize>,
    placed: HashMap<ClusterRequest, (usize, u64)>,
    /// The requests that have a card to themselves as soon as enough of it is free.
    kept: BTreeMap<ClusterRequest, usize>,
    next: ClusterRequest,
    placements: u64,
    in_use: u64,
    largest: u64,
}

#[derive(Debug)]
struct ClusterCard {
    size: u64,
    free: u64,
    kept_for: Option<ClusterRequest>,
}

impl ClusterPlanner {
    /// The number of the largest that fit of which the one that came first is served: more is fairer, fewer is fuller.
    const CLOSEST: usize = 32;
    /// The number of times that a request may be overtaken, for each request that is on a card.
    const PATIENCE: u64 = 2;

    /// Returns a planner over cards of these sizes, all of them free.
    pub fn new(cards: impl IntoIterator<Item = Bytes>) -> Self {
        let cards: Vec<ClusterCard> =
            cards.into_iter().map(|size| ClusterCard { size: size.0, free: size.0, kept_for: None }).collect();
        let by_free = cards.iter().enumerate().map(|(at, card)| (card.free, at)).collect();
        let largest = cards.iter().map(|card| card.size).max().unwrap_or(0);
        Self { cards, by_free, largest, ..Self::default() }
    }

    /// Enters a request, which waits until [`place`](Self::place) returns it. One that no card could ever have is refused with
    /// the size of the largest.
    pub fn request(&mut self, bytes: Bytes) -> Result<ClusterRequest, Bytes> {
        if bytes.0 > self.largest {
            return Err(Bytes(self.largest));
        }
        let request = self.next;
        self.next += 1;
        self.waiting.insert(request, (bytes.0, self.placements));
        self.by_size.insert((bytes.0, std::cmp::Reverse(request)));
        self.arrived.insert(request);
        Ok(request)
    }

    /// Places the next request that can be placed; none until another comes or ends.
    pub fn place(&mut self) -> Option<ClusterPlacement> {
        while let Some(card) = self.freed.first().copied() {
            match self.choose_for(card) {
                Some(request) => return Some(self.put(request, card)),
                None => self.freed.remove(&card),
            };
        }
        while let Some(request) = self.arrived.pop_first() {
            let Some(&(bytes, _)) = self.waiting.get(&request) else { continue };
            if let Some(card) = self.tightest(bytes) {
                return Some(self.put(request, card));
            }
        }
        None
    }

    /// Ends a request, whether it was placed or still waits. Returns false if there is none of that number.
    pub fn end(&mut self, request: ClusterRequest) -> bool {
        if let Some((bytes, _)) = self.waiting.remove(&request) {
            self.by_size.remove(&(bytes, std::cmp::Reverse(request)));
            self.arrived.remove(&request);
            if let Some(card) = self.kept.remove(&request) {
                self.open_to_all(card);
            }
            return true;
        }
        let Some((card, bytes)) = self.placed.remove(&request) else { return false };
        self.in_use -= bytes;
        self.set_free(card, self.cards[card].free + bytes);
        self.freed.insert(card);
        self.keep_for_the_first();
        true
    }

    /// Returns the bytes that are in use on all cards.
    pub const fn in_use(&self) -> Bytes {
        Bytes(self.in_use)
    }

    /// Returns how many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns what is free of each card.
    pub fn free(&self) -> impl Iterator<Item = Bytes> {
        self.cards.iter().map(|card| Bytes(card.free))
    }

    /// Returns who is served next on a card: whom it is kept for, or the first to come of the largest that fit.
    fn choose_for(&self, card: usize) -> Option<ClusterRequest> {
        let ClusterCard { free, kept_for, .. } = self.cards[card];
        match kept_for {
            Some(request) => self.waiting.get(&request).filter(|(bytes, _)| *bytes <= free).map(|_| request),
            None => {
                let fitting = self.by_size.range(..=(free, std::cmp::Reverse(0))).rev();
                fitting.take(Self::CLOSEST).map(|(_, std::cmp::Reverse(request))| *request).min()
            }
        }
    }

    /// Returns the card that a request leaves the least of.
    fn tightest(&self, bytes: u64) -> Option<usize> {
        self.by_free.range((bytes, 0)..).next().map(|(_, card)| *card)
    }

    fn put(&mut self, request: ClusterRequest, card: usize) -> ClusterPlacement {
        let (bytes, _) = self.waiting.remove(&request).unwrap_or_default();
        self.by_size.remove(&(bytes, std::cmp::Reverse(request)));
        self.arrived.remove(&request);
        if let Some(kept) = self.kept.remove(&request) {
            self.open_to_all(kept);
        }
        self.set_free(card, self.cards[card].free - bytes);
        self.placed.insert(request, (card, bytes));
        (self.placements, self.in_use) = (self.placements + 1, self.in_use + bytes);
        ClusterPlacement { request, card }
    }

    fn set_free(&mut self, card: usize, free: u64) {
        if self.cards[card].kept_for.is_none() {
            self.by_free.remove(&(self.cards[card].free, card));
            self.by_free.insert((free, card));
        }
        self.cards[card].free = free;
    }

    /// Lets everyone have a card that was kept.
    fn open_to_all(&mut self, card: usize) {
        self.cards[card].kept_for = None;
        self.by_free.insert((self.cards[card].free, card));
        self.freed.insert(card);
    }

    /// Keeps a card for the request that came first, if it was overtaken too often.
    fn keep_for_the_first(&mut self) {
        let Some((&request, &(bytes, before))) =
            self.waiting.iter().find(|(request, _)| !self.kept.contains_key(request))
        else {
            return;
        };
        let is_patient = self.placements - before <= Self::PATIENCE * self.placed.len() as u64;
        if is_patient || self.kept.len() >= self.cards.len().div_ceil(100) {
            return;
        }
        let Some(card) = self.by_free.iter().rev().map(|(_, card)| *card).find(|card| self.cards[*card].size >= bytes)
        else {
            return;
        };
        self.by_free.remove(&(self.cards[card].free, card));
        self.cards[card].kept_for = Some(request);
        self.kept.insert(request, card);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_sim::Random;
    use std::cmp::Reverse;

    /// Checks that the planner's books agree with each other, and that nobody waits for what is free for all.
    fn check(planner: &ClusterPlanner, seed: u64) {
        let mut free: Vec<u64> = planner.cards.iter().map(|card| card.size).collect();
        planner.placed.values().for_each(|&(card, bytes)| free[card] -= bytes);
        assert!(planner.free().map(Bytes::get).eq(free.iter().copied()), "seed {seed}");
        assert_eq!(planner.in_use().get(), planner.placed.values().map(|(_, bytes)| bytes).sum::<u64>(), "seed {seed}");
        assert_eq!(planner.waiting.len(), planner.by_size.len(), "seed {seed}");
        assert!(planner.kept.len() <= planner.cards.len().div_ceil(100), "seed {seed}");
        let most = planner.cards.iter().filter(|card| card.kept_for.is_none()).map(|card| card.free).max().unwrap_or(0);
        let smallest = planner.waiting.values().map(|(bytes, _)| *bytes).min();
        assert!(
            smallest.is_none_or(|smallest| smallest > most),
            "seed {seed}: {smallest:?} waits, and {most} are free"
        );
    }

    #[test]
    fn c4_whatever_comes_and_ends_no_card_is_over_its_size_and_nobody_waits_for_what_is_free() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let sizes: Vec<u64> = (0..=random.index(12)).map(|_| 1 + random.below(100)).collect();
            let mut planner = ClusterPlanner::new(sizes.iter().copied().map(Bytes));
            let largest = sizes.iter().copied().max().unwrap_or(0);
            let (mut live, mut accepted) = (BTreeSet::new(), 0);
            for _ in 0..300 {
                let ended = random.pick(&live.iter().copied().collect::<Vec<_>>()).filter(|_| random.chance(2));
                match ended {
                    Some(request) => assert!(live.remove(&request) && planner.end(request), "seed {seed}"),
                    None => {
                        let bytes = 1 + random.below(120);
                        let asked = planner.request(Bytes(bytes));
                        assert_eq!(asked.is_ok(), bytes <= largest, "seed {seed}");
                        live.extend(asked.ok());
                        accepted += u64::from(asked.is_ok());
                    }
                }
                while planner.place().is_some() {}
                check(&planner, seed);
            }
            // Everyone is served in the end, if those who are end.
            while let Some(request) = planner.placed.keys().min().copied() {
                assert!(planner.end(request) && !planner.end(request), "seed {seed}");
                while planner.place().is_some() {}
                check(&planner, seed);
            }
            assert_eq!((planner.waiting(), planner.in_use()), (0, Bytes::ZERO), "seed {seed}, {accepted} requests");
        }
    }

    #[test]
    fn c4_a_large_request_is_not_overtaken_for_ever() {
        let mut planner = ClusterPlanner::new([Bytes(10)]);
        let mut small: std::collections::VecDeque<_> = (0..10).filter_map(|_| planner.request(Bytes(1)).ok()).collect();
        while planner.place().is_some() {}
        let large = planner.request(Bytes(10)).expect("the card is as large");
        // Small ones end and come for as long as the large one waits.
        for _ in 0..1000 {
            small.extend(planner.request(Bytes(1)).ok());
            small.pop_front().map(|request| planner.end(request));
            if std::iter::from_fn(|| planner.place()).any(|placement| placement.request == large) {
                return;
            }
        }
        panic!("it was overtaken a thousand times: {:?}", planner.by_size.first().map(|(_, Reverse(request))| request));
    }
}
