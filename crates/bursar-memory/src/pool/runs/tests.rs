//! Runs against a slow model of them.

use super::chunk::LOOKS;
use super::*;
use bursar_sim::Random;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A slow model of what [`Runs`] promises.
#[derive(Debug, Default)]
struct Model(BTreeMap<u64, (u64, u64)>);

impl Model {
    fn insert(&mut self, run: Run) -> bool {
        if self.0.iter().any(|(&at, &(len, _))| at < run.end() && run.at < at + len) {
            return false;
        }
        self.0.insert(run.at, (run.len, run.stamp));
        let entries: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        for (at, (len, stamp)) in entries {
            match self.0.last_entry() {
                Some(mut last) if *last.key() + last.get().0 == at => {
                    let (before, older) = *last.get();
                    last.insert((before + len, older.max(stamp)));
                }
                _ => drop(self.0.insert(at, (len, stamp))),
            }
        }
        true
    }

    fn find(&self, len: u64, align: u64) -> Option<u64> {
        let fits = |at: u64, run: u64| at.next_multiple_of(align) + len <= at + run;
        self.0.iter().find(|&(&at, &(run, _))| fits(at, run)).map(|(&at, _)| at)
    }

    fn remove(&mut self, range: Range<u64>) {
        let (&at, &(len, stamp)) = self.0.range(..=range.start).next_back().expect("a run that holds it");
        self.0.remove(&at);
        if at < range.start {
            self.0.insert(at, (range.start - at, stamp));
        }
        if range.end < at + len {
            self.0.insert(range.end, (at + len - range.end, stamp));
        }
    }

    /// The runs that end where a range begins, and begin where it ends.
    fn beside(&self, range: &Range<u64>) -> [Option<Run>; 2] {
        let runs = self.runs();
        let find = |is_it: &dyn Fn(&Run) -> bool| runs.iter().copied().find(|run| is_it(run));
        [find(&|run| run.end() == range.start), find(&|run| run.at == range.end)]
    }

