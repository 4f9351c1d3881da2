//! A driver that drops one wait.
#![allow(unsafe_code)]

use bursar_core::{DeviceId, Driver, DriverResult, RawEvent, RawStream, driver_methods};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A driver that forwards to another, except for one of the waits of streams for events, which it reports as submitted but
/// drops: a test then checks that the missing wait is noticed.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::uses::{UseProgram, UseShape, WaitDropper};
///
/// let sim = Sim::seeded(1);
/// let wait_dropper = WaitDropper::nth(sim.clone(), 3);
/// UseProgram::generate(1, UseShape::BARE).run(wait_dropper.clone());
/// assert!(wait_dropper.waits() >= 3);
/// assert!(sim.check().is_err());
/// ```
#[derive(Debug)]
pub struct WaitDropper {
    inner: Arc<dyn Driver>,
    nth: u64,
    waits: AtomicU64,
}

impl WaitDropper {
    /// Creates a driver that drops the `nth` wait, counted from one; none if that is zero.
    pub fn nth(inner: Arc<dyn Driver>, nth: u64) -> Arc<Self> {
        Arc::new(Self { inner, nth, waits: AtomicU64::new(0) })
    }

    /// Returns the number of waits so far, including the dropped one.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}

/// Defines a method that forwards unchanged, as all do but one.
macro_rules! forwarded {
    (unsafe fn stream_wait $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { inner: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract. Dropping a wait breaks the order of streams on
// purpose, in programs that touch nothing but memory of a simulator.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for WaitDropper {
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        if self.waits.fetch_add(1, Relaxed) + 1 == self.nth {
            return Ok(());
        }
        // SAFETY: the caller's own promise.
        unsafe { self.inner.stream_wait(device, stream, event) }
    }

    driver_methods!(forwarded);
}
