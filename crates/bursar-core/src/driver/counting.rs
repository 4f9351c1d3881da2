//! A driver that counts the calls made to it.
#![allow(unsafe_code)]

use crate::{DeviceId, Driver, Note, ThreadIndex, driver_methods};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

thread_local! {
    static OF_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
    static FIRST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The number of counters, so that threads seldom share one.
const COUNTERS: usize = 32;

/// A counter on cache lines of its own: 128 bytes, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

/// A driver that forwards to another and counts the calls, so that a measurement can tell an operation that reached the
/// driver from one that did not, for the price of reading a thread-local variable.
///
/// Every call counts except [`note`](Driver::note), [`listens`](Driver::listens) and [`simulates`](Driver::simulates),
/// which hardware never sees.
///
/// ```
/// # use bursar::driver::CountingDriver;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(driver: Arc<dyn Driver>) {
/// let counted = CountingDriver::new(driver);
/// let before = CountingDriver::calls_of_this_thread();
/// counted.device_count();
/// assert_eq!(CountingDriver::calls_of_this_thread() - before, 1);
/// assert_eq!(counted.calls(), 1);
/// # }
/// ```
#[derive(Debug)]
pub struct CountingDriver {
    inner: Arc<dyn Driver>,
    counters: [PaddedCounter; COUNTERS],
}

impl CountingDriver {
    /// Counts the calls that go through to `driver` from here on.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner: driver, counters: Default::default() })
    }

    /// Returns the number of calls made to this driver, by all threads.
    pub fn calls(&self) -> u64 {
        self.counters.iter().map(|counter| counter.0.load(Relaxed)).sum()
    }

    /// Returns the number of calls that the current thread made to counting drivers, whichever they were. The
    /// difference of two readings around an operation is the number of driver calls it made.
    #[inline]
    pub fn calls_of_this_thread() -> u64 {
        OF_THIS_THREAD.get()
    }

    /// Takes the time of the current thread's first call to a counting driver since this was last called. Called after
    /// each operation, it tells whether the operation reached the driver and when, and the clock is read only then.
    #[inline]
    pub fn take_first_call() -> Option<Instant> {
        if FIRST.get().is_none() { None } else { FIRST.take() }
    }

    #[inline]
    fn count(&self) {
        OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
        if FIRST.get().is_none() {
            FIRST.set(Some(Instant::now()));
        }
        let index = ThreadIndex::current().map_or(0, ThreadIndex::get) % COUNTERS;
        self.counters[index].0.fetch_add(1, Relaxed);
    }
}

/// A method that is counted and forwarded; those written out below are only forwarded.
macro_rules! counted {
    (fn listens $($signature:tt)*) => {};
    (fn simulates $($signature:tt)*) => {};
    (fn beside_captures $($signature:tt)*) => {};
    (unsafe fn note $($signature:tt)*) => {};
    (fn $method:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        fn $method(&self, $($arg: $type),*) -> $output {
            self.count();
            self.inner.$method($($arg),*)
        }
    };
    (unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        unsafe fn $method(&self, $($arg: $type),*) -> $output {
            self.count();
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method($($arg),*) }
        }
    };
}

// SAFETY: everything returned comes from a driver that upholds the contract.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for CountingDriver {
    fn listens(&self) -> bool {
        self.inner.listens()
    }

    fn simulates(&self) -> bool {
        self.inner.simulates()
    }

    fn beside_captures(&self, call: &mut dyn FnMut()) {
        self.inner.beside_captures(call);
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        // SAFETY: the caller's own promise.
        unsafe { self.inner.note(device, note) }
    }

    driver_methods!(counted);
}
