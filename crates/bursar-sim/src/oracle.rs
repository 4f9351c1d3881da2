//! The judge: what is ordered after what, and which accesses that leaves unordered.
//!
//! Order is derived from the calls when they are made, not from when the schedule happens to run them, so a missing wait
//! is found whatever the seed, unless a query said by the seed's choice that there is nothing to wait for. Each stream is a component of vector clocks. A submission is ordered after what its
//! stream is ordered after, and after everything the host knows to have run: what it synchronised with, what a query
//! said is complete, and what precedes a host function that has begun. One clock stands for all host threads, because
//! driver calls are taken as ordered by the order in which they arrive; so nothing is reported that a lock of the caller
//! might have prevented.

use crate::clock::{Clock, Epoch};
use crate::host::{HostPtr, Pinned, Watches};
use crate::lives::{Life, Lives};
use crate::ranges::{Access, Accesses, Moment};
use crate::{Hazard, HazardKind, Operation};
use bursar_core::{AllocTag, DeviceId};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// How many hazards are kept; what follows is counted.
const HAZARDS_KEPT: usize = 256;

/// The call that makes pages usable, and the one that takes them away.
const MAPPED: &str = "pages_allow";
const UNMAPPED: &str = "pages_unmap";

/// Bytes that an operation touches.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
}

impl Touch {
    /// An operation, as what does this.
    pub(crate) fn by(&self, op: Operation) -> Operation {
        Operation { access: Some(self.access), bytes: Some(self.range.clone().into()), ..op }
    }
}

/// A range in which blocks may be noted: an allocation, or a reservation of addresses.
#[derive(Clone, Copy, Debug)]
struct Space {
    end: u64,
    /// Whether a block was ever noted in it: then accesses must lie in blocks.
    is_noted: bool,
}

/// What is known of the memory of one device.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    accesses: Accesses,
    /// What the driver itself gave out: allocations and mapped pages.
    pub(crate) memory: Lives,
    /// What the layers above said are blocks.
    pub(crate) blocks: Lives,
    spaces: BTreeMap<u64, Space>,
}

impl Ground {
    fn space_of(&self, at: u64) -> Option<(u64, Space)> {
        let (start, space) = self.spaces.range(..=at).next_back()?;
        (at < space.end).then_some((*start, *space))
    }

    fn is_noted(&self, at: u64) -> bool {
        self.space_of(at).is_some_and(|(_, space)| space.is_noted)
    }

    fn tag_at(&self, at: u64) -> AllocTag {
        // Nothing lies at the last of all addresses, whose end cannot be named.
        let byte = at..at.saturating_add(1);
        let tag_in = |lives: &Lives| lives.parts(byte.clone()).pop().and_then(|(_, life)| Some(life?.tag));
        tag_in(&self.blocks).or_else(|| tag_in(&self.memory)).unwrap_or(AllocTag::UNTAGGED)
    }

    /// What the driver's allocators gave out and have not got back.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Life)> {
        self.memory.live().filter(|(_, life)| life.born.op.what != MAPPED)
    }

    /// The live blocks that lie in mapped pages rather than in allocations.
    pub(crate) fn blocks_in_pages(&self) -> impl Iterator<Item = (u64, &Life)> {
        self.blocks.live().filter(|(start, _)| {
            let part = self.memory.parts(*start..*start + 1).pop();
            part.and_then(|(_, life)| life).is_none_or(|life| life.born.op.what == MAPPED)
        })
    }
}

/// The order of everything submitted, and what was found wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    host: Clock,
    streams: Vec<Clock>,
    pub(crate) grounds: Vec<Ground>,
    host_memory: Accesses,
    pub(crate) watches: Watches,
    pub(crate) hazards: Vec<Hazard>,
    seen: HashSet<(HazardKind, u64, u64)>,
    pub(crate) unkept: u64,
}

/// What is wrong with a part of memory that an operation touches.
struct Wrong {
    kind: HazardKind,
    first: Option<Operation>,
    reused: Option<Operation>,
}

