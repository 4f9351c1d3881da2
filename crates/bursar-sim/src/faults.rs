//! Faults on purpose: a driver around any driver, which fails as it is told and counts what it is asked.
//!
//! # The fault model
//! - **A failed call never reaches the driver below.** Nothing happens there: nothing is given out, and what was to be
//!   given back is still held. The exception is [`Faults::lose_nth_result`]: the call is carried out and its answer is
//!   lost. Only submissions can fail so; the answer of an allocation is the only name of what it gave out, and a free
//!   that was carried out must not be tried again.
//! - **Rules** choose calls by kind, on whichever device: the nth from now, every one, or each with a probability. Every
//!   rule sees every call of its kinds, those that another rule fails included; the oldest rule that fires decides.
//! - **A sticky status is sticky.** Once a rule has answered one, or [`Faults::lose`] was called, every call on that
//!   device fails with that status for good, and `last_error` reports it. Other devices do not notice.
//! - **Memory** runs out, on each device, where more than a limit would be held through the wrapper, to the byte: device
//!   memory until its free is submitted, pages until they are released. `memory` reports no more free than that leaves.
//! - **A stall** holds a stream at the point where it was asked for, until it is released.
//!
//! Answers are never wrong in any other way, memory is never corrupted, and calls never hang.
//!
//! # Replaying
//! A probability is drawn from a sequence of its own, whose seed stands in the rule and in the wrapper's `Debug`. The same
//! calls in the same order meet the same failures.
//!
//! # Cost
//! With no rule a call costs one count and one relaxed load. Allocations and frees also take a lock, to know what is held.
#![allow(unsafe_code)]

mod call;
mod forward;
mod holdings;
mod plan;

pub use call::Call;

use bursar_core::{Bytes, DeviceId, Driver, DriverError, DriverResult, Gate, HostFunction, RawStream, Status};
use call::{Calls, Counts};
use holdings::{Holdings, Piece};
use plan::{Plan, Rule, Timing, When};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A driver that forwards to another, counts the calls of each kind, and fails those it is told to.
///
/// ```
/// use bursar_core::{DeviceId, Driver, Status};
/// use bursar_sim::{Call, Faults, Sim};
///
/// let faults = Faults::new(Sim::immediate());
/// faults.open(DeviceId(0))?;
/// faults.fail_nth(Call::StreamCreate, 2, Status::OutOfMemory);
/// assert!(faults.stream_create(DeviceId(0), 0).is_ok());
/// assert!(faults.stream_create(DeviceId(0), 0).is_err());
/// assert!(faults.stream_create(DeviceId(0), 0).is_ok());
/// assert_eq!(faults.calls(Call::StreamCreate), 3);
/// # Ok::<(), bursar_core::DriverError>(())
/// ```
#[derive(Debug)]
pub struct Faults {
    inner: Arc<dyn Driver>,
    counts: Counts,
    armed: AtomicBool,
    plan: Mutex<Plan>,
    holdings: Holdings,
}

/// Rules, which can be added at any time and from any thread.
///
/// A rule that could never fire would let a test pass for nothing, so asking for one panics.
impl Faults {
    /// Wraps a driver. Until a rule is added nothing fails.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            inner: driver,
            counts: Counts::new(),
            armed: AtomicBool::new(false),
            plan: Mutex::default(),
            holdings: Holdings::default(),
        })
    }

    /// Fails the `n`th call of a kind from now, counted from one, and no other.
    ///
    /// # Panics
    /// If the call cannot fail, or `n` is zero.
    #[track_caller]
    pub fn fail_nth(&self, call: Call, n: u64, status: Status) {
        assert!(call.can_fail(), "{call} cannot fail");
        assert!(n > 0, "calls are counted from one");
        self.add(Calls::of([call]), When::In(n), Timing::Before, status);
    }

    /// Fails the next call of a kind.
    ///
    /// # Panics
    /// If the call cannot fail.
    #[track_caller]
    pub fn fail_next(&self, call: Call, status: Status) {
        self.fail_nth(call, 1, status);
    }

    /// Carries out the `n`th call of a kind from now, counted from one, and then answers `status`: the work is on its
    /// stream, and its submitter does not know. A failure of the driver's own is answered as it is.
    ///
    /// # Panics
    /// If the call is not a [submission](Call::is_submission), or `n` is zero.
    #[track_caller]
    pub fn lose_nth_result(&self, call: Call, n: u64, status: Status) {
        assert!(call.is_submission(), "{call} is not a submission: its result cannot be lost");
        assert!(n > 0, "calls are counted from one");
        self.add(Calls::of([call]), When::In(n), Timing::After, status);
    }

    /// Fails every call of a kind, until [`heal`](Self::heal).
    ///
    /// # Panics
    /// If the call cannot fail.
    #[track_caller]
    pub fn fail_always(&self, call: Call, status: Status) {
        assert!(call.can_fail(), "{call} cannot fail");
        self.add(Calls::of([call]), When::Always, Timing::Before, status);
    }

    /// Fails each call of these kinds with a probability, until [`heal`](Self::heal). Kinds that cannot fail are passed
    /// over, so that [`Call::ALL`] will do.
    ///
    /// # Panics
    /// If none of the calls can fail, or the probability is not within `0.0..=1.0`.
    #[track_caller]
    pub fn fail_with_probability(&self, calls: &[Call], probability: f64, status: Status, seed: u64) {
        assert!(calls.iter().any(|call| call.can_fail()), "none of {calls:?} can fail");
        assert!((0.0..=1.0).contains(&probability), "{probability} is no probability");
        let chance = When::Chance { probability, seed, drawn: 0 };
        self.add(Calls::of(calls.iter().copied()), chance, Timing::Before, status);
    }

    /// Gives each device this much memory: an allocation of any kind after which more would be held through this wrapper
    /// fails with [`Status::OutOfMemory`]. What is held already counts. A later limit replaces this one.
    pub fn out_of_memory_at(&self, limit: Bytes) {
        self.holdings.set_limit(Some(limit));
    }

    /// Loses a device for good: from now on every call on it fails with [`Status::DeviceLost`].
    pub fn lose(&self, device: DeviceId) {
        self.change(|plan| plan.lose(DriverError::new("lose", device, Status::DeviceLost)));
    }

    /// Forgets every rule and the memory limit. Lost devices stay lost, and stalls last.
    pub fn heal(&self) {
        self.change(|plan| plan.rules.clear());
        self.holdings.set_limit(None);
    }

    /// Holds a stream at this point until the answer is opened or dropped. The call is neither counted nor failed.
    ///
    /// On hardware, host functions of other streams may have to wait as well.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    pub unsafe fn stall(&self, device: DeviceId, stream: RawStream) -> DriverResult<Stall> {
        let gate = Gate::default();
        let function = HostFunction::behind(gate.clone(), || ());
        // SAFETY: the call's own promise.
        unsafe { self.inner.host_function(device, stream, function) }?;
        Ok(Stall { gate })
    }
}

