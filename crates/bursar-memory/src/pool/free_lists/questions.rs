//! Questions to streams about how far they are, and their answers: the memory that a stream has passed is everyone's, or
//! another stream's.

use super::super::address_space::VacatedRange;
use super::super::lane::Lane;
use super::super::limbo::LimboFree;
use super::super::runs::Run;
use super::FreeLists;
use bursar_core::StreamProgress;

/// A lane that has something to ask the driver about.
#[derive(Debug)]
pub(in super::super) struct Question {
    pub(in super::super) slot: usize,
    pub(super) epoch: u64,
    /// With the event that was recorded earlier, taken out while it is asked about.
    pub(in super::super) progress: StreamProgress,
    /// The time before which the stream has passed everything once it has passed all it was given until now.
    pub(in super::super) before: u64,
}

impl FreeLists {
    /// Returns whether addresses can be unmapped that frames have left, or just are.
    pub(in super::super) fn has_passed_vacated(&self) -> bool {
        self.is_unmapping || self.space.vacated().iter().any(|vacated| self.has_passed(vacated))
    }

    /// Takes out the addresses that frames have left and that can be unmapped, those side by side as one.
    pub(in super::super) fn take_passed_vacated(&mut self) -> Vec<VacatedRange> {
        let Self { lanes, space, .. } = self;
        VacatedRange::joined(space.take_vacated(|vacated| has_passed(lanes, vacated)))
    }

    fn has_passed(&self, vacated: &VacatedRange) -> bool {
        has_passed(&self.lanes, vacated)
    }

    /// Returns whether something is free, or addresses were left, that streams are not known to have passed.
    pub(in super::super) fn is_pending(&self) -> bool {
        let has_unpassed = || self.space.vacated().iter().any(|vacated| !self.has_passed(vacated));
        self.pending_units() > 0 || !self.unordered.is_empty() || has_unpassed()
    }

    /// Returns the slots of the streams that are not known to have passed everything that was freed on them or of them.
    pub(in super::super) fn pending_streams(&self) -> Vec<usize> {
        let mut slots = self.lanes_that(|lane| !lane.runs.is_empty());
        slots.extend(self.limbo.streams(None));
        slots.extend(
            self.space.vacated().iter().filter(|vacated| !self.has_passed(vacated)).map(|vacated| vacated.slot),
        );
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Returns the slots of the streams that keep memory from the stream at `slot` which is else its own.
    pub(in super::super) fn partners_in_limbo(&self, slot: usize) -> Vec<usize> {
        self.limbo.partners(slot)
    }

    /// Returns the slots of all streams with something in limbo, those first that the stream at `slot` has to wait for
    /// to have its own again.
    pub(in super::super) fn streams_in_limbo(&self, slot: usize) -> Vec<usize> {
        self.limbo.streams(Some(slot))
    }

    /// Returns the slots of the streams on which much was freed since they were asked: as much as is their part of it.
    pub(in super::super) fn lanes_worth_asking(&self) -> Vec<usize> {
        let part = self.share_unasked() / self.open_lane_count.max(1) as u64;
        self.lanes_that(|lane| lane.unasked > part)
    }

    fn lanes_that(&self, are: impl Fn(&Lane) -> bool) -> Vec<usize> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter(|(_, lane)| lane.as_ref().is_some_and(|lane| are(lane))).map(|(slot, _)| slot).collect()
    }

    /// Begins a question to the driver about a lane: about its event, if it has one, which is taken out, and about the
    /// stream as it is now.
    pub(in super::super) fn question(&mut self, slot: usize) -> Question {
        let lane = self.lane(slot);
        let unasked = std::mem::take(&mut lane.unasked);
        let question = Question { slot, epoch: lane.epoch, progress: lane.progress.take(), before: lane.tick() };
        self.unasked -= unasked;
        question
    }

    /// Ends a question. The stream has passed everything stamped before `passed`, if that is known. Returns the
    /// units that are common from now on, and the events that are not needed any more: of those recorded by several
    /// threads the last covers the most, and those of a stream that has ended cover nothing.
    pub(in super::super) fn end_question(&mut self, question: Question, passed: Option<u64>) -> (u64, StreamProgress) {
        match self.lanes[question.slot].as_mut() {
            Some(lane) if lane.epoch == question.epoch => {
                lane.progress.put_back(question.progress);
                let unneeded = lane.progress.take_all_but_last();
                let has_claimed = lane.has_claimed;
                let common = match passed {
                    Some(before) => self.pass(question.slot, before),
                    None if has_claimed => self.share_passed(question.slot),
                    None => 0,
                };
                (common, unneeded)
            }
            _ => (0, question.progress),
        }
    }

    /// Enters that a stream has passed everything stamped before a time. Returns the units that are common from now on.
    fn pass(&mut self, slot: usize, before: u64) -> u64 {
        let common = self.common.total();
        let lane = self.lane(slot);
        lane.passed = lane.passed.max(before);
        self.share_passed(slot);
        let passed = |slot: usize| self.lanes[slot].as_ref().map_or(0, |lane| lane.passed);
        let mut settled = Vec::new();
        let is_settled = |(home, stream): (usize, usize), free: &LimboFree| {
            free.home_time < passed(home) || free.time < passed(stream)
        };
        self.limbo.settle(slot, is_settled, |pair, free| settled.push((pair, free)));
        for ((home, stream), LimboFree { at, len, home_time, time }) in settled {
            match (home_time < self.lane(home).passed, time < self.lane(stream).passed) {
                (true, true) => self.add_common(Run { at, len, stamp: 0 }),
                (true, false) => self.add_own(stream, Run { at, len, stamp: time }),
                (false, _) => self.add_own(home, Run { at, len, stamp: home_time }),
            }
        }
        self.common.total() - common
    }

    /// Lets every stream have what one has passed, as far as is known; returns how much that is, in units. Besides what
    /// was freed, it is what the stream claimed and has not used.
    fn share_passed(&mut self, slot: usize) -> u64 {
        let Self { lanes, common, .. } = self;
        lanes[slot].as_mut().map_or(0, |lane| lane.hand_over_passed(common))
    }

    /// Enters that a stream waits for everything that the stream of a question was given before. What is in limbo is
    /// this stream's if it comes after both others now.
    pub(in super::super) fn enter_wait(&mut self, slot: usize, question: &Question) {
        if self.lane(question.slot).epoch != question.epoch {
            return;
        }
        self.lane(slot).set_ordered(question.slot, question.before);
        let Some(lane) = self.lanes[slot].as_ref() else { return };
        let comes_after = |other: usize, time: u64| other == slot || time < lane.ordered_before(other);
        let is_settled = |(home, stream): (usize, usize), free: &LimboFree| {
            comes_after(home, free.home_time) && comes_after(stream, free.time)
        };
        let mut settled = Vec::new();
        self.limbo.settle_all(is_settled, |_, free| settled.push(free));
        // Now, and not at the time of the free: the stream has not passed the wait when it has passed that.
        settled.into_iter().for_each(|LimboFree { at, len, .. }| self.free_own(slot, at, len));
    }
}

/// Returns whether the stream that a frame followed has passed what was freed at the addresses that the frame left.
fn has_passed(lanes: &[Option<Box<Lane>>], vacated: &VacatedRange) -> bool {
    let passed = lanes.get(vacated.slot).and_then(Option::as_ref).map_or(1, |lane| lane.passed);
    vacated.stamp < passed
}
