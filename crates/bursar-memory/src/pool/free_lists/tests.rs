//! The free lists, limbo with them, against a slow model that knows what is ordered after what.

use super::super::frame_sizes::FrameSizes;
use super::questions::Question;
use super::*;
use bursar_core::{DeviceContext, DeviceId};
use bursar_sim::{Random, Sim};

const STREAMS: usize = 4;
const UNITS: u64 = 96;

/// The point of each stream that something comes after.
type Clock = Vec<u64>;

fn join(clock: &mut Clock, other: &Clock) {
    clock.resize(clock.len().max(other.len()), 0);
    clock.iter_mut().zip(other).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
}

fn covers(clock: &Clock, other: &Clock) -> bool {
    other.iter().enumerate().all(|(of, &time)| time <= clock.get(of).copied().unwrap_or(0))
}

/// A block of the model: where it is, and the index of its own stream.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: u64,
    len: u64,
    home: usize,
}

/// A question that was put and is not answered yet, with what is known to have run once it is.
struct Asked {
    question: Question,
    run: Clock,
}

struct Model {
    lists: FreeLists,
    random: Random,
    streams: Vec<Stream>,
    /// The clocks of the streams, each with the index of its own entry; a stream that takes another's slot has a new one.
    clocks: Vec<(usize, Clock)>,
    /// The work that the host knows to have run.
    host: Clock,
    /// For each unit that is free, the frees that whoever gets it must come after.
    free: Vec<Option<Clock>>,
    live: Vec<Block>,
    asked: Option<Asked>,
}

impl Model {
    fn new(seed: u64, streams: Vec<Stream>) -> Self {
        let space = AddressSpace::new(0..1 << 20, FrameSizes { page: 1, largest: 1, small_pool: 0 });
        let mut lists = FreeLists::new(space);
        lists.add_common(Run { at: 0, len: UNITS, stamp: 0 });
        let clocks = (0..streams.len()).map(|of| (of, vec![0; of + 1])).collect();
        let free = vec![Some(Clock::new()); UNITS as usize];
        Self {
            lists,
            random: Random::new(seed),
            streams,
            clocks,
            host: Vec::new(),
            free,
            live: Vec::new(),
            asked: None,
        }
    }

    fn pick(&mut self) -> usize {
        self.random.below(STREAMS as u64) as usize
    }

    /// Submits work to a stream; returns what comes after it.
    fn submit(&mut self, stream: usize) -> Clock {
        let (of, clock) = &mut self.clocks[stream];
        clock[*of] += 1;
        clock.clone()
    }

    fn slot(&self, stream: usize) -> usize {
        self.streams[stream].slot()
    }

    fn take(&mut self) {
        let (stream, len) = (self.pick(), 1 + self.random.below(12));
        let request = Request { len, align: 1 << self.random.below(2), slot: self.slot(stream) };
        let Some(at) = self.lists.take(request).or_else(|| self.lists.take_ordered(request)) else { return };
        let mut after = self.clocks[stream].1.clone();
        join(&mut after, &self.host);
        for unit in at..at + len {
            let needed = self.free[unit as usize].take().expect("no unit is granted twice");
            assert!(covers(&after, &needed), "unit {unit} was granted early: {needed:?} is not in {after:?}");
        }
        self.live.push(Block { at, len, home: stream });
    }

    fn free(&mut self) {
        let (stream, count) = (self.pick(), self.live.len() as u64);
        if count == 0 {
            return;
        }
        let Block { at, len, home } = self.live.swap_remove(self.random.below(count) as usize);
        let (mut needed, own) = (self.submit(home), self.submit(stream));
        join(&mut needed, &own);
        let freed = self.free_on(home, stream, at, len);
        assert!(freed, "it was in use");
        self.free[at as usize..(at + len) as usize].fill(Some(needed));
        if self.random.below(4) == 0 {
            assert!(!self.free_on(home, stream, at, len), "it is free already");
        }
    }

    fn free_on(&mut self, home: usize, stream: usize, at: u64, len: u64) -> bool {
        let (home, stream) = (self.streams[home], self.streams[stream]);
        match home == stream {
            true => self.lists.free(stream.slot(), at, len),
            false => self.lists.free_elsewhere(home, stream, at, len),
        }
    }

