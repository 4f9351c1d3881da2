//! The seam between whoever chooses a device and whoever knows what others have set aside on it.

use crate::{Bytes, DeviceContext, Result};
use std::sync::Arc;

/// Who lets a request in before anything is allocated: says how much of a device a newcomer could have, and sets it
/// aside.
///
/// What is available is only a number, and old when it is read. A reservation is the answer: of two that ask at once for
/// more than there is, one is refused.
///
/// ```
/// use bursar_core::{Admission, Bytes, DeviceContext, Error, Result};
/// use std::sync::{Arc, Mutex};
///
/// /// So much for each program, on whichever device.
/// struct Ration(Mutex<Bytes>);
///
/// impl Admission for Ration {
///     type Reservation = Bytes;
///     fn available(&self, _: &Arc<DeviceContext>) -> Result<Bytes> {
///         Ok(*self.0.lock().unwrap())
///     }
///     fn reserve(&self, _: &Arc<DeviceContext>, bytes: Bytes) -> Result<Bytes> {
///         let mut left = self.0.lock().unwrap();
///         let refused = Error::OutOfBudget { requested: bytes, remaining: *left, limit: Bytes::gib(1) };
///         *left = left.get().checked_sub(bytes.get()).map(Bytes).ok_or(refused)?;
///         Ok(bytes)
///     }
/// }
/// ```
pub trait Admission {
    /// What was set aside, until it is dropped.
    type Reservation;

    /// What a newcomer could have of the device now, less what others have set aside.
    fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes>;

    /// Sets `bytes` aside, all or nothing. A refusal for want of memory [is one](crate::Error::is_capacity).
    fn reserve(&self, context: &Arc<DeviceContext>, bytes: Bytes) -> Result<Self::Reservation>;
}