impl Oracle {
    pub(crate) fn new(devices: usize) -> Self {
        Self { grounds: (0..devices).map(|_| Ground::default()).collect(), ..Self::default() }
    }

    pub(crate) fn add_stream(&mut self) {
        self.streams.push(Clock::default());
    }

    pub(crate) fn clock(&self, stream: usize) -> &Clock {
        &self.streams[stream]
    }

    /// What the next submission to `stream` would be ordered after, waiting for all that `others` hold, as with the legacy
    /// default stream; and whether they hold anything that `stream` is not ordered after yet.
    fn next(&self, stream: usize, others: &[usize]) -> (Clock, bool) {
        let mut clock = self.streams[stream].clone();
        clock.join(&self.host);
        // Not a short circuit: every one of them is joined.
        let news = others.iter().filter(|other| clock.join(&self.streams[**other])).count();
        (clock, news > 0)
    }

    /// What the next submission to `stream`, which implicitly waits for `others`, would be ordered after.
    pub(crate) fn ahead(&self, stream: usize, others: &[usize]) -> Clock {
        self.next(stream, others).0
    }

    /// A submission to `stream`, which implicitly waits for `others`.
    pub(crate) fn submit(&mut self, stream: usize, others: &[usize]) -> Epoch {
        self.streams[stream] = self.ahead(stream, others);
        self.streams[stream].tick(stream)
    }

    /// The point that `stream` has come to, without a submission, and what is ordered before whatever comes next there.
    /// The stream itself has waited for nothing: that it has run says nothing of what `others` hold.
    pub(crate) fn point(&mut self, stream: usize, others: &[usize]) -> (Epoch, Clock) {
        let (mut clock, news) = self.next(stream, others);
        self.streams[stream].join(&self.host);
        if news {
            // Who knows only what was on the stream before does not know this point.
            self.streams[stream].tick(stream);
            clock.tick(stream);
        }
        (self.streams[stream].epoch(stream), clock)
    }

    /// What follows on `stream` waits for what has `clock`.
    pub(crate) fn wait(&mut self, stream: usize, clock: &Clock) {
        self.streams[stream].join(clock);
    }

    /// The host knows that everything on `stream` has run.
    pub(crate) fn host_saw(&mut self, stream: usize) {
        self.host.join(&self.streams[stream]);
    }

