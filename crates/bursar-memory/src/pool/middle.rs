//! What is free and where: the lanes of streams, what is free for everyone, and the ground they lie on.
//!
//! Nothing here calls the driver: what has to be asked or done is planned here, carried out with no lock held, and entered
//! here afterwards.

use super::ground::Ground;
use super::lane::{Lane, Mark};
use super::plan::{Growth, Move, Placed, Undone, units};
use super::runs::{Run, Runs, Spot, UNIT};
use bursar_core::{DevicePtr, Frame, RawEvent, Stream};

/// The state of a pool behind its lock, in units.
#[derive(Debug)]
pub(super) struct Middle {
    lanes: Vec<Option<Box<Lane>>>,
    /// What was freed and is nobody's yet, because the driver let nothing come after the streams that used it.
    pub(super) limbo: Vec<Limbo>,
    /// What every stream may have: never used, or used by work that is known to have run.
    settled: Runs,
    pub(super) ground: Ground,
    /// How many growths and trims are being carried out, with frames in hand.
    pub(super) flights: u32,
    /// How many lanes there are.
    open: usize,
    /// How much was freed that its streams have not been asked about.
    news: u64,
    /// For how many more large requests that matters: while the pool is growing or moving frames.
    pressure: u32,
}

/// From this many units on, where a block lies decides whether frames have to be moved.
const LARGE: u64 = (8 << 20) / UNIT;

/// From this many units on, what a stream has freed since it was last asked is worth a question.
const RICH: u64 = (12 << 20) / UNIT;

/// For how many large requests after a growth others are asked.
const PRESSURE: u32 = 4096;

/// Where the base of a growth came from, and where what is mapped behind it goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Settled,
    Lane(usize),
}

/// Memory that was freed on a stream which could not be ordered after the block's own, or which ended with nothing ordered
/// after it. It is free once a stream comes after both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limbo {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) home: Stream,
    pub(super) stream: Stream,
    /// The block, where a driver that listens has not been told of the free.
    pub(super) untold: Option<DevicePtr>,
}

/// What becomes of what was freed on a stream that ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// The stream at this place comes after it.
    Inherited(usize),
    /// Its work has run.
    Over,
    /// Nothing comes after it yet.
    Unordered(Stream),
}

/// A lane that has something to ask the driver about.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) place: usize,
    life: u64,
    /// An event that was recorded earlier, in hand while it is asked about.
    pub(super) event: Option<Mark>,
    /// What the stream has passed once it has passed everything it was given until now.
    pub(super) before: u64,
}

impl Middle {
    pub(super) fn new(ground: Ground) -> Self {
        let (lanes, limbo, settled) = (Vec::new(), Vec::new(), Runs::default());
        Self { lanes, limbo, settled, ground, flights: 0, open: 0, news: 0, pressure: 0 }
    }

    #[inline]
    fn lane(&mut self, place: usize) -> &mut Lane {
        if !matches!(self.lanes.get(place), Some(Some(_))) {
            self.open_lane(place);
        }
        self.lanes[place].get_or_insert_default()
    }

    #[cold]
    fn open_lane(&mut self, place: usize) {
        if self.lanes.len() <= place {
            self.lanes.resize_with(place + 1, || None);
        }
        self.lanes[place] = Some(Box::default());
        self.open += 1;
    }

    /// What is free and not known to be free for everyone, in units.
    pub(super) fn unsettled(&self) -> u64 {
        let limbo: u64 = self.limbo.iter().map(|limbo| limbo.len).sum();
        self.lanes.iter().flatten().map(|lane| lane.runs.total()).sum::<u64>() + limbo
    }

    /// What is free, in units: mapped, and mapped nowhere.
    pub(super) fn free_units(&self) -> u64 {
        self.settled.total() + self.unsettled() + self.ground.spare()
    }

    /// The longest free run, in units.
    pub(super) fn longest(&self) -> u64 {
        let lanes = self.lanes.iter().flatten().map(|lane| lane.runs.longest());
        lanes.fold(self.settled.longest(), u64::max)
    }

