//! The events of memory: allocating, mapping and noting blocks, and the end of each.

use super::accesses::OrderedOp;
use super::clock::{Epoch, VectorClock};
use super::device_memory::Space;
use super::{Oracle, Violation, violation_of};
use crate::{HazardKind, Operation};
use bursar_core::AllocTag;
use std::ops::Range;

impl Oracle {
    /// Records that the driver allocated `range`, from `began` on.
    pub(crate) fn record_allocation(&mut self, device: usize, range: Range<u64>, began: OrderedOp) {
        let began = began.of(&range);
        let device_memory = &mut self.devices[device];
        device_memory.memory.begin(range.clone(), began, AllocTag::UNTAGGED);
        device_memory.spaces.insert(range.start, Space { end: range.end, has_blocks: false });
    }

    /// Records that the driver freed the allocation at `start`, in stream order unless the host waited for the whole device.
    pub(crate) fn record_free(&mut self, device: usize, start: u64, ended: OrderedOp) {
        let Some(lifetime) = self.devices[device].memory.live_at(start) else {
            return;
        };
        let range = start..lifetime.end;
        let (ended, clock) = (ended.of(&range), self.clock_of(ended.epoch));
        let late = self.devices[device].accesses.unordered(range.clone(), &clock);
        let mut is_wrong = self.report_unordered(device, HazardKind::FreeUnordered, late, ended.op);
        let held = self.blocks_held(device, range.clone(), &clock);
        is_wrong |= self.report_unordered(device, HazardKind::FreeUnordered, held, ended.op);
        if !is_wrong && !clock.covers(lifetime.began.epoch) && !self.devices[device].has_blocks(start) {
            self.report_unordered(device, HazardKind::FreeUnordered, vec![(range.clone(), lifetime.began)], ended.op);
        }
        let device_memory = &mut self.devices[device];
        let tag = lifetime.tag;
        let op = Operation { tag, ..ended.op };
        device_memory.memory.end(start, OrderedOp { op, ..ended }, &self.host);
        device_memory.accesses.forget(range.clone());
        device_memory.blocks.forget(range);
        device_memory.spaces.remove(&start);
    }

    /// Returns the blocks in a range that are live, or whose free `clock` does not cover, each with its allocation or that
    /// free. The accesses to a freed block were forgotten with its free, which comes after them.
    fn blocks_held(&self, device: usize, range: Range<u64>, clock: &VectorClock) -> Vec<(Range<u64>, OrderedOp)> {
        let parts = self.devices[device].blocks.parts(range).into_iter();
        let held = parts.filter_map(|(part, block)| {
            let block = block?;
            match block.ended {
                None => Some((part, block.began)),
                Some(_) => block.free_not_covered(clock).map(|freed| (part, freed)),
            }
        });
        held.collect()
    }

    /// Returns the clock of an operation at `epoch`, which is the host's for what the host did.
    fn clock_of(&self, epoch: Epoch) -> VectorClock {
        if epoch == Epoch::HOST { self.host.clone() } else { self.streams[epoch.stream].clone() }
    }

    pub(crate) fn record_reservation(&mut self, device: usize, range: Range<u64>) {
        let space = Space { end: range.end, has_blocks: false };
        self.devices[device].spaces.insert(range.start, space);
    }

    pub(crate) fn remove_reservation(&mut self, device: usize, range: Range<u64>) {
        let device_memory = &mut self.devices[device];
        device_memory.spaces.remove(&range.start);
        device_memory.blocks.forget(range);
    }

    /// Records that pages became usable, which are usable from `others` on already: whoever uses them here comes after what
    /// was done there.
    pub(crate) fn record_mapping(&mut self, device: usize, range: Range<u64>, others: &[u64], op: Operation) {
        let device_memory = &mut self.devices[device];
        let began = OrderedOp { op, epoch: Epoch::HOST };
        device_memory.memory.begin(range.clone(), began, AllocTag::UNTAGGED);
        device_memory.accesses.forget(range.clone());
        for &other in others {
            let there = other..other + (range.end - range.start);
            device_memory.accesses.repeat(there.clone(), range.start);
            device_memory.blocks.repeat(there, range.start);
            device_memory.add_alias(range.clone(), other);
        }
    }

    /// Records that pages were unmapped.
    pub(crate) fn record_unmapping(&mut self, device: usize, range: Range<u64>, op: Operation) {
        let late = self.devices[device].accesses.unordered(range.clone(), &self.host);
        self.report_unordered(device, HazardKind::UnmapUnderUse, late, op);
        let is_asleep = self.devices[device].is_asleep(range.start);
        if !is_asleep {
            let held = self.blocks_held(device, range.clone(), &self.host);
            self.report_unordered(device, HazardKind::UnmapUnderUse, held, op);
        }
        let device_memory = &mut self.devices[device];
        let ended = OrderedOp { op, epoch: Epoch::HOST };
        if device_memory.memory.live_at(range.start).is_some() {
            device_memory.memory.end(range.start, ended, &self.host);
        }
        if !is_asleep {
            device_memory.blocks.forget(range.clone());
        }
        device_memory.remove_aliases(&range);
        device_memory.accesses.forget(range);
    }