    /// The host knows that everything with `clock` has run.
    pub(crate) fn host_saw_clock(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    pub(crate) fn report(&mut self, hazard: Hazard) {
        let first = hazard.first.map_or(0, |first| first.call);
        if !self.seen.insert((hazard.kind, first, hazard.second.call)) {
            return;
        }
        if self.hazards.len() < HAZARDS_KEPT {
            self.hazards.push(hazard);
        } else {
            self.unkept += 1;
        }
    }

    fn found(&mut self, device: usize, range: Range<u64>, wrong: Wrong, second: Operation) {
        let tag = self.grounds[device].tag_at(range.start);
        let own = second.tag != AllocTag::UNTAGGED;
        self.report(Hazard {
            kind: wrong.kind,
            device: Some(DeviceId(device as u32)),
            range: range.into(),
            tag,
            first: wrong.first,
            second: if own { second } else { Operation { tag, ..second } },
            reused: wrong.reused,
        });
    }

    fn found_past(
        &mut self,
        device: usize,
        kind: HazardKind,
        past: Vec<(Range<u64>, Moment)>,
        second: Operation,
    ) -> bool {
        let any = !past.is_empty();
        for (range, moment) in past {
            let wrong = Wrong { kind, first: Some(moment.op), reused: None };
            self.found(device, range, wrong, second);
        }
        any
    }

    /// Judges what an operation at `epoch` of its stream touches. Answers whether there is memory everywhere it reaches.
    pub(crate) fn touch(&mut self, device: usize, touch: &Touch, op: Operation, epoch: Epoch) -> bool {
        let op = touch.by(op);
        let clock = self.streams[epoch.stream].clone();
        let parts = self.grounds[device].memory.parts(touch.range.clone());
        let mut is_there = true;
        for (range, life) in parts {
            match life.filter(|life| life.died.is_none()) {
                None => is_there = false,
                Some(_) if self.grounds[device].is_noted(range.start) => {
                    self.touch_blocks(device, range.clone(), op, &clock)
                }
                Some(_) => {}
            }
            if let Some(wrong) = wrong_with(life, &clock, HazardKind::NotMapped) {
                self.found(device, range, wrong, op);
            }
        }
        if is_there {
            let ground = &mut self.grounds[device];
            let tag = ground.tag_at(touch.range.start);
            let op = Operation { tag, ..op };
            let past = ground.accesses.record(touch.range.clone(), touch.access, Moment { op, epoch }, &clock);
            self.found_past(device, HazardKind::Conflict, past, op);
        }
        is_there
    }

    /// Reports what is wrong with an operation on `stream` that was refused, and so touches nothing.
    pub(crate) fn refused(&mut self, device: usize, touch: &Touch, op: Operation, stream: usize) {
        let (op, clock) = (touch.by(op), self.streams[stream].clone());
        for (range, life) in self.grounds[device].memory.parts(touch.range.clone()) {
            if let Some(wrong) = wrong_with(life, &clock, HazardKind::NotMapped) {
                self.found(device, range, wrong, op);
            }
        }
    }

    /// Whether there was memory at an address that has been freed or unmapped since.
    pub(crate) fn was_memory(&self, device: usize, at: u64) -> bool {
        let part = self.grounds[device].memory.parts(at..at + 1).pop();
        part.and_then(|(_, life)| life).is_some_and(|life| life.died.is_some())
    }

    fn touch_blocks(&mut self, device: usize, range: Range<u64>, op: Operation, clock: &Clock) {
        for (range, block) in self.grounds[device].blocks.parts(range) {
            if let Some(wrong) = wrong_with(block, clock, HazardKind::OutOfBounds) {
                self.found(device, range, wrong, op);
            }
        }
    }

    /// Judges what a copy at `epoch` of its stream does with pinned host memory.
    pub(crate) fn touch_host_memory(&mut self, touch: &Touch, op: Operation, epoch: Epoch) {
        let clock = &self.streams[epoch.stream];
        let moment = Moment { op, epoch };
        let past = self.host_memory.record(touch.range.clone(), touch.access, moment, clock);
        for (range, moment) in past {
            self.report(host_hazard(HazardKind::Conflict, range, moment.op, op));
        }
    }

    /// Watches the pinned memory of the copy at `epoch` until it has run.
    pub(crate) fn watch(&mut self, op: Operation, epoch: Epoch, ptr: HostPtr, pinned: &Pinned, host: &Touch) {
        let len = (host.range.end - host.range.start) as usize;
        self.watches.begin(op, &self.streams[epoch.stream], ptr, len, pinned);
    }

    /// Judges an access to pinned memory by the host itself.
    pub(crate) fn host_touches(&mut self, touch: &Touch, op: Operation) {
        // A host access is ordered before everything submitted later, so it need not be remembered.
        let past = self.host_memory.unordered(touch.range.clone(), &self.host);
        for (range, moment) in past {
            let is_reader = moment.op.access == Some(Access::Read);
            if touch.access == Access::Write || !is_reader {
                self.report(host_hazard(HazardKind::HostTouched, range, moment.op, op));
            }
        }
    }

    pub(crate) fn host_memory_changed(&mut self, range: Range<u64>, first: Operation, second: Operation) {
        self.report(host_hazard(HazardKind::HostTouched, range, first, second));
    }

    pub(crate) fn forget_host_memory(&mut self, range: Range<u64>) {
        self.host_memory.forget(range);
    }

    /// The driver gave out `range`, from `born` on.
    pub(crate) fn allocated(&mut self, device: usize, range: Range<u64>, born: Moment) {
        let born = born.of(&range);
        let ground = &mut self.grounds[device];
        ground.memory.begin(range.clone(), born, AllocTag::UNTAGGED);
        ground.spaces.insert(range.start, Space { end: range.end, is_noted: false });
    }

    /// The driver got back what it gave out at `start`, in stream order unless the host waited for the whole device.
    pub(crate) fn freed(&mut self, device: usize, start: u64, died: Moment) {
        let Some(life) = self.grounds[device].memory.live_at(start) else {
            return;
        };
        let range = start..life.end;
        let (died, clock) = (died.of(&range), self.clock_of(died.epoch));
        let late = self.grounds[device].accesses.unordered(range.clone(), &clock);
        let mut is_wrong = self.found_past(device, HazardKind::FreeUnordered, late, died.op);
        let held = self.blocks_held(device, range.clone(), &clock);
        is_wrong |= self.found_past(device, HazardKind::FreeUnordered, held, died.op);
        if !is_wrong && !clock.covers(life.born.epoch) && !self.grounds[device].is_noted(start) {
            self.found_past(device, HazardKind::FreeUnordered, vec![(range.clone(), life.born)], died.op);
        }
        let ground = &mut self.grounds[device];
        let tag = life.tag;
        let op = Operation { tag, ..died.op };
        ground.memory.end(start, Moment { op, ..died }, &self.host);
        ground.accesses.forget(range.clone());
        ground.blocks.forget(range);
        ground.spaces.remove(&start);
    }

    /// The blocks in a range that live, or whose free is not ordered before `clock`; each with its birth or that free. The
    /// uses of a block are forgotten with its free, which comes after them.
    fn blocks_held(&self, device: usize, range: Range<u64>, clock: &Clock) -> Vec<(Range<u64>, Moment)> {
        let parts = self.grounds[device].blocks.parts(range).into_iter();
        let held = parts.filter_map(|(part, block)| {
            let block = block?;
            match block.died {
                None => Some((part, block.born)),
                Some(death) => (!clock.covers(death.epoch)).then_some((part, death)),
            }
        });
        held.collect()
    }

    /// The clock of something at `epoch`, or the host's.
    fn clock_of(&self, epoch: Epoch) -> Clock {
        if epoch == Epoch::HOST { self.host.clone() } else { self.streams[epoch.stream].clone() }
    }

    pub(crate) fn reserved(&mut self, device: usize, range: Range<u64>) {
        let space = Space { end: range.end, is_noted: false };
        self.grounds[device].spaces.insert(range.start, space);
    }

    pub(crate) fn unreserved(&mut self, device: usize, range: Range<u64>) {
        let ground = &mut self.grounds[device];
        ground.spaces.remove(&range.start);
        ground.blocks.forget(range);
    }

    /// Pages became usable.
    pub(crate) fn mapped(&mut self, device: usize, range: Range<u64>, op: Operation) {
        let ground = &mut self.grounds[device];
        let born = Moment { op, epoch: Epoch::HOST };
        ground.memory.begin(range.clone(), born, AllocTag::UNTAGGED);
        ground.accesses.forget(range);
    }

    /// Pages were taken away.
    pub(crate) fn unmapped(&mut self, device: usize, range: Range<u64>, op: Operation) {
        let late = self.grounds[device].accesses.unordered(range.clone(), &self.host);
        self.found_past(device, HazardKind::UnmapUnderUse, late, op);
        let held = self.blocks_held(device, range.clone(), &self.host);
        self.found_past(device, HazardKind::UnmapUnderUse, held, op);
        let ground = &mut self.grounds[device];
        let died = Moment { op, epoch: Epoch::HOST };
        if ground.memory.live_at(range.start).is_some() {
            ground.memory.end(range.start, died, &self.host);
        }
        ground.blocks.forget(range.clone());
        ground.accesses.forget(range);
    }

    /// A layer above says that `range` is a block from a point of a stream on; what comes next there has `clock`.
    pub(crate) fn granted(&mut self, device: usize, range: Range<u64>, born: Moment, clock: &Clock, tag: AllocTag) {
        let op = Operation { tag, ..born.of(&range).op };
        for (part, life) in self.grounds[device].memory.parts(range.clone()) {
            if let Some(wrong) = wrong_with(life, clock, HazardKind::NotMapped) {
                self.found(device, part, wrong, op);
            }
        }
        for (part, block) in self.grounds[device].blocks.parts(range.clone()) {
            let Some(block) = block else { continue };
            match block.died {
                None => {
                    self.found_past(device, HazardKind::Overlap, vec![(part, block.born)], op);
                }
                Some(death) if !clock.covers(death.epoch) => {
                    self.found_past(device, HazardKind::ReusedUnordered, vec![(part, death)], op);
                }
                Some(_) => {}
            }
        }
        let late = self.grounds[device].accesses.unordered(range.clone(), clock);
        self.found_past(device, HazardKind::ReusedUnordered, late, op);
        self.forget_accesses(device, range.clone(), born.epoch, clock);
        self.begin_block(device, range, Moment { op, ..born }, tag);
    }

    /// Forgets the accesses to a range at a point of a stream where what comes next has `clock`. Those stay that only an
    /// implicit wait orders before it: the stream has not waited yet, so who knows the point does not know them.
    fn forget_accesses(&mut self, device: usize, range: Range<u64>, at: Epoch, clock: &Clock) {
        let own = &self.streams[at.stream];
        let stays = |past: &Moment| clock.covers(past.epoch) && !own.covers(past.epoch);
        self.grounds[device].accesses.forget_unless(range, stays);
    }

    fn begin_block(&mut self, device: usize, range: Range<u64>, born: Moment, tag: AllocTag) {
        let ground = &mut self.grounds[device];
        if let Some((start, space)) = ground.space_of(range.start) {
            ground.spaces.insert(start, Space { is_noted: true, ..space });
            let is_allocation = ground.memory.live_at(start).is_some_and(|life| life.end == space.end);
            if is_allocation {
                ground.memory.set_tag(start, tag);
            }
        }
        ground.blocks.begin(range, born, tag);
    }

    /// A layer above says that the block at `start` is nobody's from a point of a stream on; what comes next there has
    /// `clock`.
    pub(crate) fn block_freed(&mut self, device: usize, start: u64, died: Moment, clock: &Clock) {
        let ground = &self.grounds[device];
        let Some(block) = ground.blocks.live_at(start) else {
            let part = ground.blocks.parts(start..start + 1).pop();
            let first = part.and_then(|(_, life)| Some(life?.died?.op));
            let kind = if first.is_some() { HazardKind::UseAfterFree } else { HazardKind::FreeUnordered };
            let wrong = Wrong { kind, first, reused: None };
            return self.found(device, start..start + 1, wrong, died.op);
        };
        let range = start..block.end;
        let op = Operation { tag: block.tag, ..died.of(&range).op };
        let late = ground.accesses.unordered(range.clone(), clock);
        if !self.found_past(device, HazardKind::FreeUnordered, late, op) && !clock.covers(block.born.epoch) {
            self.found_past(device, HazardKind::FreeUnordered, vec![(range.clone(), block.born)], op);
        }
        self.forget_accesses(device, range, died.epoch, clock);
        self.grounds[device].blocks.end(start, Moment { op, ..died }, &self.host);
    }
}

/// What is wrong with touching a part of memory from work with `clock`; `gap` is what a part that nobody has is.
fn wrong_with(life: Option<Life>, clock: &Clock, gap: HazardKind) -> Option<Wrong> {
    let Some(life) = life else {
        return Some(Wrong { kind: gap, first: None, reused: None });
    };
    if let Some(death) = life.died {
        let is_unmapped = death.op.what == UNMAPPED;
        return Some(Wrong {
            kind: if is_unmapped { HazardKind::NotMapped } else { HazardKind::UseAfterFree },
            first: Some(death.op),
            reused: None,
        });
    }
    if clock.covers(life.born.epoch) {
        return None;
    }
    Some(match life.before {
        Some(death) => Wrong { kind: HazardKind::UseAfterFree, first: Some(death.op), reused: Some(life.born.op) },
        None => Wrong { kind: HazardKind::UseBeforeAllocation, first: Some(life.born.op), reused: None },
    })
}

fn host_hazard(kind: HazardKind, range: Range<u64>, first: Operation, second: Operation) -> Hazard {
    Hazard { kind, device: None, range: range.into(), tag: first.tag, first: Some(first), second, reused: None }
}