    /// Frees a run on a stream. `false`, and nothing changes, where a part of it is free there already.
    #[inline(always)]
    pub(super) fn free(&mut self, place: usize, at: u64, len: u64) -> bool {
        if self.settled.is_empty() {
            let freed = self.lane(place).free(at, len);
            self.news += if freed { len } else { 0 };
            return freed;
        }
        let whole = self.settled.take_beside(at..at + len);
        let freed = self.lane(place).free(whole.start, whole.end - whole.start);
        self.news += if freed { whole.end - whole.start } else { 0 };
        if !freed {
            let [low, high] = [(whole.start, at), (at + len, whole.end)];
            let beside = [low, high].into_iter().filter(|(start, end)| start < end);
            beside.for_each(|(at, end)| self.settle(Run { at, len: end - at, stamp: 0 }));
        }
        freed
    }

    /// Whether some streams should be asked how far they are before a large request of one is met: where the pool is under
    /// pressure and the others have freed as much since they were asked, a better place may be known then. To ask is cheap
    /// beside moving frames, which is what blocks in poor places lead to.
    #[inline]
    pub(super) fn should_look(&mut self, place: usize, len: u64) -> bool {
        len >= LARGE && self.pressure > 0 && self.open > 1 && self.has_news(place, len)
    }

    fn has_news(&mut self, place: usize, len: u64) -> bool {
        self.pressure -= 1;
        let of = |lane: &Option<Box<Lane>>| lane.as_ref().map_or(0, |lane| lane.news);
        let own = self.lanes.get(place).map_or(0, of);
        let mut others = self.lanes.iter().enumerate().filter(|&(other, _)| other != place);
        self.news - own >= len && others.any(|(_, lane)| of(lane) >= RICH)
    }

    /// `len` units that a stream may have without asking or waiting for anyone: everyone's if there are as many, and else its
    /// own, which nobody else can have yet.
    #[inline(always)]
    pub(super) fn take(&mut self, place: usize, len: u64, align: u64) -> Option<u64> {
        let own = self.lanes.get_mut(place).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        match own {
            _ if align > 1 => self.take_aligned(place, len, align),
            Some(own) if self.settled.is_empty() => own.take(len),
            Some(own) => self.settled.take(len).or_else(|| own.take(len)),
            None => self.settled.take(len),
        }
    }

    #[cold]
    fn take_aligned(&mut self, place: usize, len: u64, align: u64) -> Option<u64> {
        let own = self.lanes.get_mut(place).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        [Some(&mut self.settled), own].into_iter().flatten().find_map(|runs| {
            let spot = runs.find_aligned(len, align)?;
            Some(runs.carve(spot, len, align))
        })
    }

    /// `len` units of another stream that this one comes after already.
    pub(super) fn take_seen(&mut self, place: usize, len: u64, align: u64) -> Option<u64> {
        let fits = self.elsewhere(place, len, align);
        let seen = |&&(from, _, run): &&(usize, Spot, Run)| run.stamp < self.seen(place, from);
        let &(from, spot, _) = fits.iter().find(seen)?;
        Some(self.lane(from).runs.carve(spot, len, align))
    }

    fn seen(&self, place: usize, from: usize) -> u64 {
        self.lanes.get(place).and_then(Option::as_ref).map_or(0, |lane| lane.has_seen(from))
    }

    /// The first fit in each other lane.
    fn elsewhere(&mut self, place: usize, len: u64, align: u64) -> Vec<(usize, Spot, Run)> {
        let others = self.lanes.iter_mut().enumerate().filter(|&(other, _)| other != place);
        let fit = |(other, lane): (usize, &mut Option<Box<Lane>>)| {
            let runs = &mut lane.as_mut()?.runs;
            let spot = runs.find_aligned(len, align)?;
            Some((other, spot, runs.get(spot)))
        };
        others.filter_map(fit).collect()
    }

    /// The other lanes with a run that fits, the one that was freed longest ago first.
    pub(super) fn lanes_that_fit(&mut self, place: usize, len: u64, align: u64) -> Vec<usize> {
        let fits = self.elsewhere(place, len, align);
        let age = |from: usize, run: Run| self.lanes[from].as_ref().map_or(0, |lane| lane.now - run.stamp);
        let mut fits: Vec<_> = fits.into_iter().map(|(from, _, run)| (age(from, run), from)).collect();
        fits.sort_by_key(|&(age, from)| (u64::MAX - age, from));
        fits.into_iter().map(|(_, from)| from).collect()
    }

