//! A driver that loses one wait.
#![allow(unsafe_code)]

use bursar_core::{DeviceId, Driver, DriverResult, RawEvent, RawStream, driver_methods};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A driver that forwards to another, except for one of the waits of streams for events, which it says it submitted and
/// does not: to see whether somebody notices.
///
/// ```
/// use bursar_conformance::uses::{Program, Shape, Swallow};
/// use bursar_sim::Sim;
///
/// let sim = Sim::seeded(1);
/// let swallow = Swallow::nth(sim.clone(), 3);
/// Program::generate(1, Shape::BARE).run(swallow.clone());
/// assert!(swallow.waits() >= 3);
/// assert!(sim.check().is_err());
/// ```
#[derive(Debug)]
pub struct Swallow {
    inner: Arc<dyn Driver>,
    nth: u64,
    waits: AtomicU64,
}

impl Swallow {
    /// Loses the `nth` wait, counted from one; none if that is zero.
    pub fn nth(inner: Arc<dyn Driver>, nth: u64) -> Arc<Self> {
        Arc::new(Self { inner, nth, waits: AtomicU64::new(0) })
    }

    /// How many waits there were, the lost one included.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}

/// A method that is forwarded unchanged, as all are but one.
macro_rules! forwarded {
    (unsafe fn stream_wait $($signature:tt)*) => {};
    (fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.inner.$method($($arg),*)
        }
    };
    (unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        unsafe fn $method(&self, $($arg: $type),*) -> $answer {
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method($($arg),*) }
        }
    };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out; that a wait is lost breaks the order of
// streams on purpose, in programs that touch nothing but memory of a simulator.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Swallow {
    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        if self.waits.fetch_add(1, Relaxed) + 1 == self.nth {
            return Ok(());
        }
        // SAFETY: the caller's own promise.
        unsafe { self.inner.stream_wait(device, stream, event) }
    }

    driver_methods!(forwarded);
}
