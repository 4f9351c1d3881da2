//! The way into every call: nothing unwinds out of it, and a failure is kept for whoever asks.

use crate::forks::is_forked;
use crate::running::RunningCall;
use crate::status::{CallResult, Failure, bursar_status, keep};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call. Whatever `body` changes is shared and consistent between its steps, so a panic leaves nothing torn behind.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> CallResult) -> bursar_status {
    if is_forked() {
        return forked();
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => bursar_status::BURSAR_OK,
        Ok(Err(failure)) => keep(failure),
        Err(payload) => keep(Failure::panicked(payload)),
    }
}

/// Makes a call that finds things by their handles and keeps them for its whole length.
#[inline(always)]
pub(crate) fn running_call(body: impl FnOnce(&mut RunningCall) -> CallResult) -> bursar_status {
    if is_forked() {
        return forked();
    }
    let mut running = RunningCall::begin();
    // Nothing unwinds past this, so the call has one end, whatever happens.
    let result = catch_unwind(AssertUnwindSafe(|| body(&mut running)));
    drop(running);
    match result {
        Ok(Ok(())) => bursar_status::BURSAR_OK,
        Ok(Err(failure)) => keep(failure),
        Err(payload) => keep(Failure::panicked(payload)),
    }
}

/// Refuses a call in a process that was forked off.
#[cold]
fn forked() -> bursar_status {
    keep(Box::new(Failure::Forked))
}

/// Makes a call that leaves the last error as it is, because it reads it.
pub(crate) fn call_about_errors(body: impl FnOnce() -> CallResult) -> bursar_status {
    told(body, |failure| failure.status())
}

/// Makes a call about what this thread was told before, which a process that was forked off may make too.
pub(crate) fn call_about_refusals(body: impl FnOnce() -> CallResult) -> bursar_status {
    told(body, keep)
}

fn told(body: impl FnOnce() -> CallResult, failed: impl FnOnce(Box<Failure>) -> bursar_status) -> bursar_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => bursar_status::BURSAR_OK,
        Ok(Err(failure)) => failed(failure),
        Err(payload) => failed(Failure::panicked(payload)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::with_last_failure;

    /// A payload that panics when it is dropped.
    struct Sore;

    impl Drop for Sore {
        fn drop(&mut self) {
            panic!("a panic in a panic ends the process");
        }
    }

    #[test]
    fn y1_a_panic_is_a_status_with_its_message() {
        let last = || with_last_failure(|last| last.map(ToString::to_string)).flatten().expect("a failure");
        assert_eq!(call(|| panic!("inside")), bursar_status::BURSAR_PANIC);
        assert_eq!(last(), "a defect of this library: inside");
        let number = 7;
        assert_eq!(call(|| panic!("number {number}")), bursar_status::BURSAR_PANIC);
        assert_eq!(last(), "a defect of this library: number 7");
        assert_eq!(call(|| std::panic::panic_any(Sore)), bursar_status::BURSAR_PANIC);
        assert_eq!(call_about_errors(|| std::panic::panic_any(Sore)), bursar_status::BURSAR_PANIC);
    }
}
