//! Z5 to Z9 and Z14 together: programs with sleeps and wakes that a seed makes, on the simulator that reports every access which
//! nothing orders and everything that is woken without its contents; and the same programs over parts that are broken on
//! purpose, which are found.
//!
//! `BURSAR_SLEEP_SEEDS=N` runs so many programs instead of a few hundred; `BURSAR_SLEEP_SEED=N` runs that one alone.

use crate::common::RandomSize;
use crate::rig::FRAME;
use crate::sleep_rig::{Defect, SleepRig};
use bursar_conformance::sleep::{Heap, SleepDefect};
use bursar_core::{
    Account, AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, DevicePtr, Error, Holder, HostMemory, HostStore,
    Result, SleepRequest, SleepRequestId, SleepState, Sleeper, Stream, WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Random;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A block, the byte in it where that is known, and the stream that used it last.
struct Live {
    block: DeviceBlock,
    value: Option<u8>,
    at: Stream,
    is_asleep: bool,
    /// The request that put it to sleep last.
    by: Option<SleepRequestId>,
}

fn range_of(block: &DeviceBlock) -> Range<DevicePtr> {
    block.ptr()..block.ptr().offset(block.granted().get())
}

/// A lender without memory.
#[derive(Debug)]
struct LendsNothing;

impl HostStore for LendsNothing {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
        Err(Error::out_of_budget(Bytes(bytes as u64), Bytes::ZERO, Bytes::ZERO))
    }
}

fn only(tag: Option<AllocTag>) -> WakeRequest {
    WakeRequest { only: Vec::from_iter(tag), ..WakeRequest::default() }
}

struct Program<'a> {
    rig: &'a SleepRig,
    random: Random,
    streams: Vec<Stream>,
    live: Vec<Live>,
    /// Set while everything sleeps.
    is_whole: bool,
    /// The request that put everything to sleep last, and the latest of all.
    whole_by: Option<SleepRequestId>,
    requests: Vec<SleepRequestId>,
    /// Set where all that sleeps has its place.
    has_place: bool,
    /// The tags of which all that sleeps by itself has its place.
    placed: BTreeSet<AllocTag>,
    /// The bytes that somebody else has of the purse.
    others: Bytes,
    /// The most that places may be kept for.
    places_max: Bytes,
    /// The pages of the longest frame.
    frame_pages: u64,
    /// Set where what a request put to sleep is woken by it, as the first programs did not.
    wakes_requests: bool,
}

impl<'a> Program<'a> {
    fn new(rig: &'a SleepRig, seed: u64, frame_pages: u64) -> Self {
        let streams = (0..3).map(|_| rig.stream()).collect();
        let (live, others, places_max) = (Vec::new(), Bytes::ZERO, Bytes::ZERO);
        Self {
            rig,
            random: Random::new(seed),
            streams,
            live,
            is_whole: false,
            whole_by: None,
            requests: Vec::new(),
            has_place: false,
            placed: BTreeSet::new(),
            others,
            places_max,
            frame_pages,
            wakes_requests: !FOUND.contains(&seed),
        }
    }

