//! The way into every call: nothing unwinds out of it, and hazards that it revealed are written down.

use crate::process::{self, Process};
use crate::status::{CUresult, CallResult};
use crate::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call that needs no initialisation.
pub(crate) fn at_any_time(body: impl FnOnce() -> CallResult) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(status)) => status,
        Err(payload) => {
            // Dropping the payload may panic too.
            std::mem::forget(payload);
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

/// Makes a call of a driver that is initialised.
pub(crate) fn once_initialised(symbol: &'static str, body: impl FnOnce(&'static Process) -> CallResult) -> CUresult {
    at_any_time(|| {
        let process = process::initialised()?;
        let hazards = process.machine.hazards.as_ref();
        let result = thread::check_not_in_host_function().inspect_err(|_| {
            if let Some(hazards) = hazards {
                hazards.append(&format!("driver call from a host function: {symbol}"));
            }
        });
        let result = result.and_then(|()| body(process));
        if let Some(hazards) = hazards {
            hazards.collect(process.sim());
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload that panics when it is dropped.
    struct Sore;

    impl Drop for Sore {
        fn drop(&mut self) {
            panic!("a panic in a panic ends the process");
        }
    }

    #[test]
    fn k1_nothing_unwinds_out_of_a_call() {
        assert_eq!(at_any_time(|| panic!("inside")), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(at_any_time(|| std::panic::panic_any(Sore)), CUresult::CUDA_ERROR_UNKNOWN);
    }
}
