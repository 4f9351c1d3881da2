//! A request as its caller and a worker share it: its deadline, and its result.

use crate::memory::Slab;
use crate::{HostError, PinStep};
use bursar_core::Bytes;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

type SlabResult = Result<Slab, HostError>;

/// A request for a slab. The memory is released by its current owner if the request ends: the worker until it has delivered,
/// the request until its caller takes the slab, and then the caller.
#[derive(Debug)]
pub(crate) struct SlabRequest {
    requested: Bytes,
    patience: Duration,
    deadline: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// The step that a worker is at, while it has the request.
    at: Mutex<Option<PinStep>>,
}

#[derive(Debug)]
enum State {
    /// The caller waits; the task to be woken, if there is one.
    Waiting(Option<Waker>),
    /// The result is ready and not taken yet.
    Ready(Box<SlabResult>),
    /// The result was taken, or the request was given up.
    Closed,
}

impl SlabRequest {
    pub(crate) fn new(requested: Bytes, patience: Duration) -> Arc<Self> {
        let now = Instant::now();
        // A deadline beyond the range of the clock is a century away.
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        let deadline = now.checked_add(patience).unwrap_or(now + century);
        let (state, changed, at) = (Mutex::new(State::Waiting(None)), Condvar::new(), Mutex::new(None));
        Arc::new(Self { requested, patience, deadline, state, changed, at })
    }

    /// Creates a request that was refused before a worker had it.
    pub(crate) fn refused(error: HostError) -> Arc<Self> {
        let request = Self::new(Bytes::ZERO, Duration::ZERO);
        request.deliver(Err(error));
        request
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    fn at(&self) -> MutexGuard<'_, Option<PinStep>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline_error(&self) -> HostError {
        HostError::Deadline { requested: self.requested, patience: self.patience, at: *self.at() }
    }

    /// Checks that the request is still wanted and in time, and records the step that a worker begins.
    pub(crate) fn check(&self, step: PinStep) -> Result<(), HostError> {
        if matches!(*self.state(), State::Closed) {
            return Err(HostError::GivenUp);
        }
        if Instant::now() >= self.deadline {
            return Err(self.deadline_error());
        }
        *self.at() = Some(step);
        Ok(())
    }

    /// Delivers the result. If the request was given up, or has a result already, this one is dropped.
    pub(crate) fn deliver(&self, result: SlabResult) {
        let mut state = self.state();
        if !matches!(*state, State::Waiting(_)) {
            // With nothing locked, because releasing memory waits for the driver.
            drop(state);
            return drop(result);
        }
        let before = std::mem::replace(&mut *state, State::Ready(Box::new(result)));
        drop(state);
        self.changed.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Ends the request. Returns its result if there is one by now.
    pub(crate) fn close(&self) -> Option<SlabResult> {
        match std::mem::replace(&mut *self.state(), State::Closed) {
            State::Ready(result) => Some(*result),
            State::Waiting(_) | State::Closed => None,
        }
    }

    /// Waits for the result, at most until the deadline.
    pub(crate) fn wait(&self) -> SlabResult {
        let mut state = self.state();
        while let State::Waiting(_) = *state {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.close().unwrap_or_else(|| Err(self.deadline_error()))
    }

    /// Returns the result if there is one. Otherwise `waker` is woken when there is, or when the deadline has passed.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<SlabResult> {
        let mut state = self.state();
        if let State::Waiting(known) = &mut *state
            && Instant::now() < self.deadline
        {
            match known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.close().unwrap_or_else(|| Err(self.deadline_error())))
    }

    /// Wakes the task that polls.
    pub(crate) fn wake(&self) {
        let waker = match &mut *self.state() {
            State::Waiting(waker) => waker.take(),
            _ => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PinnedKind;
    use crate::memory::Charge;
    use bursar_core::{DeviceContext, DeviceId};
    use bursar_sim::{LeakKind, Sim};

    /// Returns a slab, and a function that returns whether the driver still has it.
    fn slab() -> (Slab, impl Fn() -> bool) {
        let sim = Sim::seeded(1);
        let context = DeviceContext::open(sim.clone(), DeviceId(0)).expect("a device");
        let charge = Charge::take(None, Bytes(4096)).expect("no account");
        let slab = Slab::allocate(&context, 4096, PinnedKind::DriverAllocated, charge, &Arc::default());
        let is_held = move || sim.leaks().leaks.iter().any(|leak| leak.kind == LeakKind::PinnedMemory);
        (slab.expect("room"), is_held)
    }

    fn request() -> Arc<SlabRequest> {
        SlabRequest::new(Bytes(4096), Duration::from_secs(60))
    }

    #[test]
    fn n2_what_is_delivered_too_late_is_given_back_by_the_worker() {
        let (request, (slab, is_held)) = (request(), slab());
        assert!(request.close().is_none());
        assert!(is_held());
        request.deliver(Ok(slab));
        assert!(!is_held());
    }

    #[test]
    fn n2_what_was_delivered_and_is_not_taken_goes_with_the_request() {
        let (request, (slab, is_held)) = (request(), slab());
        request.deliver(Ok(slab));
        assert!(is_held());
        drop(request.close());
        assert!(!is_held());
    }

    #[test]
    fn n2_a_second_result_is_given_back_and_the_first_stays() {
        let (request, (first, first_is_held), (second, second_is_held)) = (request(), slab(), slab());
        request.deliver(Ok(first));
        request.deliver(Ok(second));
        assert!(first_is_held() && !second_is_held());
        assert!(request.wait().is_ok());
    }

    #[test]
    fn n5_the_error_says_how_far_the_request_had_come() {
        let request = SlabRequest::new(Bytes::mib(1), Duration::from_secs(60));
        assert!(request.deadline_error().to_string().ends_with("the worker was busy with other requests"));
        request.check(PinStep::Touch).expect("there is time");
        assert!(request.deadline_error().to_string().ends_with("it was at touching"), "{}", request.deadline_error());
    }
}
