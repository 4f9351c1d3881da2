//! Admission: reservations of device memory before anything is allocated.

use crate::{Bytes, DeviceContext, Result};
use std::sync::Arc;

/// A source of reservations, which knows how much of a device a newcomer could have and sets it aside.
///
/// The available amount may have changed by the time it is read. A reservation decides: of two requests at once for
/// more than there is, one is refused.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::Admission;
/// use bursar::{Bytes, Error, Result};
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
///         let refused = Error::out_of_budget(bytes, *left, Bytes::gib(1));
///         *left = left.get().checked_sub(bytes.get()).map(Bytes).ok_or(refused)?;
///         Ok(bytes)
///     }
/// }
/// ```
pub trait Admission {
    /// A reservation, which lasts until it is dropped.
    type Reservation;

    /// Returns the bytes that a newcomer could have of the device now, less what others have set aside.
    fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes>;

    /// Sets `bytes` aside, all or nothing. A refusal for want of memory [is one](crate::Error::is_capacity).
    fn reserve(&self, context: &Arc<DeviceContext>, bytes: Bytes) -> Result<Self::Reservation>;
}
