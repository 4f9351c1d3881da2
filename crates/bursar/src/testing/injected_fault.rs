//! Driver calls that fail on purpose.

use bursar_core::Status;
use bursar_sim::{Call, Faults};
use std::fmt;

/// A driver call that fails on purpose in one run of a program.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::races;
///
/// let race = races(|rig| {
///     let stream = rig.stream()?;
///     let block = rig.allocate(64, stream, tag!("block"))?;
///     rig.context().synchronize(stream)?; // where this fails, the block is never freed
///     Ok(rig.deallocate(block, stream)?)
/// });
/// let race = race.seeds(1).failing_each_call().check().unwrap_err();
/// let fault = race.fault.unwrap();
/// assert_eq!(fault.to_string(), "the first stream_synchronize fails");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectedFault {
    /// The kind of call.
    pub call: Call,
    /// The number of the call among those of its kind, from one.
    pub nth: u64,
    /// True if the call is carried out and only its result is lost; otherwise it does nothing.
    pub is_lost_result: bool,
}

/// The status of a call that fails and allocates nothing.
const FAILED: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };

impl InjectedFault {
    /// Returns one fault for each call that was made through `faults` and can fail, and another for each whose result
    /// can be lost.
    pub(super) fn of_each_call(faults: &Faults) -> Vec<Self> {
        let kinds = Call::ALL.iter().copied().filter(|call| call.can_fail());
        let all = kinds.flat_map(|call| {
            let lost = if call.is_submission() { &[false, true][..] } else { &[false] };
            (1..=faults.calls(call))
                .flat_map(move |nth| lost.iter().map(move |&is_lost_result| Self { call, nth, is_lost_result }))
        });
        all.collect()
    }

    /// Makes the call fail.
    pub(super) fn arm(self, faults: &Faults) {
        let status = match self.call {
            Call::Allocate | Call::AllocateAsync | Call::PagesCreate | Call::HostAllocate => Status::OutOfMemory,
            _ => FAILED,
        };
        match self.is_lost_result {
            true => faults.lose_nth_result(self.call, self.nth, status),
            false => faults.fail_nth(self.call, self.nth, status),
        }
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, nth, is_lost_result } = self;
        let nth = match nth {
            1 => "first".to_owned(),
            2 => "second".to_owned(),
            3 => "third".to_owned(),
            nth => format!("call number {nth} of"),
        };
        match is_lost_result {
            true => write!(f, "the result of the {nth} {call} is lost"),
            false => write!(f, "the {nth} {call} fails"),
        }
    }
}
