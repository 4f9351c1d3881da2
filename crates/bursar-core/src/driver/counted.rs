//! A driver that counts what it is asked.
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

/// How many places there are to count in, so that threads seldom meet in one.
const PLACES: usize = 32;

/// A place of its own cache lines: 128 bytes, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place(AtomicU64);

/// A driver that forwards to another and counts the calls, so that a measurement can tell an operation that reached the
/// driver from one that did not, for the price of reading a thread-local variable.
///
/// Every call counts except [`note`](Driver::note) and [`listens`](Driver::listens), which hardware never sees.
///
/// ```
/// # use bursar_core::*;
/// # use std::sync::Arc;
/// # fn show(driver: Arc<dyn Driver>) {
/// let counted = Counted::new(driver);
/// let before = Counted::calls_of_this_thread();
/// counted.device_count();
/// assert_eq!(Counted::calls_of_this_thread() - before, 1);
/// assert_eq!(counted.calls(), 1);
/// # }
/// ```
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn Driver>,
    places: [Place; PLACES],
}

impl Counted {
    /// Counts the calls that go through to `driver` from here on.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner: driver, places: Default::default() })
    }

    /// How many calls this driver was asked for, by all threads.
    pub fn calls(&self) -> u64 {
        self.places.iter().map(|place| place.0.load(Relaxed)).sum()
    }

    /// How many calls the current thread made to counted drivers, whichever they were. Two readings around an operation
    /// say how many driver calls it made.
    #[inline]
    pub fn calls_of_this_thread() -> u64 {
        OF_THIS_THREAD.get()
    }

    /// When the current thread made its first call to a counted driver since this was last asked. Asked after each
    /// operation, it says whether the operation reached the driver and from when on, and the clock is read only then.
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
        let place = ThreadIndex::current().map_or(0, ThreadIndex::get) % PLACES;
        self.places[place].0.fetch_add(1, Relaxed);
    }
}

/// A method that is counted and forwarded; those written out below are only forwarded.
macro_rules! counted {
    (fn listens $($signature:tt)*) => {};
    (unsafe fn note $($signature:tt)*) => {};
    (fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.count();
            self.inner.$method($($arg),*)
        }
    };
    (unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        unsafe fn $method(&self, $($arg: $type),*) -> $answer {
            self.count();
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method($($arg),*) }
        }
    };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Counted {
    fn listens(&self) -> bool {
        self.inner.listens()
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        // SAFETY: the caller's own promise.
        unsafe { self.inner.note(device, note) }
    }

    driver_methods!(counted);
}