    /// Records that the blocks in a range sleep, as a layer above has noted.
    pub(crate) fn record_asleep(&mut self, device: usize, range: Range<u64>) {
        self.devices[device].asleep.insert(range.start, range.end);
    }

    /// Records the checksum of what is to be in a range again when it wakes.
    pub(crate) fn record_saved(&mut self, device: usize, range: Range<u64>, sum: u64) {
        self.devices[device].saved.insert(range.start, (range.end - range.start, sum));
    }

    /// Records that a range is awake, as a layer above has noted: nothing fills it any more. It may still be read, as by copies that nobody
    /// could wait for: whoever writes there next comes after them, like after any others. Returns what is to be there, where
    /// somebody has a block.
    pub(crate) fn record_awake(&mut self, device: usize, range: Range<u64>, op: Operation) -> Vec<(Range<u64>, u64)> {
        let late = self.devices[device].accesses.unordered_writes(range.clone(), &self.host);
        self.report_unordered(device, HazardKind::ContentsLost, late, op);
        let device_memory = &mut self.devices[device];
        let mut saved = device_memory.end_sleep(&range);
        let is_live = |range: Range<u64>| {
            let mut blocks = device_memory.blocks.parts(range).into_iter();
            blocks.any(|(_, block)| block.is_some_and(|block| block.ended.is_none()))
        };
        saved.retain(|(range, _)| is_live(range.clone()));
        saved
    }

    /// Records that a range which slept does not wake, as a layer above has noted: no block may be in it.
    pub(crate) fn record_abandoned(&mut self, device: usize, range: Range<u64>, op: Operation) {
        let parts = self.devices[device].blocks.parts(range.clone()).into_iter();
        let live = parts.filter_map(|(part, block)| {
            let block = block.filter(|block| block.ended.is_none())?;
            Some((part, block.began))
        });
        let live = live.collect();
        self.report_unordered(device, HazardKind::UnmapUnderUse, live, op);
        let device_memory = &mut self.devices[device];
        device_memory.end_sleep(&range);
        device_memory.blocks.forget(range);
    }

    /// Reports that a range which is awake does not hold what it held.
    pub(crate) fn report_lost(&mut self, device: usize, range: Range<u64>, op: Operation) {
        let violation = Violation { kind: HazardKind::ContentsLost, first: None, reused: None };
        self.report_violation(device, range, violation, op);
    }

    /// Records that `range` is a block from a point of a stream on, as a layer above has noted; whatever comes next there
    /// has `clock`.
    pub(crate) fn record_block(
        &mut self,
        device: usize,
        range: Range<u64>,
        began: OrderedOp,
        clock: &VectorClock,
        tag: AllocTag,
    ) {
        let op = Operation { tag, ..began.of(&range).op };
        for (part, lifetime) in self.devices[device].memory.parts(range.clone()) {
            if let Some(violation) = violation_of(lifetime, clock, HazardKind::NotMapped) {
                self.report_violation(device, part, violation, op);
            }
        }
        let elsewhere = self.devices[device].aliases(&range).into_iter();
        let places = [range.clone()].into_iter().chain(elsewhere);
        let blocks: Vec<_> = places.flat_map(|place| self.devices[device].blocks.parts(place)).collect();
        for (part, block) in blocks {
            let Some(block) = block else { continue };
            match (block.ended, block.free_not_covered(clock)) {
                (None, _) => {
                    self.report_unordered(device, HazardKind::Overlap, vec![(part, block.began)], op);
                }
                (Some(_), Some(freed)) => {
                    self.report_unordered(device, HazardKind::ReusedUnordered, vec![(part, freed)], op);
                }
                (Some(_), None) => {}
            }
        }
        let late = self.devices[device].accesses.unordered(range.clone(), clock);
        self.report_unordered(device, HazardKind::ReusedUnordered, late, op);
        self.forget_accesses(device, range.clone(), began.epoch, clock);
        self.begin_block(device, range, OrderedOp { op, ..began }, &[], tag);
    }

    /// Records that a part of a block is room for other blocks, as its holder has noted.
    pub(crate) fn record_division(&mut self, device: usize, range: Range<u64>) {
        let device_memory = &mut self.devices[device];
        let around = device_memory.blocks.live_around(range.start);
        device_memory.blocks.forget(range.clone());
        device_memory.divided.insert(range.start, (range.end, around));
    }

