//! The oracle: the order of everything submitted, and the accesses that this order leaves unordered.
//!
//! Order is derived from driver calls when they are made, not from when the schedule happens to run their work. So a missing
//! wait is found with every seed, unless a query reported, by the choice of the seed, that there was nothing left to wait
//! for.
//!
//! Each stream is a component of the vector clocks. A submission is ordered after everything that its stream is ordered
//! after, and after everything that the host knows to have run: what it synchronised with, what a query reported as
//! complete, and what precedes a host function that has begun.
//!
//! # Invariants
//!
//! - **All host threads share one clock.** Driver calls count as ordered by the order in which they arrive at the
//!   simulator's lock. So the oracle never reports a race that a lock of the program prevents, and it may miss one between
//!   threads that do not synchronise at all.
//! - **The layers above say which ranges are blocks.** A pool allocates from the driver in large pieces, so its blocks are
//!   known only from [`Driver::note`](bursar_core::Driver::note). Only a driver that listens is told; on hardware a note
//!   costs one branch.

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

/// The number of hazards that are kept; the rest are only counted.
const HAZARDS_KEPT: usize = 256;

/// A range of bytes and the kind of access to it.
#[derive(Clone, Debug)]
pub(crate) struct RangeAccess {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
}

impl RangeAccess {
    /// Returns `op` as the operation that makes this access.
    pub(crate) fn by(&self, op: Operation) -> Operation {
        Operation { access: Some(self.access), bytes: Some(self.range.clone().into()), ..op }
    }
}

/// The order of everything submitted, and the hazards found.
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