    fn run(mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
        }
        self.leave_purse();
        self.wake(None);
        while self.rig.state() != SleepState::Awake {
            // More was allocated than there is room for beside what sleeps.
            self.free();
            self.wake(None);
        }
        assert!(self.live.iter().all(|live| !live.is_asleep));
        while !self.live.is_empty() {
            self.free();
        }
    }

    fn step(&mut self) {
        match self.random.below(if self.wakes_requests { 37 } else { 34 }) {
            0..9 => self.allocate(),
            9..16 => self.use_one(),
            16..22 => self.free(),
            22 => drop(self.rig.pool.trim(Bytes(self.random.below(8) * FRAME))),
            23 => drop(self.rig.pool.reap().expect("the device works")),
            24 | 25 => self.sleep(None),
            26 => self.sleep(Some(&[self.tag()])),
            32 => self.sleep(Some(&[tag!("even"), tag!("odd")])),
            33 => self.sleep(Some(&[tag!("odd")])),
            27 | 28 => self.wake(None),
            29 => self.wake(Some(self.tag())),
            30 => self.take_of_purse(),
            34..37 => self.wake_request(),
            _ => drop(self.rig.sim.step()),
        }
    }

    fn tag(&self) -> AllocTag {
        if self.random.clone().below(2) == 0 { tag!("even") } else { tag!("odd") }
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.random.below(3) as usize]
    }

    fn pick(&mut self) -> Option<Live> {
        let count = self.live.len() as u64;
        (count > 0).then(|| self.live.swap_remove(self.random.below(count) as usize))
    }

    fn allocate(&mut self) {
        let (stream, bytes, tag) = (self.stream(), self.random.size(4 * FRAME), self.tag());
        match self.rig.pool.allocate(bytes, 256, stream, tag) {
            Ok(block) => {
                assert!(!self.is_whole, "a sleeping pool grants nothing");
                let apart = |live: &Live| {
                    let (a, b) = (range_of(&live.block), range_of(&block));
                    a.end <= b.start || b.end <= a.start
                };
                assert!(self.live.iter().all(apart), "the addresses of what sleeps are nobody else's");
                let value = self.random.below(256) as u8;
                self.rig.fill(&block, value, stream);
                self.live.push(Live { block, value: Some(value), at: stream, is_asleep: false, by: None });
            }
            Err(Error::Asleep { .. }) => assert!(self.is_whole, "only a sleeping pool says so"),
            Err(refused) if refused.is_capacity() => self.free(),
            Err(failed) => panic!("{failed}"),
        }
    }

    /// Looks at a block, and perhaps writes it, on any stream; one that sleeps is refused.
    fn use_one(&mut self) {
        let Some(mut live) = self.pick() else { return };
        if live.is_asleep {
            let refused = self.rig.context.check_awake(live.block.ptr());
            assert!(matches!(refused, Err(Error::Asleep { .. })), "a use of what sleeps is refused");
        } else {
            self.rig.context.check_awake(live.block.ptr()).expect("it is awake");
            let stream = self.stream();
            self.rig.context.order(live.at, stream).expect("both are live");
            live.at = stream;
            match live.value {
                Some(value) => self.rig.expect(&live.block, value, stream),
                None => live.value = Some(0),
            }
            if self.random.below(2) == 0 || live.value == Some(0) {
                live.value = live.value.map(|value| value.wrapping_add(1));
                self.rig.fill(&live.block, live.value.unwrap_or(0), stream);
            }
        }
        self.live.push(live);
    }

    /// Frees a block on any stream, whether it sleeps or not.
    fn free(&mut self) {
        let Some(live) = self.pick() else { return };
        let stream = self.stream();
        if let Some(value) = live.value.filter(|_| !live.is_asleep) {
            self.rig.expect(&live.block, value, live.at);
        }
        if live.at != live.block.stream() {
            self.rig.context.order(live.at, stream).expect("both are live");
        }
        self.rig.pool.deallocate(live.block, stream).expect("its own");
    }

    /// Puts everything to sleep, or the blocks of some tags, whether they sleep already or not; what is refused changes nothing,
    /// and some of it is undone.
    fn sleep(&mut self, tags: Option<&[AllocTag]>) {
        let (discard_all, discard) = match self.random.below(8) {
            0 => (true, 0),
            nth @ 1..3 => (false, nth),
            _ => (false, u64::MAX),
        };
        let gives_up = |nth: usize| discard_all || nth as u64 % 3 == discard;
        let blocks = self.live.iter().enumerate();
        let given_up = blocks.filter(|(nth, _)| !discard_all && gives_up(*nth)).map(|(_, live)| range_of(&live.block));
        let of = |&tag: &AllocTag| {
            (tag, self.live.iter().filter(|live| live.block.tag() == tag).map(|live| range_of(&live.block)).collect())
        };
        let request = SleepRequest {
            only: tags.map(|tags| tags.iter().map(of).collect()),
            discard: given_up.collect(),
            discard_all,
            keep_place: self.random.below(4) == 0,
            piece: Bytes::mib(1 + self.random.below(8)),
            ..SleepRequest::default()
        };
        let (before, asleep_before, whole_before) = (self.rig.pool.sleep_reading(), self.asleep(), self.is_whole);
        let has_store = self.random.below(6) > 0;
        let store: &dyn HostStore = if has_store { &Heap } else { &LendsNothing };
        let report = match self.rig.pool.sleep(store, &request) {
            Ok(report) => report,
            Err(refused) => {
                assert!(refused.is_capacity() && (!has_store || request.keep_place), "{refused}");
                assert_eq!((self.rig.pool.sleep_reading(), self.asleep()), (before, asleep_before), "as it was");
                return self.assert_charged();
            }
        };
        self.places_max = self.places_max.saturating_add(report.released);
        for (nth, live) in self.live.iter_mut().enumerate() {
            let is_meant = !whole_before && tags.is_none_or(|tags| tags.contains(&live.block.tag()));
            if is_meant && !live.is_asleep {
                live.value = live.value.filter(|_| !gives_up(nth));
                live.by = Some(request.id);
            }
            live.is_asleep |= is_meant;
        }
        if tags.is_none() && !whole_before {
            self.whole_by = Some(request.id);
        }
        self.is_whole |= tags.is_none();
        self.requests.push(request.id);
        assert_eq!(self.asleep(), self.live.iter().map(|live| live.is_asleep).collect::<Vec<_>>());
        if self.is_whole {
            assert_eq!(self.rig.pool.held(), Bytes::ZERO, "{report:?}");
        }
        self.assert_charged();
        if self.random.below(6) == 0 {
            self.rig.pool.undo_sleep(&request).expect("nobody has its room");
            assert_eq!(self.asleep(), asleep_before);
            self.live.iter_mut().zip(asleep_before).for_each(|(live, before)| live.is_asleep = before);
            self.is_whole = whole_before;
            self.assert_charged();
        } else if tags.is_none() {
            self.has_place = request.keep_place || (whole_before && self.has_place);
        } else if !whole_before {
            self.has_place = false;
            let tags = tags.into_iter().flatten().copied();
            match request.keep_place {
                true => self.placed.extend(tags),
                false => self.placed.retain(|placed| tags.clone().all(|tag| tag != *placed)),
            }
        }
        if self.has_place {
            let charged = self.rig.budget.charged_bytes();
            assert!(charged >= self.rig.pool.sleep_reading().asleep, "{charged} are kept for what sleeps");
        }
    }

    /// Returns for each block whether a use of it is refused.
    fn asleep(&self) -> Vec<bool> {
        self.live.iter().map(|live| self.rig.context.check_awake(live.block.ptr()).is_err()).collect()
    }

    fn wake(&mut self, tag: Option<AllocTag>) {
        let (before, asleep_before) = (self.rig.pool.sleep_reading(), self.asleep());
        let woken = self.rig.pool.wake(&only(tag));
        if let Ok(report) = &woken {
            let after = self.rig.pool.sleep_reading();
            let taken = report.taken.saturating_add(after.asleep);
            assert_eq!(taken, before.asleep, "waking takes what was said before");
        }
        if !matches!(woken, Err(Error::Asleep { .. })) {
            self.has_place &= woken.is_err();
            self.places_max = self.places_max.min(before.asleep);
        }
        match tag {
            Some(tag) if woken.is_ok() => self.placed.retain(|placed| *placed != tag),
            Some(_) => {}
            None => self.placed.clear(),
        }
        match woken {
            Ok(_) if tag.is_none() => {
                self.is_whole = false;
                self.live.iter_mut().for_each(|live| live.is_asleep = false);
                assert_eq!(self.rig.state(), SleepState::Awake);
            }
            Ok(_) => {
                let tag = tag.unwrap_or(AllocTag::UNTAGGED);
                self.live.iter_mut().filter(|live| live.block.tag() == tag).for_each(|live| live.is_asleep = false);
            }
            Err(Error::Asleep { .. }) => assert!(self.is_whole && tag.is_some(), "all of it wakes first"),
            Err(refused) => {
                assert!(refused.is_capacity(), "{refused}");
                let is_placed = tag.map_or(self.has_place, |tag| self.placed.contains(&tag));
                assert!(!is_placed, "whoever keeps his place is not refused: {refused}");
                let after = self.rig.pool.sleep_reading();
                if after.state == before.state {
                    assert_eq!((after.asleep, self.asleep()), (before.asleep, asleep_before), "as it was");
                } else {
                    // The tags that slept by themselves do so again.
                    assert_eq!((before.state, after.state, tag), (SleepState::Asleep, SleepState::Partly, None));
                }
                if self.others == Bytes::ZERO {
                    self.assert_no_room(tag, &refused);
                }
                self.leave_purse();
                self.is_whole = self.rig.state() == SleepState::Asleep;
                let refused = |live: &Live| self.rig.context.check_awake(live.block.ptr()).is_err();
                self.live.iter_mut().for_each(|live| live.is_asleep = refused(live));
            }
        }
        self.assert_charged();
    }

    /// Wakes what one of the latest requests put to sleep, and nothing else.
    fn wake_request(&mut self) {
        let latest = &self.requests[self.requests.len().saturating_sub(4)..];
        let Some(&id) = latest.get(self.random.below(4) as usize) else { return };
        let before = self.rig.pool.sleep_reading();
        let woken = self.rig.pool.wake(&WakeRequest { slept_by: Some(id), ..WakeRequest::default() });
        let is_beside = self.is_whole && self.whole_by != Some(id);
        match woken {
            Ok(report) => {
                let after = self.rig.pool.sleep_reading();
                assert_eq!(
                    report.taken.saturating_add(after.asleep),
                    before.asleep,
                    "waking takes what was said before"
                );
                let mut own = self.live.iter_mut().filter(|live| live.is_asleep && live.by == Some(id));
                match is_beside {
                    true => assert!(own.next().is_none(), "all of it wakes first"),
                    false => {
                        own.for_each(|live| live.is_asleep = false);
                        self.is_whole = false;
                    }
                }
            }
            Err(Error::Asleep { .. }) => assert!(is_beside, "all of it wakes first"),
            Err(refused) => {
                assert!(refused.is_capacity(), "{refused}");
                self.is_whole = self.rig.state() == SleepState::Asleep;
                let asleep = self.asleep();
                self.live.iter_mut().zip(asleep).for_each(|(live, is_asleep)| live.is_asleep = is_asleep);
            }
        }
        assert_eq!(self.asleep(), self.live.iter().map(|live| live.is_asleep).collect::<Vec<_>>());
        if !is_beside {
            self.places_max = self.places_max.min(before.asleep);
        }
        self.has_place = false;
        self.placed.clear();
        self.assert_charged();
    }

    /// Asserts that what was refused to wake does not fit beside what is awake, also once all work has run: the pages that
    /// blocks are in are more than there are. A frame that is awake counts whole, so what is unused of those is added.
    fn assert_no_room(&self, tag: Option<AllocTag>, refused: &Error) {
        self.rig.pool.reap_blocking(Duration::MAX).expect("the device works");
        if self.rig.pool.wake(&only(tag)).is_ok() {
            return;
        }
        let pages_of = |live: &Live| {
            let Range { start, end } = range_of(&live.block);
            start.0 / FRAME..end.0.div_ceil(FRAME)
        };
        let used = self.live.iter().flat_map(pages_of).collect::<BTreeSet<_>>().len() as u64;
        let unused = if self.is_whole { 0 } else { used * (self.frame_pages - 1) };
        assert!((used + unused) * FRAME > self.rig.limit.get(), "{used} pages are used: {refused}");
    }

    /// Somebody else takes of the purse as much as is left, or leaves it.
    fn take_of_purse(&mut self) {
        if self.others > Bytes::ZERO {
            return self.leave_purse();
        }
        let bytes = Bytes(self.random.below(8) * FRAME);
        if self.rig.purse.charge(bytes).is_ok() {
            self.others = bytes;
        }
    }

    fn leave_purse(&mut self) {
        self.rig.purse.release(std::mem::take(&mut self.others));
    }

    /// Asserts that the purse knows of all that the driver has given out, and of places.
    fn assert_charged(&self) {
        let held = self.rig.faults.held(self.rig.context.device());
        assert_eq!(self.rig.pool.held(), held, "the pool and the driver");
        assert_eq!(self.rig.budget.charged_bytes().saturating_add(self.others), self.rig.purse.held());
        let places = self.rig.budget.charged_bytes().saturating_sub(held);
        assert!(places <= self.places_max, "{places} are charged for nothing");
    }
}

