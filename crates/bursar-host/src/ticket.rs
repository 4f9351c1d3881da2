//! What a caller and a worker share of one request: who wants it, until when, and what came of it.

use crate::sys::Slab;
use crate::{HostError, Step};
use bursar_core::Bytes;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

type Answer = Result<Slab, HostError>;

/// One request. Whoever holds the memory when the request ends gives it back: the worker until it has delivered, the
/// ticket until its caller takes it, and the caller then.
#[derive(Debug)]
pub(crate) struct Ticket {
    requested: Bytes,
    patience: Duration,
    deadline: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// The step that a worker is at, while it has the request.
    at: Mutex<Option<Step>>,
}

#[derive(Debug)]
enum State {
    /// Wanted, and by whom to be woken.
    Wanted(Option<Waker>),
    /// Made, and not taken yet.
    Made(Box<Answer>),
    /// Taken, or not wanted any more.
    Over,
}

impl Ticket {
    pub(crate) fn new(requested: Bytes, patience: Duration) -> Arc<Self> {
        let now = Instant::now();
        // A patience that no clock can tell is that of a century.
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        let deadline = now.checked_add(patience).unwrap_or(now + century);
        let (state, changed, at) = (Mutex::new(State::Wanted(None)), Condvar::new(), Mutex::new(None));
        Arc::new(Self { requested, patience, deadline, state, changed, at })
    }

    /// A request that was refused before anybody was asked.
    pub(crate) fn refused(error: HostError) -> Arc<Self> {
        let ticket = Self::new(Bytes::ZERO, Duration::ZERO);
        ticket.deliver(Err(error));
        ticket
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    fn at(&self) -> MutexGuard<'_, Option<Step>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn too_late(&self) -> HostError {
        HostError::Deadline { requested: self.requested, patience: self.patience, at: *self.at() }
    }

    /// Whether a worker should go on to a step.
    pub(crate) fn check(&self, step: Step) -> Result<(), HostError> {
        if matches!(*self.state(), State::Over) {
            return Err(HostError::GivenUp);
        }
        if Instant::now() >= self.deadline {
            return Err(self.too_late());
        }
        *self.at() = Some(step);
        Ok(())
    }

    /// Hands over what came of it. If nobody wants it, it is dropped here; a second answer is too.
    pub(crate) fn deliver(&self, answer: Answer) {
        let mut state = self.state();
        if !matches!(*state, State::Wanted(_)) {
            // With nothing locked: giving memory back takes the driver's time.
            drop(state);
            return drop(answer);
        }
        let before = std::mem::replace(&mut *state, State::Made(Box::new(answer)));
        drop(state);
        self.changed.notify_all();
        if let State::Wanted(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Ends the request, and answers what came of it by now.
    pub(crate) fn close(&self) -> Option<Answer> {
        match std::mem::replace(&mut *self.state(), State::Over) {
            State::Made(answer) => Some(*answer),
            State::Wanted(_) | State::Over => None,
        }
    }

    /// Waits for the answer, at most until the deadline.
    pub(crate) fn wait(&self) -> Answer {
        let mut state = self.state();
        while let State::Wanted(_) = *state {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.close().unwrap_or_else(|| Err(self.too_late()))
    }

    /// The answer if there is one; otherwise `waker` is told when there is, or when the deadline has passed.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Answer> {
        let mut state = self.state();
        if let State::Wanted(known) = &mut *state
            && Instant::now() < self.deadline
        {
            match known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.close().unwrap_or_else(|| Err(self.too_late())))
    }

    /// Has whoever polls look again.
    pub(crate) fn wake(&self) {
        let waker = match &mut *self.state() {
            State::Wanted(waker) => waker.take(),
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
    use crate::charge::Charge;
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

    fn ticket() -> Arc<Ticket> {
        Ticket::new(Bytes(4096), Duration::from_secs(60))
    }

    #[test]
    fn n2_what_is_delivered_too_late_is_given_back_by_the_worker() {
        let (ticket, (slab, is_held)) = (ticket(), slab());
        assert!(ticket.close().is_none());
        assert!(is_held());
        ticket.deliver(Ok(slab));
        assert!(!is_held());
    }

    #[test]
    fn n2_what_was_delivered_and_is_not_taken_goes_with_the_request() {
        let (ticket, (slab, is_held)) = (ticket(), slab());
        ticket.deliver(Ok(slab));
        assert!(is_held());
        drop(ticket.close());
        assert!(!is_held());
    }

    #[test]
    fn n2_a_second_answer_is_given_back_and_the_first_stays() {
        let (ticket, (first, first_is_held), (second, second_is_held)) = (ticket(), slab(), slab());
        ticket.deliver(Ok(first));
        ticket.deliver(Ok(second));
        assert!(first_is_held() && !second_is_held());
        assert!(ticket.wait().is_ok());
    }

    #[test]
    fn n5_the_error_says_how_far_the_request_had_come() {
        let ticket = Ticket::new(Bytes::mib(1), Duration::from_secs(60));
        assert!(ticket.too_late().to_string().ends_with("the worker was busy with other requests"));
        ticket.check(Step::Touch).expect("there is time");
        assert!(ticket.too_late().to_string().ends_with("it was at touching"), "{}", ticket.too_late());
    }
}
