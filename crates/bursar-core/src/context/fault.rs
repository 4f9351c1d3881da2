//! The fault that a device remembers, so that a failed free is never silent.
//!
//! Beside it is a counter of *alarms*: a fault that was remembered, or a handle of a stream given away. A path that has
//! checked both once need not check again while the counter stays the same, which takes one comparison.

use crate::{DriverError, Error, Result, Status};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A failure that its caller could not be told of, kept until the next fallible call reports it. A transient fault is
/// reported once; a sticky one, since the device is lost, by every call from then on. The first of each kind is kept.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::Fault;
/// use bursar::driver::{DriverError, Status};
///
/// let fault = Fault::default();
/// fault.record(DriverError::new("cuMemFreeAsync", DeviceId(0), Status::InvalidValue));
/// assert!(fault.check().is_err());
/// assert!(fault.check().is_ok());
/// ```
#[derive(Debug, Default)]
pub struct Fault {
    present: AtomicBool,
    first: Mutex<Option<DriverError>>,
    alarms: AtomicU32,
}

impl Fault {
    /// Remembers a failure. That a stream is being captured into a graph is none: what could not be done meanwhile is
    /// done once it is not.
    #[cold]
    pub fn record(&self, error: DriverError) {
        if error.status == Status::Capturing {
            return;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match *first {
            Some(earlier) if earlier.is_sticky() || !error.is_sticky() => {}
            _ => *first = Some(error),
        }
        self.present.store(true, Ordering::Release);
        self.alarm();
    }

    /// Makes everybody check again, for another reason than a failure.
    pub(super) fn alarm(&self) {
        self.alarms.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how often there was a reason to check again.
    #[inline]
    pub(super) fn alarms(&self) -> u32 {
        self.alarms.load(Ordering::Acquire)
    }

    /// Reports the failure that is remembered, if there is one.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.present.load(Ordering::Acquire) { self.report() } else { Ok(()) }
    }

    #[cold]
    fn report(&self) -> Result<()> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match *first {
            Some(error) if error.is_sticky() => Err(Error::Driver(error)),
            Some(error) => {
                *first = None;
                self.present.store(false, Ordering::Release);
                Err(Error::Driver(error.remembered()))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;

    fn error(call: &'static str, status: Status) -> DriverError {
        DriverError::new(call, DeviceId(0), status)
    }

    #[test]
    fn r6_a_transient_fault_is_reported_once_and_the_first_one_stays() {
        let fault = Fault::default();
        fault.record(error("first", Status::InvalidValue));
        fault.record(error("second", Status::InvalidValue));
        assert_eq!(fault.check(), Err(error("first", Status::InvalidValue).into()));
        assert_eq!(fault.check(), Ok(()));
    }

    #[test]
    fn r6_what_an_earlier_call_had_no_memory_for_is_not_want_of_memory_of_a_later_one() {
        let fault = Fault::default();
        let failed = error("free", Status::OutOfMemory);
        assert!(Error::Driver(failed).is_capacity(), "a call of one's own");
        fault.record(failed);
        let reported = fault.check().expect_err("it is remembered");
        assert!(!reported.is_capacity(), "{reported}");
        assert_eq!(reported.to_string(), Error::Driver(failed).to_string());
    }

    #[test]
    fn r6_a_sticky_fault_outranks_a_transient_one_and_never_goes_away() {
        let fault = Fault::default();
        fault.record(error("transient", Status::InvalidValue));
        fault.record(error("lost", Status::DeviceLost));
        fault.record(error("later", Status::IllegalAddress));
        for _ in 0..3 {
            assert_eq!(fault.check(), Err(error("lost", Status::DeviceLost).into()));
        }
    }
}
