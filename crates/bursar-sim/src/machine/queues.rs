//! Queues and what runs next.
//!
//! A stream runs what was submitted to it in order. The work at its head may run when everything it needs has: the
//! points of other streams that it waits for, and its gate if it is host code. Which of the streams that could go on
//! does is the seed's choice.

use super::{MachineState, Work};
use crate::operation::CallInfo;
use crate::oracle::{Epoch, RangeAccess, VectorClock};
use crate::{Executor, Hazard, HazardKind, Operation};
use bursar_core::{Access, DeviceId, HostFunction};
use std::ops::Range;

/// A point of a stream: after its first `position` submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPoint {
    pub(crate) stream: usize,
    pub(crate) position: u64,
}

/// One entry of a stream's queue.
#[derive(Debug)]
pub(crate) struct QueuedWork {
    call: CallInfo,
    epoch: Epoch,
    needs: Vec<StreamPoint>,
    work: Work,
    /// What host code is ordered after, which is what whoever hears of it knows to have run.
    clock: Option<VectorClock>,
}

/// Host code that is about to run.
#[derive(Debug)]
pub(crate) struct StartedHostFunction {
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

impl MachineState {
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

    pub(crate) fn end_of(&self, stream: usize) -> StreamPoint {
        StreamPoint { stream, position: self.streams[stream].submitted }
    }

    pub(crate) fn is_reached(&self, mark: StreamPoint) -> bool {
        self.streams[mark.stream].completed >= mark.position
    }

    /// Submits `work`, which touches `touches` and waits for `after`. Answers its place in stream order.
    pub(crate) fn submit(
        &mut self,
        call: CallInfo,
        stream: usize,
        after: Option<StreamPoint>,
        touches: &[RangeAccess],
        mut work: Work,
    ) -> Epoch {
        let others = self.implied(stream);
        let implied = others.iter().map(|other| self.end_of(*other));
        let needs = implied.chain(after).filter(|mark| !self.is_reached(*mark)).collect();
        let epoch = match &mut self.oracle {
            Some(oracle) => oracle.submit(stream, &others),
            None => Epoch::HOST,
        };
        let op = call.operation(self.streams[stream].executor);
        // Every range is judged, also behind one that is not there.
        let missing = touches.iter().filter(|touch| !self.judge(touch, op, epoch)).count();
        if missing > 0 {
            work = Work::Nothing;
        }
        let oracle = self.oracle.as_ref().filter(|_| matches!(work, Work::Host(_)));
        let clock = oracle.map(|oracle| oracle.clock(stream).clone());
        let op = QueuedWork { call, epoch, needs, work, clock };
        self.enqueue(stream, op);
        epoch
    }

    fn judge(&mut self, touch: &RangeAccess, op: Operation, epoch: Epoch) -> bool {
        let device = self.device_of(touch.range.start).unwrap_or(op.device.0 as usize);
        let oracle = self.oracle.as_mut();
        oracle.is_none_or(|oracle| oracle.touch(device, touch, op, epoch))
    }

    fn enqueue(&mut self, stream: usize, op: QueuedWork) {
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
        self.block_shortcuts();
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

    /// Runs the head of a stream, unless it is host code, which the call runs with the lock released.
    pub(crate) fn start(&mut self, stream: usize) -> Option<StartedHostFunction> {
        let op = self.streams[stream].queue.pop_front()?;
        if self.streams[stream].queue.is_empty() {
            self.active.retain(|active| *active != stream);
        }
        if self.oracle.is_some() {
            let device = DeviceId(op.call.device as u32);
            self.log.ran(op.call.number, op.call.name, device);
        }
        match op.work {
            Work::Host(function) => {
                self.streams[stream].is_busy = true;
                if let (Some(oracle), Some(clock)) = (&mut self.oracle, &op.clock) {
                    oracle.host_observed(clock);
                }
                Some(StartedHostFunction { stream, function, epoch: op.epoch })
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
        self.unblock_shortcuts();
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
    pub(crate) fn blocker(&self, mark: StreamPoint) -> Blocker {
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

    /// Takes away everything that a lost device has not run, for the call to drop with the lock released.
    pub(crate) fn take_queues(&mut self, device: usize) -> Vec<QueuedWork> {
        let mut taken = Vec::new();
        for index in 0..self.streams.len() {
            if self.streams[index].device == device {
                let queue = std::mem::take(&mut self.streams[index].queue);
                self.streams[index].completed += queue.len() as u64;
                self.active.retain(|active| *active != index);
                queue.iter().for_each(|_| self.unblock_shortcuts());
                taken.extend(queue);
            }
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.forget_device(DeviceId(device as u32));
        }
        taken
    }

    fn execute(&mut self, stream: usize, op: QueuedWork) {
        self.end_watch(op.call);
        match op.work {
            Work::Nothing | Work::Host(_) => {}
            Work::Release { at, bytes } => self.release(op.call, at, bytes),
            Work::Fill { dst, bytes, word } => self.fill(dst, bytes, word),
            Work::Upload { dst, source } => self.upload(dst, &source),
            Work::Download { dst, src, bytes, _keep } => self.download(dst, src, bytes),
            Work::Copy { dst, src, bytes } => self.copy(dst, src, bytes),
            Work::Kernel(body) => self.run_kernel(op.call.operation(self.streams[stream].executor), body),
        }
    }

    /// The memory of an allocation comes back, when its free runs.
    pub(crate) fn release(&mut self, call: CallInfo, at: u64, bytes: u64) {
        let device = &mut self.devices[call.device];
        device.store.discard(at, bytes);
        if self.oracle.is_some() {
            let released = device.space.ran(at, bytes, call.number);
            self.release_capacity(call.device, released);
        } else {
            self.recycle(call.device, at, bytes);
        }
    }

    /// The copy that was `call` is about to touch host memory: reports it if someone else has.
    pub(crate) fn end_watch(&mut self, call: CallInfo) {
        let Some(oracle) = &mut self.oracle else { return };
        if let Some((op, ptr, len)) = oracle.watches.end(call.number) {
            let (what, executor, call) = ("write", Executor::Host, self.log.count());
            let writer = Operation { what, executor, call, access: Some(Access::Write), location: None, ..op };
            let range = ptr.address()..ptr.address() + len as u64;
            oracle.host_memory_changed(range, op, writer);
        }
    }

    /// Host code must not call the driver.
    pub(crate) fn report_call_from_host_function(&mut self, call: CallInfo) {
        if let Some(oracle) = &mut self.oracle {
            oracle.report(Hazard {
                kind: HazardKind::CallFromHostFunction,
                device: Some(DeviceId(call.device as u32)),
                range: Range { start: 0, end: 0 }.into(),
                tag: bursar_core::AllocTag::UNTAGGED,
                first: None,
                second: call.operation(Executor::Host),
                reused: None,
            });
        }
    }
}
