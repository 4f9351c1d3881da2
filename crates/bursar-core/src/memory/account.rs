//! Accounts, which memory is charged to.

use crate::{Bytes, Claims, Error, Result, is_interrupted};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two tries of an account that has no queue.
const POLL: Duration = Duration::from_millis(1);

/// An account that memory is charged to, all or nothing, from before it is taken from a driver until it is back there.
/// So an account never knows of less than is held.
///
/// ```
/// use bursar::memory::Account;
/// use bursar::{Bytes, Error, Result};
/// use std::sync::Mutex;
///
/// #[derive(Debug)]
/// struct Allowance(Mutex<u64>);
///
/// impl Account for Allowance {
///     fn charge(&self, bytes: Bytes) -> Result<()> {
///         let mut left = self.0.lock().unwrap();
///         let refused = Error::out_of_budget(bytes, Bytes(*left), Bytes::gib(1));
///         let rest = left.checked_sub(bytes.get()).ok_or(refused)?;
///         *left = rest;
///         Ok(())
///     }
///     fn release(&self, bytes: Bytes) {
///         *self.0.lock().unwrap() += bytes.get();
///     }
/// }
///
/// let allowance = Allowance(Mutex::new(1 << 30));
/// allowance.charge(Bytes::mib(512))?;
/// assert!(allowance.charge(Bytes::mib(513)).unwrap_err().is_capacity());
/// # Ok::<(), Error>(())
/// ```
pub trait Account: fmt::Debug + Send + Sync {
    /// Charges all of `bytes`, or nothing and returns the reason.
    fn charge(&self, bytes: Bytes) -> Result<()>;

    /// Charges like [`charge`](Self::charge), for a caller that may try again: an account that counts refusals does not
    /// count this one. When the request has failed for good, the caller says so by [`note_refusal`](Self::note_refusal).
    fn try_charge(&self, bytes: Bytes) -> Result<()> {
        self.charge(bytes)
    }

    /// Charges like [`charge`](Self::charge), waiting at most for `patience` until there is room. An account with a queue
    /// waits in it; one without asks again and again. Budgets charge so for what slept and wakes, and for nothing else.
    fn charge_within(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.try_charge(bytes) {
                Err(refused) if refused.is_capacity() && began.elapsed() < patience && !is_interrupted() => {
                    std::thread::sleep(POLL);
                }
                charged => return charged,
            }
        }
    }

    /// Gives back what was charged.
    fn release(&self, bytes: Bytes);

    /// Takes note that a request which was to be charged here failed for want of memory: the account had
    /// [no room](crate::Error::OutOfBudget), or it had and the [device had none](crate::Error::OutOfMemory). Called once for
    /// a request, by whoever [tried](Self::try_charge) to charge for it.
    fn note_refusal(&self, error: &Error) {
        let _ = error;
    }

    /// Returns who stands against a charge of `bytes` that was refused: who has the memory, and whose turn comes first. `None`
    /// where that is not known. Asked once for a refusal, to explain it.
    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        let _ = bytes;
        None
    }

    /// Returns the name that refusals give the account; `None` for one without a name.
    fn name(&self) -> Option<String> {
        None
    }
}

/// Lets a pointer to an account, erased or not, be used wherever an account is.
macro_rules! forward_account {
    ($($pointer:ident),+) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<A: Account + ?Sized> Account for $pointer<A> {
            fn charge(&self, bytes: Bytes) -> Result<()> {
                (**self).charge(bytes)
            }
            fn try_charge(&self, bytes: Bytes) -> Result<()> {
                (**self).try_charge(bytes)
            }
            fn charge_within(&self, bytes: Bytes, patience: Duration) -> Result<()> {
                (**self).charge_within(bytes, patience)
            }
            fn release(&self, bytes: Bytes) {
                (**self).release(bytes);
            }
            fn note_refusal(&self, error: &Error) {
                (**self).note_refusal(error);
            }
            fn claims(&self, bytes: Bytes) -> Option<Claims> {
                (**self).claims(bytes)
            }
            fn name(&self) -> Option<String> {
                (**self).name()
            }
        }
    )+};
}

forward_account!(Arc, Box);