    /// Records that a divided part belongs to its block again, at a point of a stream; whatever comes next there has `clock`.
    pub(crate) fn record_rejoining(&mut self, device: usize, start: u64, at: OrderedOp, clock: &VectorClock) {
        let Some((end, around)) = self.devices[device].divided.remove(&start) else { return };
        let range = start..end;
        let op = at.of(&range).op;
        let late = self.late_accesses(device, range.clone(), clock);
        self.report_unordered(device, HazardKind::FreeUnordered, late, op);
        let held = self.blocks_held(device, range.clone(), clock);
        self.report_unordered(device, HazardKind::FreeUnordered, held, op);
        let device_memory = &mut self.devices[device];
        device_memory.accesses.forget(range.clone());
        device_memory.blocks.forget(range);
        if let Some((start, block)) = around {
            device_memory.blocks.restore(start, block);
        }
    }

    /// Begins the life of a block that a graph leaves behind, for whoever uses it before the graph is launched: after all frees
    /// before it that are not known to have run.
    pub(crate) fn begin_output(&mut self, device: usize, range: Range<u64>, op: Operation, tag: AllocTag) {
        if self.devices[device].is_block(range.start) {
            // It was made usable before, or a launch has done that.
            return;
        }
        let mut after = Vec::new();
        for (part, block) in self.devices[device].blocks.parts(range.clone()) {
            let Some(block) = block else { continue };
            if block.ended.is_none() {
                self.report_unordered(device, HazardKind::Overlap, vec![(part, block.began)], op);
            }
            if let Some(freed) = block.free_not_covered(&self.host) {
                after.extend([freed.epoch].into_iter().chain(block.home));
            }
        }
        let epoch = after.pop().unwrap_or(Epoch::HOST);
        let began = OrderedOp { op: Operation { tag, ..op }, epoch };
        self.begin_block(device, range, began, &after, tag);
    }

    /// Forgets the accesses to a range at a point of a stream after which the next submission has `clock`. Accesses that
    /// only an implicit wait orders before it stay: the stream has not waited yet, so a clock that covers the point need not
    /// cover them.
    fn forget_accesses(&mut self, device: usize, range: Range<u64>, at: Epoch, clock: &VectorClock) {
        let own = &self.streams[at.stream];
        let stays = |past: &OrderedOp| clock.covers(past.epoch) && !own.covers(past.epoch);
        self.devices[device].accesses.forget_unless(range, stays);
    }

    fn begin_block(&mut self, device: usize, range: Range<u64>, began: OrderedOp, after: &[Epoch], tag: AllocTag) {
        let device_memory = &mut self.devices[device];
        if let Some((start, space)) = device_memory.space_of(range.start) {
            device_memory.spaces.insert(start, Space { has_blocks: true, ..space });
            let is_allocation = device_memory.memory.live_at(start).is_some_and(|lifetime| lifetime.end == space.end);
            if is_allocation {
                device_memory.memory.set_tag(start, tag);
            }
        }
        device_memory.blocks.begin_after(range, began, after, tag);
    }

    /// Records that the block at `start` was freed at a point of a stream, as a layer above has noted; whatever comes next
    /// there has `clock`. Where the block's own stream is another, the free comes after the point of that too, which is
    /// `home`, with the clock of whatever comes next there.
    pub(crate) fn record_block_free(
        &mut self,
        device: usize,
        start: u64,
        ended: OrderedOp,
        clock: &VectorClock,
        home: Option<&(Epoch, VectorClock)>,
    ) {
        let mut both = clock.clone();
        if let Some((_, home)) = home {
            both.join(home);
        }
        let clock = &both;
        let device_memory = &self.devices[device];
        let Some(block) = device_memory.blocks.live_at(start) else {
            let part = device_memory.blocks.parts(start..start + 1).pop();
            let first = part.and_then(|(_, lifetime)| Some(lifetime?.ended?.op));
            let kind = if first.is_some() { HazardKind::UseAfterFree } else { HazardKind::FreeUnordered };
            let violation = Violation { kind, first, reused: None };
            return self.report_violation(device, start..start + 1, violation, ended.op);
        };
        let range = start..block.end;
        let op = Operation { tag: block.tag, ..ended.of(&range).op };
        let late = self.late_accesses(device, range.clone(), clock);
        if !self.report_unordered(device, HazardKind::FreeUnordered, late, op) && !block.has_begun(clock) {
            self.report_unordered(device, HazardKind::FreeUnordered, vec![(range.clone(), block.began)], op);
        }
        self.forget_accesses(device, range, ended.epoch, clock);
        let home = home.map(|&(epoch, _)| epoch);
        self.devices[device].blocks.end_after(start, OrderedOp { op, ..ended }, home, &self.host);
    }

    /// Returns the accesses to a range that whoever gives it back with `clock` does not come after. What sleeps is only copied by
    /// whoever has it sleep, who keeps the free until it is awake: that comes after the copies.
    fn late_accesses(&self, device: usize, range: Range<u64>, clock: &VectorClock) -> Vec<(Range<u64>, OrderedOp)> {
        let device_memory = &self.devices[device];
        let mut late = device_memory.accesses.unordered(range, clock);
        late.retain(|(part, _)| !device_memory.is_asleep(part.start));
        late
    }
}
