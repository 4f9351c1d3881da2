//! The judge: what is ordered after what, and which accesses that leaves unordered.
//!
//! Order is derived from the calls when they are made, not from when the schedule happens to run them, so a missing wait
//! is found whatever the seed, unless a query said by the seed's choice that there is nothing to wait for. Each stream is a component of vector clocks. A submission is ordered after what its
//! stream is ordered after, and after everything the host knows to have run: what it synchronised with, what a query
//! said is complete, and what precedes a host function that has begun. One clock stands for all host threads, because
//! driver calls are taken as ordered by the order in which they arrive; so nothing is reported that a lock of the call
//! might have prevented.

mod accesses;
mod clock;
mod device_memory;
mod host_copies;
mod lifetimes;
mod memory_events;

pub(crate) use accesses::OrderedOp;
pub(crate) use clock::{Epoch, VectorClock};
pub(crate) use lifetimes::Lifetime;

use crate::host_memory::{HostPtr, Pinned};
use crate::{Hazard, HazardKind, Operation};
use accesses::Accesses;
use bursar_core::{Access, AllocTag, DeviceId};
use device_memory::DeviceMemory;
use device_memory::UNMAPPED;
use host_copies::CopyWatches;
use std::collections::HashSet;
use std::ops::Range;

/// How many hazards are kept; what follows is counted.
const HAZARDS_KEPT: usize = 256;

/// Bytes that an operation touches.
#[derive(Clone, Debug)]
pub(crate) struct RangeAccess {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
}

impl RangeAccess {
    /// An operation, as what does this.
    pub(crate) fn by(&self, op: Operation) -> Operation {
        Operation { access: Some(self.access), bytes: Some(self.range.clone().into()), ..op }
    }
}

/// The order of everything submitted, and what was found wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    host: VectorClock,
    streams: Vec<VectorClock>,
    pub(crate) devices: Vec<DeviceMemory>,
    host_memory: Accesses,
    pub(crate) watches: CopyWatches,
    pub(crate) hazards: Vec<Hazard>,
    seen: HashSet<(HazardKind, u64, u64)>,
    pub(crate) omitted: u64,
}

/// What is wrong with a part of memory that an operation touches.
struct Violation {
    kind: HazardKind,
    first: Option<Operation>,
    reused: Option<Operation>,
}

impl Oracle {
    pub(crate) fn new(devices: usize) -> Self {
        Self { devices: (0..devices).map(|_| DeviceMemory::default()).collect(), ..Self::default() }
    }

    pub(crate) fn add_stream(&mut self) {
        self.streams.push(VectorClock::default());
    }

    pub(crate) fn clock(&self, stream: usize) -> &VectorClock {
        &self.streams[stream]
    }

    /// What the next submission to `stream` would be ordered after, waiting for all that `others` hold, as with the legacy
    /// default stream; and whether they hold anything that `stream` is not ordered after yet.
    fn next(&self, stream: usize, others: &[usize]) -> (VectorClock, bool) {
        let mut clock = self.streams[stream].clone();
        clock.join(&self.host);
        // Not a short circuit: every one of them is joined.
        let news = others.iter().filter(|other| clock.join(&self.streams[**other])).count();
        (clock, news > 0)
    }

    /// What the next submission to `stream`, which implicitly waits for `others`, would be ordered after.
    pub(crate) fn ahead(&self, stream: usize, others: &[usize]) -> VectorClock {
        self.next(stream, others).0
    }

    /// A submission to `stream`, which implicitly waits for `others`.
    pub(crate) fn submit(&mut self, stream: usize, others: &[usize]) -> Epoch {
        self.streams[stream] = self.ahead(stream, others);
        self.streams[stream].tick(stream)
    }

    /// The point that `stream` has come to, without a submission, and what is ordered before whatever comes next there.
    /// The stream itself has waited for nothing: that it has run says nothing of what `others` hold.
    pub(crate) fn point(&mut self, stream: usize, others: &[usize]) -> (Epoch, VectorClock) {
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
    pub(crate) fn wait(&mut self, stream: usize, clock: &VectorClock) {
        self.streams[stream].join(clock);
    }

    /// The host knows that everything on `stream` has run.
    pub(crate) fn host_observed_stream(&mut self, stream: usize) {
        self.host.join(&self.streams[stream]);
    }

    /// The host knows that everything with `clock` has run.
    pub(crate) fn host_observed(&mut self, clock: &VectorClock) {
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
            self.omitted += 1;
        }
    }

    fn report_violation(&mut self, device: usize, range: Range<u64>, violation: Violation, second: Operation) {
        let tag = self.devices[device].tag_at(range.start);
        let own = second.tag != AllocTag::UNTAGGED;
        self.report(Hazard {
            kind: violation.kind,
            device: Some(DeviceId(device as u32)),
            range: range.into(),
            tag,
            first: violation.first,
            second: if own { second } else { Operation { tag, ..second } },
            reused: violation.reused,
        });
    }

