//! Fault injection: a driver around any driver, which fails calls as configured and counts them.
//!
//! # The fault model
//! - **A failed call never reaches the driver below.** Nothing is allocated there, and what was to be freed is still held.
//!   The exception is [`Faults::lose_nth_result`]: the call is carried out and its result is lost. Only submissions can fail
//!   in that way; the result of an allocation is the only name of the memory, and a free that was carried out must not be
//!   repeated.
//! - **Rules** choose calls by kind, on any device: the nth from now, every one, or each with a probability. Every rule sees
//!   every call of its kinds, including those that another rule fails; the oldest rule that fires decides.
//! - **A sticky status is sticky.** Once a rule has returned one, or [`Faults::lose`] was called, every call on that device
//!   fails with that status for good, and `last_error` reports it. Other devices are not affected.
//! - **Memory** runs out, on each device, where more than a limit would be held through the wrapper, to the byte: device
//!   memory until its free is submitted, pages until they are released. `memory` reports no more free memory than the limit
//!   leaves.
//! - **A stall** holds a stream at the point where it was requested, until it is released.
//!
//! Results are never wrong in any other way, memory is never corrupted, and calls never hang.
//!
//! # Replaying
//! A probability is drawn from a sequence of its own, whose seed is in the rule and in the wrapper's `Debug` output. The
//! same calls in the same order meet the same failures.
//!
//! # Cost
//! Without rules a call costs one count and one relaxed load. Allocations and frees also take a lock, to track what is held.
#![allow(unsafe_code)]

mod call;
mod forward;
mod holdings;
mod plan;

pub use call::Call;

use bursar_core::{Bytes, DeviceId, Driver, DriverError, DriverResult, Gate, HostFunction, RawStream, Status};
use call::{Calls, Counts};
use holdings::{Holdings, MemoryKey};
use plan::{Plan, Rule, Timing, When};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A driver that forwards to another, counts the calls of each kind, and fails those that its rules choose.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Status};
/// use bursar::sim::{Call, Faults, Sim};
///
/// let faults = Faults::new(Sim::immediate());
/// faults.open(DeviceId(0))?;
/// faults.fail_nth(Call::StreamCreate, 2, Status::OutOfMemory);
/// assert!(faults.stream_create(DeviceId(0), 0).is_ok());
/// assert!(faults.stream_create(DeviceId(0), 0).is_err());
/// assert!(faults.stream_create(DeviceId(0), 0).is_ok());
/// assert_eq!(faults.calls(Call::StreamCreate), 3);
/// # Ok::<(), bursar::driver::DriverError>(())
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
/// A rule that could never fire would let a test pass without testing anything, so adding one panics.
impl Faults {
    /// Wraps a driver. Nothing fails before a rule is added.
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

    /// Carries out the `n`th call of a kind from now, counted from one, and then returns `status`: the work is on its
    /// stream, and its submitter does not know. A failure of the driver itself is returned as it is.
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

    /// Fails each call of these kinds with a probability, until [`heal`](Self::heal). Kinds that cannot fail are skipped, so
    /// [`Call::ALL`] may be passed.
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

    /// Limits the memory of each device: an allocation of any kind after which more would be held through this wrapper fails
    /// with [`Status::OutOfMemory`]. Memory that is held already counts. A later limit replaces this one.
    pub fn out_of_memory_at(&self, limit: Bytes) {
        self.holdings.set_limit(Some(limit));
    }

    /// Loses a device for good: every call on it fails with [`Status::DeviceLost`] from now on.
    pub fn lose(&self, device: DeviceId) {
        self.change(|plan| plan.lose(DriverError::new("lose", device, Status::DeviceLost)));
    }

    /// Removes every rule and the memory limit. Lost devices stay lost, and stalls remain.
    pub fn heal(&self) {
        self.change(|plan| plan.rules.clear());
        self.holdings.set_limit(None);
    }

    /// Holds a stream at this point until the returned stall is opened or dropped. The call is neither counted nor failed.
    ///
    /// On hardware, host functions of other streams may have to wait as well.
    ///
    /// # Safety
    /// `stream` is a live stream of `device`.
    pub unsafe fn stall(&self, device: DeviceId, stream: RawStream) -> DriverResult<Stall> {
        let gate = Gate::default();
        let function = HostFunction::behind(gate.clone(), || ());
        // SAFETY: the caller's own promise.
        unsafe { self.inner.host_function(device, stream, function) }?;
        Ok(Stall { gate })
    }
}

/// The calls made, and the memory held.
impl Faults {
    /// Returns the number of calls of a kind, including failed ones.
    pub fn calls(&self, call: Call) -> u64 {
        self.counts.get(call)
    }

    /// Returns the number of calls of all kinds that need a device, which are those that can fail.
    pub fn total_calls(&self) -> u64 {
        let asking = Call::ALL.iter().filter(|call| call.can_fail());
        asking.map(|&call| self.calls(call)).sum()
    }

    /// Resets the counts to zero. Rules are not affected.
    pub fn reset_counts(&self) {
        self.counts.reset();
    }

    /// Returns the memory of a device that is held through this wrapper.
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
        let result = change(&mut plan);
        self.armed.store(plan.is_armed(), Relaxed);
        result
    }

    fn lost(&self, device: DeviceId) -> Option<DriverError> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).lost(device)
    }

    /// Counts a call and forwards it, unless a rule fails it. No lock is held while the driver is called.
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

    fn take<P: Into<MemoryKey> + Copy>(
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
        piece: impl Into<MemoryKey>,
        free: impl FnOnce() -> DriverResult<()>,
    ) -> DriverResult<()> {
        self.through(call, device, || self.holdings.give(device, piece, free))
    }
}

/// A stall of a stream by [`Faults::stall`]; dropping it lets the stream advance.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Progress};
/// use bursar::sim::{Faults, Sim};
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
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a stall lets its stream go on"]
pub struct Stall {
    gate: Gate,
}

impl Stall {
    /// Lets the stream advance.
    pub fn open(&self) {
        self.gate.open();
    }

    /// Returns whether the stream may advance.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.open();
    }
}