    /// Begins a question, or ends the one that was begun: what was freed in between is not answered for.
    fn ask(&mut self) {
        match self.asked.take() {
            Some(Asked { question, run }) => {
                let passed = (self.random.below(3) > 0).then_some(question.before);
                if passed.is_some() && self.lists.lane(question.slot).epoch == question.epoch {
                    join(&mut self.host, &run);
                }
                drop(self.lists.end_question(question, passed));
            }
            None => {
                let stream = self.pick();
                let question = self.lists.question(self.slot(stream));
                self.asked = Some(Asked { question, run: self.clocks[stream].1.clone() });
            }
        }
    }

    fn wait(&mut self) {
        let (stream, other) = (self.pick(), self.pick());
        if stream == other {
            return;
        }
        let question = self.lists.question(self.slot(other));
        let waited_for = self.clocks[other].1.clone();
        join(&mut self.clocks[stream].1, &waited_for);
        self.lists.enter_wait(self.slot(stream), &question);
        drop(self.lists.end_question(question, None));
    }

    /// Ends a stream, whose slot another takes at once; the first one inherits.
    fn end(&mut self) {
        let (stream, heir) = (1 + self.random.below(STREAMS as u64 - 1) as usize, self.streams[0]);
        let ended = self.clocks[stream].1.clone();
        let end = match self.random.below(2) {
            0 => {
                join(&mut self.clocks[0].1, &ended);
                StreamEnd::InheritedBy(heir)
            }
            _ => {
                join(&mut self.host, &ended);
                StreamEnd::Complete
            }
        };
        self.lists.end_lane(self.slot(stream), end);
        // Blocks of it are the heir's, as a pool has it.
        join(&mut self.clocks[0].1, &ended);
        self.live.iter_mut().filter(|block| block.home == stream).for_each(|block| block.home = 0);
        let of = self.clocks.iter().map(|(of, _)| of + 1).max().unwrap_or_default();
        self.clocks[stream] = (of, vec![0; of + 1]);
    }

    fn check(&self) {
        let free = self.free.iter().flatten().count() as u64;
        assert_eq!(self.lists.free_units(), free, "no unit is lost or doubled");
        let known = |needed: &&Clock| covers(&self.host, needed);
        let ran = self.free.iter().flatten().filter(known).count() as u64;
        assert!(self.lists.common.total() <= ran, "what everyone may have is known to have run");
        assert!(self.lists.longest() <= free);
    }

    fn run(mut self, steps: u32) {
        for _ in 0..steps {
            match self.random.below(20) {
                0..8 => self.take(),
                8..14 => self.free(),
                14..17 => self.ask(),
                17 => self.wait(),
                18 => self.lists.claim_common(self.slot(0)),
                _ => self.end(),
            }
            self.check();
        }
        while !self.live.is_empty() {
            self.free();
        }
        self.asked.take().map(|Asked { question, .. }| self.lists.end_question(question, None));
        // One question to each stream that is named settles everything.
        for slot in self.lists.pending_streams() {
            let question = self.lists.question(slot);
            let before = question.before;
            drop(self.lists.end_question(question, Some(before)));
        }
        assert_eq!((self.lists.pending_units(), self.lists.common.longest()), (0, UNITS), "everything comes back");
    }
}

#[test]
fn p9_what_is_in_limbo_is_granted_to_nobody_before_both_streams_have_passed_it() {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let streams: Vec<_> = (0..STREAMS).map(|_| context.create_stream(0).expect("a stream")).collect();
    for seed in 0..400 {
        Model::new(seed, streams.clone()).run(400);
    }
}

/// A stream that ends with nothing ordered after it leaves what it shares in limbo to be ordered later.
#[test]
fn p9_what_is_in_limbo_of_a_stream_that_ends_unordered_is_kept() {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let streams: Vec<_> = (0..3).map(|_| context.create_stream(0).expect("a stream")).collect();
    let mut lists = Model::new(0, streams.clone()).lists;
    let request = Request { len: 1, align: 1, slot: streams[0].slot() };
    let taken: Vec<_> = (0..2).map(|_| lists.take(request).expect("there is room")).collect();
    assert!(lists.free_elsewhere(streams[0], streams[1], taken[0], 1));
    assert!(lists.free_elsewhere(streams[1], streams[2], taken[1], 1));
    lists.end_lane(streams[1].slot(), StreamEnd::Unordered(streams[1]));
    let kept: Vec<_> = lists.unordered.iter().map(|kept| (kept.at, kept.home, kept.stream)).collect();
    assert_eq!(kept, [(taken[0], streams[0], streams[1]), (taken[1], streams[1], streams[2])]);
    assert_eq!((lists.pending_units(), lists.free_units()), (2, UNITS));
}