    fn report_unordered(
        &mut self,
        device: usize,
        kind: HazardKind,
        past: Vec<(Range<u64>, OrderedOp)>,
        second: Operation,
    ) -> bool {
        let any = !past.is_empty();
        for (range, moment) in past {
            let violation = Violation { kind, first: Some(moment.op), reused: None };
            self.report_violation(device, range, violation, second);
        }
        any
    }

    /// Judges what an operation at `epoch` of its stream touches. Answers whether there is memory everywhere it reaches.
    pub(crate) fn touch(&mut self, device: usize, touch: &RangeAccess, op: Operation, epoch: Epoch) -> bool {
        let op = touch.by(op);
        let clock = self.streams[epoch.stream].clone();
        let parts = self.devices[device].memory.parts(touch.range.clone());
        let mut is_there = true;
        for (range, lifetime) in parts {
            match lifetime.filter(|lifetime| lifetime.ended.is_none()) {
                None => is_there = false,
                Some(_) if self.devices[device].has_blocks(range.start) => {
                    self.touch_blocks(device, range.clone(), op, &clock)
                }
                Some(_) => {}
            }
            if let Some(violation) = violation_of(lifetime, &clock, HazardKind::NotMapped) {
                self.report_violation(device, range, violation, op);
            }
        }
        if is_there {
            let device_memory = &mut self.devices[device];
            let tag = device_memory.tag_at(touch.range.start);
            let op = Operation { tag, ..op };
            let past =
                device_memory.accesses.record(touch.range.clone(), touch.access, OrderedOp { op, epoch }, &clock);
            self.report_unordered(device, HazardKind::Conflict, past, op);
        }
        is_there
    }

    /// Reports what is wrong with an operation on `stream` that was refused, and so touches nothing.
    pub(crate) fn refused(&mut self, device: usize, touch: &RangeAccess, op: Operation, stream: usize) {
        let (op, clock) = (touch.by(op), self.streams[stream].clone());
        for (range, lifetime) in self.devices[device].memory.parts(touch.range.clone()) {
            if let Some(violation) = violation_of(lifetime, &clock, HazardKind::NotMapped) {
                self.report_violation(device, range, violation, op);
            }
        }
    }

    /// Whether there was memory at an address that has been freed or unmapped since.
    pub(crate) fn was_memory(&self, device: usize, at: u64) -> bool {
        let part = self.devices[device].memory.parts(at..at + 1).pop();
        part.and_then(|(_, lifetime)| lifetime).is_some_and(|lifetime| lifetime.ended.is_some())
    }

    fn touch_blocks(&mut self, device: usize, range: Range<u64>, op: Operation, clock: &VectorClock) {
        for (range, block) in self.devices[device].blocks.parts(range) {
            if let Some(violation) = violation_of(block, clock, HazardKind::OutOfBounds) {
                self.report_violation(device, range, violation, op);
            }
        }
    }

    /// Judges what a copy at `epoch` of its stream does with pinned host memory.
    pub(crate) fn touch_host_memory(&mut self, touch: &RangeAccess, op: Operation, epoch: Epoch) {
        let clock = &self.streams[epoch.stream];
        let moment = OrderedOp { op, epoch };
        let past = self.host_memory.record(touch.range.clone(), touch.access, moment, clock);
        for (range, moment) in past {
            self.report(host_hazard(HazardKind::Conflict, range, moment.op, op));
        }
    }

    /// Watches the pinned memory of the copy at `epoch` until it has run.
    pub(crate) fn watch(&mut self, op: Operation, epoch: Epoch, ptr: HostPtr, pinned: &Pinned, host: &RangeAccess) {
        let len = (host.range.end - host.range.start) as usize;
        self.watches.begin(op, &self.streams[epoch.stream], ptr, len, pinned);
    }

    /// Judges an access to pinned memory by the host itself.
    pub(crate) fn host_touches(&mut self, touch: &RangeAccess, op: Operation) {
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
}

fn host_hazard(kind: HazardKind, range: Range<u64>, first: Operation, second: Operation) -> Hazard {
    Hazard { kind, device: None, range: range.into(), tag: first.tag, first: Some(first), second, reused: None }
}

/// What is wrong with touching a part of memory from work with `clock`; `gap` is what a part that nobody has is.
fn violation_of(lifetime: Option<Lifetime>, clock: &VectorClock, gap: HazardKind) -> Option<Violation> {
    let Some(lifetime) = lifetime else {
        return Some(Violation { kind: gap, first: None, reused: None });
    };
    if let Some(freed) = lifetime.ended {
        let is_unmapped = freed.op.what == UNMAPPED;
        return Some(Violation {
            kind: if is_unmapped { HazardKind::NotMapped } else { HazardKind::UseAfterFree },
            first: Some(freed.op),
            reused: None,
        });
    }
    if clock.covers(lifetime.began.epoch) {
        return None;
    }
    Some(match lifetime.before {
        Some(freed) => {
            Violation { kind: HazardKind::UseAfterFree, first: Some(freed.op), reused: Some(lifetime.began.op) }
        }
        None => Violation { kind: HazardKind::UseBeforeAllocation, first: Some(lifetime.began.op), reused: None },
    })
}
