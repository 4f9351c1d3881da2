//! Whatever tests of sleep and wake have in common: host memory, drivers that are broken on purpose, and a failure of every
//! driver call.
#![allow(unsafe_code)]

use bursar_core::{
    DeviceId, DevicePtr, Driver, DriverResult, HostMemory, HostStore, Progress, RawStream, Result, driver_methods,
};
use bursar_sim::{Call, Faults};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Host memory that is not pinned.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

impl HostStore for Heap {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
        Ok(Box::new(vec![0u8; bytes]))
    }
}

/// A way in which a driver is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepDefect {
    /// Streams are taken for idle that are not: memory is unmapped while one works on it.
    WaitsForNobody,
    /// Copies back are taken for done that are not: memory is awake before its contents are.
    WakesTooEarly,
    /// Contents are not copied back at all.
    ForgetsContents,
}

/// A driver that forwards to another, with a defect: a test then checks that it is noticed.
#[derive(Debug)]
pub struct BrokenDriver {
    inner: Arc<dyn Driver>,
    defect: SleepDefect,
    has_copied_back: AtomicBool,
}

impl BrokenDriver {
    /// Makes a driver with a defect.
    pub fn new(inner: Arc<dyn Driver>, defect: SleepDefect) -> Arc<Self> {
        Arc::new(Self { inner, defect, has_copied_back: AtomicBool::new(false) })
    }
}

/// Defines a method that forwards unchanged, as most do.
macro_rules! forwarded {
    (unsafe fn stream_query $($signature:tt)*) => {};
    (unsafe fn stream_synchronize $($signature:tt)*) => {};
    (unsafe fn copy_to_device $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { inner: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract, but for the order of streams and the contents of
// memory: both are broken on purpose, in programs that touch nothing but memory of a simulator.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for BrokenDriver {
    driver_methods!(forwarded);

    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        match self.defect {
            SleepDefect::WaitsForNobody => Ok(Progress::Complete),
            // SAFETY: the caller's own promise.
            _ => unsafe { self.inner.stream_query(device, stream) },
        }
    }

    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        if self.defect == SleepDefect::WakesTooEarly && self.has_copied_back.swap(false, SeqCst) {
            return Ok(());
        }
        // SAFETY: the caller's own promise.
        unsafe { self.inner.stream_synchronize(device, stream) }
    }

    unsafe fn copy_to_device(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
    ) -> DriverResult<()> {
        self.has_copied_back.store(true, SeqCst);
        if self.defect == SleepDefect::ForgetsContents {
            return Ok(());
        }
        // SAFETY: the caller's own promise.
        unsafe { self.inner.copy_to_device(device, stream, dst, src, bytes) }
    }
}

/// The number of times that something which failed is tried again without faults.
const TRIES: u32 = 4;

/// Tries until it succeeds: a failure that the device remembers is reported once, by whichever call comes next.
///
/// # Panics
///
/// If it still fails after a few times.
#[track_caller]
pub fn in_the_end<T>(mut act: impl FnMut() -> Result<T>) -> T {
    let mut last = None;
    for _ in 0..TRIES {
        match act() {
            Ok(done) => return done,
            Err(error) => last = Some(error),
        }
    }
    panic!("it still fails: {last:?}");
}

/// Has `survive` be called for every kind of call that was counted and can fail, with a number of it that is to fail: the
/// first few, every so manieth, and the last, besides the one after that, which fails whoever looks for more of them. What lies
/// between is like the rest. Returns for how many kinds, and how often.
pub fn with_each_failure(counted: &Faults, every: u64, mut survive: impl FnMut(Call, u64)) -> (u32, u32) {
    let (mut kinds, mut failures) = (0, 0);
    let calls: Vec<_> = Call::ALL.iter().map(|&call| (call, counted.calls(call))).collect();
    for (call, made) in calls.into_iter().filter(|(call, made)| call.can_fail() && *made > 0) {
        kinds += 1;
        for nth in (1..=made + 1).filter(|nth| *nth <= 3 || *nth + 1 >= made || nth % every == 0) {
            survive(call, nth);
            failures += 1;
        }
    }
    (kinds, failures)
}