    /// The lanes with anything in them.
    pub(super) fn busy_lanes(&self) -> Vec<usize> {
        self.lanes_that(|lane| !lane.runs.is_empty())
    }

    /// The lanes in which much was freed since their streams were asked.
    pub(super) fn rich_lanes(&self) -> Vec<usize> {
        self.lanes_that(|lane| lane.news >= RICH)
    }

    fn lanes_that(&self, are: impl Fn(&Lane) -> bool) -> Vec<usize> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter(|(_, lane)| lane.as_ref().is_some_and(|lane| are(lane))).map(|(place, _)| place).collect()
    }

    /// What to ask about a lane: about its event, if it has one, and about the stream as it is now.
    pub(super) fn question(&mut self, place: usize) -> Question {
        let lane = self.lane(place);
        let news = std::mem::take(&mut lane.news);
        let question = Question { place, life: lane.life, event: lane.event.take(), before: lane.tick() };
        self.news -= news;
        question
    }

    /// Enters that a stream has passed everything stamped before a time, and lets everyone have it; answers how much.
    pub(super) fn passed(&mut self, question: &Question, before: u64) -> u64 {
        let Self { lanes, settled, .. } = self;
        match lanes[question.place].as_mut() {
            Some(lane) if lane.life == question.life => lane.pass(before, settled),
            _ => 0,
        }
    }

    /// Keeps the event of a lane that has not been passed; answers one that is not needed any more.
    pub(super) fn keep_event(&mut self, question: &Question, mark: Mark) -> Option<RawEvent> {
        let lane = self.lane(question.place);
        match lane.event {
            _ if lane.life != question.life => Some(mark.event),
            Some(other) if other.before >= mark.before => Some(mark.event),
            _ => lane.event.replace(mark).map(|older| older.event),
        }
    }

    /// Enters that a stream waits for everything another stamped before a time.
    pub(super) fn waits(&mut self, place: usize, question: &Question, before: u64) {
        if self.lane(question.place).life == question.life {
            self.lane(place).see(question.place, before);
        }
    }

    /// Lets the only stream there is have what everyone may have.
    #[inline(always)]
    pub(super) fn gather_alone(&mut self, place: usize) {
        if self.open == 1 && !self.settled.is_empty() {
            self.gather(place);
        }
    }

    /// Where only one stream has anything free, lets it have what everyone may have: what it frees next then grows together
    /// with that, and whoever else comes asks.
    #[cold]
    pub(super) fn gather(&mut self, place: usize) {
        let others = self.lanes.iter().enumerate().filter(|&(other, _)| other != place);
        if others.filter_map(|(_, lane)| lane.as_ref()).all(|lane| lane.runs.is_empty()) {
            let everyones = std::mem::take(&mut self.settled);
            self.lane(place).gather(everyones);
        }
    }

    /// Ends a lane with its stream. Returns an event that is not needed any more.
    pub(super) fn end(&mut self, place: usize, fate: Fate) -> Option<RawEvent> {
        self.lanes.iter_mut().flatten().for_each(|lane| lane.forget(place));
        let lane = self.lanes.get_mut(place)?.as_mut()?;
        let fresh = Lane::following(lane);
        let ended = std::mem::replace(&mut **lane, fresh);
        self.news -= ended.news;
        for run @ Run { at, len, .. } in ended.runs.iter() {
            match fate {
                Fate::Inherited(heir) => self.give(heir, at, len),
                Fate::Over => self.settle(run),
                Fate::Unordered(stream) => {
                    self.limbo.push(Limbo { at, len, home: stream, stream, untold: None });
                }
            }
        }
        ended.event.map(|mark| mark.event)
    }

    /// Plans how `len` units that no run fits come to a stream; `None` where no addresses are left for them.
    pub(super) fn plan(&mut self, place: usize, len: u64) -> Option<(Growth, Home)> {
        let own = self.lanes.get(place).and_then(Option::as_ref);
        let ending = |end| own.and_then(|lane| lane.runs.ending_at(end)).or_else(|| self.settled.ending_at(end));
        let base = self.ground.best_base(len, ending);
        let mut growth = self.ground.claim(len, base)?;
        let home = match base {
            Some(base) => match self.lane(place).runs.take_starting_at(base.at) {
                Some(_) => Home::Lane(place),
                None => {
                    self.settled.cut(base.range());
                    Home::Settled
                }
            },
            None => Home::Settled,
        };
        let shared = self.open > 1;
        // With what is before the growth, which has been taken out.
        let in_use = self.ground.held() - self.free_units() + growth.need;
        self.ground.supply(&mut growth, &mut self.settled, shared.then_some(in_use));
        self.flights += 1;
        self.pressure = PRESSURE;
        Some((growth, home))
    }

    /// Enters a growth that was carried out: its frames lie where it says, one after the other.
    pub(super) fn grown(&mut self, growth: Growth, home: Home, frames: Vec<Frame>) {
        self.flights -= 1;
        growth.moves.iter().for_each(|moved| self.ground.give_addresses(moved.from, moved.placed.len));
        growth.melted.iter().for_each(|&(from, len)| self.ground.give_addresses(from, len));
        let mut at = growth.at;
        for frame in growth.spare.into_iter().chain(growth.moves.into_iter().map(|m| m.placed.frame)).chain(frames) {
            let len = units(frame.bytes());
            self.ground.place(at, Placed { frame, len });
            at += len;
        }
        let stamp = growth.base.map_or(0, |base| base.stamp);
        let start = growth.base.map_or(growth.at, |base| base.at);
        self.add(home, Run { at: start, len: growth.at + growth.need - start, stamp });
    }

    /// Undoes a plan that could not be carried out: `still` are frames that are where they were, `loose` those that are
    /// mapped nowhere now.
    pub(super) fn undo(&mut self, plan: Undone, home: Home) {
        self.flights -= 1;
        self.ground.give_addresses(plan.at, plan.need);
        for Move { from, placed } in plan.still {
            self.enter(from, placed);
        }
        for (from, len) in plan.vacated {
            self.ground.give_addresses(from, len);
        }
        plan.loose.into_iter().for_each(|frame| self.ground.keep(frame));
        plan.stuck.into_iter().for_each(|stuck| self.ground.stick(stuck));
        if let Some(base) = plan.base {
            self.add(home, base);
        }
    }

    fn add(&mut self, home: Home, run: Run) {
        match home {
            Home::Settled => self.settle(run),
            Home::Lane(place) => {
                let added = self.lane(place).add(run);
                debug_assert!(added, "{run:?} was in hand");
            }
        }
    }

    /// Lets everyone have a run.
    fn settle(&mut self, run: Run) {
        let added = self.settled.insert(Run { stamp: 0, ..run });
        debug_assert!(added, "{run:?} was nobody's");
    }

    /// Frees a run that the pool itself kept.
    pub(super) fn give(&mut self, place: usize, at: u64, len: u64) {
        let freed = self.free(place, at, len);
        debug_assert!(freed, "{len} at {at} were kept");
    }

    /// Enters a frame that is free for everyone where it lies.
    pub(super) fn enter(&mut self, at: u64, placed: Placed) {
        self.settle(Run { at, len: placed.len, stamp: 0 });
        self.ground.place(at, placed);
    }

    /// Takes out frames that are wholly free for everyone, the largest first, until no more than `keep` units are free.
    pub(super) fn trim(&mut self, keep: u64) -> (Vec<Move>, Vec<Frame>) {
        let mut free = self.free_units();
        let spare = if free > keep { self.ground.take_spare() } else { Vec::new() };
        free -= spare.iter().map(|frame| units(frame.bytes())).sum::<u64>();
        let mut whole = self.ground.whole_frames(&self.settled);
        whole.sort_unstable_by_key(|whole| whole.len);
        let mut moves = Vec::new();
        while let Some(whole) = whole.pop() {
            if free >= keep + whole.len {
                free -= whole.len;
                moves.extend(self.ground.lift(whole.at, &mut self.settled));
            }
        }
        (moves, spare)
    }

    /// Whether something is free that could be given back to the driver, now or once its work has run.
    pub(super) fn has_leftovers(&self) -> bool {
        self.unsettled() > 0 || self.ground.spare() > 0 || !self.ground.whole_frames(&self.settled).is_empty()
    }

    /// Takes every lane's event, at the pool's end.
    pub(super) fn take_events(&mut self) -> Vec<RawEvent> {
        self.lanes.iter_mut().flatten().filter_map(|lane| lane.event.take()).map(|mark| mark.event).collect()
    }
}