/// Says which seed it was, where a program fails.
pub(crate) struct Says(pub(crate) u64);

impl Drop for Says {
    #[allow(clippy::print_stderr, reason = "what a failing program has to say beside its panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the program of seed {0}: BURSAR_SLEEP_SEED={0} runs it alone", self.0);
        }
    }
}

/// Returns a pool, and the pages of its longest frame.
pub(crate) fn recipe(random: &mut Random) -> (PagePool, u64) {
    let (magazine, frame_pages) = (Bytes(random.below(3) << 19), 1 + random.below(2));
    let recipe = PagePool::default().magazine(magazine).patience(Duration::ZERO);
    (recipe.largest_frame(Bytes(frame_pages * FRAME)), frame_pages)
}

fn run(seed: u64, defect: Option<Defect>) {
    let mut random = Random::new(!seed);
    let (recipe, frame_pages) = recipe(&mut random);
    let rig = SleepRig::new(seed, 8 + random.below(16), &recipe, defect);
    Program::new(&rig, seed, frame_pages).run(60);
    rig.pool.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(rig.pool.bytes_outstanding(), Bytes::ZERO);
    rig.assert_charged(Bytes::ZERO);
    rig.finish();
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Programs that found something: a wake that was refused for the second of two frames had left the first awake, with all of the pool
/// asleep; and one for the second of two tags had left the first awake.
const FOUND: [u64; 2] = [1578, 5545];

pub(crate) fn seeds(usual: u64) -> Range<u64> {
    match number("BURSAR_SLEEP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_SLEEP_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn z5_programs_that_sleep_and_wake_lose_nothing_and_touch_nothing_early() {
    let found = if number("BURSAR_SLEEP_SEED").is_none() { &FOUND[..] } else { &[] };
    for seed in seeds(150).chain(found.iter().copied()) {
        let _says = Says(seed);
        run(seed, None);
    }
}

#[test]
fn z7_parts_that_are_broken_on_purpose_are_found() {
    let of_driver = [SleepDefect::WaitsForNobody, SleepDefect::WakesTooEarly, SleepDefect::ForgetsContents];
    let defects = of_driver.into_iter().map(Defect::Driver).chain([Defect::KeepsCharge]);
    let found = defects.map(|defect| {
        let is_found = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed, Some(defect)))).is_err();
        (defect, (0..64).find(is_found))
    });
    for (defect, seed) in found {
        assert!(seed.is_some(), "{defect:?} was not found");
    }
}
