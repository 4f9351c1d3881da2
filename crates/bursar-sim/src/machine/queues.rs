//! The queues of streams, and the choice of what runs next.
//!
//! A stream runs its submissions in order. The work at its head may run when everything it waits for has run: points of
//! other streams and, for host code, its gate. The seed chooses among the streams that could advance.

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

/// An entry of a stream's queue.
#[derive(Debug)]
pub(crate) struct QueuedWork {
    call: CallInfo,
    epoch: Epoch,
    needs: Vec<StreamPoint>,
    work: Work,
    /// The clock of host code: once the code has begun, the host knows everything that it covers to have run.
    clock: Option<VectorClock>,
}

/// A host function that is about to run.
#[derive(Debug)]
pub(crate) struct StartedHostFunction {
    pub(crate) stream: usize,
    pub(crate) function: HostFunction,
    pub(crate) epoch: Epoch,
}

/// The reason why a point of a stream has not been reached, where nothing can run.
#[derive(Debug)]
pub(crate) enum Blocker {
    /// A gate is closed.
    Gate,
    /// Another thread is running a host function.
    Busy,
    /// There is no such reason any more.
    Nothing,
}

impl MachineState {
    /// Returns the streams whose work is ordered before a submission to `stream` by the rules of the legacy default stream.
    pub(crate) fn implicit_waits(&self, stream: usize) -> Vec<usize> {
        let (device, legacies) = (self.streams[stream].device, self.devices.len());
        if stream < legacies {
            let is_waited_for = |index: &usize| {
                let other = &self.streams[*index];
                other.is_blocking && other.device == device && !other.is_over
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

    pub(crate) fn is_reached(&self, point: StreamPoint) -> bool {
        self.streams[point.stream].completed >= point.position
    }

    /// Submits `work`, which touches `touches` and waits for `after`. Returns its epoch.
    pub(crate) fn submit(
        &mut self,
        call: CallInfo,
        stream: usize,
        after: &[StreamPoint],
        touches: &[RangeAccess],
        mut work: Work,
    ) -> Epoch {
        let others = self.implicit_waits(stream);
        let implied = others.iter().map(|other| self.end_of(*other));
        let needs = implied.chain(after.iter().copied()).filter(|point| !self.is_reached(*point)).collect();
        let epoch = match &mut self.oracle {
            Some(oracle) => oracle.submit(stream, &others),
            None => Epoch::HOST,
        };
        let op = call.operation(self.streams[stream].executor);
        // Every range is checked, also after one that is not memory.
        let missing = touches.iter().filter(|touch| !self.check_access(touch, op, epoch)).count();
        if missing > 0 {
            work = Work::Nothing;
        }
        let oracle = self.oracle.as_ref().filter(|_| matches!(work, Work::Host(_)));
        let clock = oracle.map(|oracle| oracle.clock(stream).clone());
        let op = QueuedWork { call, epoch, needs, work, clock };
        self.enqueue(stream, op);
        epoch
    }

    fn check_access(&mut self, touch: &RangeAccess, op: Operation, epoch: Epoch) -> bool {
        let device = self.device_of(touch.range.start).unwrap_or(op.device.0 as usize);
        let oracle = self.oracle.as_mut();
        oracle.is_none_or(|oracle| oracle.check_access(device, touch, op, epoch))
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
        !self.streams[stream].is_busy && is_ready && op.needs.iter().all(|point| self.is_reached(*point))
    }

    /// Returns a stream that can advance, chosen by the seed.
    pub(crate) fn pick(&mut self) -> Option<usize> {
        let able: Vec<usize> = self.active.iter().copied().filter(|stream| self.can_run(*stream)).collect();
        match able.len() {
            0 => None,
            1 => Some(able[0]),
            count => Some(able[self.random.index(count)]),
        }
    }

    /// Runs the head of a stream. A host function is returned instead, for the caller to run with the lock released.
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

    /// Records that a host function has returned.
    pub(crate) fn host_function_ran(&mut self, stream: usize, epoch: Epoch) {
        self.streams[stream].is_busy = false;
        self.complete_one(stream);
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.host_function_ran(epoch);
        }
    }

    /// Returns the reason why `point` has not been reached.
    pub(crate) fn blocker(&self, point: StreamPoint) -> Blocker {
        let mut stream = point.stream;
        loop {
            let state = &self.streams[stream];
            if state.is_busy {
                return Blocker::Busy;
            }
            let Some(op) = state.queue.front() else {
                return Blocker::Nothing;
            };
            if let Some(need) = op.needs.iter().find(|need| !self.is_reached(**need)) {
                // Each step goes to an earlier submission, so this ends.
                stream = need.stream;
                continue;
            }
            return match &op.work {
                Work::Host(function) => match function.gate() {
                    Some(gate) if !gate.is_open() => Blocker::Gate,
                    _ => Blocker::Nothing,
                },
                _ => Blocker::Nothing,
            };
        }
    }

    /// Takes the work that a lost device has not run, for the caller to drop with the lock released.
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
            Work::Release { at, bytes, pool } => self.release(op.call, at, bytes, pool),
            Work::Fill { dst, bytes, word } => self.fill(dst, bytes, word),
            Work::Upload { dst, source } => self.upload(dst, &source),
            Work::Download { dst, src, bytes, _keep } => self.download(dst, src, bytes),
            Work::Copy { dst, src, bytes } => self.copy(dst, src, bytes),
            Work::Kernel(body) => self.run_kernel(op.call.operation(self.streams[stream].executor), &body),
        }
    }

    /// Returns the memory of an allocation when its free runs.
    pub(crate) fn release(&mut self, call: CallInfo, at: u64, bytes: u64, pool: Option<u64>) {
        let device = &mut self.devices[call.device];
        device.store.discard(at, bytes);
        device.shared.remove(&at);
        if self.oracle.is_some() {
            let released = device.space.finish_free(at, bytes, call.number);
            self.release_for(call.device, released, pool);
        } else if let Some(pool) = pool {
            self.recycle_into_pool(call.device, at, bytes, pool);
        } else {
            self.recycle(call.device, at, bytes);
        }
    }

    /// Ends the watch over the host memory of a copy that is about to run, and reports a change by anybody else.
    pub(crate) fn end_watch(&mut self, call: CallInfo) {
        let Some(oracle) = &mut self.oracle else { return };
        if let Some((op, ptr, len)) = oracle.watches.end(call.number) {
            let (what, executor, call) = ("write", Executor::Host, self.log.count());
            let writer = Operation { what, executor, call, access: Some(Access::Write), location: None, ..op };
            let range = ptr.address()..ptr.address() + len as u64;
            oracle.report_host_change(range, op, writer);
        }
    }

    /// Reports a driver call from a host function, which is forbidden.
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
