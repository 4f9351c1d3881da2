//! Accounts, which memory is charged to.

use crate::{Bytes, Result};
use std::fmt;

/// An account that memory is charged to, all or nothing, from before it is taken from a driver until it is back there.
/// So an account never knows of less than is held.
///
/// ```
/// use bursar_core::{Account, Bytes, Error, Result};
/// use std::sync::Mutex;
///
/// #[derive(Debug)]
/// struct Purse(Mutex<u64>);
///
/// impl Account for Purse {
///     fn charge(&self, bytes: Bytes) -> Result<()> {
///         let mut left = self.0.lock().unwrap();
///         let rest = left.checked_sub(bytes.get()).ok_or(Error::OutOfBudget {
///             requested: bytes,
///             remaining: Bytes(*left),
///             limit: Bytes::gib(1),
///         })?;
///         *left = rest;
///         Ok(())
///     }
///     fn release(&self, bytes: Bytes) {
///         *self.0.lock().unwrap() += bytes.get();
///     }
/// }
///
/// let purse = Purse(Mutex::new(1 << 30));
/// purse.charge(Bytes::mib(512))?;
/// assert!(purse.charge(Bytes::mib(513)).unwrap_err().is_capacity());
/// # Ok::<(), Error>(())
/// ```
pub trait Account: fmt::Debug + Send + Sync {
    /// Charges all of `bytes`, or nothing and returns the reason.
    fn charge(&self, bytes: Bytes) -> Result<()>;

    /// Gives back what was charged.
    fn release(&self, bytes: Bytes);
}