/// A mistake in touching a part of memory, without the operation that made it.
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

    /// Returns the clock that the next submission to `stream` would have, if it waits implicitly for everything on `others`,
    /// as with the legacy default stream; and whether those hold anything that `stream` is not ordered after yet.
    fn next(&self, stream: usize, others: &[usize]) -> (VectorClock, bool) {
        let mut clock = self.streams[stream].clone();
        clock.join(&self.host);
        // Not `any`, which would stop at the first: every clock is joined.
        let news = others.iter().filter(|other| clock.join(&self.streams[**other])).count();
        (clock, news > 0)
    }

    /// Returns the clock of the next submission to `stream`, which waits implicitly for `others`.
    pub(crate) fn next_clock(&self, stream: usize, others: &[usize]) -> VectorClock {
        self.next(stream, others).0
    }

    /// Adds a submission to `stream`, which waits implicitly for `others`. Returns its epoch.
    pub(crate) fn submit(&mut self, stream: usize, others: &[usize]) -> Epoch {
        self.streams[stream] = self.next_clock(stream, others);
        self.streams[stream].tick(stream)
    }

    /// Returns the point that `stream` has reached, without a submission, and the clock of whatever comes next there. The
    /// stream itself has not waited for `others`, so knowing that it has run says nothing about them.
    pub(crate) fn point(&mut self, stream: usize, others: &[usize]) -> (Epoch, VectorClock) {
        let (mut clock, news) = self.next(stream, others);
        self.streams[stream].join(&self.host);
        if news {
            // A clock that covers only what was on the stream before must not cover this point.
            self.streams[stream].tick(stream);
            clock.tick(stream);
        }
        (self.streams[stream].epoch(stream), clock)
    }

    /// Orders everything that follows on `stream` after what `clock` covers.
    pub(crate) fn wait(&mut self, stream: usize, clock: &VectorClock) {
        self.streams[stream].join(clock);
    }

    /// Records that the host knows everything on `stream` to have run.
    pub(crate) fn host_observed_stream(&mut self, stream: usize) {
        self.host.join(&self.streams[stream]);
    }

    /// Records that the host knows everything that `clock` covers to have run.
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
        for (range, earlier) in past {
            let violation = Violation { kind, first: Some(earlier.op), reused: None };
            self.report_violation(device, range, violation, second);
        }
        any
    }

    /// Checks an access by an operation at `epoch` of its stream, and reports the hazards. Returns whether there is memory
    /// in all of the range.
    pub(crate) fn check_access(&mut self, device: usize, touch: &RangeAccess, op: Operation, epoch: Epoch) -> bool {
        let op = touch.by(op);
        let clock = self.streams[epoch.stream].clone();
        let parts = self.devices[device].memory.parts(touch.range.clone());
        let mut is_there = true;
        for (range, lifetime) in parts {
            match lifetime.as_ref().filter(|lifetime| lifetime.ended.is_none()) {
                None => is_there = false,
                Some(_)
                    if self.devices[device].has_blocks(range.start) && !self.devices[device].is_asleep(range.start) =>
                {
                    self.check_blocks(device, range.clone(), op, &clock)
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

    /// Reports the hazards of an operation on `stream` that was refused, and so touches nothing.
    pub(crate) fn report_refused(&mut self, device: usize, touch: &RangeAccess, op: Operation, stream: usize) {
        let (op, clock) = (touch.by(op), self.streams[stream].clone());
        for (range, lifetime) in self.devices[device].memory.parts(touch.range.clone()) {
            if let Some(violation) = violation_of(lifetime, &clock, HazardKind::NotMapped) {
                self.report_violation(device, range, violation, op);
            }
        }
    }

    /// Returns whether there was memory at an address that has since been freed or unmapped.
    pub(crate) fn was_memory(&self, device: usize, at: u64) -> bool {
        let part = self.devices[device].memory.parts(at..at + 1).pop();
        part.and_then(|(_, lifetime)| lifetime).is_some_and(|lifetime| lifetime.ended.is_some())
    }

    fn check_blocks(&mut self, device: usize, range: Range<u64>, op: Operation, clock: &VectorClock) {
        for (range, block) in self.devices[device].blocks.parts(range) {
            if let Some(violation) = violation_of(block, clock, HazardKind::OutOfBounds) {
                self.report_violation(device, range, violation, op);
            }
        }
    }

    /// Checks an access to pinned host memory by a copy at `epoch` of its stream.
    pub(crate) fn check_host_access(&mut self, touch: &RangeAccess, op: Operation, epoch: Epoch) {
        let clock = &self.streams[epoch.stream];
        let access = OrderedOp { op, epoch };
        let past = self.host_memory.record(touch.range.clone(), touch.access, access, clock);
        for (range, earlier) in past {
            self.report(host_hazard(HazardKind::Conflict, range, earlier.op, op));
        }
    }

    /// Watches the pinned memory of the copy at `epoch` until it has run.
    pub(crate) fn watch(&mut self, op: Operation, epoch: Epoch, ptr: HostPtr, pinned: &Pinned, host: &RangeAccess) {
        let len = (host.range.end - host.range.start) as usize;
        self.watches.begin(op, &self.streams[epoch.stream], ptr, len, pinned);
    }

    /// Checks an access to pinned memory by the host itself.
    pub(crate) fn check_host_touch(&mut self, touch: &RangeAccess, op: Operation) {
        // A host access is ordered before everything submitted later, so it need not be recorded.
        let past = self.host_memory.unordered(touch.range.clone(), &self.host);
        for (range, earlier) in past {
            let is_reader = earlier.op.access == Some(Access::Read);
            if touch.access == Access::Write || !is_reader {
                self.report(host_hazard(HazardKind::HostTouched, range, earlier.op, op));
            }
        }
    }

    pub(crate) fn report_host_change(&mut self, range: Range<u64>, first: Operation, second: Operation) {
        self.report(host_hazard(HazardKind::HostTouched, range, first, second));
    }

    pub(crate) fn forget_host_memory(&mut self, range: Range<u64>) {
        self.host_memory.forget(range);
    }
}

fn host_hazard(kind: HazardKind, range: Range<u64>, first: Operation, second: Operation) -> Hazard {
    Hazard { kind, device: None, range: range.into(), tag: first.tag, first: Some(first), second, reused: None }
}

/// Returns the mistake in touching a part of memory from work with `clock`, if there is one. `gap` is the kind for a part
/// that was never allocated.
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
    if lifetime.has_begun(clock) {
        return None;
    }
    Some(match lifetime.before {
        Some(freed) => {
            Violation { kind: HazardKind::UseAfterFree, first: Some(freed.op), reused: Some(lifetime.began.op) }
        }
        None => Violation { kind: HazardKind::UseBeforeAllocation, first: Some(lifetime.began.op), reused: None },
    })
}
