//! What a caller and a worker share of one request: who wants it, until when, and what came of it.

use crate::memory::Slab;
use crate::{HostError, PinStep};
use bursar_core::Bytes;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

type Answer = Result<Slab, HostError>;

/// One request. Whoever holds the memory when the request ends gives it back: the worker until it has delivered, the
/// ticket until its caller takes it, and the caller then.
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
    /// Wanted, and by whom to be woken.
    Waiting(Option<Waker>),
    /// Made, and not taken yet.
    Ready(Box<Answer>),
    /// Taken, or not wanted any more.
    Closed,
}

impl SlabRequest {
    pub(crate) fn new(requested: Bytes, patience: Duration) -> Arc<Self> {
        let now = Instant::now();
        // A patience that no clock can tell is that of a century.
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        let deadline = now.checked_add(patience).unwrap_or(now + century);
        let (state, changed, at) = (Mutex::new(State::Waiting(None)), Condvar::new(), Mutex::new(None));
        Arc::new(Self { requested, patience, deadline, state, changed, at })
    }

    /// A request that was refused before anybody was asked.
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

    /// Whether a worker should go on to a step.
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

    /// Hands over what came of it. If nobody wants it, it is dropped here; a second answer is too.
    pub(crate) fn deliver(&self, answer: Answer) {
        let mut state = self.state();
        if !matches!(*state, State::Waiting(_)) {
            // With nothing locked: giving memory back takes the driver's time.
            drop(state);
            return drop(answer);
        }
        let before = std::mem::replace(&mut *state, State::Ready(Box::new(answer)));
        drop(state);
        self.changed.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Ends the request, and answers what came of it by now.
    pub(crate) fn close(&self) -> Option<Answer> {
        match std::mem::replace(&mut *self.state(), State::Closed) {
            State::Ready(answer) => Some(*answer),
            State::Waiting(_) | State::Closed => None,
        }
    }

    /// Waits for the answer, at most until the deadline.
    pub(crate) fn wait(&self) -> Answer {
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

    /// The answer if there is one; otherwise `waker` is told when there is, or when the deadline has passed.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Answer> {
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

    /// Has whoever polls look again.
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

    /// A slab, and whether the driver still has it.
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
    fn n2_a_second_answer_is_given_back_and_the_first_stays() {
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
