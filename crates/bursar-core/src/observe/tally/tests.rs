//! Tests of a tally's promises that crates above cannot observe.

use super::*;
use crate::tag;
use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex};

const BYTES: Bytes = Bytes(512);

fn current(tally: &Tally) -> u64 {
    tally.counts().current.count
}

#[test]
fn g2_tallies_that_a_thread_counts_for_in_turn_are_told_apart() {
    let tallies = [(), ()].map(|()| Arc::new(Tally::default()));
    let counters = tallies.each_ref().map(|tally| Counter::new(tally, Tally::column_of(DeviceId(0))));
    for (tally, counter) in tallies.iter().zip(&counters) {
        tally.granted(DeviceId(0), tag!("turn"), BYTES);
        tally.freed(DeviceId(0), tag!("turn"), BYTES);
        tally.granted(DeviceId(0), tag!("turn"), BYTES);
        assert!(counter.freed(tag!("turn"), BYTES), "it is where the thread counted last");
    }
    assert!(!counters[0].granted(tag!("turn"), BYTES), "the other is");
    assert!(counters[1].granted(tag!("turn"), BYTES));
    assert_eq!(tallies.each_ref().map(|tally| current(tally)), [0, 1]);
    assert_eq!(tallies.each_ref().map(|tally| tally.counts().total.count), [2, 3]);
}

#[test]
fn g2_a_tally_begins_with_nothing_wherever_others_counted_before() {
    for _ in 0..3 {
        let tally = Tally::default();
        let far = AllocTag::intern("far away");
        assert_eq!((tally.counts(), tally.counts_of(far)), (Counts::default(), Counts::default()));
        assert_eq!(tally.open_scope(), 0);
        for device in [0, 7, 40] {
            tally.granted(DeviceId(device), far, BYTES);
            tally.granted(DeviceId(device), AllocTag::UNTAGGED, BYTES);
        }
        tally.freed(DeviceId(0), far, BYTES);
        assert_eq!((current(&tally), tally.counts().peak.count), (5, 6));
    }
}

/// Reports, once its thread has given its number up, whether the thread could still count in its last shard.
struct Last(RefCell<Option<(Counter, Sender<bool>)>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some((counter, sender)) = self.0.take() {
            sender.send(counter.granted(tag!("last"), BYTES)).expect("the receiver is there");
        }
    }
}

#[test]
fn g2_a_thread_past_its_end_does_not_count_in_a_place_that_may_be_anothers() {
    thread_local! {
        static LAST: Last = const { Last(RefCell::new(None)) };
    }
    let (sender, receiver) = channel();
    let tally = Arc::new(Tally::default());
    let counter = Counter::new(&tally, Tally::column_of(DeviceId(0)));
    let thread = std::thread::spawn({
        let tally = tally.clone();
        move || {
            // Made before the thread has a number, and so dropped after that is given up.
            LAST.with(|last| last.0.replace(Some((counter.clone(), sender))));
            tally.granted(DeviceId(0), tag!("last"), BYTES);
            tally.freed(DeviceId(0), tag!("last"), BYTES);
            tally.granted(DeviceId(0), tag!("last"), BYTES);
            assert!(counter.freed(tag!("last"), BYTES));
        }
    });
    thread.join().expect("no panic");
    assert_eq!(receiver.recv(), Ok(false));
    assert_eq!(current(&tally), 0);
}

/// Whatever is granted and freed while counts are being read, they show no peak that never was.
#[test]
fn g2_a_reading_shows_no_peak_that_never_was() {
    let (tally, tag) = (Tally::default(), tag!("read"));
    let index = Some(Key::of(DeviceId(0), tag).tag);
    tally.granted(DeviceId(0), tag, BYTES);
    let pairs = || {
        for _ in 0..1000 {
            tally.granted(DeviceId(0), tag, BYTES);
            tally.freed(DeviceId(0), tag, BYTES);
        }
    };
    let most = Amount { bytes: Bytes(2 * BYTES.get()), count: 2 };
    for counts in [tally.read(None, pairs), tally.read(index, pairs)] {
        assert_eq!(counts.peak, most);
        assert!(counts.current.count <= most.count && counts.current.bytes <= most.bytes, "{counts:?}");
    }
    for counts in [tally.counts(), tally.counts_of(tag)] {
        assert_eq!((counts.current, counts.peak), (Amount { bytes: BYTES, count: 1 }, most));
    }
}

const DEVICE: DeviceId = DeviceId(3);
const LARGEST: u64 = 64 << 20;

/// Random numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A program that grants and frees blocks of all sizes at random, and the true counts of it.
struct Program {
    tags: [AllocTag; 3],
    dice: Dice,
    steps: u64,
    live: Vec<(usize, u64)>,
    /// The counts of each tag and, at the end, of all blocks.
    truth: [Counts; 4],
}

impl Program {
    fn new(seed: u64) -> Self {
        let tags = [tag!("one"), tag!("two"), tag!("three")];
        Self { tags, dice: Dice(seed), steps: 0, live: Vec::new(), truth: Default::default() }
    }

