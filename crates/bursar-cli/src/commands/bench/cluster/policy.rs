//! The planner and those that it is compared with. Each places what it can, and serves who waits when something ends.

use super::workload::CARDS;
use bursar::Bytes;
use bursar::fit::ClusterPlanner;
use std::collections::BTreeSet;

/// Something that places requests, which are numbered in the order of arrival.
pub(super) trait Policy {
    /// Takes a request. Adds who is placed to `placed`.
    fn arrive(&mut self, request: usize, bytes: u64, placed: &mut Vec<usize>);
    /// Ends a request that was placed. Adds who is placed then to `placed`.
    fn end(&mut self, request: usize, placed: &mut Vec<usize>);
}

/// Bursar's planner.
pub(super) struct Planned(pub(super) ClusterPlanner);

impl Planned {
    fn place(&mut self, placed: &mut Vec<usize>) {
        placed.extend(std::iter::from_fn(|| self.0.place()).map(|placement| placement.request as usize));
    }
}

impl Policy for Planned {
    fn arrive(&mut self, _: usize, bytes: u64, placed: &mut Vec<usize>) {
        if self.0.request(Bytes(bytes)).is_ok() {
            self.place(placed);
        }
    }

    fn end(&mut self, request: usize, placed: &mut Vec<usize>) {
        self.0.end(request as u64);
        self.place(placed);
    }
}

/// The card that a request goes to, of those that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first.
    First,
    /// The one that is left with the least.
    Best,
}

/// The amount that a request takes of a card, in bytes or as a fraction of a GPU, and the least class of cards that it may have.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    amount: u64,
    class: usize,
    card: usize,
}

/// A queue in the order of arrival in which whoever fits may overtake, over cards that are counted in bytes or in fractions.
pub(super) struct Queued {
    choice: Choice,
    in_fractions: bool,
    /// The class of each card: its place among the sizes that there are.
    classes: Vec<usize>,
    free: Vec<u64>,
    /// The cards of each class by what is free of them; for the first of them, the most that any of a range has.
    by_free: Vec<BTreeSet<(u64, usize)>>,
    most: Vec<Extremes>,
    /// For each class of requests the least amount that any of a range of those that wait needs.
    waiting: Vec<Extremes>,
    taken: Vec<Taken>,
}

impl Queued {
    pub(super) fn new(choice: Choice, in_fractions: bool, cards: &[u64], requests: usize) -> Self {
        let class = |size: &u64| CARDS.iter().position(|(gib, _)| gib << 30 == *size).unwrap_or(0);
        let classes: Vec<usize> = cards.iter().map(class).collect();
        let free: Vec<u64> = if in_fractions { vec![Self::WHOLE; cards.len()] } else { cards.to_vec() };
        let mut queued = Self {
            choice,
            in_fractions,
            by_free: vec![BTreeSet::new(); CARDS.len()],
            most: (0..CARDS.len()).map(|_| Extremes::new(cards.len())).collect(),
            waiting: (0..CARDS.len()).map(|_| Extremes::new(requests)).collect(),
            taken: vec![Taken::default(); requests],
            free,
            classes,
        };
        (0..cards.len()).for_each(|card| queued.set_free(card, queued.free[card]));
        queued
    }

    /// A GPU in the parts that Ray counts.
    const WHOLE: u64 = 10_000;

    fn set_free(&mut self, card: usize, free: u64) {
        let class = self.classes[card];
        match self.choice {
            Choice::First => self.most[class].set(card, u64::MAX - free),
            Choice::Best => {
                self.by_free[class].remove(&(self.free[card], card));
                self.by_free[class].insert((free, card));
            }
        }
        self.free[card] = free;
    }

    /// Returns the card for a request.
    fn card_for(&self, Taken { amount, class, .. }: Taken) -> Option<usize> {
        let classes = class..CARDS.len();
        match self.choice {
            Choice::First => classes.filter_map(|class| self.most[class].first_at_most(u64::MAX - amount)).min(),
            Choice::Best => {
                let tightest = |class: usize| self.by_free[class].range((amount, 0)..).next().copied();
                classes.filter_map(tightest).min().map(|(_, card)| card)
            }
        }
    }

    fn put(&mut self, request: usize, card: usize, placed: &mut Vec<usize>) {
        self.taken[request].card = card;
        self.set_free(card, self.free[card] - self.taken[request].amount);
        placed.push(request);
    }
}

impl Policy for Queued {
    fn arrive(&mut self, request: usize, bytes: u64, placed: &mut Vec<usize>) {
        // Without a size, a fraction is meant of the smallest card that it is enough on, and holds on larger ones too.
        let class = CARDS.iter().position(|(gib, _)| gib << 30 >= bytes).unwrap_or(CARDS.len() - 1);
        let fraction = (u128::from(bytes) * u128::from(Self::WHOLE)).div_ceil(u128::from(CARDS[class].0) << 30) as u64;
        let (amount, class) = if self.in_fractions { (fraction, class) } else { (bytes, 0) };
        self.taken[request] = Taken { amount, class, card: 0 };
        match self.card_for(self.taken[request]) {
            Some(card) => self.put(request, card, placed),
            None => self.waiting[class].set(request, amount),
        }
    }

    fn end(&mut self, request: usize, placed: &mut Vec<usize>) {
        let Taken { amount, card, .. } = self.taken[request];
        self.set_free(card, self.free[card] + amount);
        loop {
            let fits = |class: usize| self.waiting[class].first_at_most(self.free[card]);
            let Some(next) = (0..=self.classes[card]).filter_map(fits).min() else { return };
            self.waiting[self.taken[next].class].set(next, u64::MAX);
            self.put(next, card, placed);
        }
    }
}

/// Numbers in a row, of which the first that is at most another is found fast: a tree of minima.
#[derive(Debug)]
struct Extremes {
    leaves: usize,
    tree: Vec<u64>,
}

impl Extremes {
    fn new(length: usize) -> Self {
        let leaves = length.next_power_of_two();
        Self { leaves, tree: vec![u64::MAX; 2 * leaves] }
    }

    fn set(&mut self, at: usize, number: u64) {
        let mut node = self.leaves + at;
        self.tree[node] = number;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].min(self.tree[2 * node + 1]);
        }
    }

    /// Returns the first place whose number is at most `number`. A place that was never set has none.
    fn first_at_most(&self, number: u64) -> Option<usize> {
        if self.tree[1] > number || self.tree[1] == u64::MAX {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = if self.tree[2 * node] <= number { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.leaves)
    }
}