    fn runs(&self) -> Vec<Run> {
        self.0.iter().map(|(&at, &(len, stamp))| Run { at, len, stamp }).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Take(u64, u64),
    Beside(usize, u64),
    Starting(usize),
    Cut(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        400 => (0..4000u64, 1..4u64).prop_map(|(at, len)| Step::Insert(at, len)),
        200 => (1..6u64, 0..3u32).prop_map(|(len, align)| Step::Take(len, 1 << align)),
        100 => (any::<usize>(), 1..4u64).prop_map(|(pick, len)| Step::Beside(pick, len)),
        100 => any::<usize>().prop_map(Step::Starting),
        100 => any::<usize>().prop_map(Step::Cut),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn p2_runs_answer_what_the_slow_way_answers(steps in prop::collection::vec(step(), 1..2500)) {
        let (mut runs, mut model) = (Runs::<4>::default(), Model::default());
        for (stamp, step) in (0u64..).zip(steps) {
            match step {
                Step::Insert(at, len) => {
                    let run = Run { at, len, stamp };
                    prop_assert_eq!(runs.insert(run), model.insert(run));
                }
                Step::Take(len, align) => {
                    prop_assert_eq!(runs.find(len).map(|found| found.at), model.find(len, 1));
                    let fits: Vec<_> = model.runs().into_iter().filter(|run| run.len >= len).collect();
                    let tightest = runs.find_tightest(len).map(|(found, least)| (runs.get(found), least));
                    prop_assert_eq!(tightest.is_none(), fits.is_empty());
                    if let Some((run, least)) = tightest {
                        prop_assert!(run.len == least && fits.contains(&run) && least <= fits[0].len);
                        let is_looked_at = fits.len() <= TIGHTEST_OF;
                        prop_assert!(!is_looked_at || fits.iter().all(|fit| fit.len >= least));
                    }
                    let found = runs.find_aligned(len, align);
                    prop_assert_eq!(found.map(|found| found.at), model.find(len, align));
                    if let Some(found) = found {
                        let at = if align == 1 { runs.take(len).expect("as was found") } else { runs.carve(found, len, align) };
                        prop_assert!(at.is_multiple_of(align) && (found.at..found.at + align).contains(&at));
                        model.remove(at..at + len);
                    } else {
                        prop_assert!(align > 1 || runs.take(len).is_none());
                    }
                }
                Step::Starting(pick) => {
                    let all = model.runs();
                    let Some(&run) = all.get(pick % all.len().max(1)) else { continue };
                    if !model.0.contains_key(&(run.at + 1)) {
                        prop_assert_eq!(runs.take_starting_at(run.at + 1), None);
                    }
                    prop_assert_eq!((runs.ending_at(run.end()), runs.starting_at(run.at)), (Some(run), Some(run)));
                    prop_assert_eq!(runs.starting_at(run.end()), None);
                    prop_assert_eq!(runs.take_starting_at(run.at), Some(run));
                    model.remove(run.range());
                }
                Step::Cut(pick) => {
                    let all = model.runs();
                    let Some(run) = all.get(pick % all.len().max(1)) else { continue };
                    let range = run.at + run.len / 2..run.end();
                    runs.cut(range.clone());
                    model.remove(range);
                }
                Step::Clear => {
                    runs.clear();
                    model.0.clear();
                }
                Step::Beside(pick, len) => {
                    let all = model.runs();
                    let Some(run) = all.get(pick % all.len().max(1)) else { continue };
                    let range = run.end()..run.end() + len;
                    if all.iter().any(|run| run.at < range.end && range.start < run.end()) {
                        continue;
                    }
                    let [low, high] = model.beside(&range);
                    let whole = low.map_or(range.start, |low| low.at)..high.map_or(range.end, |high| high.end());
                    prop_assert_eq!(runs.take_beside(range), whole);
                    low.into_iter().chain(high).for_each(|run| model.remove(run.range()));
                }
            }
            prop_assert_eq!(runs.total(), model.runs().iter().map(|run| run.len).sum::<u64>());
            prop_assert_eq!(runs.longest(), model.runs().iter().map(|run| run.len).max().unwrap_or(0));
        }
        prop_assert_eq!(runs.iter().collect::<Vec<_>>(), model.runs());
        let long: Vec<_> = model.runs().into_iter().filter(|run| run.len >= 3).collect();
        prop_assert_eq!(runs.iter_long(3).collect::<Vec<_>>(), long);
    }
}

/// Wherever in its chunk a run lies, what was taken off its front does not count as where it begins.
#[test]
fn p2_what_was_taken_off_the_front_of_a_run_is_no_neighbour() {
    for long in 1..60 {
        let (mut runs, mut model) = (Runs::<4>::default(), Model::default());
        for nth in 0..60 {
            let run = Run { at: 8 * nth, len: if nth == long { 3 } else { 1 }, stamp: 0 };
            assert!(runs.insert(run) && model.insert(run));
        }
        assert_eq!(runs.take(2), Some(8 * long));
        model.remove(8 * long..8 * long + 2);
        let before = Run { at: 8 * long - 1, len: 1, stamp: 0 };
        assert!(runs.insert(before) && model.insert(before));
        assert_eq!(runs.iter().collect::<Vec<_>>(), model.runs());
    }
}

/// Blocks of 20 to 60 KiB, so many of them in use, with as many freed at random places between them: the mean number of
/// looks at memory that a free or a request takes.
fn looks_among(live: usize) -> f64 {
    let (mut runs, mut random, mut end) = (Runs::<64>::default(), Random::new(live as u64), 0);
    let len = |random: &mut Random| 80 + random.below(160);
    let mut blocks: Vec<_> = (0..2 * live)
        .map(|_| {
            let len = len(&mut random);
            end += len;
            (end - len, len)
        })
        .collect();
    assert!(runs.insert(Run { at: end, len: end, stamp: 0 }));
    let free = |runs: &mut Runs<64>, random: &mut Random, blocks: &mut Vec<(u64, u64)>| {
        let (at, len) = blocks.swap_remove(random.index(blocks.len()));
        assert!(runs.insert(Run { at, len, stamp: 0 }));
    };
    (0..live).for_each(|_| free(&mut runs, &mut random, &mut blocks));
    let mut looks = 0;
    for pair in 0..2 * live {
        LOOKS.set(0);
        free(&mut runs, &mut random, &mut blocks);
        let len = len(&mut random);
        blocks.push((runs.take(len).expect("there is room behind all"), len));
        looks += if pair < live { 0 } else { LOOKS.get() };
    }
    looks as f64 / (2 * live) as f64
}

#[test]
fn p2_a_fit_and_a_free_take_at_most_twice_the_looks_among_a_hundred_times_the_blocks() {
    let (few, many) = (looks_among(1_000), looks_among(100_000));
    assert!(many <= 2.0 * few, "{many:.1} looks among many, {few:.1} among few");
}