    /// Makes the next step, counted as an observed stack would count it, and returns whether the counter was enough.
    /// For a while more is granted than freed, by more blocks than fit a slack, and then the other way round.
    fn step(&mut self, counter: &Counter) -> bool {
        self.steps += 1;
        let is_filling = self.steps % 1600 < 800;
        if self.live.is_empty() || (self.dice.below(4) > 0) == is_filling {
            let (tag, bound) = (self.dice.below(3) as usize, LARGEST >> self.dice.below(27));
            let bytes = 1 + self.dice.below(bound);
            self.live.push((tag, bytes));
            self.apply(tag, |counts| {
                *counts = Counts { current: more(counts.current, bytes), total: more(counts.total, bytes), ..*counts };
                counts.peak.bytes = counts.peak.bytes.max(counts.current.bytes);
                counts.peak.count = counts.peak.count.max(counts.current.count);
            });
            counter.granted(self.tags[tag], Bytes(bytes)) || {
                counter.tally().expect("one").granted_slow(Tally::column_of(DEVICE), self.tags[tag], Bytes(bytes));
                false
            }
        } else {
            let (tag, bytes) = self.live.swap_remove(self.dice.below(self.live.len() as u64) as usize);
            self.apply(tag, |Counts { current, .. }| {
                *current = Amount { bytes: Bytes(current.bytes.get() - bytes), count: current.count - 1 };
            });
            counter.freed(self.tags[tag], Bytes(bytes)) || {
                counter.tally().expect("one").freed_slow(Tally::column_of(DEVICE), self.tags[tag], Bytes(bytes));
                false
            }
        }
    }

    fn apply(&mut self, tag: usize, change: impl Fn(&mut Counts)) {
        [tag, 3].into_iter().for_each(|at| change(&mut self.truth[at]));
    }

    /// Returns the tally's counts, in the order of the true ones.
    fn said(&self, tally: &Tally) -> [Counts; 4] {
        let [one, two, three] = self.tags.map(|tag| tally.counts_of(tag));
        [one, two, three, tally.counts()]
    }
}

fn more(Amount { bytes, count }: Amount, by: u64) -> Amount {
    Amount { bytes: Bytes(bytes.get() + by), count: count + 1 }
}

#[test]
fn g2_one_thread_is_counted_exactly_and_the_short_way_whatever_the_sizes() {
    for seed in 0..16 {
        let tally = Arc::new(Tally::default());
        let (counter, mut program) = (Counter::new(&tally, Tally::column_of(DEVICE)), Program::new(seed));
        for step in 0..3200 {
            assert!(program.step(&counter) || step == 0, "seed {seed}, step {step}: the thread has a place");
            if step % 8 == 0 {
                assert_eq!(program.said(&tally), program.truth, "seed {seed}, step {step}");
            }
        }
        assert_eq!(program.said(&tally), program.truth, "seed {seed}");
    }
}

#[test]
fn g2_a_scope_counts_blocks_of_any_size_and_the_short_way_is_taken_again_after_it() {
    for seed in 0..16 {
        let tally = Arc::new(Tally::default());
        let (counter, mut program) = (Counter::new(&tally, Tally::column_of(DEVICE)), Program::new(seed));
        for round in 0..6 {
            let (before, depth) = (program.truth[3], tally.open_scope());
            for _ in 0..100 {
                assert!(!program.step(&counter), "seed {seed}: a scope has to count it");
            }
            let (scoped, now) = (tally.close_scope(depth), program.truth[3]);
            let granted = now.total.bytes.get() - before.total.bytes.get();
            assert_eq!((scoped.total.bytes.get(), now.total.count), (granted, before.total.count + scoped.total.count));
            for _ in 0..100 {
                assert!(program.step(&counter), "seed {seed}, round {round}: no scope is open");
            }
            assert_eq!(program.said(&tally), program.truth, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn g2_peaks_of_several_threads_are_never_too_low_and_at_most_a_mebibyte_each_too_high() {
    const THREADS: u64 = 4;
    for seed in 0..12 {
        let tally = Arc::new(Tally::default());
        let counter = Counter::new(&tally, Tally::column_of(DEVICE));
        // The thread that is next comes from the seed too, so that a program is the same each time.
        let (program, turns) = (Mutex::new((Program::new(seed), 0)), Condvar::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (counter, program, turns) = (&counter, &program, &turns);
                scope.spawn(move || {
                    let mut turn = program.lock().expect("no panic");
                    while turn.0.steps < 3200 {
                        let (program, next) = &mut *turn;
                        if *next == thread {
                            (0..10).for_each(|_| _ = program.step(counter));
                            *next = program.dice.below(THREADS);
                            turns.notify_all();
                        } else {
                            turn = turns.wait(turn).expect("no panic");
                        }
                    }
                });
            }
        });
        let (program, _) = program.into_inner().expect("no panic");
        for (said, truth) in program.said(&tally).into_iter().zip(program.truth) {
            assert_eq!((said.current, said.total), (truth.current, truth.total), "seed {seed}");
            let above = |said: u64, truth: u64, slack: u64| (truth..truth + THREADS * slack).contains(&said);
            let (bytes, count) = (said.peak.bytes.get(), said.peak.count);
            assert!(above(bytes, truth.peak.bytes.get(), 1 << 20), "seed {seed}: {bytes}, not {}", truth.peak);
            assert!(above(count, truth.peak.count, 1 << 8), "seed {seed}: {count}, not {}", truth.peak);
        }
    }
}
