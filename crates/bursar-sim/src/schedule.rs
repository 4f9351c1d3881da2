//! Queues and what runs next.
//!
//! A stream runs what was submitted to it in order. The work at its head may run when everything it needs has: the
//! points of other streams that it waits for, and its gate if it is host code. Which of the streams that could go on
//! does is the seed's choice.

use crate::clock::{Clock, Epoch};
use crate::host::{HostBlock, HostPtr};
use crate::oracle::Touch;
use crate::ranges::Access;
use crate::sparse::Word;
use crate::world::{Caller, World};
use crate::{Hazard, HazardKind, KernelMemory, Operation, Place};
use bursar_core::{DeviceId, HostFunction};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A point of a stream: after its first `position` submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) stream: usize,
    pub(crate) position: u64,
}

/// Where a copy to the device reads.
#[derive(Debug)]
pub(crate) enum Source {
    /// What pageable memory held when the copy was submitted.
    Staged(Vec<u8>),
    /// Host memory that stays valid until the copy has run.
    Direct { ptr: HostPtr, bytes: u64, _keep: Option<Arc<HostBlock>> },
}

/// The code of a simulated kernel.
pub(crate) type KernelBody = Box<dyn FnOnce(&mut KernelMemory<'_>) + Send>;

/// What an operation does when it runs.
pub(crate) enum Work {
    /// It only has a place in the order.
    Nothing,
    /// The memory of an allocation comes back.
    Release { at: u64, bytes: u64 },
    /// Repeats a word.
    Fill { dst: u64, bytes: u64, word: Word },
    /// Copies host memory to device memory.
    Upload { dst: u64, source: Source },
    /// Copies device memory to host memory, which is kept until then where it is the simulator's own.
    Download { dst: HostPtr, src: u64, bytes: u64, _keep: Option<Arc<HostBlock>> },
    /// Copies device memory to device memory.
    Copy { dst: u64, src: u64, bytes: u64 },
    /// Runs host code, with the lock released.
    Host(HostFunction),
    /// Runs a simulated kernel.
    Kernel(KernelBody),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

/// One entry of a stream's queue.
#[derive(Debug)]
pub(crate) struct Op {
    caller: Caller,
    epoch: Epoch,
    needs: Vec<Mark>,
    work: Work,
    /// What host code is ordered after, which is what whoever hears of it knows to have run.
    clock: Option<Clock>,
}

/// Host code that is about to run.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) stream: usize,
    pub(crate) function: HostFunction,
    pub(crate) epoch: Epoch,
}

/// Why a point of a stream has not been reached, where nothing can run.
#[derive(Debug)]
pub(crate) enum Blocker {
    /// A gate is shut.
    Gate,
    /// Another thread is running a host function.
    Busy,
    /// Nothing any more.
    Gone,
}

impl World {
    /// The streams whose work is ordered before a submission to `stream` by the rules of the legacy default stream.
    pub(crate) fn implied(&self, stream: usize) -> Vec<usize> {
        let (device, legacies) = (self.streams[stream].device, self.devices.len());
        if stream < legacies {
            let is_waited_for = |index: &usize| {
                let other = &self.streams[*index];
                other.is_blocking && other.device == device
            };
            (legacies..self.streams.len()).filter(is_waited_for).collect()
        } else if self.streams[stream].is_blocking {
            vec![device]
        } else {
            Vec::new()
        }
    }

    pub(crate) fn end_of(&self, stream: usize) -> Mark {
        Mark { stream, position: self.streams[stream].submitted }
    }

    pub(crate) fn is_reached(&self, mark: Mark) -> bool {
        self.streams[mark.stream].completed >= mark.position
    }

    /// Submits `work`, which touches `touches` and waits for `after`. Answers its place in stream order.
    pub(crate) fn submit(
        &mut self,
        caller: Caller,
        stream: usize,
        after: Option<Mark>,
        touches: &[Touch],
        mut work: Work,
    ) -> Epoch {
        let others = self.implied(stream);
        let implied = others.iter().map(|other| self.end_of(*other));
        let needs = implied.chain(after).filter(|mark| !self.is_reached(*mark)).collect();
        let epoch = match &mut self.oracle {
            Some(oracle) => oracle.submit(stream, &others),
            None => Epoch::HOST,
        };
        let op = caller.operation(self.streams[stream].place);
        // Every range is judged, also behind one that is not there.
        let missing = touches.iter().filter(|touch| !self.judge(touch, op, epoch)).count();
        if missing > 0 {
            work = Work::Nothing;
        }
        let oracle = self.oracle.as_ref().filter(|_| matches!(work, Work::Host(_)));
        let clock = oracle.map(|oracle| oracle.clock(stream).clone());
        let op = Op { caller, epoch, needs, work, clock };
        self.enqueue(stream, op);
        epoch
    }

    fn judge(&mut self, touch: &Touch, op: Operation, epoch: Epoch) -> bool {
        let device = self.device_of(touch.range.start).unwrap_or(op.device.0 as usize);
        let oracle = self.oracle.as_mut();
        oracle.is_none_or(|oracle| oracle.touch(device, touch, op, epoch))
    }

    fn enqueue(&mut self, stream: usize, op: Op) {
        let is_next = self.streams[stream].is_idle();
        self.streams[stream].submitted += 1;
        let runs_now = self.oracle.is_none() && is_next && op.needs.is_empty() && !matches!(op.work, Work::Host(_));
        if runs_now {
            self.streams[stream].completed += 1;
            self.execute(stream, op);
            return;
        }
        if self.streams[stream].queue.is_empty() {
            self.active.push(stream);
        }
        self.streams[stream].queue.push_back(op);
        self.disturb();
    }

    fn can_run(&self, stream: usize) -> bool {
        let Some(op) = self.streams[stream].queue.front() else {
            return false;
        };
        let is_ready = match &op.work {
            Work::Host(function) => function.is_ready(),
            _ => true,
        };
        !self.streams[stream].is_busy && is_ready && op.needs.iter().all(|mark| self.is_reached(*mark))
    }

    /// A stream that can go on, chosen by the seed.
    pub(crate) fn pick(&mut self) -> Option<usize> {
        let able: Vec<usize> = self.active.iter().copied().filter(|stream| self.can_run(*stream)).collect();
        match able.len() {
            0 => None,
            1 => Some(able[0]),
            count => Some(able[self.random.index(count)]),
        }
    }

    /// Runs the head of a stream, unless it is host code, which the caller runs with the lock released.
    pub(crate) fn start(&mut self, stream: usize) -> Option<Started> {
        let op = self.streams[stream].queue.pop_front()?;
        if self.streams[stream].queue.is_empty() {
            self.active.retain(|active| *active != stream);
        }
        if self.oracle.is_some() {
            let device = DeviceId(op.caller.device as u32);
            self.log.ran(op.caller.number, op.caller.name, device);
        }
        match op.work {
            Work::Host(function) => {
                self.streams[stream].is_busy = true;
                if let (Some(oracle), Some(clock)) = (&mut self.oracle, &op.clock) {
                    oracle.host_saw_clock(clock);
                }
                Some(Started { stream, function, epoch: op.epoch })
            }
            _ => {
                self.complete_one(stream);
                self.execute(stream, op);
                None
            }
        }
    }

    fn complete_one(&mut self, stream: usize) {
        self.streams[stream].completed += 1;
        self.calm();
    }

    /// The host code that `started` held has returned.
    pub(crate) fn host_function_ran(&mut self, stream: usize, epoch: Epoch) {
        self.streams[stream].is_busy = false;
        self.complete_one(stream);
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.host_function_ran(epoch);
        }
    }

    /// What keeps `mark` from being reached.
    pub(crate) fn blocker(&self, mark: Mark) -> Blocker {
        let mut stream = mark.stream;
        loop {
            let state = &self.streams[stream];
            if state.is_busy {
                return Blocker::Busy;
            }
            let Some(op) = state.queue.front() else {
                return Blocker::Gone;
            };
            if let Some(need) = op.needs.iter().find(|need| !self.is_reached(**need)) {
                // Needs point at earlier submissions, so this ends.
                stream = need.stream;
                continue;
            }
            return match &op.work {
                Work::Host(function) => match function.gate() {
                    Some(gate) if !gate.is_open() => Blocker::Gate,
                    _ => Blocker::Gone,
                },
                _ => Blocker::Gone,
            };
        }
    }

    /// Takes away everything that a lost device has not run, for the caller to drop with the lock released.
    pub(crate) fn take_queues(&mut self, device: usize) -> Vec<Op> {
        let mut taken = Vec::new();
        for index in 0..self.streams.len() {
            if self.streams[index].device == device {
                let queue = std::mem::take(&mut self.streams[index].queue);
                self.streams[index].completed += queue.len() as u64;
                self.active.retain(|active| *active != index);
                queue.iter().for_each(|_| self.calm());
                taken.extend(queue);
            }
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.forget_device(DeviceId(device as u32));
        }
        taken
    }

    fn execute(&mut self, stream: usize, op: Op) {
        self.end_watch(op.caller);
        match op.work {
            Work::Nothing | Work::Host(_) => {}
            Work::Release { at, bytes } => self.release(op.caller, at, bytes),
            Work::Fill { dst, bytes, word } => self.fill(dst, bytes, word),
            Work::Upload { dst, source } => self.upload(dst, &source),
            Work::Download { dst, src, bytes, _keep } => self.download(dst, src, bytes),
            Work::Copy { dst, src, bytes } => self.copy(dst, src, bytes),
            Work::Kernel(body) => self.run_kernel(op.caller.operation(self.streams[stream].place), body),
        }
    }

    /// Runs the code of a kernel. A panic stays here: whoever is at work is in some other call, which must not unwind.
    fn run_kernel(&mut self, op: Operation, body: KernelBody) {
        // What a kernel can do to the world is read and write bytes, each wholly or not at all.
        let ran = catch_unwind(AssertUnwindSafe(|| body(&mut KernelMemory { world: self })));
        let Err(payload) = ran else { return };
        // Dropping what somebody panicked with may panic too.
        std::mem::forget(payload);
        if let Some(oracle) = &mut self.oracle {
            oracle.report(Hazard {
                kind: HazardKind::KernelPanicked,
                device: Some(op.device),
                range: Range { start: 0, end: 0 }.into(),
                tag: bursar_core::AllocTag::UNTAGGED,
                first: None,
                second: op,
                reused: None,
            });
        }
    }

    /// The memory of an allocation comes back, when its free runs.
    pub(crate) fn release(&mut self, caller: Caller, at: u64, bytes: u64) {
        let device = &mut self.devices[caller.device];
        device.store.discard(at, bytes);
        if self.oracle.is_some() {
            let released = device.space.ran(at, bytes, caller.number);
            self.release_room(caller.device, released);
        } else {
            self.recycle(caller.device, at, bytes);
        }
    }

    /// The copy that was `caller` is about to touch host memory: reports it if someone else has.
    pub(crate) fn end_watch(&mut self, caller: Caller) {
        let Some(oracle) = &mut self.oracle else { return };
        if let Some((op, ptr, len)) = oracle.watches.end(caller.number) {
            let (what, place, call) = ("write", Place::Host, self.log.count());
            let writer = Operation { what, place, call, access: Some(Access::Write), location: None, ..op };
            let range = ptr.address()..ptr.address() + len as u64;
            oracle.host_memory_changed(range, op, writer);
        }
    }

    /// Host code must not call the driver.
    pub(crate) fn report_call_from_host_function(&mut self, caller: Caller) {
        if let Some(oracle) = &mut self.oracle {
            oracle.report(Hazard {
                kind: HazardKind::CallFromHostFunction,
                device: Some(DeviceId(caller.device as u32)),
                range: Range { start: 0, end: 0 }.into(),
                tag: bursar_core::AllocTag::UNTAGGED,
                first: None,
                second: caller.operation(Place::Host),
                reused: None,
            });
        }
    }
}