/// What was asked of the driver, and what is held of it.
impl Faults {
    /// How many calls of a kind there were, failed ones included.
    pub fn calls(&self, call: Call) -> u64 {
        self.counts.get(call)
    }

    /// How many calls there were of all kinds that ask something of a device: those that can fail.
    pub fn total_calls(&self) -> u64 {
        let asking = Call::ALL.iter().filter(|call| call.can_fail());
        asking.map(|&call| self.calls(call)).sum()
    }

    /// Counts from zero again. Rules are not affected.
    pub fn reset_counts(&self) {
        self.counts.reset();
    }

    /// How much of a device's memory is held through this wrapper.
    pub fn held(&self, device: DeviceId) -> Bytes {
        self.holdings.held(device)
    }
}

impl Faults {
    fn add(&self, calls: Calls, when: When, timing: Timing, status: Status) {
        let rule = Rule { calls, when, timing, status };
        self.change(|plan| plan.rules.push(rule));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Plan) -> T) -> T {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = change(&mut plan);
        self.armed.store(plan.is_armed(), Relaxed);
        answer
    }

    fn lost(&self, device: DeviceId) -> Option<DriverError> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).lost(device)
    }

    /// Counts a call and forwards it, unless it is to fail. No lock is held while the driver is called.
    #[inline]
    fn through<T>(&self, call: Call, device: DeviceId, forward: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        self.counts.add(call);
        if !self.armed.load(Relaxed) {
            return forward();
        }
        match self.change(|plan| plan.judge(call, device)) {
            None => forward(),
            Some((Timing::Before, error)) => Err(error),
            Some((Timing::After, error)) => forward().and(Err(error)),
        }
    }

    fn take<P: Into<Piece> + Copy>(
        &self,
        call: Call,
        device: DeviceId,
        bytes: u64,
        allocate: impl FnOnce() -> DriverResult<P>,
    ) -> DriverResult<P> {
        self.through(call, device, || self.holdings.take(call, device, bytes, allocate))
    }

    fn give(
        &self,
        call: Call,
        device: DeviceId,
        piece: impl Into<Piece>,
        free: impl FnOnce() -> DriverResult<()>,
    ) -> DriverResult<()> {
        self.through(call, device, || self.holdings.give(device, piece, free))
    }
}

/// A stream that is held by [`Faults::stall`]; dropping this lets it go on.
///
/// ```
/// use bursar_core::{DeviceId, Driver, Progress};
/// use bursar_sim::{Faults, Sim};
///
/// let faults = Faults::new(Sim::immediate());
/// faults.open(DeviceId(0))?;
/// let stream = faults.stream_create(DeviceId(0), 0)?;
/// // SAFETY: the stream is live.
/// let stall = unsafe { faults.stall(DeviceId(0), stream)? };
/// // SAFETY: the stream is live.
/// assert_eq!(unsafe { faults.stream_query(DeviceId(0), stream)? }, Progress::Pending);
/// drop(stall);
/// // SAFETY: the stream is live.
/// unsafe { faults.stream_synchronize(DeviceId(0), stream)? };
/// # Ok::<(), bursar_core::DriverError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a stall lets its stream go on"]
pub struct Stall {
    gate: Gate,
}

impl Stall {
    /// Lets the stream go on.
    pub fn open(&self) {
        self.gate.open();
    }

    /// Whether the stream was let go on.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.open();
    }
}
