//! A driver call in progress: it holds the lock of the machine, and releases it while host code runs.

use super::Sim;
use crate::machine::{Blocker, MachineState, StartedHostFunction, StreamPoint};
use crate::operation::{CallInfo, CallResult};
use bursar_core::{Progress, Status};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which a thread that waits behind a gate checks whether it is open.
const GATE_POLL_INTERVAL: Duration = Duration::from_micros(500);

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is running a host function of a simulator.
pub(crate) fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

pub(crate) struct ActiveCall<'a> {
    sim: &'a Sim,
    /// The lock; none only inside [`unlocked`](Self::unlocked).
    state: Option<MutexGuard<'a, MachineState>>,
    pub(crate) call: CallInfo,
}

impl Deref for ActiveCall<'_> {
    type Target = MachineState;

    fn deref(&self) -> &MachineState {
        self.state.as_ref().expect("the lock is held outside `unlocked`")
    }
}

impl DerefMut for ActiveCall<'_> {
    fn deref_mut(&mut self) -> &mut MachineState {
        self.state.as_mut().expect("the lock is held outside `unlocked`")
    }
}

impl<'a> ActiveCall<'a> {
    pub(crate) fn new(sim: &'a Sim, state: MutexGuard<'a, MachineState>, call: CallInfo) -> Self {
        Self { sim, state: Some(state), call }
    }

    pub(crate) fn device(&self) -> usize {
        self.call.device
    }

    fn unlocked(&mut self, run: impl FnOnce()) {
        self.state = None;
        run();
        self.state = Some(self.sim.lock());
    }

    /// Runs one operation that can run. Returns false if none can.
    pub(crate) fn step(&mut self) -> bool {
        let Some(stream) = self.pick() else { return false };
        if let Some(started) = self.start(stream) {
            self.run_host_function(started);
        }
        true
    }

    fn run_host_function(&mut self, started: StartedHostFunction) {
        let StartedHostFunction { stream, function, epoch } = started;
        self.unlocked(|| {
            IN_HOST_FUNCTION.set(true);
            // A panic would unwind into the device; the driver's contract is to drop it.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| function.call())) {
                // Dropping the payload may panic too.
                std::mem::forget(payload);
            }
            IN_HOST_FUNCTION.set(false);
        });
        self.host_function_ran(stream, epoch);
        self.sim.changed.notify_all();
    }

    /// Runs everything that can run.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets streams advance by as much as the seed chooses, as if time had passed before a query.
    pub(crate) fn pass_time(&mut self) {
        if self.oracle.is_none() {
            return self.settle();
        }
        let steps = match self.random.below(8) {
            0 => 0,
            7 => 16,
            _ => self.random.index(4),
        };
        for _ in 0..steps {
            if !self.step() {
                return;
            }
        }
    }

    /// Runs streams, chosen by the seed, until every point is reached.
    pub(crate) fn wait_for(&mut self, points: &[StreamPoint]) -> CallResult<()> {
        while let Some(point) = points.iter().copied().find(|point| !self.is_reached(*point)) {
            if !self.step() {
                self.wait_for_others(point);
            }
        }
        match self.devices[self.device()].is_lost {
            true => Err(Status::DeviceLost),
            false => Ok(()),
        }
    }

    /// Waits for the gate or the other thread that keeps `point` from being reached, where nothing can run.
    fn wait_for_others(&mut self, point: StreamPoint) {
        match self.blocker(point) {
            Blocker::Gate => {
                if let Some(state) = self.state.take() {
                    // Opening a gate notifies nobody here, and losing the device does not open it.
                    let waited = self.sim.changed.wait_timeout(state, GATE_POLL_INTERVAL);
                    self.state = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
                }
            }
            Blocker::Busy => {
                if let Some(state) = self.state.take() {
                    let state = self.sim.changed.wait(state);
                    self.state = Some(state.unwrap_or_else(PoisonError::into_inner));
                }
            }
            Blocker::Nothing => {}
        }
    }

    /// Waits for everything on a stream. The host then knows it to have run.
    pub(crate) fn wait_for_stream(&mut self, stream: usize) -> CallResult<()> {
        let clock = self.oracle.as_ref().map(|oracle| oracle.clock(stream).clone());
        let point = self.end_of(stream);
        self.wait_for(&[point])?;
        if let (Some(oracle), Some(clock)) = (&mut self.oracle, clock) {
            oracle.host_observed(&clock);
        }
        Ok(())
    }

    /// Waits for everything on the device.
    pub(crate) fn wait_for_device(&mut self, device: usize) -> CallResult<()> {
        let of_device = |stream: &usize| self.streams[*stream].device == device && !self.streams[*stream].is_over;
        let streams: Vec<usize> = (0..self.streams.len()).filter(of_device).collect();
        if streams.iter().any(|stream| self.is_capturing(*stream)) {
            return Err(Status::Capturing);
        }
        let clocks: Vec<_> = match &self.oracle {
            Some(oracle) => streams.iter().map(|stream| oracle.clock(*stream).clone()).collect(),
            None => Vec::new(),
        };
        let points: Vec<StreamPoint> = streams.iter().map(|stream| self.end_of(*stream)).collect();
        let destroyed: Vec<usize> = streams.into_iter().filter(|stream| !self.streams[*stream].is_alive).collect();
        self.wait_for(&points)?;
        if let Some(oracle) = &mut self.oracle {
            clocks.iter().for_each(|clock| oracle.host_observed(clock));
        }
        destroyed.into_iter().for_each(|stream| self.streams[stream].is_over = true);
        Ok(())
    }

    /// Lets time pass, then returns whether everything on a stream has run.
    pub(crate) fn query_stream(&mut self, stream: usize) -> Progress {
        self.pass_time();
        if !self.streams[stream].is_idle() {
            return Progress::Pending;
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.host_observed_stream(stream);
        }
        Progress::Complete
    }
}
