//! `StreamProgress` compared with what a stream has really run, for generated programs with driver calls that fail.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{DeviceContext, DeviceId, Driver, HostFunction, Status, Stream, StreamProgress};
use bursar_sim::{Call, Faults, Sim};
use proptest::prelude::*;
use rig::SEEDS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A step of a program on one stream that is asked about, and another that may wait for it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Gives the stream work that ends at a position so much further.
    Give(u64),
    Ask,
    /// Asks about the events alone, as where the stream is gone.
    AskEvents,
    Mark,
    HaveWait,
    /// Takes the events out and puts them back after one was recorded beside them.
    MarkMeanwhile,
    Run,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1u64..1 << 40).prop_map(Step::Give),
        Just(Step::Ask),
        Just(Step::AskEvents),
        Just(Step::Mark),
        Just(Step::HaveWait),
        Just(Step::MarkMeanwhile),
        Just(Step::Run),
    ];
    proptest::collection::vec(step, 1..80)
}

struct Model {
    sim: Arc<Sim>,
    context: Arc<DeviceContext>,
    stream: Stream,
    other: Stream,
    progress: StreamProgress,
    /// The position that was given to the stream last, and the one that it has run.
    given: u64,
    run: Arc<AtomicU64>,
    /// The positions of events that were recorded, beyond what was found to be passed.
    marked: Vec<u64>,
}

impl Model {
    /// `start` is the first position, so that programs go past the largest number there is.
    fn new(sim: Arc<Sim>, driver: Arc<dyn Driver>, start: u64) -> Self {
        let context = DeviceContext::open(driver, DeviceId(0)).unwrap();
        let (stream, other) = (context.create_stream(0).unwrap(), context.create_stream(0).unwrap());
        let run = Arc::new(AtomicU64::new(start));
        let progress = StreamProgress::default();
        Self { sim, context, stream, other, progress, given: start, run, marked: Vec::new() }
    }

    fn give(&mut self, further: u64) {
        self.given = self.given.wrapping_add(further);
        let (run, position) = (self.run.clone(), self.given);
        let held = self.context.hold(self.stream).unwrap();
        let function = HostFunction::new(move || run.store(position, Ordering::SeqCst));
        // SAFETY: the stream is live while it is held.
        let given = unsafe { self.context.driver().host_function(DeviceId(0), held.raw(), function) };
        if given.is_err() {
            self.given = self.given.wrapping_sub(further);
        }
    }

    fn ask(&mut self, with_stream: bool) {
        let held = self.context.hold(self.stream).unwrap();
        let Ok(passed) = self.progress.ask(&self.context, with_stream.then_some(&held), self.given) else { return };
        let run = self.run.load(Ordering::SeqCst);
        if let Some(passed) = passed {
            assert!(run.wrapping_sub(passed).cast_signed() >= 0, "told {passed}, and only {run} has run");
            self.marked.retain(|marked| marked.wrapping_sub(passed).cast_signed() > 0);
        }
        assert!(self.progress.is_marked() || self.marked.is_empty(), "an event was lost");
    }

    fn step(&mut self, step: Step) {
        let context = self.context.clone();
        let (held, other) = (context.hold(self.stream).unwrap(), context.hold(self.other).unwrap());
        match step {
            Step::Give(further) => self.give(further),
            Step::Ask => self.ask(true),
            Step::AskEvents => self.ask(false),
            Step::Mark => {
                if self.progress.mark(&context, &held, self.given).is_ok() {
                    self.marked.push(self.given);
                }
            }
            Step::HaveWait => {
                if self.progress.have_wait(&context, &held, &other, self.given).is_ok() {
                    self.marked = vec![self.given];
                }
            }
            Step::MarkMeanwhile => {
                let taken = self.progress.take();
                assert!(!self.progress.is_marked());
                self.step(Step::Mark);
                self.progress.put_back(taken);
            }
            Step::Run => drop(self.sim.step()),
        }
    }

    /// Runs everything: then all has been passed, and no event is left over.
    fn end(mut self) {
        self.sim.settle();
        assert_eq!(self.run.load(Ordering::SeqCst), self.given);
        self.progress.forget(&self.context);
        assert!(!self.progress.is_marked());
        drop(self.context);
        let leaks = self.sim.leaks();
        assert!(leaks.is_empty(), "{leaks}");
    }
}

proptest! {
    #[test]
    fn a_stream_is_never_said_to_be_further_than_it_is(
        steps in steps(), seed in SEEDS, start in prop_oneof![Just(0u64), Just(u64::MAX - (1 << 41))],
    ) {
        let sim = Sim::seeded(seed);
        let mut model = Model::new(sim.clone(), sim, start);
        steps.into_iter().for_each(|step| model.step(step));
        model.end();
    }

    #[test]
    fn calls_that_fail_lose_no_event_and_no_progress(steps in steps(), seed in SEEDS) {
        let sim = Sim::seeded(seed);
        let faults = Faults::new(sim.clone());
        let mut model = Model::new(sim, faults.clone(), 0);
        let calls = [Call::StreamQuery, Call::EventQuery, Call::EventCreate, Call::EventRecord, Call::StreamWait];
        faults.fail_with_probability(&calls, 0.3, Status::Unavailable, seed);
        steps.into_iter().for_each(|step| model.step(step));
        faults.heal();
        model.ask(true);
        model.end();
    }
}

#[test]
fn an_idle_stream_has_passed_everything_and_a_busy_one_its_events() {
    for seed in SEEDS {
        let sim = Sim::seeded(seed);
        let mut model = Model::new(sim.clone(), sim.clone(), 0);
        model.give(5);
        model.step(Step::Mark);
        model.give(5);
        sim.settle();
        let context = model.context.clone();
        let held = context.hold(model.stream).unwrap();
        assert_eq!(model.progress.ask(&context, None, 10), Ok(Some(5)));
        assert_eq!(model.progress.ask(&context, None, 10), Ok(None), "no event is left");
        assert_eq!(model.progress.ask(&context, Some(&held), 10), Ok(Some(10)));
        drop(held);
        drop(context);
        model.end();
    }
}
